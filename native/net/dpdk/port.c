#include "net/dpdk/port.h"

#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include <rte_ethdev.h>
#include <rte_ether.h>
#include <rte_ip.h>

#include "base/clock.h"
#include "base/memory.h"
#include "net/checksum.h"
#include "net/faults.h"

#define BURST_BYTES (PORT_BURST * RTE_ETHER_MTU) /* of frames that are longer than Ethernet's longest */
#define AHEAD_FRAMES 2u /* asked for before they are looked at */
#define LINK_EVERY_US 500000u
#define LINK_NEGOTIATION_US 5000000u /* what a NIC may take until its link is up: no news before that */
#define STUCK_US 1000000u /* longer than any device takes to send what it holds; in a virtual machine it may pause */
#define EAL_OVERHEAD_BYTES (64ull << 20)
#define ETHERNET_MORE_BYTES 18u /* header and checksum */

/* ---- opening --------------------------------------------------------------------------------------------------- */

static int find(struct port *port, struct error *error) {
    if (rte_eth_dev_get_port_by_name(port->name, &port->number) == 0) return 0;
    if (rte_eth_dev_count_avail() == 1) { /* a short PCI address is filled up in the port's name */
        port->number = (uint16_t)rte_eth_find_next(0);
        rte_eth_dev_get_name_by_port(port->number, port->name);
        return 0;
    }
    return error_set(error, ERROR_GENERIC, "DPDK started but has no port for %s%s%s; %s", port->name,
                     eal_last_words()[0] ? ": " : "", eal_last_words(), eal_advice(port->name));
}

uint32_t port_burst(uint16_t mtu) {
    return mtu > DEVICE_MTU_MOST ? BURST_BYTES / mtu : PORT_BURST;
}

static int share(struct port *port, const struct port_settings *settings, struct error *error) {
    port->queues = queues_make(settings->eal.queues, port->number, &port->device, error);
    return port->queues ? eal_tell_ready(error) : -1;
}

/* The device as the first process has set it up. */
static int join(struct port *port, const struct port_settings *settings, struct error *error) {
    if (!rte_eth_fp_ops[port->number].rx_pkt_burst)
        return error_set(error, ERROR_GENERIC, "dpdk-queue %u: the driver of %s carries frames in one process alone",
                         (unsigned)port->queue, port->name);
    port->queues = queues_join(settings->eal.queues, port->queue, port->number, &port->device, error);
    if (!port->queues) return -1;
    port->pool = queues_pool(port->queue);
    if (settings->mtu == 0 || settings->mtu == port->device.mtu) return 0;
    return error_set(error, ERROR_GENERIC, "dpdk-mtu %u: the server with dpdk-queue 0 set the device's to %u",
                     (unsigned)settings->mtu, (unsigned)port->device.mtu);
}

static int set_up(struct port *port, const struct port_settings *settings, struct error *error) {
    if (port->queue > 0) return join(port, settings, error);
    if (device_bring_up(port, settings, error) < 0) return -1;
    return settings->eal.queues > 1 ? share(port, settings, error) : 0;
}

/* ---- what is sent ---------------------------------------------------------------------------------------------- */

/* A packet left to the device to segment becomes several frames, each with the headers. */
static void count(const struct rte_mbuf *frame, uint64_t *frames, uint64_t *bytes) {
    uint32_t more = 0, headers = 0;
    if (frame->ol_flags & RTE_MBUF_F_TX_TCP_SEG) {
        headers = frame->l2_len + frame->l3_len + frame->l4_len;
        more = (frame->pkt_len - headers - 1) / frame->tso_segsz;
    }
    *frames += 1 + more;
    *bytes += frame->pkt_len + (uint64_t)more * headers;
}

/* A packet that was queued and will not be sent. */
static void drop_queued(struct port *port, uint32_t at) {
    uint64_t frames = 0, bytes = 0;
    count(port->outbox[at], &frames, &bytes);
    port->counters.frames_out -= frames;
    port->counters.bytes_out -= bytes;
    port->counters.refused++;
    rte_pktmbuf_free(port->outbox[at]);
    port->queued--;
    memmove(port->outbox + at, port->outbox + at + 1, (port->queued - at) * sizeof *port->outbox);
}

/* ---- faults ---------------------------------------------------------------------------------------------------- */

static void enqueue(struct port *port, struct rte_mbuf *frame) {
    if (port->queued == PORT_QUEUE) {
        rte_pktmbuf_free(frame);
        return;
    }
    port->outbox[port->queued++] = frame;
    count(frame, &port->counters.frames_out, &port->counters.bytes_out);
}

static void pass_frame(void *context, enum fault_direction direction, void *frame) {
    struct port *port = context;
    if (direction == FAULTS_TRANSMIT)
        enqueue(port, frame);
    else if (port->received < sizeof port->inbox / sizeof *port->inbox)
        port->inbox[port->received++] = frame;
    else
        rte_pktmbuf_free(frame);
}

static void drop_frame(void *context, enum fault_direction direction, void *frame) {
    (void)context;
    (void)direction;
    rte_pktmbuf_free(frame);
}

static void *copy_frame(void *context, enum fault_direction direction, void *frame) {
    (void)direction;
    struct port *port = context;
    return rte_pktmbuf_copy(frame, port->pool, 0, UINT32_MAX);
}

/* Ethernet's header stays: without it drivers send nothing. What the device would complete of the rest is no longer there. Whoever
 * reads beyond the end finds other bytes than were there. */
static void cut_frame(void *context, enum fault_direction direction, void *subject, double share) {
    (void)context;
    struct rte_mbuf *frame = subject;
    uint32_t length = rte_pktmbuf_pkt_len(frame), left = (uint32_t)(length * share);
    if (left < PORT_HEADER_BYTES) left = PORT_HEADER_BYTES;
    if (length > left && frame->nb_segs == 1) {
        memset(rte_pktmbuf_mtod_offset(frame, uint8_t *, left), 0xa5, length - left);
        rte_pktmbuf_trim(frame, (uint16_t)(length - left));
    }
    if (direction == FAULTS_TRANSMIT) frame->ol_flags = 0;
}

static int open_faults(struct port *port, const char *text, struct error *error) {
    if (text[0] == '\0') return 0;
    struct fault_settings settings;
    if (faults_parse(text, &settings, error) < 0) return -1;
    const struct fault_callbacks callbacks = {
        .context = port, .pass = pass_frame, .drop = drop_frame, .copy = copy_frame, .cut = cut_frame};
    port->faults = faults_new(&settings, &callbacks);
    return port->faults ? 0 : error_set(error, ERROR_GENERIC, "no memory for faults");
}

/* ---- opening and closing --------------------------------------------------------------------------------------- */

struct port *port_open(const struct port_settings *settings, struct error *error) {
    if (settings->mtu != 0 && (settings->mtu < DEVICE_MTU_LEAST || settings->mtu > DEVICE_MTU_MOST)) {
        error_set(error, ERROR_GENERIC, "dpdk-mtu %u: expected %u to %u, or 0 for the device's",
                  (unsigned)settings->mtu, DEVICE_MTU_LEAST, DEVICE_MTU_MOST);
        return NULL;
    }
    struct port *port = memory_calloc(1, sizeof *port);
    if (!port) {
        error_set(error, ERROR_GENERIC, "no memory for a port");
        return NULL;
    }
    if (open_faults(port, settings->faults, error) < 0) {
        memory_free(port);
        return NULL;
    }
    struct eal_settings eal = settings->eal;
    uint16_t mtu = settings->mtu > 0 ? settings->mtu : eal_device_mtu(settings->eal.device);
    eal.frame_bytes = mtu + ETHERNET_MORE_BYTES;
    if (eal.memory_bytes == 0) eal.memory_bytes = settings->memory_bytes;
    if (eal.memory_bytes == 0) eal.memory_bytes = device_memory_bytes(settings, mtu);
    eal.memory_bytes += EAL_OVERHEAD_BYTES;
    port->queue = settings->eal.queue;
    if (eal_start(&eal, port->name, error) < 0) {
        if (port->faults) faults_free(port->faults);
        memory_free(port);
        return NULL;
    }
    port->is_found = find(port, error) == 0;
    if (!port->is_found || set_up(port, settings, error) < 0) {
        port_close(port);
        return NULL;
    }
    port->burst = port_burst(port->device.mtu);
    port->opened_us = clock_monotonic_us();
    return port;
}

static void close_device(const struct port *port) {
    if (port->pool) rte_eth_dev_stop(port->number);
    if (port->is_found) rte_eth_dev_close(port->number);
    struct rte_mempool *pool;
    for (uint16_t queue = 0; (pool = queues_pool(queue)); queue++) rte_mempool_free(pool);
}

void port_close(struct port *port) {
    if (port->faults) faults_free(port->faults);
    rte_pktmbuf_free_bulk(port->outbox, port->queued);
    bool is_own = port->queue == 0;
    if (port->queues) is_own = queues_leave(port->queues);
    if (is_own) close_device(port);
    /* What others still use stays as it is until they end, too. */
    if (is_own || port->queue > 0) eal_end();
    memory_free(port);
}

/* ---- receiving ------------------------------------------------------------------------------------------------- */

enum verdict { VERDICT_GOOD, VERDICT_BAD_CHECKSUM, VERDICT_MALFORMED };

/* Of TCP over IPv4; anything else is for the stack to check. */
static enum verdict verify(const struct rte_mbuf *frame) {
    uint32_t length = rte_pktmbuf_data_len(frame);
    if (length < PORT_HEADER_BYTES) return VERDICT_MALFORMED;
    const struct rte_ether_hdr *ethernet = rte_pktmbuf_mtod(frame, const struct rte_ether_hdr *);
    if (ethernet->ether_type != rte_cpu_to_be_16(RTE_ETHER_TYPE_IPV4)) return VERDICT_GOOD;
    const struct rte_ipv4_hdr *ip = (const void *)(ethernet + 1);
    if (length < PORT_HEADER_BYTES + sizeof *ip) return VERDICT_MALFORMED;
    uint32_t header = (ip->version_ihl & 15u) * 4u;
    uint32_t total = rte_be_to_cpu_16(ip->total_length);
    if (header < sizeof *ip || total < header || length < PORT_HEADER_BYTES + total) return VERDICT_MALFORMED;
    /* Each field has four values. NONE, which is the bits of GOOD and BAD together, means: not filled in, but sound, as
     * frames are that never left a host. */
    const uint64_t header_sum = frame->ol_flags & RTE_MBUF_F_RX_IP_CKSUM_MASK;
    if (header_sum == RTE_MBUF_F_RX_IP_CKSUM_BAD) return VERDICT_BAD_CHECKSUM;
    if (header_sum == RTE_MBUF_F_RX_IP_CKSUM_UNKNOWN && checksum_sum(ip, header) != 0xffff) return VERDICT_BAD_CHECKSUM;
    if (ip->next_proto_id != IPPROTO_TCP) return VERDICT_GOOD;
    const uint64_t tcp_sum = frame->ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK;
    if (tcp_sum == RTE_MBUF_F_RX_L4_CKSUM_BAD) return VERDICT_BAD_CHECKSUM;
    if (tcp_sum != RTE_MBUF_F_RX_L4_CKSUM_UNKNOWN) return VERDICT_GOOD;
    struct checksum sum = {0};
    checksum_add_sum(&sum, checksum_pseudo_ipv4(ip->src_addr, ip->dst_addr, IPPROTO_TCP, (uint16_t)(total - header)),
                     2);
    checksum_add(&sum, (const uint8_t *)ip + header, total - header);
    return checksum_total(&sum) == 0xffff ? VERDICT_GOOD : VERDICT_BAD_CHECKSUM;
}

/* Another processor wrote it: every line of it comes from that one's cache, all of them at the same time if asked for. */
static void prefetch(const struct rte_mbuf *frame) {
    const uint8_t *data = rte_pktmbuf_mtod(frame, const uint8_t *);
    for (uint32_t at = 0; at < rte_pktmbuf_data_len(frame); at += RTE_CACHE_LINE_SIZE) rte_prefetch0(data + at);
}

/* Drops what is damaged; the rest keeps its order. */
static uint32_t verify_all(struct port *port, struct rte_mbuf **frames, uint32_t count) {
    uint32_t good = 0;
    for (uint32_t i = 0; port->device.is_cold && i < AHEAD_FRAMES && i < count; i++) prefetch(frames[i]);
    for (uint32_t i = 0; i < count; i++) {
        struct rte_mbuf *frame = frames[i];
        if (port->device.is_cold && i + AHEAD_FRAMES < count) prefetch(frames[i + AHEAD_FRAMES]);
        port->counters.bytes_in += rte_pktmbuf_pkt_len(frame);
        enum verdict verdict = verify(frame);
        if (verdict == VERDICT_GOOD) {
            frames[good++] = frame;
            continue;
        }
        if (verdict == VERDICT_MALFORMED)
            port->counters.malformed++;
        else
            port->counters.bad_checksums++;
        rte_pktmbuf_free(frame);
    }
    return good;
}

/* A burst; where processes share the device, what of it is this one's, and what others had of this one. */
static uint32_t bring_in(struct port *port, struct rte_mbuf **frames) {
    uint32_t count = rte_eth_rx_burst(port->number, port->queue, frames, (uint16_t)port->burst);
    if (!port->queues) return count;
    count = queues_sort(port->queues, frames, count);
    return count + queues_take(port->queues, frames + count, port->burst);
}

uint32_t port_receive(struct port *port) {
    port->received = 0;
    if (port->faults) {
        struct rte_mbuf *burst[2 * PORT_BURST];
        uint64_t now_us = clock_monotonic_us();
        uint32_t count = bring_in(port, burst);
        for (uint32_t i = 0; i < count; i++) faults_frame(port->faults, FAULTS_RECEIVE, burst[i], now_us);
        faults_poll(port->faults, now_us);
    } else {
        port->received = bring_in(port, port->inbox);
    }
    port->counters.polls++;
    if (port->received == 0) {
        port->counters.empty_polls++;
        return 0;
    }
    port->counters.frames_in += port->received;
    port->received = verify_all(port, port->inbox, port->received);
    return port->received;
}

/* ---- sending --------------------------------------------------------------------------------------------------- */

struct rte_mbuf *port_frame(struct port *port) {
    struct rte_mbuf *frame = rte_pktmbuf_alloc(port->pool);
    if (!frame) port->counters.no_frame++;
    return frame;
}

void port_send(struct port *port, struct rte_mbuf *frame) {
    if (port->faults)
        faults_frame(port->faults, FAULTS_TRANSMIT, frame, clock_monotonic_us());
    else
        enqueue(port, frame);
    if (port->queued >= port_flush_frames(port)) port_flush(port);
}

/* Lets the driver complete what its device wants of packets that it shall finish. Returns how many may be sent. */
static uint32_t prepare(struct port *port) {
    if (!(port->device.offloads & (OFFLOAD_TRANSMIT_CHECKSUMS | OFFLOAD_SEGMENTATION))) return port->queued;
    uint32_t ready = 0;
    while (ready < port->queued) {
        ready += rte_eth_tx_prepare(port->number, port->queue, port->outbox + ready, (uint16_t)(port->queued - ready));
        if (ready == port->queued) break;
        drop_queued(port, ready);
    }
    return ready;
}

/* Some drivers say of a packet that they will never take what they say of a full ring: such a one must not stay in front
 * of all others. */
static void drop_what_blocks(struct port *port, bool moves) {
    uint64_t now_us = clock_monotonic_us();
    if (moves || port->stuck_us == 0) port->stuck_us = now_us;
    if (now_us - port->stuck_us < STUCK_US) return;
    port->stuck_us = 0;
    drop_queued(port, 0);
}

void port_flush(struct port *port) {
    if (port->queued == 0) return;
    port->flushes++;
    uint32_t ready = prepare(port), sent = 0;
    while (sent < ready) {
        uint16_t now = rte_eth_tx_burst(port->number, port->queue, port->outbox + sent, (uint16_t)(ready - sent));
        if (now == 0) break;
        sent += now;
    }
    port->queued -= sent;
    if (port->queued == 0) port->stuck_us = 0;
    if (port->queued > 0) {
        if (sent > 0 || port->stuck_us == 0) port->counters.device_full++; /* once, however often it is asked */
        memmove(port->outbox, port->outbox + sent, port->queued * sizeof *port->outbox);
        drop_what_blocks(port, sent > 0);
    }
}

/* ---- telling --------------------------------------------------------------------------------------------------- */

void port_own_address(struct port *port, uint32_t address) {
    if (port->queues) queues_own_address(port->queues, address);
}

int port_own_listener(struct port *port, uint16_t listener, struct error *error) {
    return port->queues ? queues_own_port(port->queues, listener, error) : 0;
}

static bool port_is_up(const struct port *port) {
    if (port->queue > 0)
        return queues_link_is_up(port->queues); /* a driver asked here would change what all are told */
    struct rte_eth_link link = {0};
    return rte_eth_link_get_nowait(port->number, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
}

void port_watch_link(struct port *port, uint64_t now_us) {
    if (now_us < port->link_due_us) return;
    port->link_due_us = now_us + LINK_EVERY_US;
    bool is_up = port_is_up(port);
    if (port->queues && !port->is_lost && !queues_look_after(port->queues, is_up)) {
        port->is_lost = true;
        fprintf(stderr,
                "replay-server-dpdk: the server with dpdk-queue 0, which owns %s, has gone or is going: this one ends, "
                "too\n",
                port->name);
    }
    enum port_link link = is_up ? PORT_LINK_UP : PORT_LINK_DOWN;
    enum port_link before = port->link;
    if (link == before) return;
    if (before == PORT_LINK_UNKNOWN && link == PORT_LINK_DOWN && now_us < port->opened_us + LINK_NEGOTIATION_US) return;
    port->link = link;
    if (link == PORT_LINK_DOWN)
        fprintf(stderr, "replay-server-dpdk: the link of %s is down: nobody can connect until it is up\n", port->name);
    else if (before == PORT_LINK_DOWN)
        fprintf(stderr, "replay-server-dpdk: the link of %s is up\n", port->name);
}

static void describe_faults(const struct port *port, struct text *out) {
    static const char *const names[FAULTS_DIRECTIONS] = {[FAULTS_RECEIVE] = "in", [FAULTS_TRANSMIT] = "out"};
    for (int direction = 0; direction < FAULTS_DIRECTIONS; direction++) {
        struct fault_counters counters = faults_counters(port->faults, (enum fault_direction)direction);
        text_append(out, "transport_faults_%s:frames=%llu,lost=%llu,duplicated=%llu,reordered=%llu,cut=%llu\r\n",
                    names[direction], (unsigned long long)counters.frames, (unsigned long long)counters.lost,
                    (unsigned long long)counters.duplicated, (unsigned long long)counters.reordered,
                    (unsigned long long)counters.cut);
    }
}

void port_describe(const struct port *port, struct text *out) {
    struct rte_eth_dev_info device = {0};
    struct rte_eth_stats statistics = {0};
    rte_eth_dev_info_get(port->number, &device);
    if (port->queue == 0) rte_eth_stats_get(port->number, &statistics);
    const struct port_counters *counters = &port->counters;
    uint64_t waiting_frames = 0, waiting_bytes = 0;
    for (uint32_t i = 0; i < port->queued; i++) count(port->outbox[i], &waiting_frames, &waiting_bytes);
    text_append(out, "transport_device:%s\r\ntransport_driver:%s\r\n", port->name,
                device.driver_name ? device.driver_name : "?");
    text_append(out, "transport_link:%s\r\ntransport_mtu:%u\r\n", port_is_up(port) ? "up" : "down",
                (unsigned)port->device.mtu);
    text_append(out, "transport_mac:%02x:%02x:%02x:%02x:%02x:%02x\r\n", port->device.address[0],
                port->device.address[1], port->device.address[2], port->device.address[3], port->device.address[4],
                port->device.address[5]);
    text_append(out, "transport_offloads:");
    offloads_describe(port->device.offloads, out);
    text_append(out, "\r\n");
    text_append(out, "transport_polls:%llu\r\ntransport_empty_polls:%llu\r\n", (unsigned long long)counters->polls,
                (unsigned long long)counters->empty_polls);
    text_append(out,
                "transport_frames_in:%llu\r\ntransport_bytes_in:%llu\r\ntransport_frames_out:%llu\r\ntransport_bytes_"
                "out:%llu\r\n",
                (unsigned long long)counters->frames_in, (unsigned long long)counters->bytes_in,
                (unsigned long long)(counters->frames_out - waiting_frames),
                (unsigned long long)(counters->bytes_out - waiting_bytes));
    text_append(out,
                "transport_receive_missed:%llu\r\ntransport_receive_no_memory:%llu\r\ntransport_bad_checksums:%llu\r\n"
                "transport_malformed:%llu\r\n",
                (unsigned long long)statistics.imissed, (unsigned long long)(statistics.rx_nombuf),
                (unsigned long long)counters->bad_checksums, (unsigned long long)counters->malformed);
    text_append(out, "transport_send_no_memory:%llu\r\ntransport_device_full:%llu\r\ntransport_send_errors:%llu\r\n",
                (unsigned long long)counters->no_frame, (unsigned long long)counters->device_full,
                (unsigned long long)(statistics.oerrors + counters->refused));
    text_append(out, "transport_frames:%u\r\ntransport_frames_free:%u\r\n", port->device.frames,
                rte_mempool_avail_count(port->pool));
    if (port->queues) queues_describe(port->queues, out);
    if (port->faults) describe_faults(port, out);
}

/* packets: frames between DPDK and Python, without a copy. A frame is one of DPDK's mbufs, which counts its holders: a
 * burst, each array on its bytes, a ring, a device. It returns to its pool when the last of them lets go. A pool is freed only
 * when all its frames are back, and DPDK's memory only when Python holds none: so an array never lies in memory that is gone,
 * and never in a frame that is used again. */
#include "net/dpdk/packets.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_ring.h>

#include "net/dpdk/binding.h"

#define BURST_FRAMES 32 /* what every driver carries at once */
#define POOL_FRAMES 4095u
#define HOLDERS_MOST 32768u /* of a frame, which counts them in 16 bits */

/* What the bursts of a port may rely on. */
static struct {
    bool is_running;
    uint16_t receive_queues, transmit_queues;
    uint64_t transmit_offloads;
    struct rte_mempool *pool; /* stays when the port is stopped */
} ports[RTE_MAX_ETHPORTS];

static atomic_llong held; /* by Python's bursts and arrays */
static pid_t owner; /* of what is held: a forked child may not give it back */

void packets_begin(void) {
    owner = getpid();
}

bool packets_are_held(void) {
    return atomic_load(&held) > 0;
}

const char *packets_pool(uint16_t port) {
    return port < RTE_MAX_ETHPORTS && ports[port].pool ? ports[port].pool->name : "";
}

int packets_check_queue(uint16_t port, uint16_t queue, bool transmit) {
    if (!rte_eth_dev_is_valid_port(port)) return -ENODEV;
    if (!ports[port].is_running) return -ENETDOWN;
    return queue < (transmit ? ports[port].transmit_queues : ports[port].receive_queues) ? 0 : -EINVAL;
}

/* ---- pools ---- */

/* Without caches. A pool has one for each lcore, which one thread may use. But processes on the same memory, which rings carry
 * frames between, mostly have the same lcore. */
static struct rte_mempool *create_pool(const char *name, uint32_t frames, uint32_t room_bytes, int node) {
    room_bytes = room_bytes < UINT16_MAX ? room_bytes : UINT16_MAX;
    return rte_pktmbuf_pool_create(name, frames, 0, 0, (uint16_t)room_bytes, node);
}

int dpdk_pool_create(uint32_t frames, uint16_t frame_bytes, char *name) {
    unsigned number = 0;
    do snprintf(name, DPDK_TEXT_BYTES, "replay_pool_%u", number++);
    while (rte_mempool_lookup(name)); /* of this process, or of another on the same memory */
    return create_pool(name, frames, RTE_PKTMBUF_HEADROOM + frame_bytes, SOCKET_ID_ANY) ? 0 : packets_rte_errno();
}

static void own_pool_name(uint16_t port, char name[RTE_MEMPOOL_NAMESIZE]) {
    snprintf(name, RTE_MEMPOOL_NAMESIZE, "replay_port_%u", port);
}

/* The port's own pool, one frame a buffer, used again where it fits. */
static int provide_pool(uint16_t port, const struct dpdk_port_settings *settings, uint16_t mtu) {
    uint32_t frames = settings->buffers ? settings->buffers : POOL_FRAMES;
    uint32_t bytes = mtu + 128u + RTE_PKTMBUF_HEADROOM;
    bytes = bytes > RTE_MBUF_DEFAULT_BUF_SIZE ? bytes : RTE_MBUF_DEFAULT_BUF_SIZE;
    char name[RTE_MEMPOOL_NAMESIZE];
    own_pool_name(port, name);
    struct rte_mempool *pool = rte_mempool_lookup(name);
    if (pool && (pool->size < frames || rte_pktmbuf_data_room_size(pool) < bytes)) {
        if (rte_mempool_in_use_count(pool) > 0) return -EBUSY;
        ports[port].pool = NULL;
        rte_mempool_free(pool);
        pool = NULL;
    }
    if (!pool) pool = create_pool(name, frames, bytes, rte_eth_dev_socket_id(port));
    if (!pool) return packets_rte_errno();
    ports[port].pool = pool;
    return 0;
}

static int choose_pool(uint16_t port, const struct dpdk_port_settings *settings, uint16_t mtu) {
    if (settings->pool[0] == '\0') return provide_pool(port, settings, mtu);
    struct rte_mempool *pool = rte_mempool_lookup(settings->pool);
    if (!pool) return -ENOENT;
    ports[port].pool = pool;
    return 0;
}

/* ---- starting and stopping ports ---- */

static const struct {
    const char *name;
    uint64_t types;
} rss_kinds[] = {{"ip", RTE_ETH_RSS_IP}, {"tcp", RTE_ETH_RSS_TCP}, {"udp", RTE_ETH_RSS_UDP}};

#define RSS_KINDS (int)(sizeof rss_kinds / sizeof *rss_kinds)

const char *dpdk_rss_name(int bit) {
    return bit >= 0 && bit < RSS_KINDS ? rss_kinds[bit].name : "UNKNOWN";
}

uint64_t packets_rss(const struct rte_eth_dev_info *device) {
    uint64_t kinds = 0;
    for (int bit = 0; bit < RSS_KINDS; bit++)
        if (device->flow_type_rss_offloads & rss_kinds[bit].types) kinds |= (uint64_t)1 << bit;
    return kinds;
}

static void choose_rss(uint64_t kinds, const struct rte_eth_dev_info *device, struct rte_eth_conf *configuration) {
    uint64_t types = 0;
    for (int bit = 0; bit < RSS_KINDS; bit++)
        if (kinds >> bit & 1) types |= rss_kinds[bit].types & device->flow_type_rss_offloads;
    if (!types) return;
    configuration->rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
    configuration->rx_adv_conf.rss_conf.rss_hf = types;
}

static int set_up_queues(uint16_t port, const struct rte_eth_dev_info *device,
                         const struct dpdk_port_settings *settings, uint16_t receive_queues, uint16_t transmit_queues) {
    uint16_t receive_descriptors = settings->receive_descriptors ? settings->receive_descriptors : 512;
    uint16_t transmit_descriptors = settings->transmit_descriptors ? settings->transmit_descriptors : 512;
    int status = rte_eth_dev_adjust_nb_rx_tx_desc(port, &receive_descriptors, &transmit_descriptors);
    unsigned node = (unsigned)rte_eth_dev_socket_id(port);
    struct rte_eth_rxconf receive = device->default_rxconf;
    receive.offloads = settings->receive_offloads;
    for (uint16_t queue = 0; queue < receive_queues && status == 0; queue++)
        status = rte_eth_rx_queue_setup(port, queue, receive_descriptors, node, &receive, ports[port].pool);
    struct rte_eth_txconf transmit = device->default_txconf;
    transmit.offloads = settings->transmit_offloads;
    for (uint16_t queue = 0; queue < transmit_queues && status == 0; queue++)
        status = rte_eth_tx_queue_setup(port, queue, transmit_descriptors, node, &transmit);
    return status;
}

int dpdk_port_start(uint16_t port, const struct dpdk_port_settings *settings) {
    struct rte_eth_dev_info device;
    int status = rte_eth_dev_info_get(port, &device);
    if (status != 0) return status;
    uint16_t mtu = settings->mtu;
    if (!mtu && rte_eth_dev_get_mtu(port, &mtu) != 0) mtu = RTE_ETHER_MTU;
    uint16_t receive_queues = settings->receive_queues ? settings->receive_queues : 1;
    uint16_t transmit_queues = settings->transmit_queues ? settings->transmit_queues : 1;
    struct rte_eth_conf configuration;
    memset(&configuration, 0, sizeof configuration);
    configuration.rxmode.offloads = settings->receive_offloads;
    configuration.txmode.offloads = settings->transmit_offloads;
    configuration.rxmode.mtu = mtu;
    choose_rss(settings->rss, &device, &configuration);
    status = rte_eth_dev_configure(port, receive_queues, transmit_queues, &configuration);
    if (status == 0) status = choose_pool(port, settings, mtu);
    if (status == 0) status = set_up_queues(port, &device, settings, receive_queues, transmit_queues);
    if (status == 0 && settings->mtu) status = rte_eth_dev_set_mtu(port, settings->mtu);
    if (status == 0 && settings->promiscuous) status = rte_eth_promiscuous_enable(port);
    if (status == 0) status = rte_eth_dev_start(port);
    if (status != 0) return status;
    ports[port].receive_queues = receive_queues;
    ports[port].transmit_queues = transmit_queues;
    ports[port].transmit_offloads = settings->transmit_offloads;
    ports[port].is_running = true;
    return 0;
}

void packets_stop(uint16_t port) {
    if (port < RTE_MAX_ETHPORTS) ports[port].is_running = false;
}

int dpdk_port_stop(uint16_t port) {
    packets_stop(port);
    return rte_eth_dev_stop(port);
}

void packets_forget(uint16_t port) {
    char name[RTE_MEMPOOL_NAMESIZE];
    own_pool_name(port, name);
    struct rte_mempool *pool = rte_mempool_lookup(name);
    if (pool && rte_mempool_in_use_count(pool) == 0) rte_mempool_free(pool);
    memset(&ports[port], 0, sizeof ports[port]);
}

/* ---- frames ---- */

/* Python's from here on. */
static int hand_over(void **frames, uint32_t *lengths, int count) {
    for (int at = 0; at < count; at++) lengths[at] = ((struct rte_mbuf *)frames[at])->pkt_len;
    atomic_fetch_add(&held, count);
    return count;
}

void dpdk_frames_release(void *const *frames, int count) {
    if (getpid() != owner) return;
    for (int at = 0; at < count; at++) rte_pktmbuf_free(frames[at]);
    atomic_fetch_sub(&held, count);
}

int dpdk_frame_hold(void *frame, uint8_t **bytes) {
    struct rte_mbuf *mbuf = frame;
    if (mbuf->nb_segs != 1) return -EMSGSIZE;
    if (rte_mbuf_refcnt_read(mbuf) >= HOLDERS_MOST) return -EMLINK;
    rte_mbuf_refcnt_update(mbuf, 1);
    atomic_fetch_add(&held, 1);
    *bytes = rte_pktmbuf_mtod(mbuf, uint8_t *);
    return mbuf->data_len;
}

void dpdk_frames_copy(void *const *frames, int count, uint8_t *to, uint32_t frame_bytes) {
    for (int at = 0; at < count; at++, to += frame_bytes) {
        uint32_t copied = 0;
        for (const struct rte_mbuf *part = frames[at]; part && copied < frame_bytes; part = part->next) {
            uint32_t length = part->data_len < frame_bytes - copied ? part->data_len : frame_bytes - copied;
            memcpy(to + copied, rte_pktmbuf_mtod(part, const uint8_t *), length);
            copied += length;
        }
        memset(to + copied, 0, frame_bytes - copied);
    }
}

int dpdk_allocate(const char *name, void **frames, uint32_t *lengths, int count) {
    struct rte_mempool *pool = rte_mempool_lookup(name);
    if (!pool) return -ENOENT;
    uint32_t most = (uint32_t)rte_pktmbuf_data_room_size(pool) - RTE_PKTMBUF_HEADROOM;
    for (int at = 0; at < count; at++)
        if (lengths[at] > most) return -EMSGSIZE;
    for (int at = 0; at < count; at++) {
        struct rte_mbuf *mbuf = rte_pktmbuf_alloc(pool);
        if (!mbuf) {
            while (at > 0) rte_pktmbuf_free(frames[--at]);
            return -ENOBUFS;
        }
        /* Not what an earlier frame has left there. */
        memset(rte_pktmbuf_append(mbuf, (uint16_t)lengths[at]), 0, lengths[at]);
        frames[at] = mbuf;
    }
    return hand_over(frames, lengths, count);
}

/* ---- bursts ---- */

int dpdk_port_rx_burst(uint16_t port, uint16_t queue, void **frames, uint32_t *lengths, int count) {
    int status = packets_check_queue(port, queue, false);
    if (status != 0) return status;
    int received = 0;
    while (received < count) {
        struct rte_mbuf *burst[BURST_FRAMES];
        int wanted = count - received < BURST_FRAMES ? count - received : BURST_FRAMES;
        int came = rte_eth_rx_burst(port, queue, burst, (uint16_t)wanted);
        for (int at = 0; at < came; at++) frames[received++] = burst[at];
        if (came == 0) break;
    }
    return hand_over(frames, lengths, received);
}

int dpdk_port_tx_burst(uint16_t port, uint16_t queue, void *const *frames, int count) {
    int status = packets_check_queue(port, queue, true);
    if (status != 0) return status;
    bool takes_segments = ports[port].transmit_offloads & RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
    for (int at = 0; at < count && !takes_segments; at++)
        if (((const struct rte_mbuf *)frames[at])->nb_segs != 1) return -EMSGSIZE;
    int sent = 0;
    while (sent < count) {
        struct rte_mbuf *burst[BURST_FRAMES];
        int wanted = count - sent < BURST_FRAMES ? count - sent : BURST_FRAMES;
        for (int at = 0; at < wanted; at++) burst[at] = frames[sent + at];
        int taken = rte_eth_tx_burst(port, queue, burst, (uint16_t)wanted);
        sent += taken;
        if (taken < wanted) break;
    }
    atomic_fetch_sub(&held, sent);
    return sent;
}

/* ---- rings ---- */

/* No other part of DPDK names its rings so: these hold frames. */
static int find_ring(const char *name, char full[RTE_RING_NAMESIZE], struct rte_ring **ring) {
    int length = snprintf(full, RTE_RING_NAMESIZE, "replay_%s", name);
    if (length >= (int)RTE_RING_NAMESIZE) return -ENAMETOOLONG;
    *ring = rte_ring_lookup(full);
    return *ring ? 0 : -ENOENT;
}

int dpdk_ring_open(const char *name, uint32_t size) {
    char full[RTE_RING_NAMESIZE];
    struct rte_ring *ring;
    int status = find_ring(name, full, &ring);
    if (size == 0) return status == 0 ? (int)rte_ring_get_capacity(ring) : status;
    if (status != -ENOENT) return status == 0 ? -EEXIST : status;
    ring = rte_ring_create(full, size, SOCKET_ID_ANY, RING_F_EXACT_SZ);
    return ring ? (int)rte_ring_get_capacity(ring) : packets_rte_errno();
}

int dpdk_ring_count(const char *name) {
    char full[RTE_RING_NAMESIZE];
    struct rte_ring *ring;
    int status = find_ring(name, full, &ring);
    return status == 0 ? (int)rte_ring_count(ring) : status;
}

int dpdk_ring_enqueue(const char *name, void *const *frames, int count) {
    char full[RTE_RING_NAMESIZE];
    struct rte_ring *ring;
    int status = find_ring(name, full, &ring);
    if (status != 0) return status;
    int taken = (int)rte_ring_enqueue_burst(ring, frames, (unsigned)count, NULL);
    atomic_fetch_sub(&held, taken);
    return taken;
}

int dpdk_ring_dequeue(const char *name, void **frames, uint32_t *lengths, int count) {
    char full[RTE_RING_NAMESIZE];
    struct rte_ring *ring;
    int status = find_ring(name, full, &ring);
    if (status != 0) return status;
    return hand_over(frames, lengths, (int)rte_ring_dequeue_burst(ring, frames, (unsigned)count, NULL));
}

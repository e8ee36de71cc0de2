/* stack: the interface, what comes in, timers, and the answers to lwIP's questions. */
#include "net/lwip/stack.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lwip/etharp.h>
#include <lwip/init.h>
#include <lwip/priv/tcp_priv.h>
#include <netif/ethernet.h>
#include <rte_ip.h>
#include <rte_tcp.h>

#include "base/clock.h"
#include "base/random.h"
#include "base/siphash.h"
#include "net/lwip/connection.h"
#include "net/lwip/demultiplex.h"
#include "net/lwip/hooks.h"
#include "net/lwip/pools.h"
#include "net/lwip/received.h"

#define TICK_US (TCP_TMR_INTERVAL * 1000u)
#define SECOND_US 1000000u
#define ANSWER_MS 500u /* in which a client that opens a connection has answered */

struct stack stack;

/* ---- opening --------------------------------------------------------------------------------------------------- */

static int parse_address(const char *text, ip4_addr_t *address, ip4_addr_t *mask, struct error *error) {
    char host[32];
    snprintf(host, sizeof host, "%s", text);
    char *slash = strchr(host, '/');
    char *end = NULL;
    long bits = -1;
    if (slash) {
        *slash = '\0';
        bits = strtol(slash + 1, &end, 10);
    }
    struct in_addr parsed;
    if (inet_pton(AF_INET, host, &parsed) != 1 || bits < 1 || bits > 32 || *end != '\0')
        return error_set(error, ERROR_GENERIC,
                         "dpdk-address '%s': expected an IPv4 address and the length of its mask, such as 10.0.0.2/24",
                         text);
    address->addr = parsed.s_addr;
    mask->addr = htonl((uint32_t)(0xffffffffull << (32 - bits)));
    return 0;
}

static err_t interface_up(struct netif *interface) {
    interface->name[0] = 'd';
    interface->name[1] = 'p';
    interface->mtu = stack.port->mtu;
    interface->hwaddr_len = 6;
    memcpy(interface->hwaddr, stack.port->address, 6);
    interface->output = etharp_output;
    interface->linkoutput = stack_transmit;
    interface->flags = NETIF_FLAG_BROADCAST | NETIF_FLAG_ETHARP | NETIF_FLAG_ETHERNET | NETIF_FLAG_LINK_UP;
    return ERR_OK;
}

int stack_open(struct port *port, const struct stack_settings *settings, struct error *error) {
    ip4_addr_t address, mask, gateway = {0};
    if (parse_address(settings->address, &address, &mask, error) < 0) return -1;
    struct in_addr parsed;
    if (settings->gateway[0] != '\0') {
        if (inet_pton(AF_INET, settings->gateway, &parsed) != 1)
            return error_set(error, ERROR_GENERIC, "dpdk-gateway '%s': expected an IPv4 address, such as 10.0.0.1",
                             settings->gateway);
        gateway.addr = parsed.s_addr;
        if (((gateway.addr ^ address.addr) & mask.addr) != 0)
            return error_set(error, ERROR_GENERIC, "dpdk-gateway %s is not in the network of dpdk-address %s",
                             settings->gateway, settings->address);
    }
    if (pools_open(settings->connections, port->mtu, error) < 0) return -1;
    memset(&stack, 0, sizeof stack);
    stack.port = port;
    for (int i = 0; i < 2; i++) stack.sequence_key[i] = random_entropy();
    sending_open(&stack.sending);
    received_set_most(port->frames_usable);
    lwip_init();
    netif_add(&stack.interface, &address, &mask, &gateway, NULL, interface_up, ethernet_input);
    netif_set_default(&stack.interface);
    netif_set_up(&stack.interface); /* announces the address, too */
    port_flush(port);
    return 0;
}

void stack_close(void) {
    port_flush(stack.port);
    netif_remove(&stack.interface);
    pools_close();
}

/* ---- lwIP's questions ------------------------------------------------------------------------------------------ */

u32_t stack_sequence(const ip_addr_t *local, u16_t local_port, const ip_addr_t *remote, u16_t remote_port) {
    const uint32_t ends[3] = {ip4_addr_get_u32(ip_2_ip4(local)), ip4_addr_get_u32(ip_2_ip4(remote)),
                              (uint32_t)local_port << 16 | remote_port};
    return (u32_t)(siphash(ends, sizeof ends, stack.sequence_key) + clock_monotonic_us() / 4);
}

uint32_t stack_random(void) {
    return (uint32_t)random_entropy();
}

u32_t *stack_before_output(const struct tcp_pcb *pcb, u32_t *options) {
    stack.output = pcb;
    struct lwip_connection *connection = connection_of(pcb);
    if (connection) recovery_watch_timer(connection);
    return options;
}

u16_t stack_early_frames(const struct tcp_pcb *pcb) {
    (void)pcb;
    return received_early_frames();
}

/* ---- input and timers ------------------------------------------------------------------------------------------ */

/* The TCP header of a frame that the port found sound, and how many bytes there are of it and after it; NULL: no TCP. */
static const struct rte_tcp_hdr *find_tcp(const struct rte_mbuf *frame, const struct rte_ipv4_hdr **found,
                                          uint32_t *size_bytes) {
    const uint8_t *ethernet = rte_pktmbuf_mtod(frame, const uint8_t *);
    const struct rte_ipv4_hdr *ip = (const void *)(ethernet + PORT_HEADER_BYTES);
    if (ethernet[12] != 0x08 || ethernet[13] != 0x00 || ip->next_proto_id != IPPROTO_TCP) return NULL;
    uint32_t header = (ip->version_ihl & 15u) * 4u, total = rte_be_to_cpu_16(ip->total_length);
    if (total < header + sizeof(struct rte_tcp_hdr)) return NULL;
    *found = ip;
    *size_bytes = total - header;
    return (const void *)((const uint8_t *)ip + header);
}

static bool carries_data(const struct rte_mbuf *frame) {
    const struct rte_ipv4_hdr *ip;
    uint32_t size_bytes;
    const struct rte_tcp_hdr *tcp = find_tcp(frame, &ip, &size_bytes);
    return tcp && size_bytes > (tcp->data_off >> 4) * 4u;
}

/* A client that takes the port of a connection which is closed but still remembered, with a SYN newer than all that came
 * on it, opens another (RFC 1122, 4.2.2.13). lwIP answers such a SYN with an ACK, for as long as it remembers, or with a
 * reset, so the old connection is forgotten first. */
static void forget_reopened(const struct rte_ipv4_hdr *ip, const struct rte_tcp_hdr *tcp) {
    for (struct tcp_pcb *pcb = tcp_tw_pcbs; pcb; pcb = pcb->next) {
        if (pcb->remote_port != rte_be_to_cpu_16(tcp->src_port) || pcb->local_port != rte_be_to_cpu_16(tcp->dst_port) ||
            ip4_addr_get_u32(ip_2_ip4(&pcb->remote_ip)) != ip->src_addr)
            continue;
        if (TCP_SEQ_GT(rte_be_to_cpu_32(tcp->sent_seq), pcb->rcv_nxt))
            tcp_abort(pcb); /* of a closed one: sends nothing */
        return;
    }
}

/* Where a listener has as many half-open connections as it may, lwIP drops every further SYN until they time out, 20 s
 * later. The one that has waited longest makes place, unless its answer may still be on the way: after a burst of clients
 * that mean it, the next ones come again in a second. */
static void make_place(const struct rte_tcp_hdr *tcp) {
    const struct tcp_pcb_listen *listener = tcp_listen_pcbs.listen_pcbs;
    while (listener && listener->local_port != rte_be_to_cpu_16(tcp->dst_port)) listener = listener->next;
    if (!listener || listener->accepts_pending < listener->backlog) return;
    struct tcp_pcb *oldest = NULL; /* lwIP moves to the front what comes, and what is heard of */
    for (struct tcp_pcb *pcb = tcp_active_pcbs; pcb; pcb = pcb->next)
        if (pcb->state == SYN_RCVD && pcb->listener == listener) oldest = pcb;
    if (oldest && (tcp_ticks - oldest->tmr) * TCP_SLOW_INTERVAL >= ANSWER_MS) tcp_abort(oldest);
}

/* Before lwIP takes a frame: for a first SYN, what it does not do by itself; for any other, a shortcut to its connection. */
static struct shortcut prepare(const struct rte_mbuf *frame) {
    const uint8_t begins = RTE_TCP_SYN_FLAG;
    const struct rte_ipv4_hdr *ip;
    uint32_t size_bytes;
    const struct rte_tcp_hdr *tcp = find_tcp(frame, &ip, &size_bytes);
    if (!tcp) return (struct shortcut){0};
    if ((tcp->tcp_flags & (begins | RTE_TCP_ACK_FLAG | RTE_TCP_RST_FLAG)) == begins) {
        forget_reopened(ip, tcp);
        make_place(tcp);
    }
    const struct ends ends = {
        .remote_address = ip->src_addr, .remote_port = tcp->src_port, .local_port = tcp->dst_port};
    return demultiplex_begin(&ends);
}

void stack_input(void) {
    struct port *port = stack.port;
    for (uint32_t i = 0; i < port->received; i++) {
        struct rte_mbuf *frame = port->inbox[i];
        if (received_is_full() && carries_data(frame)) {
            stack.refused_frames++;
            rte_pktmbuf_free(frame);
            continue;
        }
        stack.output = NULL; /* what this frame sets free may be older than its control block */
        struct shortcut shortcut = prepare(frame);
        struct pbuf *packet = received_from_frame(frame);
        if (stack.interface.input(packet, &stack.interface) != ERR_OK) pbuf_free(packet);
        demultiplex_end(&shortcut);
    }
    port->received = 0;
}

uint64_t stack_run_timers(uint64_t now_us) {
    if (now_us >= stack.next_tick_us) {
        tcp_tmr();
        stack.next_tick_us = stack.next_tick_us + TICK_US > now_us ? stack.next_tick_us + TICK_US : now_us + TICK_US;
    }
    if (now_us >= stack.next_second_us) {
        etharp_tmr();
        stack.next_second_us = now_us + SECOND_US;
    }
    return stack.next_tick_us;
}

bool stack_is_closing(void) {
    for (const struct tcp_pcb *pcb = tcp_active_pcbs; pcb; pcb = pcb->next)
        if (pcb->state > ESTABLISHED) return true;
    return false;
}

/* input: frames on their way to lwIP: whose they are, and those that came ahead of a lost one. */
#include <assert.h>
#include <netinet/in.h>
#include <string.h>

#include <lwip/priv/tcp_priv.h>
#include <rte_ip.h>
#include <rte_mbuf.h>
#include <rte_tcp.h>

#include "net/lwip/connection.h"
#include "net/lwip/demultiplex.h"
#include "net/lwip/out_of_order.h"
#include "net/lwip/received.h"
#include "net/lwip/stack.h"

#define ANSWER_MS 500u /* in which a client that opens a connection has answered */

/* ---- what a frame is -------------------------------------------------------------------------------------------- */

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

/* ---- giving it to lwIP ------------------------------------------------------------------------------------------ */

static void give(struct pbuf *packet, const struct ends *ends) {
    stack.output = NULL; /* what this frame sets free may be older than its control block */
    struct shortcut shortcut = demultiplex_begin(ends);
    if (stack.interface.input(packet, &stack.interface) != ERR_OK) pbuf_free(packet);
    demultiplex_end(&shortcut);
}

/* ---- frames that come early -------------------------------------------------------------------------------------- */

/* A frame whose data begins beyond what is expected, within the window. What is odd about it is lwIP's to judge. */
static bool is_early(const struct tcp_pcb *pcb, const struct rte_tcp_hdr *tcp, uint32_t left, uint32_t right) {
    const uint8_t others = RTE_TCP_SYN_FLAG | RTE_TCP_RST_FLAG | RTE_TCP_URG_FLAG;
    return pcb->state == ESTABLISHED && !pcb->ooseq && (tcp->tcp_flags & RTE_TCP_ACK_FLAG) &&
           !(tcp->tcp_flags & others) && TCP_SEQ_GT(left, pcb->rcv_nxt) && TCP_SEQ_GT(right, left) &&
           TCP_SEQ_LEQ(right, pcb->rcv_nxt + pcb->rcv_wnd);
}

/* What an early frame acknowledges counts now: lwIP gets it without the data, in the place of the frame that is missing. */
static void give_acknowledgement(const struct rte_mbuf *frame, const struct rte_tcp_hdr *tcp, const struct ends *ends,
                                 uint32_t expected) {
    const uint8_t *bytes = rte_pktmbuf_mtod(frame, const uint8_t *);
    uint16_t length = (uint16_t)((const uint8_t *)tcp - bytes + (tcp->data_off >> 4) * 4);
    struct rte_mbuf *bare = port_frame(stack.port);
    if (!bare) return; /* the next one will do */
    uint8_t *to = (uint8_t *)rte_pktmbuf_append(bare, length);
    memcpy(to, bytes, length);
    struct rte_ipv4_hdr *ip = (void *)(to + PORT_HEADER_BYTES);
    ip->total_length = rte_cpu_to_be_16((uint16_t)(length - PORT_HEADER_BYTES));
    struct rte_tcp_hdr *header = (void *)(to + ((const uint8_t *)tcp - bytes));
    header->sent_seq = rte_cpu_to_be_32(expected);
    header->tcp_flags = RTE_TCP_ACK_FLAG;
    give(received_from_frame(bare), ends);
}

/* What SACK blocks tell from now on. `twice`: first, that this came a second time (RFC 2883); NULL: nothing did. */
static void report(struct tcp_pcb *pcb, const struct out_of_order *early, const struct out_of_order_range *twice) {
    static_assert(OUT_OF_ORDER_RANGES == LWIP_TCP_MAX_SACK_NUM, "as many as lwIP reports");
    struct out_of_order_range all[1 + OUT_OF_ORDER_RANGES], *ranges = all + 1;
    uint32_t count = out_of_order_report(early, ranges);
    /* Once a side has closed, lwIP keeps what is early, and reports it. */
    if (!(pcb->flags & TF_SACK) || pcb->ooseq) return;
    if (twice) {
        ranges = all;
        ranges[0] = *twice;
        if (count < OUT_OF_ORDER_RANGES) count++;
    }
    memset(pcb->rcv_sacks, 0, sizeof pcb->rcv_sacks);
    for (uint32_t i = 0; i < count; i++) {
        pcb->rcv_sacks[i].left = ranges[i].left;
        pcb->rcv_sacks[i].right = ranges[i].right;
    }
}

/* Keeps it, unless it is there already, and tells the peer at once that something is missing. */
static void keep(struct lwip_connection *connection, struct rte_mbuf *frame, uint32_t left, uint32_t right) {
    if (out_of_order_has(&connection->early, left, right)) {
        rte_pktmbuf_free(frame);
        report(connection->pcb, &connection->early, &(struct out_of_order_range){left, right});
        tcp_send_empty_ack(connection->pcb);
        report(connection->pcb, &connection->early, NULL);
        return;
    }
    struct received *received = received_keep(frame, connection->early.frames);
    if (received) {
        received->sequence = left;
        if (!out_of_order_hold(&connection->early, received, left, right)) received_free(received);
    }
    report(connection->pcb, &connection->early, NULL);
    tcp_send_empty_ack(connection->pcb);
}

/* What it acknowledges was given when it came, and may be less than what came later. */
static void make_neutral(struct received *received, const struct tcp_pcb *pcb) {
    uint8_t *bytes = received->buffer.pbuf.payload;
    const struct rte_ipv4_hdr *ip = (const void *)(bytes + PORT_HEADER_BYTES);
    struct rte_tcp_hdr *tcp = (void *)(bytes + PORT_HEADER_BYTES + (ip->version_ihl & 15u) * 4u);
    tcp->recv_ack = rte_cpu_to_be_32(pcb->lastack);
    tcp->rx_win = rte_cpu_to_be_16(TCPWND_MIN16(pcb->snd_wnd >> pcb->snd_scale));
}

void stack_give_early(struct lwip_connection *connection) {
    const struct ends ends = connection->ends;
    bool gave = false;
    while (connection->pcb && !connection->pcb->refused_data) {
        struct received *received = out_of_order_take(&connection->early, connection->pcb->rcv_nxt);
        if (!received) break;
        make_neutral(received, connection->pcb);
        give(&received->buffer.pbuf, &ends);
        gave = true;
    }
    if (!gave || !connection->pcb) return;
    report(connection->pcb, &connection->early, NULL);
    tcp_ack_now(connection->pcb);
    tcp_output(connection->pcb);
}

/* ---- all that came ----------------------------------------------------------------------------------------------- */

static void take(struct rte_mbuf *frame) {
    const uint8_t begins = RTE_TCP_SYN_FLAG;
    const struct rte_ipv4_hdr *ip;
    uint32_t size_bytes;
    const struct rte_tcp_hdr *tcp = find_tcp(frame, &ip, &size_bytes);
    if (!tcp) {
        stack.output = NULL;
        struct pbuf *packet = received_from_frame(frame);
        if (stack.interface.input(packet, &stack.interface) != ERR_OK) pbuf_free(packet);
        return;
    }
    /* For a first SYN, what lwIP does not do by itself. */
    if ((tcp->tcp_flags & (begins | RTE_TCP_ACK_FLAG | RTE_TCP_RST_FLAG)) == begins) {
        forget_reopened(ip, tcp);
        make_place(tcp);
    }
    const struct ends ends = {
        .remote_address = ip->src_addr, .remote_port = tcp->src_port, .local_port = tcp->dst_port};
    struct lwip_connection *connection = demultiplex_find(&ends);
    uint32_t header_bytes = (tcp->data_off >> 4) * 4u;
    if (!connection || header_bytes < sizeof *tcp || header_bytes > size_bytes) {
        give(received_from_frame(frame), &ends);
        return;
    }
    uint32_t left = rte_be_to_cpu_32(tcp->sent_seq);
    uint32_t right = left + size_bytes - header_bytes + (tcp->tcp_flags & RTE_TCP_FIN_FLAG ? 1u : 0u);
    if (!is_early(connection->pcb, tcp, left, right)) {
        bool twice = TCP_SEQ_LT(left, right) && TCP_SEQ_LEQ(right, connection->pcb->rcv_nxt);
        if (twice) report(connection->pcb, &connection->early, &(struct out_of_order_range){left, right});
        give(received_from_frame(frame), &ends);
        if (twice && connection->pcb) report(connection->pcb, &connection->early, NULL);
        if (connection->early.first && connection->pcb) stack_give_early(connection);
        return;
    }
    if (rte_be_to_cpu_32(tcp->recv_ack) != connection->pcb->lastack || header_bytes > sizeof *tcp)
        give_acknowledgement(frame, tcp, &ends, connection->pcb->rcv_nxt);
    if (connection->pcb)
        keep(connection, frame, left, right);
    else
        rte_pktmbuf_free(frame);
}

void stack_input(void) {
    struct port *port = stack.port;
    for (uint32_t i = 0; i < port->received; i++) {
        struct rte_mbuf *frame = port->inbox[i];
        if (!received_is_full() || !carries_data(frame)) {
            take(frame);
            continue;
        }
        stack.refused_frames++;
        rte_pktmbuf_free(frame);
    }
    port->received = 0;
}

/* output: packets become frames. lwIP makes segments of many times the wire's size (connection.c), so that its lists stay
 * short; here they are cut as a device with segmentation offload would, each frame gathered from the server's memory with
 * one copy that also sums it up. */
#include <assert.h>
#include <netinet/in.h>
#include <string.h>

#include <lwip/priv/tcp_priv.h>
#include <rte_ip.h>
#include <rte_mbuf.h>
#include <rte_tcp.h>

#include "net/checksum.h"
#include "net/lwip/connection.h"
#include "net/lwip/stack.h"

/* A place in a chain of buffers. */
struct cursor {
    const struct pbuf *buffer;
    uint32_t offset;
};

static void skip(struct cursor *cursor, uint32_t length) {
    while (length > 0) {
        uint32_t left = cursor->buffer->len - cursor->offset;
        uint32_t piece = length < left ? length : left;
        cursor->offset += piece;
        length -= piece;
        if (cursor->offset < cursor->buffer->len) continue;
        cursor->buffer = cursor->buffer->next;
        cursor->offset = 0;
    }
}

static void gather(struct cursor *cursor, uint8_t *to, uint32_t length, struct checksum *checksum) {
    while (length > 0) {
        uint32_t left = cursor->buffer->len - cursor->offset;
        uint32_t piece = length < left ? length : left;
        const uint8_t *from = (const uint8_t *)cursor->buffer->payload + cursor->offset;
        if (checksum)
            checksum_add_copy(checksum, to, from, piece);
        else
            memcpy(to, from, piece);
        to += piece;
        cursor->offset += piece;
        length -= piece;
        if (cursor->offset < cursor->buffer->len) continue;
        cursor->buffer = cursor->buffer->next;
        cursor->offset = 0;
    }
}

/* ---- packets of TCP -------------------------------------------------------------------------------------------- */

struct packet {
    const uint8_t *headers; /* Ethernet's, IP's, TCP's, in one piece */
    uint32_t header_bytes, tcp_bytes; /* of all headers; of TCP's */
    uint32_t data_bytes;
    struct cursor data;
};

static bool parse(const struct pbuf *buffers, struct packet *packet) {
    const uint8_t *ethernet = buffers->payload;
    const struct rte_ipv4_hdr *ip = (const void *)(ethernet + PORT_HEADER_BYTES);
    const uint32_t fixed = PORT_HEADER_BYTES + sizeof *ip;
    if (buffers->len < fixed + sizeof(struct rte_tcp_hdr) || ethernet[12] != 0x08 || ethernet[13] != 0x00 ||
        ip->next_proto_id != IPPROTO_TCP)
        return false;
    const struct rte_tcp_hdr *tcp = (const void *)(ip + 1);
    packet->headers = ethernet;
    packet->tcp_bytes = (tcp->data_off >> 4) * 4u;
    packet->header_bytes = fixed + packet->tcp_bytes;
    assert(packet->header_bytes <= buffers->len); /* lwIP allocates them together */
    packet->data_bytes = buffers->tot_len - packet->header_bytes;
    packet->data = (struct cursor){.buffer = buffers};
    skip(&packet->data, packet->header_bytes);
    return true;
}

static void leave_checksum(struct rte_mbuf *frame, const struct packet *packet) {
    frame->l2_len = PORT_HEADER_BYTES;
    frame->l3_len = sizeof(struct rte_ipv4_hdr);
    frame->l4_len = packet->tcp_bytes;
    frame->ol_flags |= RTE_MBUF_F_TX_IPV4 | RTE_MBUF_F_TX_TCP_CKSUM;
}

static const struct rte_tcp_hdr *tcp_of(const uint8_t *headers) {
    return (const void *)(headers + PORT_HEADER_BYTES + sizeof(struct rte_ipv4_hdr));
}

/* Writes the frame that carries `length` bytes of data from `offset` on, where the cursor stands. */
static void write_frame(struct rte_mbuf *frame, struct packet *packet, uint32_t offset, uint32_t length,
                        uint16_t index) {
    uint8_t *to = (uint8_t *)rte_pktmbuf_append(frame, (uint16_t)(packet->header_bytes + length));
    memcpy(to, packet->headers, packet->header_bytes);
    struct rte_ipv4_hdr *ip = (void *)(to + PORT_HEADER_BYTES);
    struct rte_tcp_hdr *tcp = (void *)(ip + 1);
    uint16_t tcp_length = (uint16_t)(packet->tcp_bytes + length);
    ip->total_length = rte_cpu_to_be_16((uint16_t)(sizeof *ip + tcp_length));
    ip->packet_id = rte_cpu_to_be_16((uint16_t)(rte_be_to_cpu_16(ip->packet_id) + index));
    ip->hdr_checksum = 0;
    tcp->sent_seq = rte_cpu_to_be_32(rte_be_to_cpu_32(tcp->sent_seq) + offset);
    if (offset + length < packet->data_bytes) tcp->tcp_flags &= (uint8_t)~(RTE_TCP_FIN_FLAG | RTE_TCP_PSH_FLAG);
    ip->hdr_checksum = checksum_finish(checksum_sum(ip, sizeof *ip));
    uint16_t pseudo = checksum_pseudo_ipv4(ip->src_addr, ip->dst_addr, IPPROTO_TCP, tcp_length);
    if (stack.port->device.offloads & OFFLOAD_TRANSMIT_CHECKSUMS) {
        gather(&packet->data, to + packet->header_bytes, length, NULL);
        tcp->cksum = pseudo;
        leave_checksum(frame, packet);
        return;
    }
    struct checksum checksum = {0};
    tcp->cksum = 0;
    checksum_add_sum(&checksum, pseudo, 2);
    checksum_add(&checksum, tcp, packet->tcp_bytes);
    gather(&packet->data, to + packet->header_bytes, length, &checksum);
    tcp->cksum = checksum_finish(checksum_total(&checksum));
}

/* A part of a packet's data, and how it is sent. */
struct part {
    uint32_t from, length;
    uint32_t most; /* data in a frame */
    uint32_t frames;
    uint32_t buffers; /* for all of it in one packet that the device cuts; 0: it is cut here */
};

/* Writes a packet that the device cuts, over as many buffers as it takes. The cursor stands where the part begins. */
static void write_packet(struct rte_mbuf **buffers, const struct part *part, struct packet *packet) {
    struct rte_mbuf *head = buffers[0];
    uint8_t *to = (uint8_t *)rte_pktmbuf_append(head, (uint16_t)packet->header_bytes);
    memcpy(to, packet->headers, packet->header_bytes);
    struct rte_ipv4_hdr *ip = (void *)(to + PORT_HEADER_BYTES);
    struct rte_tcp_hdr *tcp = (void *)(ip + 1);
    ip->total_length = rte_cpu_to_be_16((uint16_t)(sizeof *ip + packet->tcp_bytes + part->length));
    ip->hdr_checksum = 0;
    tcp->sent_seq = rte_cpu_to_be_32(rte_be_to_cpu_32(tcp->sent_seq) + part->from);
    tcp->cksum = checksum_pseudo_ipv4(ip->src_addr, ip->dst_addr, IPPROTO_TCP, 0); /* each frame has its own length */
    head->pkt_len += part->length;
    head->nb_segs = (uint16_t)part->buffers;
    uint32_t left = part->length;
    for (uint32_t i = 0; i < part->buffers; i++) {
        uint32_t room = rte_pktmbuf_tailroom(buffers[i]);
        uint32_t length = left < room ? left : room;
        uint16_t before = rte_pktmbuf_data_len(buffers[i]);
        gather(&packet->data, rte_pktmbuf_mtod_offset(buffers[i], uint8_t *, before), length, NULL);
        buffers[i]->data_len = (uint16_t)(before + length);
        buffers[i]->next = i + 1 < part->buffers ? buffers[i + 1] : NULL;
        left -= length;
    }
    leave_checksum(head, packet);
    head->ol_flags |= RTE_MBUF_F_TX_TCP_SEG;
    if (stack.port->device.offloads & OFFLOAD_HEADER_CHECKSUM)
        head->ol_flags |= RTE_MBUF_F_TX_IP_CKSUM;
    else
        ip->hdr_checksum = checksum_finish(checksum_sum(ip, sizeof *ip));
    uint32_t cut = stack.port->device.cut_bytes - packet->header_bytes;
    head->tso_segsz = (uint16_t)(part->most < cut ? part->most : cut);
}

/* The buffers that a packet takes when the device cuts it; 0: it is to be cut here. */
static uint32_t buffers_of(const struct packet *packet, uint32_t data_bytes, uint32_t most) {
    if (!(stack.port->device.offloads & OFFLOAD_SEGMENTATION) || data_bytes <= most) return 0;
    uint32_t room = rte_pktmbuf_data_room_size(stack.port->pool) - RTE_PKTMBUF_HEADROOM;
    uint32_t count = (packet->header_bytes + data_bytes + room - 1) / room;
    return count <= stack.port->device.buffers_most && count <= STACK_FRAMES_PER_PACKET ? count : 0;
}

/* The data's first byte that the peer still lacks: of a segment that is sent again it may have a part. */
static uint32_t acknowledged(const struct packet *packet, const struct tcp_pcb *pcb) {
    const struct rte_tcp_hdr *tcp = tcp_of(packet->headers);
    uint32_t sequence = rte_be_to_cpu_32(tcp->sent_seq);
    if (!TCP_SEQ_LT(sequence, pcb->lastack)) return 0;
    uint32_t done = pcb->lastack - sequence;
    return done < packet->data_bytes ? done : 0;
}

static bool is_probe(const struct packet *packet) {
    return packet->data_bytes == 1; /* of a closed window */
}

static bool is_retransmission(const struct packet *packet, const struct tcp_pcb *pcb) {
    if (is_probe(packet)) return false;
    const struct rte_tcp_hdr *tcp = tcp_of(packet->headers);
    return TCP_SEQ_LT(rte_be_to_cpu_32(tcp->sent_seq), pcb->snd_nxt);
}

static struct part make_part(const struct packet *packet, uint32_t from, uint32_t length, uint32_t most) {
    struct part part = {.from = from, .length = length, .most = most};
    part.frames = (length + most - 1) / most;
    part.buffers = buffers_of(packet, length, most);
    assert(part.frames <= STACK_FRAMES_PER_PACKET);
    return part;
}

/* The cursor stands where the part begins. False: there is no room, or there are no frames. */
static bool transmit_part(struct packet *packet, const struct part *part) {
    struct rte_mbuf *frames[STACK_FRAMES_PER_PACKET];
    uint32_t buffers = part->buffers > 0 ? part->buffers : part->frames;
    if (part->frames > port_room(stack.port) || rte_pktmbuf_alloc_bulk(stack.port->pool, frames, buffers) < 0)
        return false;
    if (part->buffers > 0) {
        write_packet(frames, part, packet);
        port_send(stack.port, frames[0]);
        return true;
    }
    for (uint32_t i = 0; i < part->frames; i++) {
        uint32_t done = i * part->most;
        uint32_t length = part->length - done < part->most ? part->length - done : part->most;
        write_frame(frames[i], packet, part->from + done, length, (uint16_t)i);
        port_send(stack.port, frames[i]);
    }
    return true;
}

/* What has no connection any more, or waited for the address of its host, and probes of a closed window: lwIP gives up after
 * twelve probes without an answer, and counts those that did not go out. */
static err_t transmit_plain(struct packet *packet, const struct tcp_pcb *pcb) {
    uint32_t most =
        pcb ? connection_wire_bytes(pcb) : stack.port->device.mtu - sizeof(struct rte_ipv4_hdr) - packet->tcp_bytes;
    uint32_t from = pcb ? acknowledged(packet, pcb) : 0;
    struct part part = make_part(packet, from, packet->data_bytes - from, most);
    skip(&packet->data, from);
    if (!transmit_part(packet, &part)) return ERR_MEM; /* lwIP's timers see to it */
    if (pcb && is_retransmission(packet, pcb)) stack.retransmissions += part.frames;
    return ERR_OK;
}

/* The first part of a packet, from `from` on, that the peer is not known to have. False: it has all of it. */
static bool find_missing(const struct packet *packet, const struct lwip_connection *connection, uint32_t from,
                         bool again, struct scoreboard_range *missing) {
    uint32_t sequence = rte_be_to_cpu_32(tcp_of(packet->headers)->sent_seq), end = sequence + packet->data_bytes;
    *missing = (struct scoreboard_range){sequence + from, end};
    if (again && TCP_SEQ_LEQ(end, connection->recovery.spared_until)) return false;
    /* Of a packet that ends the connection, the end is not among what SACK blocks tell of. */
    if (!again || (tcp_of(packet->headers)->tcp_flags & RTE_TCP_FIN_FLAG)) return from < packet->data_bytes;
    return scoreboard_gap(&connection->recovery.board, sequence + from, end, missing);
}

/* A packet of a connection, without what the peer has of it: the whole, unless it goes out again. */
static err_t transmit_turn(struct packet *packet, const struct tcp_pcb *pcb, struct lwip_connection *connection) {
    uint32_t sequence = rte_be_to_cpu_32(tcp_of(packet->headers)->sent_seq);
    bool again = is_retransmission(packet, pcb);
    uint32_t from = acknowledged(packet, pcb), sent = 0, frames = 0;
    if (!sending_may(&stack.sending, connection, packet->data_bytes - from)) return ERR_MEM;
    struct cursor begin = packet->data;
    struct scoreboard_range missing;
    bool whole = true;
    while (whole && find_missing(packet, connection, from, again, &missing)) {
        struct part part =
            make_part(packet, missing.left - sequence, missing.right - missing.left, connection->wire_bytes);
        packet->data = begin;
        skip(&packet->data, part.from);
        whole = transmit_part(packet, &part);
        if (!whole) break;
        recovery_sent(connection, missing.left, missing.right, again);
        from = missing.right - sequence;
        sent += part.length;
        frames += part.frames;
    }
    if (sent > 0) sending_sent(&stack.sending, connection, sent, frames);
    if (again) stack.retransmissions += frames;
    if (whole) return ERR_OK;
    sending_wait(&stack.sending, connection);
    return ERR_MEM;
}

static err_t transmit_data(struct packet *packet, const struct tcp_pcb *pcb) {
    struct lwip_connection *connection = is_probe(packet) ? NULL : connection_of(pcb);
    return connection ? transmit_turn(packet, pcb, connection) : transmit_plain(packet, pcb);
}

static const struct tcp_seg *find_segment(const struct tcp_pcb *pcb, uint32_t from) {
    const struct tcp_seg *segment = pcb->unacked;
    while (segment && TCP_SEQ_LEQ(lwip_ntohl(segment->tcphdr->seqno) + segment->len, from)) segment = segment->next;
    return segment && TCP_SEQ_LEQ(lwip_ntohl(segment->tcphdr->seqno), from) ? segment : NULL;
}

bool stack_resend(struct lwip_connection *connection, uint32_t from, uint32_t *length) {
    struct tcp_pcb *pcb = connection->pcb;
    const struct tcp_seg *segment = find_segment(pcb, from);
    const uint32_t before = PORT_HEADER_BYTES + sizeof(struct rte_ipv4_hdr); /* as it is left by being sent */
    struct packet packet;
    if (!segment || (const uint8_t *)segment->tcphdr - (const uint8_t *)segment->p->payload != before ||
        !parse(segment->p, &packet))
        return false;
    uint32_t offset = from - lwip_ntohl(segment->tcphdr->seqno);
    if (offset >= packet.data_bytes) return false;
    if (*length > packet.data_bytes - offset) *length = packet.data_bytes - offset;
    segment->tcphdr->ackno = lwip_htonl(pcb->rcv_nxt);
    segment->tcphdr->wnd = lwip_htons(TCPWND_MIN16(RCV_WND_SCALE(pcb, pcb->rcv_ann_wnd)));
    pcb->rcv_ann_right_edge = pcb->rcv_nxt + pcb->rcv_ann_wnd;
    struct part part = make_part(&packet, offset, *length, connection->wire_bytes);
    skip(&packet.data, offset);
    if (!transmit_part(&packet, &part)) return false;
    recovery_sent(connection, from, from + *length, true);
    stack.retransmissions += part.frames;
    return true;
}

bool stack_find_last(const struct lwip_connection *connection, uint32_t *from, uint32_t *length) {
    const struct tcp_pcb *pcb = connection->pcb;
    const struct tcp_seg *last = NULL; /* with data: the end of a connection may follow by itself */
    for (const struct tcp_seg *segment = pcb->unacked; segment; segment = segment->next)
        if (segment->len > 0) last = segment;
    if (!last) return false;
    uint32_t begin = lwip_ntohl(last->tcphdr->seqno), end = begin + last->len;
    *from = begin + (last->len - 1u) / connection->wire_bytes * connection->wire_bytes;
    if (TCP_SEQ_LT(*from, pcb->lastack)) *from = pcb->lastack;
    *length = end - *from;
    return TCP_SEQ_GT(end, *from);
}

/* ---- acknowledgements ------------------------------------------------------------------------------------------ */

/* Says more than the one before: acknowledges more, or opens the window. A mere copy of it must go out by itself: it is how
 * the peer learns of a loss. */
static bool says_more(const struct rte_tcp_hdr *tcp, const struct rte_tcp_hdr *before) {
    uint32_t now = rte_be_to_cpu_32(tcp->recv_ack), then = rte_be_to_cpu_32(before->recv_ack);
    if (now != then) return TCP_SEQ_GT(now, then);
    return rte_be_to_cpu_16(tcp->rx_win) > rte_be_to_cpu_16(before->rx_win);
}

/* How far an acknowledgement's sequence lies beyond the peer's window. lwIP says what it would send next, but a peer that has
 * run short of memory may have shut its window before that, and passes over what lies beyond (RFC 9293, 3.10.7.4): it would
 * send again for ever what has arrived, until it reads. The window's end is acceptable, as Linux says it. */
static uint32_t beyond_window(const struct packet *packet, const struct tcp_pcb *pcb) {
    const struct rte_tcp_hdr *tcp = tcp_of(packet->headers);
    uint32_t sequence = rte_be_to_cpu_32(tcp->sent_seq);
    if (!pcb || tcp->tcp_flags != RTE_TCP_ACK_FLAG || sequence != pcb->snd_nxt) return 0;
    uint32_t end = pcb->lastack + pcb->snd_wnd;
    return TCP_SEQ_GT(sequence, end) ? sequence - end : 0;
}

/* lwIP acknowledges every other frame that it is given, and a burst is given at once: only the last acknowledgement of each
 * connection goes out, in the place of those that are still in the port's queue. */
static bool replace_acknowledgement(struct packet *packet, uint32_t beyond, struct lwip_connection *connection) {
    struct rte_mbuf *frame = connection->acknowledgement;
    if (!frame || connection->acknowledgement_flush != stack.port->flushes) return false;
    if (!says_more(tcp_of(packet->headers), tcp_of(rte_pktmbuf_mtod(frame, const uint8_t *)))) return false;
    rte_pktmbuf_trim(frame, (uint16_t)rte_pktmbuf_pkt_len(frame));
    write_frame(frame, packet, 0 - beyond, 0, 0);
    return true;
}

/* Of a packet without data: whose acknowledgement it is, if it is nothing else. */
static struct lwip_connection *acknowledging(const struct packet *packet, const struct tcp_pcb *pcb) {
    const struct rte_tcp_hdr *tcp = tcp_of(packet->headers);
    bool plain = tcp->tcp_flags == RTE_TCP_ACK_FLAG && packet->tcp_bytes == sizeof *tcp && !stack.port->faults;
    return plain ? connection_of(pcb) : NULL;
}

static err_t transmit_bare(struct packet *packet, const struct tcp_pcb *pcb) {
    struct lwip_connection *connection = acknowledging(packet, pcb);
    uint32_t beyond = beyond_window(packet, pcb);
    if (connection && replace_acknowledgement(packet, beyond, connection)) return ERR_OK;
    struct rte_mbuf *frame = port_room(stack.port) > 0 ? port_frame(stack.port) : NULL;
    if (!frame) return ERR_MEM;
    write_frame(frame, packet, 0 - beyond, 0, 0);
    if (connection) {
        connection->acknowledgement = frame;
        connection->acknowledgement_flush = stack.port->flushes;
    }
    port_send(stack.port, frame);
    return ERR_OK;
}

/* Of anything else, which is ARP, or ICMP that lacks the checksum of IP's header. */
static void copy_frame(struct rte_mbuf *frame, const struct pbuf *buffers) {
    struct cursor cursor = {.buffer = buffers};
    assert(buffers->tot_len <= rte_pktmbuf_tailroom(frame));
    uint8_t *to = (uint8_t *)rte_pktmbuf_append(frame, buffers->tot_len);
    gather(&cursor, to, buffers->tot_len, NULL);
    struct rte_ipv4_hdr *ip = (void *)(to + PORT_HEADER_BYTES);
    if (to[12] != 0x08 || to[13] != 0x00) return;
    ip->hdr_checksum = 0;
    ip->hdr_checksum = checksum_finish(checksum_sum(ip, (ip->version_ihl & 15u) * 4u));
}

err_t stack_transmit(struct netif *interface, struct pbuf *buffers) {
    (void)interface;
    const struct tcp_pcb *pcb = stack.output;
    stack.output = NULL;
    struct packet packet;
    bool is_tcp = parse(buffers, &packet);
    if (is_tcp) return packet.data_bytes > 0 ? transmit_data(&packet, pcb) : transmit_bare(&packet, pcb);
    struct rte_mbuf *frame = port_room(stack.port) > 0 ? port_frame(stack.port) : NULL;
    if (!frame) return ERR_MEM;
    copy_frame(frame, buffers);
    port_send(stack.port, frame);
    return ERR_OK;
}

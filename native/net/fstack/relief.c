#include "net/fstack/relief.h"

#include <string.h>
#include <sys/ioctl.h>

#include <ff_api.h>
#include <rte_ether.h>
#include <rte_ip.h>
#include <rte_tcp.h>

#include "base/memory.h"
#include "net/fstack/wraps.h"

#define FRAME_PAYLOAD_BYTES 1448u
#define MOVED_SHARE 2u         /* so many times what the frames can hold may be moved */
#define FEW_SHARE 4u           /* fewer than a fourth are free: received bytes are moved */
#define VERY_FEW_SHARE 16u     /* fewer than a sixteenth: frames with data are refused */
#define VERY_FEW_LEAST 1024u
#define SMALL_BYTES 512u       /* requests of so few bytes are taken in until half of that */
#define WORTH_MOVING_BYTES 4096

void relief_start(struct relief *relief, struct sockets *sockets, uint32_t receive_bytes) {
    struct wraps_frames frames = wraps_frames();
    *relief = (struct relief){
        .sockets = sockets,
        .most_bytes = (size_t)frames.count * FRAME_PAYLOAD_BYTES * MOVED_SHARE,
        .receive_bytes = receive_bytes,
        .frames = frames.count,
        .free = frames.free,
    };
}

/* ---- frames ------------------------------------------------------------------------------------------ */

/* Bytes of data in a frame of TCP over IPv4; 0 in others. */
static uint32_t data_bytes(const struct rte_mbuf *frame) {
    const uint8_t *bytes = rte_pktmbuf_mtod(frame, const uint8_t *);
    uint32_t length = rte_pktmbuf_data_len(frame);
    if (length < sizeof(struct rte_ether_hdr) + sizeof(struct rte_ipv4_hdr)) return 0;
    const struct rte_ether_hdr *ethernet = (const struct rte_ether_hdr *)bytes;
    const struct rte_ipv4_hdr *ip = (const struct rte_ipv4_hdr *)(bytes + sizeof *ethernet);
    if (ethernet->ether_type != rte_cpu_to_be_16(RTE_ETHER_TYPE_IPV4) || ip->next_proto_id != IPPROTO_TCP) return 0;
    uint32_t ip_bytes = (ip->version_ihl & 15u) * 4u;
    if (length < sizeof *ethernet + ip_bytes + sizeof(struct rte_tcp_hdr)) return 0;
    const struct rte_tcp_hdr *tcp = (const struct rte_tcp_hdr *)((const uint8_t *)ip + ip_bytes);
    uint32_t headers = ip_bytes + (tcp->data_off >> 4) * 4u, total = rte_be_to_cpu_16(ip->total_length);
    return total > headers ? total - headers : 0;
}

static uint32_t very_few(const struct relief *relief) {
    uint32_t share = relief->frames / VERY_FEW_SHARE;
    return share > VERY_FEW_LEAST ? share : VERY_FEW_LEAST;
}

uint16_t relief_admit(struct relief *relief, struct rte_mbuf **frames, uint16_t count) {
    relief->free -= relief->free < count ? relief->free : count;
    uint32_t least = very_few(relief);
    if (relief->free >= least) return count;
    relief->free = wraps_frames().free;
    if (relief->free >= least) return count;
    uint32_t most_data = relief->free >= least / 2 ? SMALL_BYTES : 0;
    uint16_t left = 0;
    for (uint16_t i = 0; i < count; i++) {
        if (data_bytes(frames[i]) <= most_data) {
            frames[left++] = frames[i];
        } else {
            rte_pktmbuf_free(frames[i]);
            relief->refused_frames++;
        }
    }
    return left;
}

/* ---- moving ------------------------------------------------------------------------------------------ */

static void set_receive_buffer(const struct relief *relief, const struct fstack_connection *connection, int bytes) {
    relief->sockets->calls->setsockopt(connection->socket.descriptor.number, SOL_SOCKET, SO_RCVBUF, &bytes,
                                       sizeof bytes);
}

static void link_moved(struct relief *relief, struct fstack_connection *connection) {
    connection->previous_moved = NULL;
    connection->next_moved = relief->moved;
    if (relief->moved) relief->moved->previous_moved = connection;
    relief->moved = connection;
}

void relief_forget(struct relief *relief, struct fstack_connection *connection) {
    if (!connection->moved) return;
    if (connection->previous_moved)
        connection->previous_moved->next_moved = connection->next_moved;
    else
        relief->moved = connection->next_moved;
    if (connection->next_moved) connection->next_moved->previous_moved = connection->previous_moved;
    relief->moved_bytes -= connection->moved_bytes - connection->moved_read;
    memory_free(connection->moved);
    connection->moved = NULL;
    connection->moved_bytes = connection->moved_read = 0;
}

/* Behind what was moved already. The last byte stays: to read it later lets the stack tell the peer of the room that there
 * is again. With a receive buffer of one byte the window closes, so that what follows is no more than was promised. */
static void move(struct relief *relief, struct fstack_connection *connection, size_t bytes) {
    size_t before = connection->moved_bytes - connection->moved_read;
    if (relief->moved_bytes + bytes > relief->most_bytes) {
        relief->closed_connections++;
        sockets_begin_dying(&connection->socket);
        return;
    }
    uint8_t *moved = memory_alloc(before + bytes);
    if (!moved) return;
    if (before > 0) memcpy(moved, connection->moved + connection->moved_read, before);
    set_receive_buffer(relief, connection, 1);
    ssize_t got = ff_read(connection->socket.descriptor.number, moved + before, bytes);
    if (got < 0) got = 0;
    if (connection->moved)
        memory_free(connection->moved);
    else
        link_moved(relief, connection);
    connection->moved = moved;
    connection->moved_bytes = before + (size_t)got;
    connection->moved_read = 0;
    relief->moved_bytes += (size_t)got;
}

void relief_look(struct relief *relief) {
    relief->free = wraps_frames().free;
    if (relief->free >= relief->frames / FEW_SHARE) return;
    struct socket_connection *next;
    for (struct socket_connection *socket = relief->sockets->connections; socket; socket = next) {
        next = socket->next;
        int waiting = 0;
        if (socket->dying || (socket->interest & EPOLLIN)) continue;
        if (ff_ioctl(socket->descriptor.number, FIONREAD, &waiting) < 0 || waiting < WORTH_MOVING_BYTES) continue;
        move(relief, (struct fstack_connection *)socket, (size_t)waiting - 1);
    }
    relief->free = wraps_frames().free;
}

/* ---- reading ----------------------------------------------------------------------------------------- */

int relief_deliver(struct relief *relief) {
    const struct transport_events *to = &relief->sockets->base.events;
    int handled = 0;
    struct fstack_connection *next;
    for (struct fstack_connection *connection = relief->moved; connection; connection = next) {
        next = connection->next_moved;
        if (connection->socket.dying || !(connection->socket.interest & EPOLLIN)) continue;
        to->readable(to->context, connection->socket.base.owner);
        handled++;
    }
    return handled;
}

ssize_t relief_readv(struct relief *relief, struct fstack_connection *connection, const struct iovec *vectors,
                     int count) {
    if (!connection->moved || connection->socket.dying) return sockets_readv(&connection->socket.base, vectors, count);
    size_t got = 0;
    for (int i = 0; i < count; i++) {
        size_t left = connection->moved_bytes - connection->moved_read;
        size_t length = vectors[i].iov_len < left ? vectors[i].iov_len : left;
        memcpy(vectors[i].iov_base, connection->moved + connection->moved_read, length);
        connection->moved_read += length;
        got += length;
    }
    relief->moved_bytes -= got;
    if (connection->moved_read == connection->moved_bytes) {
        relief_forget(relief, connection);
        set_receive_buffer(relief, connection, (int)relief->receive_bytes);
    }
    return (ssize_t)got;
}

/* connection: one TCP connection between lwIP and the server: data received but not yet read, data written but not
 * yet acknowledged, the events that are due, and closing. */
#ifndef REPLAY_NET_LWIP_CONNECTION_H
#define REPLAY_NET_LWIP_CONNECTION_H

#include <stdbool.h>
#include <stdint.h>

#include <lwip/opt.h>

#include <lwip/tcp.h>

#include "base/error.h"
#include "net/lwip/demultiplex.h"
#include "net/lwip/out_of_order.h"
#include "net/lwip/receive_window.h"
#include "net/lwip/received.h"
#include "net/lwip/recovery.h"
#include "net/round_robin.h"
#include "net/transport.h"

struct connections;

struct lwip_connection {
    struct connection base;
    struct connections *all;
    struct tcp_pcb *pcb; /* NULL once lwIP has let go of it, and before it stands */
    struct tcp_pcb *connecting; /* lwIP's, until it stands */
    struct received *first, *last; /* what may be read */
    size_t unread_bytes;
    size_t acknowledged_bytes; /* to be told by `released` */
    size_t written_bytes; /* of what writev took, not acknowledged yet */
    size_t buffer_bytes; /* that lwIP may hold of what is written */
    uint16_t wire_bytes; /* of data in a frame */
    struct rte_mbuf *acknowledgement; /* queued in the port, if it has not been flushed since: see output.c */
    uint64_t acknowledgement_flush;
    bool wants_read, wants_write;
    bool ended; /* the peer sends no more */
    bool hung_up; /* the event was given */
    bool closing; /* by the server: what it wrote is still delivered */
    bool over; /* `closed` is due, or would be if there were an owner */
    bool starved; /* no memory for segments: tried again with the next tick */
    bool ready; /* in the list of those with something to do */
    struct recovery recovery;
    struct receive_window window;
    struct out_of_order early;
    struct round_robin_member turn; /* in the line of those with much to send */
    struct ends ends;
    struct lwip_connection *next_found; /* of those in one bucket: see demultiplex.c */
    uint64_t deadline_us, last_us; /* of a close: without progress, and whatever it makes */
    struct lwip_connection *next_ready, *next_closing, *next_free;
};

struct connections {
    struct transport *transport;
    struct lwip_connection *table;
    struct lwip_connection *free;
    struct lwip_connection *ready_head, *ready_tail;
    struct lwip_connection *closing;
    uint32_t most, used;
    uint32_t active; /* had something to do in this turn */
    bool any_starved;
    size_t windows_bytes; /* of all receive windows, beyond what each has at first */
    uint32_t window_most_bytes, send_window_most_bytes; /* that one connection ever had */
    uint64_t refused; /* there was no place left */
    uint64_t aborted; /* what was written could not be delivered in time */
};

/* What lwIP hands to `connection_accept`. */
struct listener {
    struct connections *connections;
    struct tcp_pcb *pcb;
    bool is_admin;
};

int connections_open(struct connections *connections, struct transport *transport, uint32_t most, struct error *error);
/* Resets them all, without events. */
void connections_close(struct connections *connections);
err_t connection_accept(void *listener, struct tcp_pcb *pcb, err_t error);
/* See transport_dpdk_connect. */
struct connection *connection_connect(struct connections *connections, const ip_addr_t *address, uint16_t port,
                                      void *owner, struct error *error);

/* Gives the events that are due, one round of them. Returns how many; whoever has more to do is in the list again. */
int connections_deliver(struct connections *connections);
/* Once a tick: closes that take too long, memory that may be there again. */
void connections_tick(struct connections *connections, uint64_t now_us);
static inline bool connections_are_ready(const struct connections *connections) {
    return connections->ready_head;
}

ssize_t connection_readv(struct connection *connection, const struct iovec *vectors, int count);
ssize_t connection_writev(struct connection *connection, const struct iovec *vectors, int count);
void connection_want_read(struct connection *connection, bool on);
void connection_want_write(struct connection *connection, bool on);
void connection_close(struct connection *connection);

/* NULL: it is not one of the server's, or not any more. It stays where it is while frames are taken in. */
struct lwip_connection *connection_of(const struct tcp_pcb *pcb);
/* Whose place in the line it is. */
struct lwip_connection *connection_of_turn(struct round_robin_member *turn);
/* Whose recovery the timer is of. */
struct lwip_connection *connection_of_timer(struct timer *timer);
/* For output.c: the data that fits a frame to this peer. */
uint32_t connection_wire_bytes(const struct tcp_pcb *pcb);
/* After its window has grown: as much again can be written while a window's worth is under way. */
void connection_enlarge_buffer(struct lwip_connection *connection);

#endif

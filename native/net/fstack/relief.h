/* relief: keeps frames free while connections stand still.
 *
 * What a connection has received lies in DPDK's frames until the server reads it. Some hundred connections that are not
 * read, since they do not read their replies or wait for a table, could hold every frame, and then nothing would come in
 * any more: no request, no acknowledgement, not even the end of those connections. So when frames get few, what such
 * connections have received is moved to ordinary memory, with their windows closed meanwhile; and when they get very few,
 * frames with data are refused, as a full network would. */
#ifndef REPLAY_NET_FSTACK_RELIEF_H
#define REPLAY_NET_FSTACK_RELIEF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <rte_mbuf.h>

#include "net/round_robin.h"
#include "net/sockets.h"

struct fstack_connection {
    struct socket_connection socket;
    uint8_t *moved;                 /* received before what the socket still holds; NULL: nothing */
    size_t moved_bytes, moved_read; /* of it, those that the server has */
    struct fstack_connection *next_moved, *previous_moved;
    struct round_robin_member turn; /* in the line of those with much to write: see sending.h */
};

struct relief {
    struct sockets *sockets;
    struct fstack_connection *moved; /* the connections of which something was */
    size_t moved_bytes, most_bytes;
    uint32_t receive_bytes;          /* the receive buffer of a connection that is read again */
    uint32_t frames, free;           /* in the pool; `free` is an estimate between two looks */
    uint64_t refused_frames, closed_connections;
};

/* `receive_bytes`: of a connection's receive buffer. Moved bytes are bounded by twice what the frames can hold;
 * whose bytes go beyond that is closed. */
void relief_start(struct relief *relief, struct sockets *sockets, uint32_t receive_bytes);
/* Frames as they come in. Drops those there is no place for and returns how many are left. */
uint16_t relief_admit(struct relief *relief, struct rte_mbuf **frames, uint16_t count);
/* From time to time: looks how many frames are free and moves what stands still. */
void relief_look(struct relief *relief);
/* Tells the server of what was moved, where it reads again. Returns the events. */
int relief_deliver(struct relief *relief);

/* As the operation of a transport. */
ssize_t relief_readv(struct relief *relief, struct fstack_connection *connection, const struct iovec *vectors,
                     int count);
void relief_forget(struct relief *relief, struct fstack_connection *connection);

#endif

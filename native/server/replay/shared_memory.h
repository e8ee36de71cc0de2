/* shared_memory: shared memory from which a client on the same host reads its sampled batches. Each client has an
 * arena, cut into regions. A region belongs to the client until it gives it back or disconnects. The client maps the
 * arena read-only, and the server never reads from it. Knows neither tables nor replies. */
#ifndef REPLAY_SERVER_SHARED_MEMORY_H
#define REPLAY_SERVER_SHARED_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct server;
struct client;

#define SHARE_LEASES 64u /* of one client */
#define SHARE_REGION_ALIGNMENT 4096u
#define SHARE_LEAST_BYTES (1u << 20) /* of an arena */

struct share_lease {
    uint64_t number; /* never used twice on a connection; from 1 */
    size_t offset, length;
};

struct share {
    uint8_t *base;
    size_t bytes;
    int watch; /* whether the client has let go of the memory; -1: it cannot be told */
    struct share *next; /* among those that the server has given up, and clients have not */
    uint64_t given; /* leases so far */
    uint32_t count;
    struct share_lease leases[SHARE_LEASES]; /* by offset */
};

/* What all clients hold together; in struct replay_subsystem. */
struct share_totals {
    size_t bytes; /* of all arenas */
    size_t left_bytes; /* of arenas of connections that have closed, whose memory clients still have */
    struct share *left;
    uint32_t arenas, leases;
    uint32_t watches; /* descriptors that arenas take here, `left` ones included */
    uint64_t batches; /* answered through them */
    uint64_t refused; /* for want of room: answered through the socket */
};

/* Makes an arena of at most `bytes` (0: as large as is allowed) and attaches its descriptor to the connection's next reply.
 * Returns 0, or -1 with `error` set and nothing changed. */
int share_open(struct client *client, size_t bytes, struct error *error);
/* Gives the arena up with all leases; the client's own mapping stays as long as it likes, and counts as long. */
void share_close(struct client *client);
/* No longer counts memory of closed connections that clients have let go of by now. */
void share_forget_let_go(struct server *server);
void share_free_left(struct server *server);

/* A lease of `length` bytes where the arena has room, else NULL. Valid until the next call; the lowest free place is taken,
 * whose pages were used before. O(leases), as share_end. */
const struct share_lease *share_begin(struct client *client, size_t length);
/* Gives one back; false: there is no such lease. */
bool share_end(struct client *client, uint64_t number);

/* Whether the client's connection comes from this host, as far as its addresses tell. */
bool share_is_same_host(const struct client *client);
/* A secret for the client, to be shown on another connection; the one before is void. NULL: the system has no secrets yet. */
const char *share_new_nonce(struct client *client);
/* Whether it is a nonce of a client that is still connected; it is used up. */
bool share_take_nonce(struct server *server, const void *nonce, size_t length);

#endif

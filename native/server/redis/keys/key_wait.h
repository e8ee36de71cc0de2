/* key_wait: clients that wait until one of some keys changes, for each key in the order in which they came. */
#ifndef REPLAY_SERVER_KEY_WAIT_H
#define REPLAY_SERVER_KEY_WAIT_H

#include "server/core/client.h"

/* Blocks the client, whose handler has written no reply, until `retry` replies and returns true: it is called after a
 * change of any of the keys in arguments indexes[0 .. count) of its database, before other clients' next commands, those
 * that came first before those that came later. `expired` is called at the deadline (CLOCK_NEVER: none) and must reply.
 * In a transaction or a script `expired` is called at once. */
void client_block_on_keys(struct client *client, const uint32_t *indexes, uint32_t count, uint64_t deadline_us,
                          bool (*retry)(struct client *), void (*expired)(struct client *));

/* The same for the keys in `count` arguments from `first` on. */
void key_wait_on_range(struct client *client, uint32_t first, uint32_t count, uint64_t deadline_us,
                       bool (*retry)(struct client *), void (*expired)(struct client *));
/* The client, which has begun to wait, is tried also where a key that it waits for goes, or all keys do. */
void key_wait_also_when_gone(struct client *client);
/* Reads argument `index`, seconds to wait as Redis's blocking commands take them, 0 for ever. False: the error is
 * replied. */
bool key_wait_deadline(struct client *client, uint32_t index, uint64_t *deadline_us);

/* Inside `retry`: the argument whose key has changed. Redis serves a client from that key, also where another one that
 * stands before it in the arguments could serve it as well. The key is there, but of any
 * type; or it may be gone, after key_wait_also_when_gone. */
uint32_t key_wait_index(const struct client *client);

/* The key has changed (an event of the store). */
void key_wait_changed(struct server *server, unsigned database, const uint8_t *key, size_t length);
/* Any key of the database may be there now (SWAPDB). */
void key_wait_exchanged(struct server *server, unsigned database);
/* The client waits no longer, or goes. */
void key_wait_forget(struct client *client);

/* Tries the clients that wait for keys that have changed, until `until_us`; false: some are left for the next turn. While
 * there are such, retry_subsystems of the server is set. */
bool key_wait_run(struct server *server, uint64_t until_us);
void key_waits_free(struct server *server); /* once all clients are gone */

#endif

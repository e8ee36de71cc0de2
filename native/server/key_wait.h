/* key_wait: clients that wait until one of some keys changes, in the order in which they came to each key. */
#ifndef REPLAY_SERVER_KEY_WAIT_H
#define REPLAY_SERVER_KEY_WAIT_H

#include "server/client.h"

/* Blocks the client, whose handler has written no reply, until `retry` replies and returns true: it is called after a
 * change of any of the keys in arguments indexes[0 .. count) of its database, before other clients' next commands, those
 * that came first before those that came later. `expired` is called at the deadline (CLOCK_NEVER: none) and must reply.
 * In a transaction or a script `expired` is called at once. */
void client_block_on_keys(struct client *client, const uint32_t *indexes, uint32_t count, uint64_t deadline_us,
                          bool (*retry)(struct client *), void (*expired)(struct client *));

/* The key has changed (an event of the store). */
void key_wait_changed(struct server *server, unsigned database, const uint8_t *key, size_t length);
/* The client waits no longer, or goes. */
void key_wait_forget(struct client *client);

#endif

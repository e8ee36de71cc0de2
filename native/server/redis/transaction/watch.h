/* watch: keys that clients watch, so that their next transaction runs only if none of them has changed. */
#ifndef REPLAY_SERVER_WATCH_H
#define REPLAY_SERVER_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/core/client.h"

/* Watches the key of the client's database from now on. False: memory is exhausted, and nothing has changed. */
bool watch_key(struct client *client, const uint8_t *key, size_t length);
/* Watches nothing any more, and forgets what has changed: at the end of a transaction, at UNWATCH, and when it goes. */
void watch_forget(struct client *client);
/* Has a watched key changed, or has its time come? */
bool watch_is_broken(struct client *client);

/* The key has changed (an event of the store). */
void watch_changed(struct server *server, unsigned database, const uint8_t *key, size_t length);
/* All keys of the database are about to go, or to be exchanged for others: breaks watches of keys that are there. */
void watch_will_flush(struct server *server, unsigned database);
/* Nobody watches any more. */
void watch_free(struct server *server);

#endif

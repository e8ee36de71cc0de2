/* migrating_keys: keys on their way to another shard. A client that asks for one waits until it is there. One connection holds
 * keys at a time. One that takes too long is closed, so that it cannot remove what others may have changed since. */
#ifndef REPLAY_SERVER_CLUSTER_MIGRATING_KEYS_H
#define REPLAY_SERVER_CLUSTER_MIGRATING_KEYS_H

#include <stdbool.h>

#include "server/core/client.h"
#include "store/dict.h"

struct migrating_keys {
    struct client *holder; /* NULL: nothing is held */
    struct dict keys; /* names alone */
    uint64_t until_us;
    struct wait_queue waiting;
};

bool migrating_keys_has(const struct migrating_keys *migrating, const struct resp_argument *key);
/* The holder has gone, or lets go. */
void migrating_keys_release(struct migrating_keys *migrating);
uint64_t migrating_keys_step(struct server *server); /* a task of long_work */

void cluster_hold(struct client *client);
void cluster_release(struct client *client);
/* See struct upcalls. */
bool cluster_holds(struct client *client);

#endif

/* cluster_subsystem: what a server keeps as one shard of several (setting cluster-enabled): their topology. A supervisor
 * pushes it; shards do not talk to each other. */
#ifndef REPLAY_SERVER_CLUSTER_SUBSYSTEM_H
#define REPLAY_SERVER_CLUSTER_SUBSYSTEM_H

#include <stddef.h>

#include "server/cluster/migrating_keys.h"
#include "server/core/subsystem.h"

struct topology;

struct cluster_subsystem {
    struct topology *topology; /* NULL: none was pushed yet, and no slot is served */
    struct migrating_keys migrating;
};

/* See struct upcalls. */
const char *cluster_refusal(struct client *client, const struct command *command, char *message, size_t size);
/* Tells waiting clients of slots that have left. */
void cluster_redirect_waiting(struct server *server);

extern const struct command commands_cluster[];
extern const struct subsystem cluster_subsystem;

#endif

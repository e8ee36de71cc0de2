/* cmd_cluster: what the files of CLUSTER's subcommands share. */
#ifndef REPLAY_SERVER_CMD_CLUSTER_H
#define REPLAY_SERVER_CMD_CLUSTER_H

#include "server/core/client.h"

/* Where the server is no shard: replies that, false. */
bool cluster_is_on(struct client *client);

void cluster_keyslot(struct client *client);
void cluster_countkeysinslot(struct client *client);
void cluster_getkeysinslot(struct client *client);

#endif

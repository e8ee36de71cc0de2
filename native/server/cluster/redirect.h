/* redirect: what the files of the cluster ask of a request's keys, and of where clients are sent. */
#ifndef REPLAY_SERVER_CLUSTER_REDIRECT_H
#define REPLAY_SERVER_CLUSTER_REDIRECT_H

#include "server/cluster/topology.h"
#include "server/core/client.h"

/* Whether the client's request, or one of its transaction, names a key that is held. */
bool redirect_names_held_key(struct client *client);

/* The port of a shard that a client is told: that for TLS where it, or a script's caller, came over TLS itself. */
int redirect_port(const struct client *client, const struct shard *shard);
/* Likewise, of these two; `tls_port` 0: there is none. */
int redirect_port_of(const struct client *client, int port, int tls_port);

#endif

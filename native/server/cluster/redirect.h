/* redirect: what the files of the cluster ask of a request's keys. */
#ifndef REPLAY_SERVER_CLUSTER_REDIRECT_H
#define REPLAY_SERVER_CLUSTER_REDIRECT_H

#include "server/core/client.h"

/* Whether the client's request, or one of its transaction, names a key that is held. */
bool redirect_names_held_key(struct client *client);

#endif

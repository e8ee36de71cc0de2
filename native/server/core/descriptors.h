/* descriptors: raises the limit of file descriptors so that every client can have one. */
#ifndef REPLAY_SERVER_DESCRIPTORS_H
#define REPLAY_SERVER_DESCRIPTORS_H

#include "server/core/server.h"

/* Raises the process's limit for maxclients; where the system allows fewer, lowers maxclients; the log says so. -1: there
 * are too few to serve anyone, and maxclients is left as it was. */
int descriptors_raise(struct server_config *config, struct error *error);

#endif

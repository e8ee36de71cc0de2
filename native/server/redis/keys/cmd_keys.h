/* cmd_keys: searches for keys that take more than one turn of the loop. */
#ifndef REPLAY_SERVER_CMD_KEYS_H
#define REPLAY_SERVER_CMD_KEYS_H

#include <stdbool.h>

#include "server/core/server.h"

/* One slice of one search; whether there is more to do. */
bool keys_step(struct server *server);
/* Ends all searches at once: what they look at is about to be exchanged. */
void keys_finish(struct server *server);

#endif

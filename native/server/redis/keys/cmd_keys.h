/* cmd_keys: searches for keys that take more than one turn of the loop. */
#ifndef REPLAY_SERVER_CMD_KEYS_H
#define REPLAY_SERVER_CMD_KEYS_H

#include "server/core/server.h"

/* Searches go on in the databases that they began in, wherever those are now. */
void keys_exchanged(struct server *server, unsigned first, unsigned second);

#endif

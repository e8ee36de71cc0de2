/* debug_data: the subcommands of DEBUG that work on the whole store. */
#ifndef REPLAY_SERVER_DEBUG_DATA_H
#define REPLAY_SERVER_DEBUG_DATA_H

#include "server/core/command.h"

void debug_reload(struct client *client);
void debug_loadaof(struct client *client);
void debug_digest(struct client *client);
void debug_digest_value(struct client *client);

#endif

/* scripts: what the rest of the server knows of Lua. */
#ifndef REPLAY_SERVER_SCRIPTS_H
#define REPLAY_SERVER_SCRIPTS_H

#include <stddef.h>
#include <stdint.h>

#include "server/core/server.h"

void scripts_free(struct server *server);
/* For INFO. */
size_t scripts_memory_bytes(const struct server *server);
size_t scripts_cache_bytes(const struct server *server); /* of what finds them, Lua apart */
uint32_t scripts_count(const struct server *server);

#endif

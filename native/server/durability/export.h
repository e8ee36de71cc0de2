/* export: sends the store as a file for Redis to clients that send SYNC. The file shows one moment, and other clients
 * are served meanwhile.
 *
 * The store is cut as for a base of the append-only file, and written to a snapshot in slices. A thread turns that
 * into Redis's format, a key at a time, in a file without a name. The file is mapped and sent as fast as clients
 * read. */
#ifndef REPLAY_SERVER_EXPORT_H
#define REPLAY_SERVER_EXPORT_H

#include "server/core/client.h"
#include "server/core/server.h"

struct export;

struct export *export_new(struct server *server); /* NULL: memory is exhausted */
void export_free(struct export *export); /* after all clients */
/* Returns when to call again, CLOCK_NEVER when there is nothing to do. */
uint64_t export_step(struct export *export);

extern const struct command commands_export[];

#endif

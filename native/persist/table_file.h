/* table_file: one table in a snapshot file of its own, for callers without a server. The format is that of the
 * server's snapshots: a server reads these files, and these functions read a server's. */
#ifndef REPLAY_PERSIST_TABLE_FILE_H
#define REPLAY_PERSIST_TABLE_FILE_H

#include "persist/snapshot.h"

/* Begins to save the table as it is now, which may change meanwhile. The caller goes on with table_file_step. */
struct snapshot *table_file_save(struct table *table, const char *folder, const char *name, struct error *error);
/* Copies for about so long. 0: it is done; 1: there is more to copy; 2: the disk has to take something first; -1: it failed. */
int table_file_step(struct snapshot *snapshot, uint64_t budget_us, struct error *error);

/* The table of that name in a file. NULL with `error` set: there is none, or the file is damaged. */
struct table *table_file_load(const char *path, const char *name, struct error *error);

#endif

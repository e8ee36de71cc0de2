/* snapshot_folder: the snapshots in a folder: names for new ones, which is the newest, which are too many. */
#ifndef REPLAY_PERSIST_SNAPSHOT_FOLDER_H
#define REPLAY_PERSIST_SNAPSHOT_FOLDER_H

#include <limits.h>
#include <stdint.h>

#include "base/error.h"

#define SNAPSHOT_SUFFIX ".snapshot"

/* "replay-20261120-195712-345.snapshot", of the time in UTC. Only files of such names are ever removed as too many. */
void snapshot_name_new(char name[NAME_MAX + 1], int64_t unix_ms);
/* The file that ends in SNAPSHOT_SUFFIX and whose header tells of the latest cut. "" when there is none. -1 when the folder
 * cannot be read. */
int snapshot_newest(const char *folder, char name[NAME_MAX + 1], struct error *error);
/* Removes all but the newest `keep` (>= 1) of the files that snapshot_name_new has named, and never `spared`: where the clock
 * went back, the one just written is the oldest by name. `folder` is a descriptor. */
void snapshot_prune(int folder, uint32_t keep, const char *spared);
/* Removes what a server that was killed had begun to write; returns how many files, and the name of the last of them. */
uint32_t snapshot_remove_partial(const char *folder, char name[NAME_MAX + 1]);

#endif

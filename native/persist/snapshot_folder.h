/* snapshot_folder: the snapshots in a folder: names for new ones, which is the newest, which are too many. */
#ifndef REPLAY_PERSIST_SNAPSHOT_FOLDER_H
#define REPLAY_PERSIST_SNAPSHOT_FOLDER_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define SNAPSHOT_SUFFIX ".snapshot"

/* "replay-20261120-195712-345.snapshot", of the time in UTC. Only files of such names are ever removed as too many. */
void snapshot_name_new(char name[NAME_MAX + 1], int64_t unix_ms);
/* The newest file that ends in SNAPSHOT_SUFFIX: that of the highest number in its header. Files of before version 3 have
 * none and are older than those, the latest cut of them the newest. "" when there is none. -1 when the folder cannot be
 * read. */
int snapshot_newest(const char *folder, char name[NAME_MAX + 1], struct error *error);
/* The highest number of a snapshot in the folder; 0: none has one. `folder` is a descriptor, here and below; or AT_FDCWD. */
uint64_t snapshot_last_number(int folder);
/* Whether a snapshot of that name may be written: it is one that snapshot_name_new gives, or is there already, or there are
 * fewer than `most_named` of other names. */
bool snapshot_has_room(int folder, const char *name, uint32_t most_named);
/* Removes all but the newest `keep` (>= 1) of the files that snapshot_name_new has named, damaged ones first, and never
 * `spared`, the one just written. */
void snapshot_prune(int folder, uint32_t keep, const char *spared);
/* Removes what a server that was killed had begun to write; returns how many files, and the name of the last of them. */
uint32_t snapshot_remove_partial(const char *folder, char name[NAME_MAX + 1]);

#endif

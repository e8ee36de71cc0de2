/* rdb_file_writer: writes the keys and the libraries of functions of a snapshot as a file for Redis. The format has no
 * place for tables, weights and gradients. */
#ifndef REPLAY_PERSIST_RDB_FILE_WRITER_H
#define REPLAY_PERSIST_RDB_FILE_WRITER_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/error.h"

/* Reads the snapshot from one descriptor and writes to the other, a key at a time. `stream_database`: of the changes that a
 * replica is sent next. Any thread may do it. -1 with `error`. */
int rdb_file_from_snapshot(int snapshot, int out, bool compresses, int stream_database, const atomic_bool *stop,
                           uint64_t *bytes, struct error *error);

#endif

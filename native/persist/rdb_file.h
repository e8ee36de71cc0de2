/* rdb_file: Redis's files of a whole store (dump.rdb): read into a new store, and written. */
#ifndef REPLAY_PERSIST_RDB_FILE_H
#define REPLAY_PERSIST_RDB_FILE_H

#include <stdatomic.h>

#include "persist/rdb_value.h"
#include "persist/store_restore.h"

struct rdb_content {
    struct store_content store; /* the caller's to free; no weights and no gradients */
    int64_t written_unix_ms; /* 0: the file does not say when */
    int64_t stream_database; /* of the changes that a primary sends next; 0 where the file does not say */
};

/* Whether the file begins as such a file does. A file that cannot be read does not. */
bool rdb_file_is(const char *path);
/* Reads the whole file, or refuses it and names the byte. It must not be cut short meanwhile. Any thread may do it. `stop`
 * as for snapshot_read. */
int rdb_file_read(const char *path, struct rdb_content *content, const atomic_bool *stop, struct error *error);
/* The same of bytes; on failure what was read so far is in *content, for the caller to free. `path` is for messages. */
int rdb_file_parse(const char *path, const uint8_t *data, size_t length, struct rdb_content *content,
                   const atomic_bool *stop, struct error *error);

#endif

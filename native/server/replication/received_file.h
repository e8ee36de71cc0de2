/* received_file: all keys, as a primary sends them, or everything, read by a thread into a store and tables of its own. A
 * snapshot is read while it comes, and never lies on the disk; Redis's format is written there first. */
#ifndef REPLAY_SERVER_RECEIVED_FILE_H
#define REPLAY_SERVER_RECEIVED_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "persist/rdb_file.h"
#include "persist/snapshot_reader.h"

#define RECEIVED_SNAPSHOT "$SNAPSHOT:"

struct received_file;
struct worker;

/* `header`: "$123", or "$EOF:" and forty bytes that mark the end; or "$SNAPSHOT:0": a snapshot in parts, and the database of the
 * changes that follow it. Before each part stands a line with the number of its bytes, and behind the last the line "0". The
 * worker does nothing else meanwhile. NULL with `error` set. */
struct received_file *received_file_new(const char *header, struct worker *worker, struct error *error);
/* Waits until the worker has given up what it is at, and freed what it had read. NULL is allowed. */
void received_file_free(struct received_file *file);
/* Nobody wants it any more. True: it is freed, or was NULL. False: the worker is freeing what it had read, which may take
 * seconds; to be called again. */
bool received_file_give_up(struct received_file *file);

/* Takes some of the bytes; fewer than there are where the thread is behind, or the file has ended. */
size_t received_file_take(struct received_file *file, const uint8_t *bytes, size_t length);
bool received_file_has_ended(const struct received_file *file);
uint64_t received_file_bytes(const struct received_file *file);

enum received_state { RECEIVED_SOME, RECEIVED_ALL, RECEIVED_FAILED };
/* Looks what the thread has done. RECEIVED_ALL: it is read, and the content is the file's until it is freed. */
enum received_state received_file_step(struct received_file *file, struct error *error);
/* Of a snapshot, weights, gradients and tables as well. */
struct received_content {
    bool has_tables;
    int64_t stream_database; /* of the changes that follow; 0 where a Redis does not say */
    struct snapshot_content all; /* whose `store` has the keys in any case */
};
struct received_content *received_file_content(struct received_file *file);

#endif

/* snapshot_reader: reads a snapshot file into new tables. Nothing in the file is trusted. It is read as a whole or
 * refused as a whole, and an error names the place. The reader touches only what it creates, so any thread may run
 * it. */
#ifndef REPLAY_PERSIST_SNAPSHOT_READER_H
#define REPLAY_PERSIST_SNAPSHOT_READER_H

#include <stdatomic.h>

#include "persist/store_restore.h"
#include "replay/table.h"

struct snapshot_content {
    struct table **tables; /* the caller's, who frees them and the list */
    uint32_t count;
    struct store_content store; /* keys and weights; store.store NULL: the file has none, or they were not wanted */
    int64_t cut_unix_ms;
    uint64_t epoch, newest_epoch, origin; /* of the server; 0: the file tells of none */
    bool is_copy;                         /* it was a replica */
    uint64_t bytes;
    char run_id[25];
};

/* Embedded in whatever the bytes come from. */
struct snapshot_source {
    size_t (*take)(struct snapshot_source *source, void *out,
                   size_t length); /* at least one byte; 0: they have ended */
};

/* Reads from the descriptor's start to its end. `name` is for messages. While it works `*stop` is looked at (NULL: never):
 * once it is true the reader gives up. */
int snapshot_read(int descriptor, const char *name, struct snapshot_content *content, const atomic_bool *stop,
                  struct error *error);
/* Likewise, of bytes that come one after another. A source that ends before it is whole is a file that is cut short. */
int snapshot_read_coming(struct snapshot_source *source, const char *name, struct snapshot_content *content,
                         const atomic_bool *stop, struct error *error);
int snapshot_read_file(const char *path, struct snapshot_content *content, const atomic_bool *stop,
                       struct error *error);
/* Gives the keys of a snapshot to the sink, one at a time, and leaves out everything else. */
int snapshot_read_keys(int descriptor, const char *name, const struct store_keys_sink *sink, const atomic_bool *stop,
                       struct error *error);
void snapshot_content_free(struct snapshot_content *content);

#endif

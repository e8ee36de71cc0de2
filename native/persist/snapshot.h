/* snapshot: all tables, and the store with what belongs to it (store_cut.h), as they are at one moment, streamed to a
 * file while they stay in use.
 *
 * snapshot_begin is the moment of the cut. snapshot_step then copies a little at a time into blocks
 * (replay/table_cut.h, store_cut.h), which a thread of the snapshot's own checks, writes and brings to the disk
 * (persist/snapshot_file.h). Memory is bounded. If too much waits for the disk, copying pauses. What must be copied
 * at once, because it is about to change, may take more, up to a limit that grows with the tables. Past that limit
 * the snapshot fails, and the server continues to serve. */
#ifndef REPLAY_PERSIST_SNAPSHOT_H
#define REPLAY_PERSIST_SNAPSHOT_H

#include "persist/store_cut.h"
#include "replay/table.h"

#define SNAPSHOT_AHEAD_BYTES (16u << 20)       /* waiting for the disk: copying pauses */
#define SNAPSHOT_LEAST_BYTES (48u << 20)       /* may wait in any case, or else … */
#define SNAPSHOT_MEMORY_PART 24u               /* … this part of the tables' bytes; as much again is held in slots */

struct snapshot;
struct worker;

struct snapshot_options {
    const char *folder, *name; /* of the file */
    const char *run_id;        /* of this server; NULL: none */
    struct store_cut *store; /* the store's; NULL: tables only. Weights are added to it right after snapshot_begin */
    uint64_t store_bytes; /* about what the store holds */
    uint64_t epoch, newest_epoch, origin; /* of the server, as a primary; 0: there was none to tell */
    bool is_copy; /* of a primary's data */
    uint32_t keep; /* snapshots of names given by snapshot_name_new that stay; 0: all */
    bool is_passing; /* read by this process and removed: it need not survive a failure of the machine */
    uint64_t memory_bytes; /* 0: as said above */
    struct worker *worker; /* the caller's, which writes and does nothing else meanwhile; NULL: one of its own */
};

enum snapshot_state {
    SNAPSHOT_COPYING, /* there is something to do now */
    SNAPSHOT_WRITING, /* the disk has to take something first */
    SNAPSHOT_DONE, /* the file is there, whole and on the disk */
    SNAPSHOT_FAILED /* no file is there */
};

struct snapshot_progress {
    int64_t cut_unix_ms;
    uint64_t bytes; /* of the file, so far */
    uint64_t written; /* of them, from its beginning on */
    uint64_t waiting_bytes, most_waiting_bytes; /* copied, not on the way to the disk yet */
};

/* The tables must stay until snapshot_free; each can be in one snapshot at a time. NULL with `error` set. */
struct snapshot *snapshot_begin(const struct snapshot_options *options, struct table *const *tables, uint32_t count,
                                struct error *error);
/* Copies until `until_us` (clock_monotonic_us); a piece that was begun is finished. With SNAPSHOT_FAILED `error` is set. */
enum snapshot_state snapshot_step(struct snapshot *snapshot, uint64_t until_us, struct error *error);
void snapshot_progress(const struct snapshot *snapshot, struct snapshot_progress *progress);
/* Lets go of everything; of a snapshot that is neither done nor failed no file stays. Waits for a write in progress, and for
 * the end of a worker of its own, which may be kept waiting by others. */
void snapshot_free(struct snapshot *snapshot);

#endif

/* snapshot_file: writes blocks to a file under another name, makes sure that they are on the disk, and renames it. So
 * a file with the right name is always complete. A worker does checksums, writing and fsync; the caller only fills
 * blocks. */
#ifndef REPLAY_PERSIST_SNAPSHOT_FILE_H
#define REPLAY_PERSIST_SNAPSHOT_FILE_H

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/worker.h"

#define SNAPSHOT_PARTIAL_SUFFIX ".partial"

struct snapshot_file;

/* A block being filled or on its way to the disk. */
struct snapshot_block {
    struct worker_job job;
    struct snapshot_file *file;
    struct snapshot_block *next; /* among those to be filled again */
    size_t room, length;
    uint32_t records;
    bool failed; /* it, or what came before it, could not be written */
    uint8_t data[];
};

/* What the worker does last. */
struct snapshot_finish {
    struct worker_job job;
    struct snapshot_file *file;
    bool keep; /* false: the partial file is removed */
};

/* Its fields below are the worker's while jobs are on their way. */
struct snapshot_file {
    int descriptor, folder;
    char name[NAME_MAX + 1]; /* in `folder` */
    bool created;
    uint32_t tables, contents;
    char run_id[24];
    int64_t cut_unix_ms;
    uint32_t keep_newest; /* of the files named by snapshot_name_new; 0: all */
    bool is_passing; /* nobody waits for the disk, and pages stay where whoever reads it next finds them */
    uint64_t blocks, bytes;
    uint64_t synced, syncing; /* bytes that are on the disk, bytes that were sent there */
    struct snapshot_finish finish;
    atomic_bool given_up;
    struct error error; /* the first thing that went wrong; later jobs do nothing */
};

/* A file NAME.partial in the folder, created when the first block is written. A name must be one that
 * snapshot_name_is_valid. */
struct snapshot_file *snapshot_file_new(const char *folder, const char *name, uint32_t tables, const char *run_id,
                                        struct error *error);
/* No job may be on its way. Removes the partial file if the end was not written. */
void snapshot_file_free(struct snapshot_file *file);
void snapshot_file_write(struct snapshot_file *file, struct worker *worker, struct snapshot_block *block);
/* Makes it a file of its own name, on the disk (`keep`), or removes it. The job comes back as file->finish.job. */
void snapshot_file_end(struct snapshot_file *file, struct worker *worker, bool keep);
/* What is still on its way need not be written any more. */
void snapshot_file_give_up(struct snapshot_file *file);

/* Whether the name can be that of a snapshot. It does not begin with a dot or a dash, has no slash, blank or control
 * character, does not end in SNAPSHOT_PARTIAL_SUFFIX, and with that suffix is at most NAME_MAX bytes long. */
bool snapshot_name_is_valid(const char *name);

#endif

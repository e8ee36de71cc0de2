/* append_writer: the end of the append-only file. Its owner adds to a buffer and hands it over now and then; a thread
 * writes what was handed over, adds a checksum, and calls fdatasync if it was asked to. One buffer is on its way at a
 * time, so that many changes share one write and one fdatasync. append_lines.h has the lines that it writes between commands.
 *
 * Why the file always holds the oldest changes, complete and in order:
 *   - Only this thread writes to it, at its end, one buffer after the other, in the order in which the owner added.
 *   - A buffer gets into the file whole or not at all. If writing fails half way, the file is cut back to its size
 *     before, and the same buffer is tried again before any other. If the file cannot be cut back, the job is
 *     `broken`.
 *   - `synced` counts what was written before a successful fdatasync began. After a failed one it is unknown what the
 *     disk has: the job is `broken` as well, and only new files help.
 *   - What a later process reads may be in memory alone, though no fsync fails any more: after a failed one the system takes
 *     what it could not write for written, and shows it until the power is lost. So all behind the last line that tells of
 *     an fsync is written again before the file goes on. Such a line is true: the process of a failed fsync writes nothing
 *     more to the file. Names are not written again: a system that cannot write those stops the whole file system.
 *   - After a crash the end may be cut off, or have zeros in the place of what had not reached the disk. Each write ends with
 *     a checksum, and the first one after an fsync begins with how much of the file that had brought to the disk, so the
 *     reader can tell such an end from damage (append_reader.h).
 *   - The manifest names an increment only once that file is on the disk by its name and with its salt, and a file is
 *     removed only once no manifest on the disk can name it.
 * This would break if anything else wrote to the file, or if a reply that waits for the disk were released at
 * `written` instead of `synced`. */
#ifndef REPLAY_PERSIST_APPEND_WRITER_H
#define REPLAY_PERSIST_APPEND_WRITER_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/worker.h"
#include "persist/append_buffer.h"
#include "persist/append_manifest.h"

enum append_job_kind { APPEND_WRITE, APPEND_SWITCH };

enum append_switch {
    APPEND_SWITCH_OPEN = 1,    /* make the manifest's last increment: it is written to from here on */
    APPEND_SWITCH_MANIFEST = 2 /* write the manifest, and remove the files that it does not name */
};

struct append_end;
struct append_writer;

struct append_job {
    struct worker_job job;
    struct append_writer *writer;
    enum append_job_kind kind;
    bool sync;
    struct append_manifest manifest; /* of a switch */
    unsigned switches;               /* enum append_switch */
    struct error error;              /* ERROR_NONE: it was done */
    bool broken;                     /* what the disk has is not known any more: only new files help */
};

struct append_writer {
    struct worker *worker;
    int folder;                  /* descriptor */
    struct append_buffer open;   /* what is handed over next */
    struct append_buffer given;  /* what is on its way, or is to be tried again */
    struct append_job job;
    bool busy;                   /* the job is the worker's */
    bool retry;                  /* `given` was not written */
    uint64_t appended, handed, written, synced; /* bytes since the start, checksums apart */
    uint64_t fsyncs;
    uint64_t file_bytes;         /* of the file that is written to, so far as is known */
    /* the worker's while busy */
    int descriptor;              /* -1: none */
    char name[NAME_MAX + 1];
    uint64_t size;
    uint64_t begun;              /* the disk was told to begin with all before it */
    uint64_t synced_size;        /* so much of the file is on the disk … */
    uint64_t told_size;          /* … and so much of it the file tells of */
    uint32_t checksum;
    uint64_t salt;
    size_t most_at_once;         /* what the file system takes in a call */
};

/* `finished` is called on the writer's thread when there is something for append_writer_collect. The folder's descriptor
 * becomes the writer's. NULL: memory or threads are exhausted. */
struct append_writer *append_writer_new(int folder, void (*finished)(void *context), void *context);
/* Waits for what is on its way; what was not handed over is lost. */
void append_writer_free(struct append_writer *writer);

/* Goes on with a file that was read to that end. Returns once all of it is on the disk by its name, since what a server that
 * was killed had written need not be. */
int append_writer_continue(struct append_writer *writer, const char *name, const struct append_end *end,
                           struct error *error);

/* Hands over all that was added, `sync`: to be brought to the disk. Nothing may be on its way. */
void append_writer_hand_over(struct append_writer *writer, bool sync);
/* Forgets what is to be tried again. Nothing may be on its way. */
void append_writer_drop(struct append_writer *writer);
/* To other files, as enum append_switch says: both, or if that fails nothing. Nothing may be on its way, and what is added
 * belongs in the new increment, if there is to be one. */
void append_writer_switch(struct append_writer *writer, const struct append_manifest *manifest, unsigned switches);
/* True when the job that was on its way is done: its outcome is in writer->job. */
bool append_writer_collect(struct append_writer *writer);
void append_writer_wait(struct append_writer *writer); /* until it is */

#endif

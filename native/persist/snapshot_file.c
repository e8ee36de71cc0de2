/* snapshot_file: the worker's side: checksums, writes, fsync, rename. */
#include "persist/snapshot_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/memory.h"
#include "base/write.h"
#include "persist/snapshot_folder.h"
#include "persist/snapshot_format.h"

/* So much is written before the disk is asked to begin, so that pages do not pile up until the end. */
#define SYNC_BYTES (32u << 20)

bool snapshot_name_is_valid(const char *name) {
    size_t length = strlen(name), suffix = strlen(SNAPSHOT_PARTIAL_SUFFIX);
    if (length < 1 || length + suffix > NAME_MAX || strchr("./-", name[0])) return false;
    for (const char *at = name; *at; at++)
        if (*at == '/' || (unsigned char)*at < 0x21 || *at == 0x7f) return false;
    return length < suffix || strcmp(name + length - suffix, SNAPSHOT_PARTIAL_SUFFIX) != 0;
}

static void partial_name(const struct snapshot_file *file, char out[NAME_MAX + 16]) {
    snprintf(out, NAME_MAX + 16, "%s%s", file->name, SNAPSHOT_PARTIAL_SUFFIX);
}

static int fail(struct snapshot_file *file, const char *what) {
    char partial[NAME_MAX + 16];
    partial_name(file, partial);
    return error_set(&file->error, ERROR_GENERIC, "%s %s: %s", what, partial, strerror(errno));
}

static void remove_partial(struct snapshot_file *file) {
    char partial[NAME_MAX + 16];
    partial_name(file, partial);
    (void)unlinkat(file->folder, partial, 0);
}

/* Sends what is written on its way to the disk, waits for what was sent before, and lets go of its pages: a snapshot is
 * read once, if ever, and must not push out what is in use. Without the call of Linux the fsync at the end does it all. */
static void sync_some(struct snapshot_file *file) {
#ifdef SYNC_FILE_RANGE_WRITE
    if (file->is_passing || file->bytes - file->syncing < SYNC_BYTES) return;
    off_t synced = (off_t)file->synced, syncing = (off_t)file->syncing;
    (void)sync_file_range(file->descriptor, syncing, (off_t)file->bytes - syncing, SYNC_FILE_RANGE_WRITE);
    if (syncing > synced) {
        (void)sync_file_range(file->descriptor, synced, syncing - synced,
                              SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
        (void)posix_fadvise(file->descriptor, synced, syncing - synced, POSIX_FADV_DONTNEED);
    }
    file->synced = file->syncing;
    file->syncing = file->bytes;
#else
    (void)file;
#endif
}

/* ---- the worker's jobs --------------------------------------------------------------------------------------------- */

static int write_header(struct snapshot_file *file) {
    struct snapshot_file_header header = {.version = SNAPSHOT_VERSION,
                                          .tables = file->tables,
                                          .contents = file->contents,
                                          .number = snapshot_last_number(file->folder) + 1,
                                          .cut_unix_ms = file->cut_unix_ms};
    memcpy(header.magic, SNAPSHOT_MAGIC, sizeof header.magic);
    memcpy(header.run_id, file->run_id, sizeof header.run_id);
    header.checksum = crc32c(0, &header, offsetof(struct snapshot_file_header, checksum));
    if (write_all(file->descriptor, &header, sizeof header) < 0) return fail(file, "cannot write");
    file->bytes += sizeof header;
    return 0;
}

/* A job of the worker's as well: a disk that is busy can keep whoever creates a file waiting. */
static int create(struct snapshot_file *file) {
    char partial[NAME_MAX + 16];
    partial_name(file, partial);
    file->created = true;
    if (file->is_passing) remove_partial(file); /* whoever has mapped one of that name must not find it cut short */
    file->descriptor = openat(file->folder, partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    return file->descriptor < 0 ? fail(file, "cannot create") : write_header(file);
}

static int write_block(struct snapshot_file *file, const struct snapshot_block *block) {
    if (file->error.code != ERROR_NONE || atomic_load_explicit(&file->given_up, memory_order_relaxed)) return -1;
    if (!file->created && create(file) < 0) return -1;
    struct snapshot_block_header header = {
        .magic = SNAPSHOT_BLOCK_MAGIC,
        .records = block->records,
        .index = file->blocks++,
        .length = (uint32_t)block->length,
        .payload_checksum = crc32c(0, block->data, block->length),
    };
    header.checksum = crc32c(0, &header, offsetof(struct snapshot_block_header, checksum));
    struct iovec vectors[] = {{&header, sizeof header}, {(void *)(uintptr_t)block->data, block->length}};
    if (write_all_pieces(file->descriptor, vectors, 2) < 0) return fail(file, "cannot write");
    file->bytes += sizeof header + block->length;
    sync_some(file);
    return 0;
}

static void run_write(struct worker_job *job) {
    struct snapshot_block *block = (struct snapshot_block *)job;
    block->failed = write_block(block->file, block) < 0;
}

static void close_descriptor(struct snapshot_file *file) {
    if (file->descriptor >= 0) close(file->descriptor);
    file->descriptor = -1;
}

static int rename_file(struct snapshot_file *file) {
    char partial[NAME_MAX + 16];
    partial_name(file, partial);
    return renameat(file->folder, partial, file->folder, file->name) < 0 ? fail(file, "cannot rename") : 0;
}

static void pass_on(struct snapshot_file *file) {
    if (rename_file(file) == 0) close_descriptor(file);
}

static void keep_file(struct snapshot_file *file) {
    if (fsync(file->descriptor) < 0) {
        fail(file, "cannot bring to the disk");
    } else if (rename_file(file) == 0) {
        (void)posix_fadvise(file->descriptor, 0, 0, POSIX_FADV_DONTNEED);
        close_descriptor(file);
        if (fsync(file->folder) < 0)
            fail(file, "cannot bring to the disk the folder of");
        else if (file->keep_newest > 0)
            snapshot_prune(file->folder, file->keep_newest, file->name);
    }
}

static void run_finish(struct worker_job *job) {
    struct snapshot_file *file = ((struct snapshot_finish *)job)->file;
    if (file->finish.keep && file->error.code == ERROR_NONE && !atomic_load(&file->given_up))
        file->is_passing ? pass_on(file) : keep_file(file);
    if (file->descriptor >= 0) {
        close_descriptor(file);
        remove_partial(file);
    }
}

/* ---- the caller's side --------------------------------------------------------------------------------------------- */

struct snapshot_file *snapshot_file_new(const char *folder, const char *name, uint32_t tables, const char *run_id,
                                        struct error *error) {
    struct snapshot_file *file = memory_calloc(1, sizeof *file);
    if (!file || !snapshot_name_is_valid(name)) {
        memory_free(file);
        error_set(error, ERROR_GENERIC, "out of memory, or no name for a snapshot: '%s'", name);
        return NULL;
    }
    snprintf(file->name, sizeof file->name, "%s", name);
    file->descriptor = -1;
    file->finish.file = file;
    file->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file->folder < 0) {
        error_set(error, ERROR_GENERIC, "cannot open the folder %s: %s", folder, strerror(errno));
        snapshot_file_free(file);
        return NULL;
    }
    file->tables = tables;
    file->cut_unix_ms = clock_unix_ms();
    if (run_id) memcpy(file->run_id, run_id, strnlen(run_id, sizeof file->run_id));
    return file;
}

void snapshot_file_free(struct snapshot_file *file) {
    if (file->descriptor >= 0) {
        close_descriptor(file);
        remove_partial(file);
    }
    if (file->folder >= 0) close(file->folder);
    memory_free(file);
}

void snapshot_file_write(struct snapshot_file *file, struct worker *worker, struct snapshot_block *block) {
    block->file = file;
    block->job.run = run_write;
    worker_give(worker, &block->job);
}

void snapshot_file_give_up(struct snapshot_file *file) {
    atomic_store(&file->given_up, true);
}

void snapshot_file_end(struct snapshot_file *file, struct worker *worker, bool keep) {
    file->finish.keep = keep;
    file->finish.job.run = run_finish;
    worker_give(worker, &file->finish.job);
}

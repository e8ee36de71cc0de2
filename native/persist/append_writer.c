/* append_writer: the worker's side (writes, checksums, fsync, new files), then the owner's. */
#include "persist/append_writer.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/write.h"
#include "persist/append_lines.h"
#include "persist/append_reader.h"

#define PIECES 256
#define PAGE_BYTES 4096u
#define MOST_AT_ONCE 0x7ffff000u /* Linux writes no more in a call */
#define EARLY_BYTES (4u << 20)
#define AGAIN_BYTES (1u << 20)
#define AGAIN_SYNC_BYTES (64u << 20) /* for this long a start shows no sign of life */

/* ---- the worker's side --------------------------------------------------------------------------------------------- */

static int fail(struct append_job *job, const char *what, const char *name) {
    return error_set(&job->error, ERROR_GENERIC, "%s %s: %s", what, name, strerror(errno));
}

/* The disk begins with bytes that an fdatasync would bring there later, so that it is not idle while more are written. A
 * hint: whether it succeeds is for the fdatasync to tell, which hears of every error since the one before it. */
static void begin_early(struct append_writer *writer, uint64_t size) {
#ifdef SYNC_FILE_RANGE_WRITE
    if (size - writer->begun < EARLY_BYTES) return;
    (void)sync_file_range(writer->descriptor, (off_t)writer->begun, (off_t)(size - writer->begun),
                          SYNC_FILE_RANGE_WRITE);
    writer->begun = size;
#else
    (void)writer, (void)size;
#endif
}

/* A line becomes the end of the file. */
static struct iovec take_line(char *line, size_t length, uint64_t *size, uint32_t *checksum) {
    *checksum = crc32c(*checksum, line, length);
    *size += length;
    return (struct iovec){line, length};
}

/* The next pieces, and the rest of the page of the file in which they end, so that no page of the file is written by two
 * calls. Returns how many, of `*length` bytes together; `page` has room for the rest. */
static int take_pieces(const struct append_buffer *buffer, struct append_place *place, struct iovec *pieces, int count,
                       uint64_t size, uint8_t page[PAGE_BYTES], size_t *length) {
    count += append_buffer_pieces(buffer, place, pieces + count, PIECES - 2 - count);
    *length = 0;
    for (int i = 0; i < count; i++) *length += pieces[i].iov_len;
    size_t rest = append_buffer_read(buffer, place, page, (size_t)((0 - size - *length) % PAGE_BYTES));
    if (rest > 0) pieces[count++] = (struct iovec){page, rest};
    *length += rest;
    return count;
}

/* The first `part` bytes of them, in one call. Once it has taken all of these, *pieces begins behind them. */
static ssize_t write_part(int descriptor, struct iovec **pieces, size_t part) {
    struct iovec *last = *pieces;
    size_t before = 0;
    for (; before + last->iov_len < part; last++) before += last->iov_len;
    size_t whole = last->iov_len;
    ssize_t written;
    last->iov_len = part - before;
    do {
        written = writev(descriptor, *pieces, (int)(last - *pieces) + 1);
    } while (written < 0 && errno == EINTR);
    last->iov_len = whole;
    if (written != (ssize_t)part) return written;
    last->iov_base = (uint8_t *)last->iov_base + (part - before);
    last->iov_len -= part - before;
    *pieces = last;
    return written;
}

/* A call has taken less than it was given, which is undone. 0: the disk is not full, and calls of so much pass. */
static int undo_short(struct append_writer *writer, uint64_t size, size_t taken) {
    errno = ENOSPC;
    if (taken < PAGE_BYTES || write_all(writer->descriptor, "", 1) < 0) return -1;
    writer->most_at_once = taken;
    return ftruncate(writer->descriptor, (off_t)size);
}

/* To a file of `size` bytes, in one call, if they are not too many. Between two calls the system may write to the disk what is
 * there already, and a loss of power may keep that and what comes behind the page, but not the rest of the page: no sector
 * of zeros would tell of the hole in the middle of a value. So every call but the last ends with a page, and one that the
 * system cuts short has failed, as the disk becomes full. Some file systems cut short what is too much for them: then the
 * same is written by smaller calls. */
static int write_pieces(struct append_writer *writer, struct iovec *pieces, uint64_t size, size_t length) {
    while (length > 0) {
        size_t most = writer->most_at_once, part = length <= most ? length : most - (size + most) % PAGE_BYTES;
        ssize_t written = write_part(writer->descriptor, &pieces, part);
        if (written < 0) return -1;
        if ((size_t)written < part) {
            if (undo_short(writer, size, (size_t)written) < 0) return -1;
            continue;
        }
        size += part;
        length -= part;
    }
    return 0;
}

static int write_buffer(struct append_writer *writer, uint64_t *size, uint32_t *checksum) {
    struct append_place place = {0};
    struct iovec pieces[PIECES];
    uint8_t page[PAGE_BYTES];
    char synced[APPEND_LONGEST_LINE + 1], end[APPEND_LONGEST_LINE + 1];
    int count = 0;
    if (writer->synced_size > writer->told_size) {
        assert(writer->synced_size == *size); /* every write tells of the fsync before it */
        size_t length = append_synced_line(writer->synced_size, writer->salt, synced);
        pieces[count++] = (struct iovec){synced, length};
    }
    for (bool is_last = false; !is_last; count = 0) {
        size_t length;
        uint64_t before = *size;
        count = take_pieces(&writer->given, &place, pieces, count, *size, page, &length);
        for (int i = 0; i < count; i++) *checksum = crc32c(*checksum, pieces[i].iov_base, pieces[i].iov_len);
        *size += length;
        is_last = place.piece == writer->given.count;
        if (is_last) {
            pieces[count] = take_line(end, append_checksum_line(*checksum, writer->salt, end), size, checksum);
            length += pieces[count++].iov_len;
        }
        if (write_pieces(writer, pieces, before, length) < 0) return -1;
        begin_early(writer, *size);
    }
    return 0;
}

/* All of the buffer is in the file, or none of it. */
static void run_write(struct append_writer *writer) {
    struct append_job *job = &writer->job;
    if (writer->given.total > 0) {
        uint64_t size = writer->size;
        uint32_t checksum = writer->checksum;
        if (write_buffer(writer, &size, &checksum) < 0) {
            fail(job, "cannot write", writer->name);
            writer->begun = writer->size;
            if (ftruncate(writer->descriptor, (off_t)writer->size) < 0) job->broken = true;
            return;
        }
        writer->size = size;
        writer->checksum = checksum;
        writer->told_size = writer->synced_size;
    }
    if (!job->sync) return;
    if (fdatasync(writer->descriptor) == 0) {
        writer->synced_size = writer->size;
        return;
    }
    /* After an fsync that failed nobody knows what is on the disk, and another one would not tell. */
    fail(job, "cannot bring to the disk", writer->name);
    job->broken = true;
}

/* One that is new, with nothing but its salt. */
static void use_increment(struct append_writer *writer, int descriptor, const char *name, uint64_t salt) {
    char line[APPEND_LONGEST_LINE + 1];
    if (writer->descriptor >= 0) {
        (void)fsync(writer->descriptor); /* where it matters whether that succeeds, it was synced before */
        close(writer->descriptor);
    }
    writer->descriptor = descriptor;
    snprintf(writer->name, sizeof writer->name, "%s", name);
    writer->size = 0;
    writer->checksum = 0;
    writer->salt = salt;
    take_line(line, append_salt_line(salt, line), &writer->size, &writer->checksum);
    writer->begun = writer->synced_size = writer->told_size = writer->size;
    writer->most_at_once = MOST_AT_ONCE;
}

/* 0: the system has no random bytes, which `errno` says. */
static uint64_t new_salt(void) {
    uint64_t salt = 0;
    while (salt == 0)
        if (!random_secret(&salt, sizeof salt)) {
            errno = EAGAIN;
            return 0;
        }
    return salt;
}

static bool write_salt(int descriptor, uint64_t *salt) {
    char line[APPEND_LONGEST_LINE + 1];
    *salt = new_salt();
    return *salt && write_all(descriptor, line, append_salt_line(*salt, line)) == 0 && fsync(descriptor) == 0;
}

/* A new file, which is on the disk with its salt and by its name: one that a manifest names is there after a failure of the
 * machine, too. */
static int create_increment(struct append_writer *writer, const char *name, uint64_t *salt) {
    int descriptor =
        openat(writer->folder, name, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (descriptor >= 0 && write_salt(descriptor, salt) && fsync(writer->folder) == 0) return descriptor;
    fail(&writer->job, descriptor < 0 ? "cannot create" : "cannot bring to the disk", name);
    if (descriptor >= 0) {
        close(descriptor);
        (void)unlinkat(writer->folder, name, 0);
    }
    return -1;
}

/* No file goes before the manifest forgets it. */
static void run_switch(struct append_writer *writer) {
    struct append_job *job = &writer->job;
    const struct append_manifest *manifest = &job->manifest;
    char name[NAME_MAX + 1];
    int descriptor = -1;
    uint64_t salt = 0;
    append_increment_name(manifest, manifest->first + manifest->count - 1, name);
    if ((job->switches & APPEND_SWITCH_OPEN) && (descriptor = create_increment(writer, name, &salt)) < 0) return;
    bool renamed = false;
    if ((job->switches & APPEND_SWITCH_MANIFEST) &&
        append_manifest_write(writer->folder, manifest, &renamed, &job->error) < 0) {
        if (descriptor < 0) return;
        close(descriptor);
        /* One that may be named stays, and so nothing more may come into the one before it. */
        job->broken = renamed;
        if (!renamed) (void)unlinkat(writer->folder, name, 0);
        return;
    }
    if (descriptor >= 0) use_increment(writer, descriptor, name, salt);
    if (job->switches == APPEND_SWITCH_MANIFEST) append_manifest_tidy(writer->folder, manifest);
}

static void run(struct worker_job *base) {
    struct append_job *job = (struct append_job *)(void *)base;
    if (job->kind == APPEND_WRITE)
        run_write(job->writer);
    else
        run_switch(job->writer);
}

/* ---- the owner's side ---------------------------------------------------------------------------------------------- */

struct append_writer *append_writer_new(int folder, void (*finished)(void *context), void *context) {
    struct append_writer *writer = memory_calloc(1, sizeof *writer);
    if (!writer) return NULL;
    writer->descriptor = -1;
    writer->worker = worker_new_urgent(finished, context);
    if (!writer->worker) {
        memory_free(writer);
        return NULL;
    }
    writer->folder = folder;
    writer->most_at_once = MOST_AT_ONCE;
    writer->job.writer = writer;
    writer->job.job.run = run;
    return writer;
}

void append_writer_free(struct append_writer *writer) {
    if (!writer) return;
    worker_free(writer->worker);
    if (writer->descriptor >= 0) close(writer->descriptor);
    close(writer->folder);
    append_buffer_free(&writer->open);
    append_buffer_free(&writer->given);
    memory_free(writer);
}

/* The same bytes to the same place, which makes the system take them for new ones. 0: there are no more. */
static ssize_t write_part_again(const struct append_writer *writer, uint8_t *bytes, size_t length, uint64_t at) {
    ssize_t got, part;
    do {
        got = pread(writer->descriptor, bytes, length, (off_t)at);
    } while (got < 0 && errno == EINTR);
    for (ssize_t done = 0; done < got; done += part > 0 ? part : 0) {
        part = pwrite(writer->descriptor, bytes + done, (size_t)(got - done), (off_t)at + done);
        if (part == 0) errno = ENOSPC;
        if (part == 0 || (part < 0 && errno != EINTR)) return -1;
    }
    return got;
}

/* The file ends with a checksum, and has a salt. */
static int complete_end(struct append_writer *writer, const struct append_end *end) {
    char salt[APPEND_LONGEST_LINE + 1], line[APPEND_LONGEST_LINE + 1];
    struct iovec pieces[2];
    int count = 0;
    writer->size = end->size;
    writer->checksum = end->checksum;
    writer->salt = end->salt ? end->salt : new_salt();
    if (!writer->salt) return -1;
    if (!end->salt)
        pieces[count++] = take_line(salt, append_salt_line(writer->salt, salt), &writer->size, &writer->checksum);
    if (!end->salt || !end->is_checked)
        pieces[count++] = take_line(line, append_checksum_line(writer->checksum, writer->salt, line), &writer->size,
                                    &writer->checksum);
    return write_all_pieces(writer->descriptor, pieces, count);
}

/* Writes again what no line says was on the disk: see the header. It is brought to the disk part by part, so that whoever waits
 * for the start sees that more is read. */
static int write_again(const struct append_writer *writer, const struct append_end *end, struct error *error) {
    uint8_t *bytes = memory_alloc(AGAIN_BYTES);
    if (!bytes) return error_set(error, ERROR_GENERIC, "no memory to write the end of %s again", writer->name);
    uint32_t checksum = end->synced_checksum;
    ssize_t got = 0;
    for (uint64_t at = end->synced, synced = at; at < end->size;) {
        size_t part = end->size - at < AGAIN_BYTES ? (size_t)(end->size - at) : AGAIN_BYTES;
        if ((got = write_part_again(writer, bytes, part, at)) <= 0) break;
        checksum = crc32c(checksum, bytes, (size_t)got);
        at += (uint64_t)got;
        if (at < end->size && at - synced < AGAIN_SYNC_BYTES) continue;
        if ((got = fdatasync(writer->descriptor)) < 0) break;
        synced = at;
    }
    if (got < 0)
        error_set(error, ERROR_GENERIC, "cannot write the end of %s again: %s", writer->name, strerror(errno));
    else if (checksum != end->checksum)
        error_set(error, ERROR_GENERIC, "%s has changed since it was read, from byte %" PRIu64 " on", writer->name,
                  end->synced);
    memory_free(bytes);
    return got >= 0 && checksum == end->checksum ? 0 : -1;
}

int append_writer_continue(struct append_writer *writer, const char *name, const struct append_end *end,
                           struct error *error) {
    writer->descriptor = openat(writer->folder, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (writer->descriptor < 0) return error_set(error, ERROR_GENERIC, "cannot open %s: %s", name, strerror(errno));
    snprintf(writer->name, sizeof writer->name, "%s", name);
    if (write_again(writer, end, error) < 0) return -1;
    if (fcntl(writer->descriptor, F_SETFL, O_APPEND) < 0 || complete_end(writer, end) < 0 ||
        fsync(writer->descriptor) < 0 || fsync(writer->folder) < 0)
        return error_set(error, ERROR_GENERIC, "cannot bring %s to the disk: %s", name, strerror(errno));
    writer->begun = writer->file_bytes = writer->synced_size = writer->size;
    writer->told_size = 0;
    return 0;
}

static void give(struct append_writer *writer, enum append_job_kind kind) {
    writer->job.kind = kind;
    writer->job.error.code = ERROR_NONE;
    writer->job.broken = false;
    writer->busy = true;
    worker_give(writer->worker, &writer->job.job);
}

void append_writer_hand_over(struct append_writer *writer, bool sync) {
    if (!writer->retry) {
        struct append_buffer empty = writer->given;
        writer->given = writer->open;
        writer->open = empty;
        writer->handed += writer->given.total;
    }
    writer->job.sync = sync;
    give(writer, APPEND_WRITE);
}

void append_writer_drop(struct append_writer *writer) {
    writer->retry = false;
    append_buffer_clear(&writer->given);
}

void append_writer_switch(struct append_writer *writer, const struct append_manifest *manifest, unsigned switches) {
    writer->job.manifest = *manifest;
    writer->job.switches = switches;
    give(writer, APPEND_SWITCH);
}

static void take_back(struct append_writer *writer) {
    const struct append_job *job = &writer->job;
    writer->busy = false;
    writer->file_bytes = writer->size;
    if (job->kind != APPEND_WRITE) return;
    /* What is in the file but perhaps not on the disk is not written again. */
    bool written = job->error.code == ERROR_NONE || job->broken;
    writer->retry = !written;
    if (!written) return;
    append_buffer_clear(&writer->given);
    writer->written = writer->handed;
    if (job->sync && job->error.code == ERROR_NONE) {
        writer->synced = writer->written;
        writer->fsyncs++;
    }
}

bool append_writer_collect(struct append_writer *writer) {
    if (!writer->busy || !worker_finished(writer->worker)) return false;
    take_back(writer);
    return true;
}

void append_writer_wait(struct append_writer *writer) {
    if (!writer->busy) return;
    worker_wait(writer->worker);
    take_back(writer);
}

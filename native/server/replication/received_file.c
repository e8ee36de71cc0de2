/* received_file: a queue that the thread reads a snapshot out of; or two buffers, one that fills while the other is written. */
#include "server/replication/received_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/byte_queue.h"
#include "base/memory.h"
#include "base/worker.h"
#include "base/write.h"
#include "persist/rdb_file.h"

#define BUFFER_BYTES (1u << 20)
#define WAITING_BYTES (2u << 20) /* for the thread: more than it reads between two looks at its queue */
#define MARK_BYTES 40u

struct received_file {
    struct worker_job job;
    struct worker *worker;
    bool busy; /* the thread works */
    bool is_dropped; /* the thread has been told to free the content */
    bool ended, reads, is_read;
    bool is_marked; /* the end is known by a mark, not by the length */
    char mark[MARK_BYTES], newest[MARK_BYTES];
    uint64_t expected, taken; /* of a snapshot up to the end of the part that comes */
    char line[24]; /* before the next part */
    size_t line_length;
    bool is_malformed; /* that line */
    uint8_t *filling, *writing;
    size_t filled, to_write;
    int descriptor; /* of the file */
    struct byte_queue *coming; /* NULL: there is such a file */
    struct snapshot_source source; /* out of that */
    struct received_content content;
    atomic_bool stop;
    struct error error;
};

/* ---- on the thread ---------------------------------------------------------------------------------------------------- */

static void write_some(struct worker_job *job) {
    struct received_file *file = (struct received_file *)(void *)job;
    if (write_all(file->descriptor, file->writing, file->to_write))
        error_set(&file->error, ERROR_GENERIC, "cannot write what the primary sends: %s", strerror(errno));
}

/* Closing is the thread's, too: giving up the pages of a large file takes long. */
static void close_file(struct received_file *file) {
    close(file->descriptor);
    file->descriptor = -1;
}

static size_t take_coming(struct snapshot_source *source, void *out, size_t length) {
    struct received_file *file = (struct received_file *)((char *)source - offsetof(struct received_file, source));
    return byte_queue_take(file->coming, out, length);
}

static void read_snapshot(struct worker_job *job) {
    struct received_file *file = (struct received_file *)(void *)job;
    struct snapshot_content *content = &file->content.all;
    if (snapshot_read_coming(&file->source, "what the primary has sent", content, &file->stop, &file->error) == 0 &&
        !content->store.store)
        error_set(&file->error, ERROR_GENERIC, "what the primary has sent holds no keys");
}

static void read_keys(struct worker_job *job) {
    struct received_file *file = (struct received_file *)(void *)job;
    struct rdb_content keys = {.stream_database = 0};
    size_t length = (size_t)(file->taken - (file->is_marked ? MARK_BYTES : 0));
    uint8_t *data = length > 0 ? memory_map_file(file->descriptor, 0, length) : NULL;
    if (!data) {
        error_set(&file->error, ERROR_GENERIC, "cannot read what the primary has sent");
        return;
    }
    rdb_file_parse("what the primary has sent", data, length, &keys, &file->stop, &file->error);
    file->content.all.store = keys.store;
    file->content.stream_database = keys.stream_database;
    memory_unmap_file(data, length);
    close_file(file);
}

static void drop(struct worker_job *job) {
    struct received_file *file = (struct received_file *)(void *)job;
    snapshot_content_free(&file->content.all);
    if (file->descriptor >= 0) close_file(file);
}

/* ---- on the loop's ---------------------------------------------------------------------------------------------------- */

static bool read_header(struct received_file *file, const char *header, struct error *error) {
    char *end;
    if (strncmp(header, "$EOF:", 5) == 0 && strlen(header) == 5 + MARK_BYTES) {
        file->is_marked = true;
        memcpy(file->mark, header + 5, MARK_BYTES);
        return true;
    }
    file->content.has_tables = strncmp(header, RECEIVED_SNAPSHOT, strlen(RECEIVED_SNAPSHOT)) == 0;
    if (file->content.has_tables) {
        const char *database = header + strlen(RECEIVED_SNAPSHOT);
        file->content.stream_database = strtoll(database, &end, 10);
        if (end > database && *end == '\0') return true;
    }
    file->expected = header[0] == '$' && header[1] != '-' ? strtoull(header + 1, &end, 10) : 0;
    if (file->expected > 0 && *end == '\0') return true;
    error_set(error, ERROR_GENERIC, "the primary announces a file as no Redis does: %.60s", header);
    return false;
}

static int open_unnamed(struct error *error) {
    char name[] = "received-XXXXXX";
    int descriptor = mkostemp(name, O_CLOEXEC);
    if (descriptor < 0) return error_set(error, ERROR_GENERIC, "cannot make a file: %s", strerror(errno));
    unlink(name);
    return descriptor;
}

static void give(struct received_file *file, void (*run)(struct worker_job *job)) {
    file->busy = true;
    file->job.run = run;
    worker_give(file->worker, &file->job);
}

static bool begin_reading(struct received_file *file, struct error *error) {
    file->coming = byte_queue_new(WAITING_BYTES);
    if (!file->coming) {
        error_set(error, ERROR_GENERIC, "out of memory");
        return false;
    }
    file->source.take = take_coming;
    file->reads = true;
    give(file, read_snapshot);
    return true;
}

static bool begin_writing(struct received_file *file, struct error *error) {
    if ((file->descriptor = open_unnamed(error)) < 0) return false;
    file->filling = memory_alloc(BUFFER_BYTES);
    file->writing = memory_alloc(BUFFER_BYTES);
    if (file->filling && file->writing) return true;
    error_set(error, ERROR_GENERIC, "out of memory");
    return false;
}

struct received_file *received_file_new(const char *header, struct worker *worker, struct error *error) {
    struct received_file *file = memory_calloc(1, sizeof *file);
    if (!file) {
        error_set(error, ERROR_GENERIC, "out of memory");
        return NULL;
    }
    file->descriptor = -1;
    file->worker = worker;
    if (read_header(file, header, error) &&
        (file->content.has_tables ? begin_reading(file, error) : begin_writing(file, error)))
        return file;
    received_file_free(file);
    return NULL;
}

/* The thread, if it waits for more, sees the end. */
static void end_coming(struct received_file *file) {
    if (file->coming) byte_queue_end(file->coming);
}

void received_file_free(struct received_file *file) {
    if (!file) return;
    atomic_store(&file->stop, true);
    end_coming(file);
    if (file->busy) worker_wait(file->worker);
    byte_queue_free(file->coming);
    snapshot_content_free(&file->content.all);
    memory_free(file->filling);
    memory_free(file->writing);
    if (file->descriptor >= 0) close(file->descriptor);
    memory_free(file);
}

bool received_file_give_up(struct received_file *file) {
    if (!file) return true;
    atomic_store(&file->stop, true);
    end_coming(file);
    if (file->busy && !worker_finished(file->worker)) return false;
    file->busy = false;
    if (!file->is_dropped) {
        file->is_dropped = true;
        give(file, drop);
        return false;
    }
    received_file_free(file);
    return true;
}

static void write_filled(struct received_file *file) {
    uint8_t *filled = file->filling;
    file->filling = file->writing;
    file->writing = filled;
    file->to_write = file->filled;
    file->filled = 0;
    give(file, write_some);
}

/* The last bytes that came, to know the mark by. */
static void note_newest(struct received_file *file, const uint8_t *bytes, size_t length) {
    if (length >= MARK_BYTES) {
        memcpy(file->newest, bytes + length - MARK_BYTES, MARK_BYTES);
        return;
    }
    memmove(file->newest, file->newest + length, MARK_BYTES - length);
    memcpy(file->newest + MARK_BYTES - length, bytes, length);
}

/* An empty line is a sign of life. */
static void end_line(struct received_file *file) {
    char *end;
    file->line[file->line_length] = '\0';
    if (file->line_length > 0 && file->line[file->line_length - 1] == '\r') file->line[file->line_length - 1] = '\0';
    file->line_length = 0;
    if (file->line[0] == '\0') return;
    uint64_t bytes = strtoull(file->line, &end, 10);
    file->is_malformed = file->line[0] == '-' || *end != '\0' || bytes > INT64_MAX - file->expected;
    if (file->is_malformed) return;
    file->expected += bytes;
    file->ended = bytes == 0;
    if (file->ended) end_coming(file);
}

static size_t take_line(struct received_file *file, const uint8_t *bytes, size_t length) {
    const uint8_t *end = memchr(bytes, '\n', length);
    size_t count = end ? (size_t)(end - bytes) : length;
    file->is_malformed = count >= sizeof file->line - file->line_length;
    if (file->is_malformed) return 0;
    memcpy(file->line + file->line_length, bytes, count);
    file->line_length += count;
    if (!end) return count;
    end_line(file);
    return count + 1;
}

/* Fewer where the thread is behind. Where it has given up the next step finds that. */
static size_t take_part(struct received_file *file, const uint8_t *bytes, size_t length) {
    if (file->ended || file->is_malformed) return 0;
    if (file->taken == file->expected) return take_line(file, bytes, length);
    if (length > file->expected - file->taken) length = (size_t)(file->expected - file->taken);
    size_t passed = byte_queue_put(file->coming, bytes, length);
    file->taken += passed;
    return passed;
}

size_t received_file_take(struct received_file *file, const uint8_t *bytes, size_t length) {
    if (file->content.has_tables) return take_part(file, bytes, length);
    size_t room = BUFFER_BYTES - file->filled, taken = length < room ? length : room;
    if (!file->is_marked && taken > file->expected - file->taken) taken = (size_t)(file->expected - file->taken);
    if (file->ended || taken == 0) return 0;
    memcpy(file->filling + file->filled, bytes, taken);
    file->filled += taken;
    file->taken += taken;
    /* Nothing follows a mark before it is acknowledged: so it is at the end of what has come, and nowhere else. */
    if (file->is_marked) note_newest(file, bytes, taken);
    file->ended = file->is_marked ? file->taken >= MARK_BYTES && memcmp(file->newest, file->mark, MARK_BYTES) == 0
                                  : file->taken == file->expected;
    if (file->filled == BUFFER_BYTES && !file->busy) write_filled(file);
    return taken;
}

bool received_file_has_ended(const struct received_file *file) {
    return file->ended;
}

uint64_t received_file_bytes(const struct received_file *file) {
    return file->taken;
}

enum received_state received_file_step(struct received_file *file, struct error *error) {
    if (file->is_malformed) {
        error_set(error, ERROR_GENERIC, "the primary has not said how long the next part of its data is");
        return RECEIVED_FAILED;
    }
    if (file->busy && worker_finished(file->worker)) {
        file->busy = false;
        file->is_read = file->reads;
    }
    if (file->busy) return RECEIVED_SOME;
    if (file->error.code != ERROR_NONE) {
        *error = file->error;
        return RECEIVED_FAILED;
    }
    if (file->is_read) return RECEIVED_ALL;
    if (file->filled == BUFFER_BYTES || (file->ended && file->filled > 0)) {
        write_filled(file);
    } else if (file->ended) {
        file->reads = true;
        give(file, read_keys);
    }
    return RECEIVED_SOME;
}

struct received_content *received_file_content(struct received_file *file) {
    return &file->content;
}

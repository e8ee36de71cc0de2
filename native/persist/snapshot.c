/* snapshot: begins the cuts of tables and store, puts their records into blocks, gives the blocks to the worker that
 * writes them, and keeps the memory that waits for the disk within its limit. */
#include "persist/snapshot.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "persist/snapshot_file.h"
#include "persist/snapshot_format.h"
#include "replay/table_cut.h"

#define STORE_MEMORY_PART 6u /* of the store a larger part may wait for the disk: 1/4 */
#define KEPT_BLOCKS 20u /* to be filled again */

struct snapshot_part {
    struct table_cut_sink sink;
    struct snapshot *snapshot;
    struct table *table; /* NULL: all of it is handed out */
    uint32_t number;
};

struct snapshot {
    struct worker *worker;
    bool owns_worker;
    struct snapshot_file *file;
    struct snapshot_block *open;
    struct snapshot_block *kept;
    uint32_t kept_count;
    uint32_t writing;         /* blocks on their way */
    uint64_t waiting_bytes, most_waiting_bytes, memory_bytes;
    uint64_t blocks, records, bytes;
    uint64_t written;         /* bytes, without gaps */
    bool write_failed;        /* the rest need not be copied */
    bool ending, ended;       /* the end was given to the worker, came back from it */
    struct error error;
    struct store_cut_sink store_sink;
    struct store_cut *store; /* NULL: none, or all of it is handed out */
    uint32_t count, left, next;
    struct snapshot_part parts[];
};

/* ---- blocks -------------------------------------------------------------------------------------------------------- */

static struct snapshot_block *take_block(struct snapshot *snapshot, size_t room) {
    struct snapshot_block *block = snapshot->kept;
    if (block && block->room >= room) {
        snapshot->kept = block->next;
        snapshot->kept_count--;
    } else {
        block = memory_alloc(sizeof *block + room);
        if (!block) {
            error_set(&snapshot->error, ERROR_GENERIC, "out of memory for a snapshot");
            return NULL;
        }
        block->room = room;
    }
    block->length = block->records = 0;
    return block;
}

static void give_block(struct snapshot *snapshot, struct snapshot_block *block) {
    if (block->room != SNAPSHOT_BLOCK_BYTES || snapshot->kept_count == KEPT_BLOCKS) {
        memory_free(block);
        return;
    }
    block->next = snapshot->kept;
    snapshot->kept = block;
    snapshot->kept_count++;
}

static void close_block(struct snapshot *snapshot) {
    struct snapshot_block *block = snapshot->open;
    if (!block) return;
    snapshot->open = NULL;
    snapshot->writing++;
    snapshot->blocks++;
    snapshot->bytes += sizeof(struct snapshot_block_header) + block->length;
    snapshot_file_write(snapshot->file, snapshot->worker, block);
}

/* Room for the body of one more record. NULL with snapshot->error set. */
static uint8_t *add_record(struct snapshot *snapshot, uint32_t kind, uint32_t table, size_t length) {
    if (snapshot->error.code != ERROR_NONE) return NULL;
    struct snapshot_record_header header = {.kind = kind, .table = table, .length = length};
    size_t padded = (size_t)snapshot_padded(length), bytes = sizeof header + padded;
    if (snapshot->open && snapshot->open->room - snapshot->open->length < bytes) close_block(snapshot);
    if (!snapshot->open) {
        size_t room = bytes > SNAPSHOT_BLOCK_BYTES ? bytes : SNAPSHOT_BLOCK_BYTES;
        uint64_t waiting = snapshot->waiting_bytes + room;
        if (snapshot->writing > 0 && waiting > snapshot->memory_bytes) {
            error_set(&snapshot->error, ERROR_LIMIT,
                      "the disk takes the snapshot slower than the tables change: %" PRIu64
                      " bytes wait for it, the limit; save when less is going on, or to a faster disk",
                      snapshot->waiting_bytes);
            return NULL;
        }
        snapshot->open = take_block(snapshot, room);
        if (!snapshot->open) return NULL;
        snapshot->waiting_bytes += snapshot->open->room;
        if (snapshot->waiting_bytes > snapshot->most_waiting_bytes)
            snapshot->most_waiting_bytes = snapshot->waiting_bytes;
    }
    struct snapshot_block *block = snapshot->open;
    uint8_t *at = block->data + block->length;
    memcpy(at, &header, sizeof header);
    memset(at + sizeof header + length, 0, padded - length);
    block->length += bytes;
    block->records++;
    snapshot->records++;
    return at + sizeof header;
}

static uint8_t *part_record(struct table_cut_sink *sink, enum table_record kind, size_t bytes) {
    struct snapshot_part *part = (struct snapshot_part *)(void *)sink;
    return add_record(part->snapshot, kind, part->number, bytes);
}

static uint8_t *store_record(struct store_cut_sink *sink, uint32_t kind, uint32_t database, size_t bytes) {
    struct snapshot *snapshot = (struct snapshot *)(void *)((char *)sink - offsetof(struct snapshot, store_sink));
    return add_record(snapshot, kind, database, bytes);
}

/* ---- the cut ------------------------------------------------------------------------------------------------------- */

static int describe(struct snapshot *snapshot, const struct snapshot_part *part) {
    struct msgpack_writer writer = {0};
    table_cut_describe(part->table, &writer);
    uint8_t *body = writer.failed ? NULL : add_record(snapshot, SNAPSHOT_RECORD_TABLE, part->number, writer.length);
    if (body)
        memcpy(body, writer.data, writer.length);
    else if (snapshot->error.code == ERROR_NONE)
        error_set(&snapshot->error, ERROR_GENERIC, "out of memory for the description of a table");
    memory_free(writer.data);
    return body ? 0 : -1;
}

static uint64_t bytes_of(const struct table *table) {
    struct table_info info;
    table_info(table, &info);
    return info.bytes;
}

static uint64_t memory_limit(const struct snapshot_options *options, uint64_t bytes) {
    uint64_t part = bytes / SNAPSHOT_MEMORY_PART;
    return options->memory_bytes ? options->memory_bytes : part > SNAPSHOT_LEAST_BYTES ? part : SNAPSHOT_LEAST_BYTES;
}

/* Only where there is one, so that others' files can be read by servers that do not know the kind. */
static int add_epochs(struct snapshot *snapshot, const struct snapshot_options *options) {
    const uint64_t epochs[4] = {options->epoch, options->newest_epoch, options->origin, options->is_copy};
    if (options->newest_epoch == 0 && options->origin == 0 && !options->is_copy) return 0;
    uint8_t *body = add_record(snapshot, SNAPSHOT_RECORD_EPOCHS, 0, sizeof epochs);
    if (!body) return -1;
    memcpy(body, epochs, sizeof epochs);
    return 0;
}

static int cut(struct snapshot *snapshot, const struct snapshot_options *options, struct table *const *tables) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < snapshot->count; i++) bytes += bytes_of(tables[i]);
    snapshot->memory_bytes = memory_limit(options, bytes + options->store_bytes * STORE_MEMORY_PART);
    for (uint32_t i = 0; i < snapshot->count; i++) {
        struct snapshot_part *part = &snapshot->parts[i];
        /* What is held in slots is shared out by size. */
        uint64_t held =
            bytes ? (uint64_t)((double)snapshot->memory_bytes * (double)bytes_of(tables[i]) / (double)bytes) : 0;
        part->snapshot = snapshot;
        part->sink.record = part_record;
        part->number = i;
        if (table_cut_begin(tables[i], &part->sink, held, &snapshot->error)) return -1;
        part->table = tables[i];
        if (describe(snapshot, part)) return -1;
    }
    if (add_epochs(snapshot, options)) return -1;
    if (options->store) {
        snapshot->store = options->store;
        snapshot->store_sink.record = store_record;
        store_cut_begin(snapshot->store, &snapshot->store_sink);
    }
    snapshot->left = snapshot->count;
    return 0;
}

struct snapshot *snapshot_begin(const struct snapshot_options *options, struct table *const *tables, uint32_t count,
                                struct error *error) {
    assert(count <= SNAPSHOT_MAX_TABLES);
    struct snapshot *snapshot = memory_calloc(1, sizeof *snapshot + count * sizeof snapshot->parts[0]);
    if (!snapshot) {
        error_set(error, ERROR_GENERIC, "out of memory for a snapshot");
        return NULL;
    }
    snapshot->count = count;
    snapshot->file = snapshot_file_new(options->folder, options->name, count, options->run_id, error);
    if (snapshot->file) {
        snapshot->bytes = sizeof(struct snapshot_file_header);
        snapshot->file->keep_newest = options->keep;
        snapshot->file->is_passing = options->is_passing;
        snapshot->file->contents = options->store ? SNAPSHOT_HAS_STORE : 0;
    }
    snapshot->owns_worker = !options->worker;
    if (snapshot->file) snapshot->worker = options->worker ? options->worker : worker_new();
    if (!snapshot->worker) {
        if (snapshot->file) error_set(error, ERROR_GENERIC, "no thread could be started to write the snapshot");
        snapshot_free(snapshot);
        return NULL;
    }
    if (cut(snapshot, options, tables)) {
        *error = snapshot->error;
        snapshot_free(snapshot);
        return NULL;
    }
    return snapshot;
}

static void end_store(struct snapshot *snapshot) {
    if (snapshot->store) store_cut_end(snapshot->store);
    snapshot->store = NULL;
}

static void end_part(struct snapshot_part *part) {
    if (part->table) {
        table_cut_end(part->table);
        part->table = NULL;
    }
}

/* ---- going on ------------------------------------------------------------------------------------------------------ */

/* The header is written with the first block. */
static void note_written(struct snapshot *snapshot, const struct snapshot_block *block) {
    if (snapshot->written == 0) snapshot->written = sizeof(struct snapshot_file_header);
    snapshot->written += sizeof(struct snapshot_block_header) + block->length;
}

static void take_back(struct snapshot *snapshot, struct worker_job *job) {
    while (job) {
        struct worker_job *next = job->next;
        if (job == &snapshot->file->finish.job) {
            snapshot->ended = true;
        } else {
            struct snapshot_block *block = (struct snapshot_block *)(void *)job;
            snapshot->writing--;
            snapshot->write_failed |= block->failed;
            if (!block->failed) note_written(snapshot, block);
            snapshot->waiting_bytes -= block->room;
            give_block(snapshot, block);
        }
        job = next;
    }
}

static void end(struct snapshot *snapshot, bool keep) {
    snapshot->ending = true;
    end_store(snapshot);
    for (uint32_t i = 0; i < snapshot->count; i++) end_part(&snapshot->parts[i]);
    snapshot_file_end(snapshot->file, snapshot->worker, keep);
}

static void write_end(struct snapshot *snapshot) {
    close_block(snapshot);
    uint64_t numbers[2] = {snapshot->blocks, snapshot->records};
    uint8_t *body = add_record(snapshot, SNAPSHOT_RECORD_END, 0, sizeof numbers);
    if (body) {
        memcpy(body, numbers, sizeof numbers);
        close_block(snapshot);
    }
    end(snapshot, body);
}

/* The last records come out at its end. */
static void copy_of_store(struct snapshot *snapshot) {
    if (store_cut_step(snapshot->store)) return;
    if (store_cut_failed(snapshot->store) && snapshot->error.code == ERROR_NONE)
        error_set(&snapshot->error, ERROR_GENERIC, "out of memory for a snapshot");
    snapshot->store = NULL;
}

/* One piece of the next table that is not through, in turns, so that what one holds does not wait for all of another. */
static void copy_piece(struct snapshot *snapshot) {
    uint32_t which = snapshot->next;
    snapshot->next = (which + 1) % (snapshot->count + 1);
    if (which == snapshot->count) {
        if (snapshot->store) copy_of_store(snapshot);
        return;
    }
    struct snapshot_part *part = &snapshot->parts[which];
    if (part->table && !table_cut_step(part->table) && !table_cut_failed(part->table)) {
        end_part(part);
        snapshot->left--;
    }
}

static enum snapshot_state outcome(struct snapshot *snapshot, struct error *error) {
    const struct error *of_file = &snapshot->file->error; /* the worker has given everything back */
    if (snapshot->error.code == ERROR_NONE && of_file->code == ERROR_NONE) return SNAPSHOT_DONE;
    *error = snapshot->error.code != ERROR_NONE ? snapshot->error : *of_file;
    return SNAPSHOT_FAILED;
}

enum snapshot_state snapshot_step(struct snapshot *snapshot, uint64_t until_us, struct error *error) {
    take_back(snapshot, worker_finished(snapshot->worker));
    do {
        if (snapshot->ended) return outcome(snapshot, error);
        if (snapshot->ending) return SNAPSHOT_WRITING;
        if (snapshot->error.code != ERROR_NONE || snapshot->write_failed)
            end(snapshot, false);
        else if (snapshot->left == 0 && !snapshot->store)
            write_end(snapshot);
        else if (snapshot->waiting_bytes > SNAPSHOT_AHEAD_BYTES && snapshot->writing > 0)
            return SNAPSHOT_WRITING;
        else
            copy_piece(snapshot);
    } while (clock_monotonic_us() < until_us);
    return SNAPSHOT_COPYING;
}

void snapshot_progress(const struct snapshot *snapshot, struct snapshot_progress *progress) {
    *progress = (struct snapshot_progress){
        .cut_unix_ms = snapshot->file->cut_unix_ms,
        .bytes = snapshot->bytes,
        .written = snapshot->written,
        .waiting_bytes = snapshot->waiting_bytes,
        .most_waiting_bytes = snapshot->most_waiting_bytes,
    };
}

void snapshot_free(struct snapshot *snapshot) {
    end_store(snapshot);
    for (uint32_t i = 0; i < snapshot->count; i++) end_part(&snapshot->parts[i]);
    if (snapshot->worker) {
        snapshot_file_give_up(snapshot->file);
        while (snapshot->writing > 0 || (snapshot->ending && !snapshot->ended))
            take_back(snapshot, worker_wait(snapshot->worker));
        if (snapshot->owns_worker) worker_free(snapshot->worker);
    }
    while (snapshot->kept) {
        struct snapshot_block *next = snapshot->kept->next;
        memory_free(snapshot->kept);
        snapshot->kept = next;
    }
    memory_free(snapshot->open);
    if (snapshot->file) snapshot_file_free(snapshot->file);
    memory_free(snapshot);
}

/* snapshot_reader: header, blocks, records, end; each checked before it is used. */
#include "persist/snapshot_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/memory.h"
#include "base/read_ahead.h"
#include "base/text.h"
#include "persist/snapshot_format.h"
#include "replay/table_apply.h"
#include "replay/table_restore.h"

struct reader {
    int descriptor;
    struct snapshot_source *source; /* NULL: the descriptor */
    const char *name;
    const atomic_bool *stop;
    struct error *error;
    uint64_t size, at;           /* bytes of the file, UINT64_MAX where only its end tells; of what is read */
    struct read_ahead ahead;
    uint64_t block_at;           /* where the block in hand begins */
    uint64_t blocks, records;    /* read so far */
    uint8_t *block;
    size_t block_room;
    struct snapshot_file_header header;
    struct table_restore **restores;
    struct store_restore *store;
    const struct store_keys_sink *sink;
    uint32_t count;
    uint64_t epochs[4];
    bool ended;
};

/* "NAME: byte 123: what"; the whole file is then of no use. */
static int refuse(struct reader *reader, uint64_t at, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int refuse(struct reader *reader, uint64_t at, const char *format, ...) {
    struct text what = {0};
    va_list arguments;
    va_start(arguments, format);
    text_append_formatted(&what, format, arguments);
    va_end(arguments);
    error_set(reader->error, ERROR_GENERIC, "%s, byte %" PRIu64 ": %s; nothing was restored", reader->name, at,
              what.data ? what.data : "no memory");
    text_free(&what);
    return -1;
}

static ssize_t read_some(struct reader *reader, void *out, size_t length) {
    ssize_t count;
    if (reader->source) return (ssize_t)reader->source->take(reader->source, out, length);
    do {
        count = read(reader->descriptor, out, length);
    } while (count < 0 && errno == EINTR);
    return count;
}

static int read_exactly(struct reader *reader, void *out, size_t length, const char *what) {
    size_t got = 0;
    if (length > reader->size - reader->at)
        return refuse(reader, reader->at, "the file ends within %s: it is cut short", what);
    while (got < length) {
        ssize_t count = read_some(reader, (uint8_t *)out + got, length - got);
        if (count < 0) return refuse(reader, reader->at + got, "cannot read: %s", strerror(errno));
        if (count == 0) return refuse(reader, reader->at + got, "the file ends within %s: it is cut short", what);
        got += (size_t)count;
    }
    reader->at += length;
    return 0;
}

/* ---- records ------------------------------------------------------------------------------------------------------- */

/* Whose steps the table shares, if any; it was described before. */
static int share_steps(struct reader *reader, struct table_restore *restore, struct error *error) {
    const struct table_config *config = table_restore_config(restore);
    if (!*config->steps_of) return 0;
    for (uint32_t i = 0; i < reader->count; i++)
        if (strcmp(table_restore_config(reader->restores[i])->name, config->steps_of) == 0)
            return table_restore_share(restore, reader->restores[i], error);
    return error_set(error, ERROR_GENERIC,
                     "table '%s' shares the steps of table '%s', which is not described before it", config->name,
                     config->steps_of);
}

static int restore_table(struct reader *reader, uint32_t table, const uint8_t *body, size_t length,
                         struct error *error) {
    if (table != reader->count || table >= reader->header.tables)
        return error_set(error, ERROR_GENERIC, "table %" PRIu32 " is described out of turn", table);
    struct table_restore *restore = table_restore_begin(body, length, error);
    if (!restore) return -1;
    for (uint32_t i = 0; i < reader->count; i++) {
        if (strcmp(table_restore_config(reader->restores[i])->name, table_restore_config(restore)->name) == 0) {
            error_set(error, ERROR_GENERIC, "table '%s' is described twice", table_restore_config(restore)->name);
            table_restore_free(restore);
            return -1;
        }
    }
    if (share_steps(reader, restore, error)) {
        table_restore_free(restore);
        return -1;
    }
    reader->restores[reader->count++] = restore;
    return 0;
}

static int restore_end(struct reader *reader, const uint8_t *body, size_t length, struct error *error) {
    uint64_t numbers[2];
    if (length != sizeof numbers) return error_set(error, ERROR_GENERIC, "the end is malformed");
    memcpy(numbers, body, sizeof numbers);
    if (numbers[0] != reader->blocks - 1 || numbers[1] != reader->records - 1 ||
        reader->count != reader->header.tables) {
        return error_set(error, ERROR_GENERIC,
                         "%" PRIu64 " blocks, %" PRIu64 " records, %" PRIu32 " tables were written, %" PRIu64
                         ", %" PRIu64 ", %" PRIu32 " are here",
                         numbers[0], numbers[1], reader->header.tables, reader->blocks - 1, reader->records - 1,
                         reader->count);
    }
    reader->ended = true;
    return 0;
}

static int restore_store(struct reader *reader, const struct snapshot_record_header *header, const uint8_t *body,
                         struct error *error) {
    if (!reader->store) return error_set(error, ERROR_GENERIC, "a key, though the header says that there are none");
    size_t length = (size_t)header->length;
    if (header->kind == SNAPSHOT_RECORD_KEYS)
        return store_restore_keys(reader->store, header->table, body, length, error);
    return store_restore_beside(reader->store, header->kind, body, length, error);
}

static int restore_epochs(struct reader *reader, const uint8_t *body, size_t length, struct error *error) {
    if (length != sizeof reader->epochs && length != sizeof reader->epochs / 2)
        return error_set(error, ERROR_GENERIC, "the epochs are malformed");
    memcpy(reader->epochs, body, length);
    return 0;
}

static int restore_record(struct reader *reader, const struct snapshot_record_header *header, const uint8_t *body,
                          struct error *error) {
    size_t length = (size_t)header->length;
    reader->records++;
    if (reader->ended) return error_set(error, ERROR_GENERIC, "something follows the end");
    if (header->kind == SNAPSHOT_RECORD_TABLE) return restore_table(reader, header->table, body, length, error);
    if (header->kind == SNAPSHOT_RECORD_END) return restore_end(reader, body, length, error);
    if (header->kind == SNAPSHOT_RECORD_EPOCHS) return restore_epochs(reader, body, length, error);
    if (header->kind == SNAPSHOT_RECORD_KEYS || header->kind == SNAPSHOT_RECORD_WEIGHTS ||
        header->kind == SNAPSHOT_RECORD_GRADIENTS || header->kind == SNAPSHOT_RECORD_LIBRARIES) {
        return restore_store(reader, header, body, error);
    }
    if (header->table >= reader->count)
        return error_set(error, ERROR_GENERIC, "a record of table %" PRIu32 ", which was not described", header->table);
    return table_restore_record(reader->restores[header->table], header->kind, body, length, error);
}

/* ---- blocks -------------------------------------------------------------------------------------------------------- */

static int restore_records(struct reader *reader, const struct snapshot_block_header *block) {
    size_t at = 0;
    struct error why;
    for (uint32_t i = 0; i < block->records; i++) {
        struct snapshot_record_header header;
        uint64_t place = reader->block_at + sizeof *block + at;
        if (block->length - at < sizeof header) return refuse(reader, place, "a record is malformed");
        memcpy(&header, reader->block + at, sizeof header);
        at += sizeof header;
        if (header.length > block->length - at || snapshot_padded(header.length) > block->length - at)
            return refuse(reader, place, "a record is longer than its block");
        if (restore_record(reader, &header, reader->block + at, &why)) return refuse(reader, place, "%s", why.message);
        at += (size_t)snapshot_padded(header.length);
    }
    return at == block->length ? 0 : refuse(reader, reader->block_at, "a block is longer than its records");
}

static int read_block(struct reader *reader) {
    struct snapshot_block_header header;
    reader->block_at = reader->at;
    if (!reader->source) read_ahead(&reader->ahead, reader->descriptor, reader->at, reader->size);
    if (read_exactly(reader, &header, sizeof header, "the header of a block")) return -1;
    if (header.magic != SNAPSHOT_BLOCK_MAGIC ||
        header.checksum != crc32c(0, &header, offsetof(struct snapshot_block_header, checksum)) ||
        header.length > SNAPSHOT_MAX_BLOCK_BYTES) {
        return refuse(reader, reader->block_at, "the header of block %" PRIu64 " is damaged", reader->blocks);
    }
    if (header.index != reader->blocks) {
        return refuse(reader, reader->block_at, "block %" PRIu64 " stands where block %" PRIu64 " belongs",
                      header.index, reader->blocks);
    }
    if (header.length > reader->block_room) {
        memory_free(reader->block);
        reader->block_room = header.length <= reader->size - reader->at ? header.length : 0;
        reader->block = reader->block_room ? memory_alloc(reader->block_room) : NULL;
        if (!reader->block) {
            uint64_t room = reader->block_room;
            reader->block_room = 0;
            return room ? refuse(reader, reader->block_at, "no memory for a block of %" PRIu32 " bytes", header.length)
                        : refuse(reader, reader->at, "the file ends within a block: it is cut short");
        }
    }
    if (read_exactly(reader, reader->block, header.length, "a block")) return -1;
    uint32_t checksum = crc32c(0, reader->block, header.length);
    if (checksum != header.payload_checksum) {
        return refuse(reader, reader->block_at,
                      "block %" PRIu64 " is damaged: its checksum is %08" PRIx32 ", expected %08" PRIx32,
                      reader->blocks, checksum, header.payload_checksum);
    }
    reader->blocks++;
    return restore_records(reader, &header);
}

static int read_header(struct reader *reader) {
    struct snapshot_file_header *header = &reader->header;
    if (read_exactly(reader, header, sizeof *header, "its header")) return -1;
    if (memcmp(header->magic, SNAPSHOT_MAGIC, sizeof header->magic) != 0)
        return refuse(reader, 0, "this is no snapshot");
    if (header->version < SNAPSHOT_OLDEST_VERSION || header->version > SNAPSHOT_VERSION) {
        return refuse(reader, 8, "a snapshot of version %" PRIu32 ", this server reads versions %u to %u",
                      header->version, SNAPSHOT_OLDEST_VERSION, SNAPSHOT_VERSION);
    }
    if (header->checksum != crc32c(0, header, offsetof(struct snapshot_file_header, checksum)) ||
        header->tables > SNAPSHOT_MAX_TABLES || header->contents > SNAPSHOT_HAS_STORE) {
        return refuse(reader, 0, "the header is damaged");
    }
    return 0;
}

/* ---- the whole ----------------------------------------------------------------------------------------------------- */

static int read_all(struct reader *reader) {
    if (read_header(reader)) return -1;
    reader->restores = memory_calloc(reader->header.tables + 1, sizeof *reader->restores);
    if (!reader->restores) return refuse(reader, 0, "no memory for %" PRIu32 " tables", reader->header.tables);
    if (reader->header.contents & SNAPSHOT_HAS_STORE) {
        reader->store = store_restore_begin(reader->sink);
        if (!reader->store) return refuse(reader, 0, "no memory for a store");
    }
    while (!reader->ended) {
        if (reader->stop && atomic_load_explicit(reader->stop, memory_order_relaxed))
            return refuse(reader, reader->at, "given up");
        if (read_block(reader)) return -1;
    }
    uint8_t more;
    bool is_all = reader->source ? reader->source->take(reader->source, &more, 1) == 0 : reader->at == reader->size;
    return is_all ? 0 : refuse(reader, reader->at, "something follows the end");
}

static int finish(struct reader *reader, struct snapshot_content *content) {
    content->tables = memory_calloc(reader->count + 1, sizeof *content->tables);
    if (!content->tables) return refuse(reader, 0, "no memory for %" PRIu32 " tables", reader->count);
    content->cut_unix_ms = reader->header.cut_unix_ms;
    content->bytes = reader->at;
    content->epoch = reader->epochs[0];
    content->newest_epoch = reader->epochs[1];
    content->origin = reader->epochs[2];
    content->is_copy = reader->epochs[3];
    memcpy(content->run_id, reader->header.run_id, sizeof reader->header.run_id);
    if (reader->store) {
        struct error why;
        if (store_restore_finish(reader->store, &content->store, &why))
            return refuse(reader, reader->at, "%s", why.message);
        store_restore_free(reader->store);
        reader->store = NULL;
    }
    content->count = reader->count;
    for (uint32_t i = reader->count; i-- > 0;) { /* those that share steps before the owners of these */
        struct error why;
        content->tables[i] = table_restore_finish(reader->restores[i], &why);
        reader->restores[i] = NULL;
        if (!content->tables[i]) return refuse(reader, reader->at, "%s", why.message);
    }
    for (uint32_t i = 0; i < reader->count; i++)
        if (*table_config(content->tables[i])->steps_of) table_apply_settle(content->tables[i]);
    return 0;
}

static int read_coming(struct reader *reader, struct snapshot_content *content) {
    *content = (struct snapshot_content){0};
    int failed = read_all(reader) || finish(reader, content);
    for (uint32_t i = 0; i < reader->count; i++) table_restore_free(reader->restores[i]);
    memory_free(reader->restores);
    store_restore_free(reader->store);
    memory_free(reader->block);
    if (failed) snapshot_content_free(content);
    return failed ? -1 : 0;
}

static int read_from(struct reader *reader, struct snapshot_content *content) {
    struct stat status;
    *content = (struct snapshot_content){0};
    if (fstat(reader->descriptor, &status) < 0 || !S_ISREG(status.st_mode))
        return refuse(reader, 0, "this is no file that can be read");
    reader->size = (uint64_t)status.st_size;
    (void)posix_fadvise(reader->descriptor, 0, 0, POSIX_FADV_SEQUENTIAL);
    return read_coming(reader, content);
}

int snapshot_read(int descriptor, const char *name, struct snapshot_content *content, const atomic_bool *stop,
                  struct error *error) {
    return read_from(&(struct reader){.descriptor = descriptor, .name = name, .stop = stop, .error = error}, content);
}

int snapshot_read_coming(struct snapshot_source *source, const char *name, struct snapshot_content *content,
                         const atomic_bool *stop, struct error *error) {
    struct reader reader = {.source = source, .size = UINT64_MAX, .name = name, .stop = stop, .error = error};
    return read_coming(&reader, content);
}

int snapshot_read_keys(int descriptor, const char *name, const struct store_keys_sink *sink, const atomic_bool *stop,
                       struct error *error) {
    struct snapshot_content content;
    struct reader reader = {.descriptor = descriptor, .name = name, .sink = sink, .stop = stop, .error = error};
    if (read_from(&reader, &content)) return -1;
    snapshot_content_free(&content);
    return 0;
}

int snapshot_read_file(const char *path, struct snapshot_content *content, const atomic_bool *stop,
                       struct error *error) {
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) {
        *content = (struct snapshot_content){0};
        return error_set(error, ERROR_GENERIC, "cannot open the snapshot %s: %s", path, strerror(errno));
    }
    int result = snapshot_read(descriptor, path, content, stop, error);
    close(descriptor);
    return result;
}

void snapshot_content_free(struct snapshot_content *content) {
    for (uint32_t i = 0; i < content->count; i++)
        if (content->tables[i]) table_free(content->tables[i]);
    memory_free(content->tables);
    store_content_free(&content->store);
    *content = (struct snapshot_content){0};
}

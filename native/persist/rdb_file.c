/* rdb_file: the magic, marks and keys, a checksum at the end. */
#include "persist/rdb_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc64.h"
#include "base/memory.h"
#include "persist/rdb_format.h"

struct file {
    struct rdb_reader reader;
    struct store *store;
    struct rdb_content *content;
    unsigned database, version;
    int64_t at_ms; /* when the next key ends; 0: never */
};

/* ---- marks ----------------------------------------------------------------------------------------------------------- */

static bool read_header(struct file *file) {
    struct rdb_reader *reader = &file->reader;
    const uint8_t *bytes;
    if (reader->length < RDB_HEADER_BYTES || memcmp(reader->data, RDB_MAGIC, 5) != 0)
        return rdb_problem(reader, 0, "this is no file of Redis");
    rdb_read_bytes(reader, RDB_HEADER_BYTES, &bytes);
    for (unsigned i = 5; i < RDB_HEADER_BYTES; i++) {
        if (bytes[i] < '0' || bytes[i] > '9') return rdb_problem(reader, i, "the version is not a number");
        file->version = file->version * 10 + (unsigned)(bytes[i] - '0');
    }
    if (file->version >= RDB_VERSION_LEAST && file->version <= RDB_VERSION_MOST) return true;
    return rdb_problem(reader, 5, "version %u of the format, this server reads %u to %u", file->version,
                       RDB_VERSION_LEAST, RDB_VERSION_MOST);
}

/* What the file tells of itself: when it was written is of use, and what a replica has to know of the changes to come. */
static bool read_auxiliary(struct file *file) {
    struct rdb_string name, value;
    int64_t number;
    if (!rdb_read_string(&file->reader, &name)) return false;
    bool is_time = name.length == 5 && memcmp(name.data, "ctime", 5) == 0;
    bool is_database = name.length == 14 && memcmp(name.data, "repl-stream-db", 14) == 0;
    rdb_string_free(&name);
    if (!rdb_read_string(&file->reader, &value)) return false;
    bool is_number = (is_time || is_database) && number_parse_int64(value.data, value.length, &number);
    if (is_number && is_database) file->content->stream_database = number;
    if (is_number && is_time && number > 0 && number < INT64_MAX / 1000) file->content->written_unix_ms = number * 1000;
    rdb_string_free(&value);
    return true;
}

static bool read_database(struct file *file) {
    size_t began = file->reader.at;
    uint64_t database;
    if (!rdb_read_length(&file->reader, &database)) return false;
    if (database >= STORE_DATABASES)
        return rdb_problem(&file->reader, began, "database %" PRIu64 ", but there are only %d", database,
                           STORE_DATABASES);
    file->database = (unsigned)database;
    return true;
}

static bool read_end_of_key(struct file *file, bool in_seconds) {
    size_t began = file->reader.at;
    uint64_t bits;
    if (!rdb_read_little_endian(&file->reader, in_seconds ? 4 : 8, &bits)) return false;
    file->at_ms = in_seconds ? (int64_t)bits * 1000 : (int64_t)bits;
    return file->at_ms > 0 || rdb_problem(&file->reader, began, "a key that ends before 1970");
}

static bool read_library(struct file *file) {
    size_t began = file->reader.at - 1;
    struct rdb_string code;
    if (!rdb_read_string(&file->reader, &code)) return false;
    bool added = store_content_add_library(&file->content->store, code.data, code.length);
    rdb_string_free(&code);
    return added || rdb_problem(&file->reader, began, "no memory for a library");
}

/* ---- keys ------------------------------------------------------------------------------------------------------------ */

static bool put(struct file *file, size_t began, const struct rdb_string *key, struct value *value) {
    struct store *store = file->store;
    struct dict_entry *entry = NULL;
    if (store_find(store, file->database, key->data, key->length)) {
        value_free(value);
        return rdb_problem(&file->reader, began, "a key is there twice");
    }
    entry = store_put(store, file->database, key->data, key->length, value, false);
    if (!entry) value_free(value);
    if (!entry || (file->at_ms > 0 && !store_expire_at(store, file->database, entry, file->at_ms)))
        return rdb_problem(&file->reader, began, "no memory for a key");
    file->content->store.keys++;
    return true;
}

static bool read_key(struct file *file, uint8_t type) {
    size_t began = file->reader.at - 1;
    struct rdb_string key;
    struct value *value = NULL;
    if (!rdb_read_string(&file->reader, &key)) return false;
    bool read = rdb_read_value(&file->reader, type, NULL, &value);
    if (!read)
        value_free(value);
    else if (value) /* Redis has left values without elements in some files */
        read = put(file, began, &key, value);
    rdb_string_free(&key);
    file->at_ms = 0;
    return read;
}

/* ---- the whole --------------------------------------------------------------------------------------------------------- */

static bool read_checksum(struct file *file) {
    struct rdb_reader *reader = &file->reader;
    size_t end = reader->at;
    uint64_t said;
    if (file->version >= RDB_CHECKSUM_VERSION) {
        if (!rdb_read_little_endian(reader, 8, &said)) return false;
        /* 0: it was written without one. */
        if (said != 0 && said != crc64(0, reader->data, end))
            return rdb_problem(reader, end, "the checksum is wrong: the file is damaged");
    }
    return reader->at == reader->length || rdb_problem(reader, reader->at, "something follows the end");
}

/* `*ended`: that was the mark at the end. */
static bool read_next(struct file *file, bool *ended) {
    struct rdb_reader *reader = &file->reader;
    uint64_t number;
    uint8_t mark;
    if (!rdb_read_byte(reader, &mark)) return false;
    switch (mark) {
    case RDB_AUXILIARY: return read_auxiliary(file);
    case RDB_DATABASE: return read_database(file);
    case RDB_SIZES: return rdb_read_length(reader, &number) && rdb_read_length(reader, &number);
    case RDB_EXPIRES_MS: return read_end_of_key(file, false);
    case RDB_EXPIRES_S: return read_end_of_key(file, true);
    case RDB_IDLE: return rdb_read_length(reader, &number);
    case RDB_FREQUENCY: return rdb_read_byte(reader, &mark);
    case RDB_FUNCTION: return read_library(file);
    case RDB_FUNCTION_EARLY:
        return rdb_problem(reader, reader->at - 1, "functions as a version before Redis 7.0 wrote them");
    case RDB_MODULE_DATA: return rdb_problem(reader, reader->at - 1, "data of a module, which is not here");
    case RDB_END: *ended = true; return read_checksum(file);
    default: return read_key(file, mark);
    }
}

static int read_all(struct file *file, const char *path, const atomic_bool *stop, struct error *error) {
    bool ended = false, read = read_header(file);
    while (read && !ended)
        if (stop && atomic_load_explicit(stop, memory_order_relaxed))
            read = rdb_problem(&file->reader, file->reader.at, "given up");
        else
            read = read_next(file, &ended);
    if (read) return 0;
    return error_set(error, ERROR_GENERIC, "%s, %s; nothing was restored", path, file->reader.error.message);
}

int rdb_file_parse(const char *path, const uint8_t *data, size_t length, struct rdb_content *content,
                   const atomic_bool *stop, struct error *error) {
    struct file file = {.reader = {.data = data, .length = length}, .content = content};
    file.store = content->store.store = store_new();
    if (!file.store) return error_set(error, ERROR_GENERIC, "no memory for a store");
    file.store->keeps_expired = true;
    int failed = read_all(&file, path, stop, error);
    file.store->keeps_expired = false;
    return failed;
}

int rdb_file_read(const char *path, struct rdb_content *content, const atomic_bool *stop, struct error *error) {
    struct stat status;
    *content = (struct rdb_content){0};
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) return error_set(error, ERROR_GENERIC, "cannot open %s: %s", path, strerror(errno));
    int failed = fstat(descriptor, &status) < 0 || !S_ISREG(status.st_mode) || status.st_size == 0;
    size_t length = failed ? 0 : (size_t)status.st_size;
    void *data = failed ? NULL : memory_map_file(descriptor, 0, length);
    close(descriptor);
    if (!data) return error_set(error, ERROR_GENERIC, "%s is no file that can be read", path);
    failed = rdb_file_parse(path, data, length, content, stop, error);
    memory_unmap_file(data, length);
    if (failed) store_content_free(&content->store);
    return failed;
}

bool rdb_file_is(const char *path) {
    char begin[5];
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) return false;
    bool is = read(descriptor, begin, sizeof begin) == (ssize_t)sizeof begin && memcmp(begin, RDB_MAGIC, 5) == 0;
    close(descriptor);
    return is;
}

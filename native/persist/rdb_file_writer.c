/* rdb_file_writer: header, keys by database, checksum. */
#include "persist/rdb_file_writer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/crc64.h"
#include "base/write.h"
#include "persist/rdb_format.h"
#include "persist/rdb_value.h"
#include "persist/snapshot_reader.h"

#define REDIS_VERSION "7.0.15"
#define WRITE_BYTES (256u << 10) /* are gathered before they are written */

struct file_writer {
    struct rdb_writer writer;
    int descriptor;
    uint64_t checksum, written;
    int64_t database; /* of the keys that follow; −1: none was named yet */
};

static int flush(struct file_writer *file, struct error *error) {
    struct piece_bytes *bytes = &file->writer.bytes;
    if (bytes->failed) return error_set(error, ERROR_GENERIC, "no memory for a key");
    file->checksum = crc64(file->checksum, bytes->data, bytes->length);
    if (write_all(file->descriptor, bytes->data, bytes->length))
        return error_set(error, ERROR_GENERIC, "cannot write the file: %s", strerror(errno));
    file->written += bytes->length;
    bytes->length = 0;
    return 0;
}

static void write_auxiliary(struct rdb_writer *writer, const char *name, const char *value) {
    rdb_write_byte(writer, RDB_AUXILIARY);
    rdb_write_string(writer, name, strlen(name));
    rdb_write_string(writer, value, strlen(value));
}

static void write_header(struct rdb_writer *writer, int stream_database) {
    char text[32];
    snprintf(text, sizeof text, RDB_MAGIC "%04d", RDB_VERSION);
    piece_bytes_add(&writer->bytes, text, RDB_HEADER_BYTES);
    write_auxiliary(writer, "redis-ver", REDIS_VERSION);
    write_auxiliary(writer, "redis-bits", "64");
    snprintf(text, sizeof text, "%lld", (long long)(clock_unix_ms() / 1000));
    write_auxiliary(writer, "ctime", text);
    snprintf(text, sizeof text, "%d", stream_database);
    write_auxiliary(writer, "repl-stream-db", text);
}

static int write_key(void *context, unsigned database, const struct piece_key *key, const struct value *value,
                     struct error *error) {
    struct file_writer *file = context;
    struct rdb_writer *writer = &file->writer;
    if (file->database != (int64_t)database) {
        rdb_write_byte(writer, RDB_DATABASE);
        rdb_write_length(writer, database);
        file->database = database;
    }
    if (key->expires) {
        rdb_write_byte(writer, RDB_EXPIRES_MS);
        rdb_write_little_endian(writer, (uint64_t)key->at_ms, 8);
    }
    rdb_write_byte(writer, rdb_type_of(value));
    rdb_write_string(writer, key->key, key->length);
    rdb_write_value(writer, value, NULL);
    return writer->bytes.failed || writer->bytes.length >= WRITE_BYTES ? flush(file, error) : 0;
}

static int write_library(void *context, const struct blob *code, struct error *error) {
    struct file_writer *file = context;
    struct rdb_writer *writer = &file->writer;
    rdb_write_byte(writer, RDB_FUNCTION);
    rdb_write_string(writer, code->data, code->length);
    return writer->bytes.failed || writer->bytes.length >= WRITE_BYTES ? flush(file, error) : 0;
}

static int write_end(struct file_writer *file, struct error *error) {
    rdb_write_byte(&file->writer, RDB_END);
    if (flush(file, error)) return -1;
    rdb_write_little_endian(&file->writer, file->checksum, 8);
    return flush(file, error);
}

int rdb_file_from_snapshot(int snapshot, int out, bool compresses, int stream_database, const atomic_bool *stop,
                           uint64_t *bytes, struct error *error) {
    struct file_writer file = {.writer = {.compresses = compresses}, .descriptor = out, .database = -1};
    struct store_keys_sink sink = {.context = &file, .key = write_key, .library = write_library};
    write_header(&file.writer, stream_database);
    int failed = snapshot_read_keys(snapshot, "the cut", &sink, stop, error) || write_end(&file, error);
    *bytes = file.written;
    piece_bytes_free(&file.writer.bytes);
    return failed ? -1 : 0;
}

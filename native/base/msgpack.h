/* msgpack: reads and writes the subset of MessagePack that specs and settings need. A reader never leaves its bytes,
 * and nesting is bounded. */
#ifndef REPLAY_BASE_MSGPACK_H
#define REPLAY_BASE_MSGPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MSGPACK_MAX_DEPTH 32

enum msgpack_type {
    MSGPACK_NIL,
    MSGPACK_BOOLEAN,
    MSGPACK_UNSIGNED,
    MSGPACK_SIGNED,
    MSGPACK_DOUBLE,
    MSGPACK_STRING,
    MSGPACK_BINARY,
    MSGPACK_ARRAY,
    MSGPACK_MAP
};

struct msgpack_reader {
    const uint8_t *at;
    const uint8_t *end;
};

struct msgpack_value {
    enum msgpack_type type; /* MSGPACK_SIGNED only for negative integers */
    union {
        bool boolean;
        uint64_t unsigned_integer;
        int64_t signed_integer;
        double real; /* float32 is widened */
        struct {
            const uint8_t *data;
            size_t length;
        } bytes; /* string, binary */
        uint32_t count; /* elements of an array, pairs of a map; they follow in the reader */
    };
};

/* Reads one value (of an array or map only its head). False at the end, on a malformed value and on extension types. */
bool msgpack_read(struct msgpack_reader *reader, struct msgpack_value *value);
/* Passes over one whole value, elements included. */
bool msgpack_skip(struct msgpack_reader *reader);
bool msgpack_string_is(const struct msgpack_value *value, const char *text); /* a string equal to `text` */

/* Writes into memory that grows by memory_realloc; after a failure `failed` stays set. Free `data` with memory_free. */
struct msgpack_writer {
    uint8_t *data;
    size_t length, capacity;
    bool failed;
};

void msgpack_write_nil(struct msgpack_writer *writer);
void msgpack_write_boolean(struct msgpack_writer *writer, bool value);
void msgpack_write_unsigned(struct msgpack_writer *writer, uint64_t value);
void msgpack_write_signed(struct msgpack_writer *writer, int64_t value);
void msgpack_write_double(struct msgpack_writer *writer, double value);
void msgpack_write_string(struct msgpack_writer *writer, const char *text, size_t length);
void msgpack_write_array(struct msgpack_writer *writer, uint32_t count);
void msgpack_write_map(struct msgpack_writer *writer, uint32_t pairs);
/* A value that is msgpack already. */
void msgpack_write_encoded(struct msgpack_writer *writer, const uint8_t *value, size_t length);

#endif

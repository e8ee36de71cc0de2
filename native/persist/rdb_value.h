/* rdb_value: writes values as Redis does in its files and in the payloads of DUMP, and reads all encodings that Redis
 * 5 to 7.2 writes. Nothing that is read is trusted. */
#ifndef REPLAY_PERSIST_RDB_VALUE_H
#define REPLAY_PERSIST_RDB_VALUE_H

#include "persist/rdb_reader.h"
#include "persist/store_piece.h"
#include "store/value.h"

/* Called now and then in a large value. False: give it up. */
struct rdb_rest {
    bool (*rest)(void *context);
    void *context;
};
#define RDB_PARTS_TO_REST 64

/* Rests after so many parts. */
struct rdb_pace {
    const struct rdb_rest *rest; /* NULL: never */
    size_t parts;
};

static inline bool rdb_goes_on(struct rdb_pace *pace) {
    return ++pace->parts % RDB_PARTS_TO_REST != 0 || !pace->rest || pace->rest->rest(pace->rest->context);
}

/* Reads a value of the type, of enum rdb_type. False: damaged, and the reader's error says where; or given up, without an
 * error. *value may be some of it then, for the caller to free. True with NULL: a value without parts, which no key has. */
bool rdb_read_value(struct rdb_reader *reader, uint8_t type, const struct rdb_rest *rest, struct value **value);

/* ---- writing: in the forms that every version reads (rdb_write.c) ---------------------------------------------------- */

struct rdb_writer {
    struct piece_bytes bytes;
    bool compresses; /* strings */
};

uint8_t rdb_type_of(const struct value *value);
/* False: given up. Want of memory is told by writer->bytes.failed. */
bool rdb_write_value(struct rdb_writer *writer, const struct value *value, const struct rdb_rest *rest);
void rdb_write_byte(struct rdb_writer *writer, uint8_t byte);
void rdb_write_little_endian(struct rdb_writer *writer, uint64_t value, unsigned bytes);
void rdb_write_length(struct rdb_writer *writer, uint64_t length);
void rdb_write_string(struct rdb_writer *writer, const void *data, size_t length);

#endif

/* rdb_reader: lengths, strings and packed parts out of bytes in Redis's formats, none of which is trusted. Errors
 * name the place of the wrong byte. */
#ifndef REPLAY_PERSIST_RDB_READER_H
#define REPLAY_PERSIST_RDB_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "store/number.h"

struct rdb_reader {
    const uint8_t *data;
    size_t length, at;
    struct error error; /* the first that was found */
};

/* A string: bytes of the reader's, or its own. Not to be copied; begin with zeros. */
struct rdb_string {
    const uint8_t *data;
    size_t length;
    uint8_t *owned; /* what was compressed */
    char digits[NUMBER_INT64_TEXT];
};
void rdb_string_free(struct rdb_string *string);

/* All of these return false where the bytes are damaged or end: rdb_problem then was called. */
bool rdb_problem(struct rdb_reader *reader, size_t at, const char *format, ...) __attribute__((format(printf, 3, 4)));
bool rdb_read_bytes(struct rdb_reader *reader, size_t count, const uint8_t **bytes);
bool rdb_read_byte(struct rdb_reader *reader, uint8_t *byte);
bool rdb_read_little_endian(struct rdb_reader *reader, unsigned bytes, uint64_t *value);
bool rdb_read_length(struct rdb_reader *reader, uint64_t *length);
bool rdb_read_string(struct rdb_reader *reader, struct rdb_string *string);
bool rdb_read_text_score(struct rdb_reader *reader, double *score);
bool rdb_read_score(struct rdb_reader *reader, double *score);

/* ---- packed parts: what a string holds (rdb_packed.c) --------------------------------------------------------------- */

enum rdb_packing { RDB_PACKED_ZIPLIST, RDB_PACKED_ZIPMAP, RDB_PACKED_INTSET, RDB_PACKED_LISTPACK };

/* Is given each element in turn, a string; false: it is refused, and the error told. */
typedef bool (*rdb_take)(void *context, const uint8_t *data, size_t length);
/* Takes the elements of a packed string whole. `at`: where the string begins, for what is told. */
bool rdb_unpack(struct rdb_reader *reader, enum rdb_packing packing, const struct rdb_string *packed, size_t at,
                rdb_take take, void *context);

#endif

/* rdb_reader: lengths, strings and scores. Sizes are checked against what is there before anything is allocated. */
#include "persist/rdb_reader.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/lzf.h"
#include "base/memory.h"
#include "persist/rdb_format.h"

bool rdb_problem(struct rdb_reader *reader, size_t at, const char *format, ...) {
    if (reader->error.code != ERROR_NONE) return false;
    char what[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    return error_because(&reader->error, ERROR_GENERIC, "byte %zu: %s", at, what);
}

bool rdb_read_bytes(struct rdb_reader *reader, size_t count, const uint8_t **bytes) {
    if (count > reader->length - reader->at)
        return rdb_problem(reader, reader->at, "%zu bytes should follow, but only %zu are left", count,
                           reader->length - reader->at);
    *bytes = reader->data + reader->at;
    reader->at += count;
    return true;
}

bool rdb_read_byte(struct rdb_reader *reader, uint8_t *byte) {
    const uint8_t *bytes;
    if (!rdb_read_bytes(reader, 1, &bytes)) return false;
    *byte = *bytes;
    return true;
}

bool rdb_read_little_endian(struct rdb_reader *reader, unsigned bytes, uint64_t *value) {
    const uint8_t *at;
    if (!rdb_read_bytes(reader, bytes, &at)) return false;
    *value = 0;
    for (unsigned i = 0; i < bytes; i++) *value |= (uint64_t)at[i] << (8 * i);
    return true;
}

static bool read_big_endian(struct rdb_reader *reader, unsigned bytes, uint64_t *value) {
    const uint8_t *at;
    if (!rdb_read_bytes(reader, bytes, &at)) return false;
    *value = 0;
    for (unsigned i = 0; i < bytes; i++) *value = *value << 8 | at[i];
    return true;
}

/* `*encoded`: the value is the form of a string. */
static bool read_length_or_form(struct rdb_reader *reader, uint64_t *value, bool *encoded) {
    size_t began = reader->at;
    uint8_t first, second;
    if (!rdb_read_byte(reader, &first)) return false;
    *encoded = false;
    *value = first & 0x3f;
    switch ((enum rdb_length_form)(first >> 6)) {
    case RDB_LENGTH_6: return true;
    case RDB_LENGTH_14:
        if (!rdb_read_byte(reader, &second)) return false;
        *value = *value << 8 | second;
        return true;
    case RDB_LENGTH_ENCODED: *encoded = true; return true;
    default: break;
    }
    if (first == 0x80) return read_big_endian(reader, 4, value);
    if (first == 0x81) return read_big_endian(reader, 8, value);
    return rdb_problem(reader, began, "0x%02x begins no length", first);
}

bool rdb_read_length(struct rdb_reader *reader, uint64_t *length) {
    size_t began = reader->at;
    bool encoded;
    if (!read_length_or_form(reader, length, &encoded)) return false;
    return !encoded || rdb_problem(reader, began, "a length should be here, not the form of a string");
}

/* ---- strings --------------------------------------------------------------------------------------------------------- */

void rdb_string_free(struct rdb_string *string) {
    memory_free(string->owned);
    string->owned = NULL;
}

static bool read_integer(struct rdb_reader *reader, unsigned bytes, struct rdb_string *string) {
    uint64_t bits;
    if (!rdb_read_little_endian(reader, bytes, &bits)) return false;
    int64_t integer = bytes == 1 ? (int8_t)bits : bytes == 2 ? (int16_t)bits : (int32_t)bits;
    string->length = number_format_int64(integer, string->digits);
    string->data = (const uint8_t *)string->digits;
    return true;
}

static bool read_compressed(struct rdb_reader *reader, struct rdb_string *string) {
    size_t began = reader->at;
    uint64_t packed, length;
    const uint8_t *bytes;
    if (!rdb_read_length(reader, &packed) || !rdb_read_length(reader, &length)) return false;
    if (packed > reader->length - reader->at || length > packed * LZF_MOST_RATIO || length > LIMIT_BULK_MOST_BYTES)
        return rdb_problem(reader, began, "a string of %" PRIu64 " bytes cannot be in %" PRIu64 " compressed ones",
                           length, packed);
    if (!rdb_read_bytes(reader, (size_t)packed, &bytes)) return false;
    string->owned = memory_alloc((size_t)length + 1);
    if (!string->owned) return rdb_problem(reader, began, "no memory for a string of %" PRIu64 " bytes", length);
    string->data = string->owned;
    string->length = (size_t)length;
    if (lzf_expand(bytes, (size_t)packed, string->owned, (size_t)length)) return true;
    rdb_string_free(string);
    return rdb_problem(reader, began, "the compressed string is damaged");
}

bool rdb_read_string(struct rdb_reader *reader, struct rdb_string *string) {
    size_t began = reader->at;
    uint64_t length;
    bool encoded;
    string->owned = NULL;
    if (!read_length_or_form(reader, &length, &encoded)) return false;
    if (!encoded) {
        if (length > LIMIT_BULK_MOST_BYTES)
            return rdb_problem(reader, began, "a string of %" PRIu64 " bytes is longer than any may be", length);
        string->length = (size_t)length;
        return rdb_read_bytes(reader, (size_t)length, &string->data);
    }
    switch (length) {
    case RDB_INTEGER_8: return read_integer(reader, 1, string);
    case RDB_INTEGER_16: return read_integer(reader, 2, string);
    case RDB_INTEGER_32: return read_integer(reader, 4, string);
    case RDB_LZF: return read_compressed(reader, string);
    default: return rdb_problem(reader, began, "%" PRIu64 " is no form of a string", length);
    }
}

/* ---- scores ---------------------------------------------------------------------------------------------------------- */

bool rdb_read_text_score(struct rdb_reader *reader, double *score) {
    size_t began = reader->at;
    uint8_t length;
    const uint8_t *text;
    if (!rdb_read_byte(reader, &length)) return false;
    if (length >= 254) {
        *score = length == 255 ? -INFINITY : INFINITY;
        return true;
    }
    if (length == 253) return rdb_problem(reader, began, "the score is not a number");
    if (!rdb_read_bytes(reader, length, &text)) return false;
    if (number_parse_double(text, length, score) && !isnan(*score)) return true;
    return rdb_problem(reader, began, "the score is not a number");
}

bool rdb_read_score(struct rdb_reader *reader, double *score) {
    size_t began = reader->at;
    uint64_t bits;
    if (!rdb_read_little_endian(reader, 8, &bits)) return false;
    memcpy(score, &bits, sizeof bits);
    return !isnan(*score) || rdb_problem(reader, began, "the score is not a number");
}

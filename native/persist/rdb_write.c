/* rdb_write: values as plain sequences of strings, which every version of Redis reads and packs as it likes. */
#include <string.h>

#include "base/lzf.h"
#include "base/memory.h"
#include "persist/rdb_format.h"
#include "persist/rdb_stream.h"
#include "persist/rdb_value.h"
#include "store/t_hash.h"
#include "store/t_list.h"
#include "store/t_set.h"
#include "store/t_string.h"
#include "store/t_zset.h"

#define COMPRESSED_LEAST 21u /* bytes: what is shorter does not get much shorter */
#define COMPRESSED_SAVES 4u
#define INTEGER_TEXT_MOST 11u /* of an int32 */

void rdb_write_byte(struct rdb_writer *writer, uint8_t byte) {
    piece_bytes_add(&writer->bytes, &byte, 1);
}

void rdb_write_little_endian(struct rdb_writer *writer, uint64_t value, unsigned bytes) {
    uint8_t text[8];
    for (unsigned i = 0; i < bytes; i++) text[i] = (uint8_t)(value >> (8 * i));
    piece_bytes_add(&writer->bytes, text, bytes);
}

static void write_big_endian(struct rdb_writer *writer, uint64_t value, unsigned bytes) {
    for (unsigned i = bytes; i > 0; i--) rdb_write_byte(writer, (uint8_t)(value >> (8 * (i - 1))));
}

void rdb_write_length(struct rdb_writer *writer, uint64_t length) {
    if (length < 1u << 6) {
        rdb_write_byte(writer, (uint8_t)length);
    } else if (length < 1u << 14) {
        write_big_endian(writer, RDB_LENGTH_14 << 14 | length, 2);
    } else if (length <= UINT32_MAX) {
        rdb_write_byte(writer, 0x80);
        write_big_endian(writer, length, 4);
    } else {
        rdb_write_byte(writer, 0x81);
        write_big_endian(writer, length, 8);
    }
}

static bool write_integer(struct rdb_writer *writer, const uint8_t *data, size_t length) {
    int64_t integer;
    if (length > INTEGER_TEXT_MOST || !number_parse_int64(data, length, &integer)) return false;
    if (integer < INT32_MIN || integer > INT32_MAX) return false;
    bool one = integer >= INT8_MIN && integer <= INT8_MAX, two = integer >= INT16_MIN && integer <= INT16_MAX;
    rdb_write_byte(writer, RDB_LENGTH_ENCODED << 6 | (one ? RDB_INTEGER_8 : two ? RDB_INTEGER_16 : RDB_INTEGER_32));
    rdb_write_little_endian(writer, (uint64_t)integer, one ? 1 : two ? 2 : 4);
    return true;
}

static bool write_compressed(struct rdb_writer *writer, const uint8_t *data, size_t length) {
    uint8_t few[4096], *out = few;
    size_t most = length - COMPRESSED_SAVES;
    if (most > sizeof few && !(out = memory_alloc(most))) return false;
    size_t packed = lzf_compress(data, length, out, most);
    if (packed > 0) {
        rdb_write_byte(writer, RDB_LENGTH_ENCODED << 6 | RDB_LZF);
        rdb_write_length(writer, packed);
        rdb_write_length(writer, length);
        piece_bytes_add(&writer->bytes, out, packed);
    }
    if (out != few) memory_free(out);
    return packed > 0;
}

void rdb_write_string(struct rdb_writer *writer, const void *data, size_t length) {
    if (write_integer(writer, data, length)) return;
    if (writer->compresses && length >= COMPRESSED_LEAST && write_compressed(writer, data, length)) return;
    rdb_write_length(writer, length);
    piece_bytes_add(&writer->bytes, data, length);
}

/* ---- values ---------------------------------------------------------------------------------------------------------- */

uint8_t rdb_type_of(const struct value *value) {
    static const uint8_t types[] = {[VALUE_STRING] = RDB_STRING,     [VALUE_LIST] = RDB_LIST,
                                    [VALUE_HASH] = RDB_HASH,         [VALUE_SET] = RDB_SET,
                                    [VALUE_SORTED_SET] = RDB_ZSET_2, [VALUE_STREAM] = RDB_STREAM_LISTPACKS_2};
    return types[value->type];
}

static void write_view(struct rdb_writer *writer, const struct value *string) {
    struct string_view view;
    string_view(string, &view);
    rdb_write_string(writer, view.data, view.length);
}

static bool write_list(struct rdb_writer *writer, const struct list *list, struct rdb_pace *pace) {
    uint64_t length = list_length(list);
    rdb_write_length(writer, length);
    if (length == 0) return true;
    struct list_position position = list_at(list, 0);
    do {
        write_view(writer, *list_element(position));
        if (!rdb_goes_on(pace)) return false;
    } while (list_step(&position, false));
    return true;
}

static bool write_hash(struct rdb_writer *writer, const struct hash *hash, struct rdb_pace *pace) {
    struct hash_position position = {0};
    const uint8_t *field;
    size_t length;
    struct string_view view;
    rdb_write_length(writer, hash_count(hash));
    while (hash_next(hash, &position, &field, &length, &view)) {
        rdb_write_string(writer, field, length);
        rdb_write_string(writer, view.data, view.length);
        if (!rdb_goes_on(pace)) return false;
    }
    return true;
}

static bool write_set(struct rdb_writer *writer, const struct value *set, struct rdb_pace *pace) {
    struct set_position position = {0};
    struct set_member member;
    rdb_write_length(writer, set_count(set));
    while (set_next(set, &position, &member)) {
        set_member_text(&member);
        rdb_write_string(writer, member.data, member.length);
        if (!rdb_goes_on(pace)) return false;
    }
    return true;
}

static bool write_zset(struct rdb_writer *writer, const struct zset *zset, struct rdb_pace *pace) {
    struct zset_position position = {0};
    struct zset_item item;
    rdb_write_length(writer, zset_count(zset));
    while (zset_next(zset, &position, &item)) {
        uint64_t bits;
        memcpy(&bits, &item.score, sizeof bits);
        rdb_write_string(writer, item.member, item.length);
        rdb_write_little_endian(writer, bits, 8);
        if (!rdb_goes_on(pace)) return false;
    }
    return true;
}

bool rdb_write_value(struct rdb_writer *writer, const struct value *value, const struct rdb_rest *rest) {
    struct rdb_pace pace = {.rest = rest};
    switch ((enum value_type)value->type) {
    case VALUE_STRING: write_view(writer, value); return true;
    case VALUE_LIST: return write_list(writer, (const struct list *)value, &pace);
    case VALUE_HASH: return write_hash(writer, (const struct hash *)value, &pace);
    case VALUE_SET: return write_set(writer, value, &pace);
    case VALUE_SORTED_SET: return write_zset(writer, (const struct zset *)value, &pace);
    case VALUE_STREAM: return rdb_write_stream(writer, xstream_of(value), rest);
    case VALUE_TYPES: break;
    }
    return true;
}

#include "base/msgpack.h"

#include <string.h>

#include "base/memory.h"

static bool take_big_endian(struct msgpack_reader *reader, size_t bytes, uint64_t *value) {
    if ((size_t)(reader->end - reader->at) < bytes) return false;
    *value = 0;
    for (size_t i = 0; i < bytes; i++) *value = (*value << 8) | *reader->at++;
    return true;
}

static bool take_bytes(struct msgpack_reader *reader, enum msgpack_type type, uint64_t length,
                       struct msgpack_value *value) {
    if ((uint64_t)(reader->end - reader->at) < length) return false;
    value->type = type;
    value->bytes.data = reader->at;
    value->bytes.length = (size_t)length;
    reader->at += length;
    return true;
}

static bool take_count(struct msgpack_reader *reader, enum msgpack_type type, uint64_t count,
                       struct msgpack_value *value) {
    /* Every element takes a byte at least, so a larger count is a lie; callers may trust it for allocation. */
    if ((uint64_t)(reader->end - reader->at) < count) return false;
    value->type = type;
    value->count = (uint32_t)count;
    return true;
}

static void set_signed(struct msgpack_value *value, int64_t number) {
    if (number >= 0) {
        value->type = MSGPACK_UNSIGNED;
        value->unsigned_integer = (uint64_t)number;
    } else {
        value->type = MSGPACK_SIGNED;
        value->signed_integer = number;
    }
}

static bool read_double(struct msgpack_reader *reader, size_t bytes, struct msgpack_value *value) {
    uint64_t bits;
    if (!take_big_endian(reader, bytes, &bits)) return false;
    value->type = MSGPACK_DOUBLE;
    if (bytes == 4) {
        uint32_t narrow = (uint32_t)bits;
        float single;
        memcpy(&single, &narrow, sizeof single);
        value->real = (double)single;
    } else {
        memcpy(&value->real, &bits, sizeof value->real);
    }
    return true;
}

static bool read_integer(struct msgpack_reader *reader, uint8_t head, struct msgpack_value *value) {
    uint64_t bits;
    bool is_signed = head >= 0xd0;
    size_t bytes = (size_t)1 << (head & 3); /* cc–cf and d0–d3: 1, 2, 4, 8 bytes */
    if (!take_big_endian(reader, bytes, &bits)) return false;
    if (is_signed) {
        uint64_t sign = (uint64_t)1 << (8 * bytes - 1);
        set_signed(value, (int64_t)((bits ^ sign) - sign));
    } else {
        value->type = MSGPACK_UNSIGNED;
        value->unsigned_integer = bits;
    }
    return true;
}

static bool read_long_form(struct msgpack_reader *reader, uint8_t head, struct msgpack_value *value) {
    uint64_t n;
    switch (head) {
    case 0xc0: value->type = MSGPACK_NIL; return true;
    case 0xc2:
    case 0xc3:
        value->type = MSGPACK_BOOLEAN;
        value->boolean = head == 0xc3;
        return true;
    case 0xc4:
    case 0xc5:
    case 0xc6:
        return take_big_endian(reader, (size_t)1 << (head - 0xc4), &n) && take_bytes(reader, MSGPACK_BINARY, n, value);
    case 0xca: return read_double(reader, 4, value);
    case 0xcb: return read_double(reader, 8, value);
    case 0xd9:
    case 0xda:
    case 0xdb:
        return take_big_endian(reader, (size_t)1 << (head - 0xd9), &n) && take_bytes(reader, MSGPACK_STRING, n, value);
    case 0xdc:
    case 0xdd:
        return take_big_endian(reader, (size_t)2 << (head - 0xdc), &n) && take_count(reader, MSGPACK_ARRAY, n, value);
    case 0xde:
    case 0xdf:
        return take_big_endian(reader, (size_t)2 << (head - 0xde), &n) && take_count(reader, MSGPACK_MAP, n, value);
    default:
        if (head >= 0xcc && head <= 0xd3) return read_integer(reader, head, value);
        return false; /* extension types and the unused byte */
    }
}

bool msgpack_read(struct msgpack_reader *reader, struct msgpack_value *value) {
    if (reader->at >= reader->end) return false;
    uint8_t head = *reader->at++;
    if (head < 0x80) {
        value->type = MSGPACK_UNSIGNED;
        value->unsigned_integer = head;
        return true;
    }
    if (head < 0x90) return take_count(reader, MSGPACK_MAP, head & 15u, value);
    if (head < 0xa0) return take_count(reader, MSGPACK_ARRAY, head & 15u, value);
    if (head < 0xc0) return take_bytes(reader, MSGPACK_STRING, head & 31u, value);
    if (head >= 0xe0) {
        set_signed(value, (int64_t)head - 256);
        return true;
    }
    return read_long_form(reader, head, value);
}

static bool skip_nested(struct msgpack_reader *reader, int depth) {
    struct msgpack_value value;
    if (depth > MSGPACK_MAX_DEPTH || !msgpack_read(reader, &value)) return false;
    if (value.type != MSGPACK_ARRAY && value.type != MSGPACK_MAP) return true;
    uint64_t elements = value.type == MSGPACK_MAP ? 2 * (uint64_t)value.count : value.count;
    while (elements-- > 0)
        if (!skip_nested(reader, depth + 1)) return false;
    return true;
}

bool msgpack_skip(struct msgpack_reader *reader) {
    return skip_nested(reader, 0);
}

bool msgpack_string_is(const struct msgpack_value *value, const char *text) {
    return value->type == MSGPACK_STRING && value->bytes.length == strlen(text) &&
           memcmp(value->bytes.data, text, value->bytes.length) == 0;
}

static void put_bytes(struct msgpack_writer *writer, const void *bytes, size_t length) {
    if (writer->failed) return;
    if (writer->capacity - writer->length < length) {
        size_t capacity = writer->capacity ? writer->capacity : 256;
        while (capacity - writer->length < length) capacity *= 2;
        uint8_t *data = memory_realloc(writer->data, capacity);
        if (!data) {
            writer->failed = true;
            return;
        }
        writer->data = data;
        writer->capacity = capacity;
    }
    if (length) memcpy(writer->data + writer->length, bytes, length);
    writer->length += length;
}

static void put_head(struct msgpack_writer *writer, uint8_t head, uint64_t value, size_t bytes) {
    uint8_t out[9] = {head};
    for (size_t i = 0; i < bytes; i++) out[1 + i] = (uint8_t)(value >> (8 * (bytes - 1 - i)));
    put_bytes(writer, out, 1 + bytes);
}

void msgpack_write_nil(struct msgpack_writer *writer) {
    put_head(writer, 0xc0, 0, 0);
}

void msgpack_write_boolean(struct msgpack_writer *writer, bool value) {
    put_head(writer, value ? 0xc3 : 0xc2, 0, 0);
}

void msgpack_write_unsigned(struct msgpack_writer *writer, uint64_t value) {
    if (value < 0x80)
        put_head(writer, (uint8_t)value, 0, 0);
    else if (value <= UINT8_MAX)
        put_head(writer, 0xcc, value, 1);
    else if (value <= UINT16_MAX)
        put_head(writer, 0xcd, value, 2);
    else if (value <= UINT32_MAX)
        put_head(writer, 0xce, value, 4);
    else
        put_head(writer, 0xcf, value, 8);
}

void msgpack_write_signed(struct msgpack_writer *writer, int64_t value) {
    if (value >= 0)
        msgpack_write_unsigned(writer, (uint64_t)value);
    else if (value >= -32)
        put_head(writer, (uint8_t)(256 + value), 0, 0);
    else
        put_head(writer, 0xd3, (uint64_t)value, 8);
}

void msgpack_write_double(struct msgpack_writer *writer, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_head(writer, 0xcb, bits, 8);
}

void msgpack_write_string(struct msgpack_writer *writer, const char *text, size_t length) {
    if (length < 32)
        put_head(writer, (uint8_t)(0xa0 | length), 0, 0);
    else if (length <= UINT8_MAX)
        put_head(writer, 0xd9, length, 1);
    else if (length <= UINT16_MAX)
        put_head(writer, 0xda, length, 2);
    else if (length <= UINT32_MAX)
        put_head(writer, 0xdb, length, 4);
    else
        writer->failed = true;
    put_bytes(writer, text, length);
}

void msgpack_write_array(struct msgpack_writer *writer, uint32_t count) {
    if (count < 16)
        put_head(writer, (uint8_t)(0x90 | count), 0, 0);
    else
        put_head(writer, 0xdd, count, 4);
}

void msgpack_write_map(struct msgpack_writer *writer, uint32_t pairs) {
    if (pairs < 16)
        put_head(writer, (uint8_t)(0x80 | pairs), 0, 0);
    else
        put_head(writer, 0xdf, pairs, 4);
}

void msgpack_write_encoded(struct msgpack_writer *writer, const uint8_t *value, size_t length) {
    put_bytes(writer, value, length);
}

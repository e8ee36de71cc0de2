/* listpack: elements packed and unpacked. */
#include "store/listpack.h"

#include <string.h>

#include "base/words.h"
#include "store/number.h"

enum encoding {
    STRING_12 = 0xe0, /* 4 bits of the length here, 8 behind */
    STRING_32 = 0xf0,
    INTEGER_16 = 0xf1,
    INTEGER_24 = 0xf2,
    INTEGER_32 = 0xf3,
    INTEGER_64 = 0xf4,
};

#define INTEGER_7_MOST 127
#define STRING_6 0x80u
#define STRING_6_MOST 63u
#define INTEGER_13 0xc0u
#define INTEGER_13_MOST 4095
#define STRING_12_MOST 4095u

static uint8_t *write_bytes(uint8_t *at, uint64_t value, unsigned bytes) {
    for (unsigned i = 0; i < bytes; i++) at[i] = (uint8_t)(value >> (8 * i));
    return at + bytes;
}

static int64_t sign_extended(uint64_t value, unsigned bits) {
    uint64_t sign = 1ull << (bits - 1);
    return (int64_t)((value ^ sign) - sign);
}

/* ---- lengths backwards: seven bits a byte, the lowest last; all but the first have the high bit set ---------------- */

static unsigned back_bytes(uint64_t length) {
    return length <= 127 ? 1 : length < 16383 ? 2 : length < 2097151 ? 3 : length < 268435455 ? 4 : 5;
}

static uint8_t *put_back(uint8_t *at, uint64_t length) {
    unsigned bytes = back_bytes(length);
    for (unsigned i = 0; i < bytes; i++) at[i] = (uint8_t)((length >> (7 * (bytes - 1 - i)) & 127) | (i > 0 ? 128 : 0));
    return at + bytes;
}

/* Reads the length that ends just before `end`; `*bytes` is what it takes. 0: it is malformed. */
static uint64_t get_back(const uint8_t *end, const uint8_t *least, unsigned *bytes) {
    uint64_t length = 0;
    for (unsigned i = 0; i < 5 && end - 1 - i >= least; i++) {
        uint8_t byte = end[-1 - (ptrdiff_t)i];
        length |= (uint64_t)(byte & 127) << (7 * i);
        *bytes = i + 1;
        if (!(byte & 128)) return length;
    }
    return 0;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

void listpack_set_head(uint8_t *listpack, size_t total_bytes, size_t elements) {
    write_bytes(listpack, total_bytes, 4);
    write_bytes(listpack + 4, elements < LISTPACK_UNCOUNTED ? elements : LISTPACK_UNCOUNTED, 2);
}

size_t listpack_bytes(const uint8_t *listpack) {
    return (size_t)load_little_endian(listpack, 4);
}

size_t listpack_count(const uint8_t *listpack) {
    size_t count = (size_t)load_little_endian(listpack + 4, 2);
    if (count < LISTPACK_UNCOUNTED) return count;
    count = 0;
    for (const uint8_t *at = listpack_first(listpack); !listpack_is_end(at); at = listpack_next(at)) count++;
    return count;
}

/* Bytes of encoding and data of the element at `at`, of which `left` bytes may be read; 0: it is malformed. */
static uint64_t body_bytes(const uint8_t *at, size_t left) {
    uint8_t first = at[0];
    if (first <= INTEGER_7_MOST) return 1;
    if (first < INTEGER_13) return 1 + (first & 63u);
    if (first < STRING_12) return 2;
    if (first < STRING_32) return left < 2 ? 0 : 2 + ((uint64_t)(first & 15u) << 8 | at[1]);
    switch (first) {
    case STRING_32: return left < 5 ? 0 : 5 + load_little_endian(at + 1, 4);
    case INTEGER_16: return 3;
    case INTEGER_24: return 4;
    case INTEGER_32: return 5;
    case INTEGER_64: return 9;
    default: return 0;
    }
}

bool listpack_is_whole(const uint8_t *listpack, size_t length) {
    if (length < LISTPACK_EMPTY_BYTES || listpack_bytes(listpack) != length || listpack[length - 1] != LISTPACK_END)
        return false;
    const uint8_t *at = listpack_first(listpack), *end = listpack + length - 1;
    size_t count = 0, told = (size_t)load_little_endian(listpack + 4, 2);
    for (; at < end; count++) {
        uint64_t body = body_bytes(at, (size_t)(end - at));
        if (body == 0 || body + back_bytes(body) > (uint64_t)(end - at)) return false;
        const uint8_t *next = at + body + back_bytes(body);
        unsigned bytes = 0;
        if (get_back(next, at, &bytes) != body || bytes != back_bytes(body)) return false;
        at = next;
    }
    return told == LISTPACK_UNCOUNTED || told == count;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

const uint8_t *listpack_next(const uint8_t *at) {
    uint64_t body = body_bytes(at, SIZE_MAX);
    return at + body + back_bytes(body);
}

const uint8_t *listpack_previous(const uint8_t *at) {
    unsigned bytes = 0;
    uint64_t body = get_back(at, at - 5, &bytes);
    return at - bytes - body;
}

static bool read_integer(const uint8_t *at, int64_t *value) {
    uint8_t first = at[0];
    if (first <= INTEGER_7_MOST) {
        *value = first;
        return true;
    }
    if (first >= INTEGER_13 && first < STRING_12) {
        *value = sign_extended((uint64_t)(first & 31u) << 8 | at[1], 13);
        return true;
    }
    if (first < INTEGER_16) return false;
    unsigned bytes = first == INTEGER_16 ? 2 : first == INTEGER_24 ? 3 : first == INTEGER_32 ? 4 : 8;
    *value = sign_extended(load_little_endian(at + 1, bytes), 8 * bytes);
    return true;
}

const uint8_t *listpack_get(const uint8_t *at, struct listpack_element *element) {
    uint64_t body = body_bytes(at, SIZE_MAX);
    element->is_integer = read_integer(at, &element->integer);
    if (!element->is_integer) {
        unsigned head = at[0] < INTEGER_13 ? 1 : at[0] < STRING_32 ? 2 : 5;
        element->data = at + head;
        element->length = (size_t)(body - head);
    }
    return at + body + back_bytes(body);
}

const uint8_t *listpack_text(const struct listpack_element *element, char text[LISTPACK_INTEGER_TEXT], size_t *length) {
    if (element->is_integer) {
        *length = number_format_int64(element->integer, text);
        return (const uint8_t *)text;
    }
    *length = element->length;
    return element->data;
}

bool listpack_equals(const struct listpack_element *element, const uint8_t *data, size_t length) {
    char text[LISTPACK_INTEGER_TEXT];
    size_t own_length;
    const uint8_t *own = listpack_text(element, text, &own_length);
    return own_length == length && (length == 0 || memcmp(own, data, length) == 0);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static unsigned integer_body_bytes(int64_t value) {
    if (value >= 0 && value <= INTEGER_7_MOST) return 1;
    if (value >= -INTEGER_13_MOST - 1 && value <= INTEGER_13_MOST) return 2;
    if (value >= INT16_MIN && value <= INT16_MAX) return 3;
    if (value >= -(1 << 23) && value < (1 << 23)) return 4;
    return value >= INT32_MIN && value <= INT32_MAX ? 5 : 9;
}

size_t listpack_integer_bytes(int64_t value) {
    return integer_body_bytes(value) + 1;
}

uint8_t *listpack_put_integer(uint8_t *at, int64_t value) {
    static const uint8_t encodings[] = {[3] = INTEGER_16, [4] = INTEGER_24, [5] = INTEGER_32, [9] = INTEGER_64};
    unsigned bytes = integer_body_bytes(value);
    if (bytes == 1) {
        at[0] = (uint8_t)value;
    } else if (bytes == 2) {
        at[0] = (uint8_t)(INTEGER_13 | ((uint64_t)value >> 8 & 31));
        at[1] = (uint8_t)value;
    } else {
        at[0] = encodings[bytes];
        write_bytes(at + 1, (uint64_t)value, bytes - 1);
    }
    return put_back(at + bytes, bytes);
}

static unsigned string_head_bytes(size_t length) {
    return length <= STRING_6_MOST ? 1 : length <= STRING_12_MOST ? 2 : 5;
}

size_t listpack_string_bytes(const uint8_t *data, size_t length) {
    int64_t integer;
    if (number_parse_int64(data, length, &integer)) return listpack_integer_bytes(integer);
    uint64_t body = string_head_bytes(length) + (uint64_t)length;
    return (size_t)(body + back_bytes(body));
}

uint8_t *listpack_put_string(uint8_t *at, const uint8_t *data, size_t length) {
    int64_t integer;
    if (number_parse_int64(data, length, &integer)) return listpack_put_integer(at, integer);
    unsigned head = string_head_bytes(length);
    if (head == 1) {
        at[0] = (uint8_t)(STRING_6 | length);
    } else if (head == 2) {
        at[0] = (uint8_t)(STRING_12 | length >> 8);
        at[1] = (uint8_t)length;
    } else {
        at[0] = STRING_32;
        write_bytes(at + 1, length, 4);
    }
    if (length) memcpy(at + head, data, length);
    return put_back(at + head + length, head + (uint64_t)length);
}

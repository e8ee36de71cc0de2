/* rdb_packed: the elements of ziplists, zipmaps, intsets and listpacks, which lie in strings.
 *
 * ziplist: bytes (4) | offset of the last (4) | entries (2) | entry … | 0xff
 *          entry: length of the one before (1, or 0xfe and 4) | encoding | data
 * zipmap:  entries (1; 254 or more: unknown) | length | field | length | free (1) | value | free bytes … | 0xff
 *          length: 1, or 0xfe and 4
 * intset:  bytes of each (4) | count (4) | integer …, in ascending order */
#include <inttypes.h>
#include <string.h>

#include "base/words.h"
#include "persist/rdb_reader.h"
#include "store/listpack.h"

#define PACKED_END 0xffu
#define PACKED_LONG 0xfeu
#define INTSET_HEAD_BYTES 8u

/* Bytes of the packed string that are left. */
struct packed {
    struct rdb_reader *reader;
    const uint8_t *data;
    size_t length, at;
    size_t began; /* of the string, in the reader */
    rdb_take take;
    void *context;
};

static bool damaged(struct packed *packed, const char *what) {
    return rdb_problem(packed->reader, packed->began, "%s, %zu bytes into it", what, packed->at);
}

static bool take_bytes(struct packed *packed, size_t count, const uint8_t **bytes) {
    if (count > packed->length - packed->at) return damaged(packed, "a packed value ends in the middle of an element");
    *bytes = packed->data + packed->at;
    packed->at += count;
    return true;
}

static bool take_number(struct packed *packed, unsigned bytes, uint64_t *value) {
    const uint8_t *at;
    if (!take_bytes(packed, bytes, &at)) return false;
    *value = load_little_endian(at, bytes);
    return true;
}

static bool give_integer(struct packed *packed, int64_t integer) {
    char text[NUMBER_INT64_TEXT];
    return packed->take(packed->context, (const uint8_t *)text, number_format_int64(integer, text));
}

static bool give_bytes(struct packed *packed, size_t count) {
    const uint8_t *bytes;
    return take_bytes(packed, count, &bytes) && packed->take(packed->context, bytes, count);
}

/* ---- ziplists -------------------------------------------------------------------------------------------------------- */

static int64_t sign_extend(uint64_t bits, unsigned bytes) {
    unsigned shift = 64 - 8 * bytes;
    return (int64_t)(bits << shift) >> shift;
}

static bool give_ziplist_integer(struct packed *packed, uint8_t encoding) {
    uint64_t bits;
    unsigned bytes = encoding == 0xc0   ? 2
                     : encoding == 0xd0 ? 4
                     : encoding == 0xe0 ? 8
                     : encoding == 0xf0 ? 3
                     : encoding == 0xfe ? 1
                                        : 0;
    if (bytes > 0) return take_number(packed, bytes, &bits) && give_integer(packed, sign_extend(bits, bytes));
    if (encoding >= 0xf1 && encoding <= 0xfd) return give_integer(packed, (encoding & 15) - 1);
    return damaged(packed, "a ziplist has an unknown encoding");
}

static bool give_ziplist_entry(struct packed *packed) {
    uint64_t encoding, more;
    if (!take_number(packed, 1, &encoding)) return false;
    if (encoding >> 6 == 3) return give_ziplist_integer(packed, (uint8_t)encoding);
    if (encoding >> 6 == 0) return give_bytes(packed, encoding & 63);
    if (encoding >> 6 == 1) return take_number(packed, 1, &more) && give_bytes(packed, (encoding & 63) << 8 | more);
    if (!take_number(packed, 4, &more)) return false;
    return give_bytes(packed, __builtin_bswap32((uint32_t)more)); /* the highest byte first */
}

static bool unpack_ziplist(struct packed *packed) {
    uint64_t bytes, last, count, found = 0, before = 0, said;
    if (!take_number(packed, 4, &bytes) || !take_number(packed, 4, &last) || !take_number(packed, 2, &count))
        return false;
    if (bytes != packed->length) return damaged(packed, "a ziplist has another length than it says");
    for (uint64_t mark;; found++) {
        size_t entry = packed->at;
        if (!take_number(packed, 1, &mark)) return false;
        if (mark == PACKED_END) break;
        said = mark;
        if (mark == PACKED_LONG && !take_number(packed, 4, &said)) return false;
        if (said != before) return damaged(packed, "a ziplist is wrong about the length of an element");
        if (!give_ziplist_entry(packed)) return false;
        before = packed->at - entry;
    }
    if (packed->at != packed->length) return damaged(packed, "a ziplist ends too early");
    (void)last; /* only needed to walk backwards */
    return count == UINT16_MAX || count == found ||
           damaged(packed, "a ziplist has another number of elements than it says");
}

/* ---- zipmaps --------------------------------------------------------------------------------------------------------- */

static bool take_zipmap_length(struct packed *packed, uint64_t first, uint64_t *length) {
    *length = first;
    return first < PACKED_LONG || take_number(packed, 4, length);
}

static bool unpack_zipmap(struct packed *packed) {
    uint64_t count, first, length, unused, found = 0;
    const uint8_t *bytes;
    if (!take_number(packed, 1, &count)) return false;
    for (;; found++) {
        if (!take_number(packed, 1, &first)) return false;
        if (first == PACKED_END) break;
        if (!take_zipmap_length(packed, first, &length) || !give_bytes(packed, length)) return false;
        if (!take_number(packed, 1, &first)) return false;
        if (first == PACKED_END) return damaged(packed, "a zipmap ends behind a field");
        if (!take_zipmap_length(packed, first, &length) || !take_number(packed, 1, &unused) ||
            !give_bytes(packed, length) || !take_bytes(packed, unused, &bytes))
            return false;
    }
    if (packed->at != packed->length) return damaged(packed, "a zipmap ends too early");
    return count >= 254 || count == found || damaged(packed, "a zipmap has another number of fields than it says");
}

/* ---- intsets and listpacks ------------------------------------------------------------------------------------------- */

static bool unpack_intset(struct packed *packed) {
    uint64_t width, count, bits;
    int64_t before = 0;
    if (!take_number(packed, 4, &width) || !take_number(packed, 4, &count)) return false;
    if ((width != 2 && width != 4 && width != 8) || count == 0 || count * width != packed->length - INTSET_HEAD_BYTES)
        return damaged(packed, "an intset has another length than it says");
    for (uint64_t i = 0; i < count; i++) {
        if (!take_number(packed, (unsigned)width, &bits)) return false;
        int64_t integer = sign_extend(bits, (unsigned)width);
        if (i > 0 && integer <= before) return damaged(packed, "an intset is not in ascending order");
        if (!give_integer(packed, integer)) return false;
        before = integer;
    }
    return true;
}

static bool unpack_listpack(struct packed *packed) {
    if (!listpack_is_whole(packed->data, packed->length)) return damaged(packed, "a listpack is damaged");
    for (const uint8_t *at = listpack_first(packed->data); !listpack_is_end(at);) {
        struct listpack_element element;
        char text[LISTPACK_INTEGER_TEXT];
        size_t length;
        at = listpack_get(at, &element);
        const uint8_t *data = listpack_text(&element, text, &length);
        if (!packed->take(packed->context, data, length)) return false;
    }
    return true;
}

bool rdb_unpack(struct rdb_reader *reader, enum rdb_packing packing, const struct rdb_string *string, size_t at,
                rdb_take take, void *context) {
    struct packed packed = {.reader = reader,
                            .data = string->data,
                            .length = string->length,
                            .began = at,
                            .take = take,
                            .context = context};
    switch (packing) {
    case RDB_PACKED_ZIPLIST: return unpack_ziplist(&packed);
    case RDB_PACKED_ZIPMAP: return unpack_zipmap(&packed);
    case RDB_PACKED_INTSET: return unpack_intset(&packed);
    default: return unpack_listpack(&packed);
    }
}

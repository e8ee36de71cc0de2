/* listpack: strings and integers packed one behind the other, in the layout that Redis keeps, dumps and writes to files.
 *
 *   total bytes (4) | elements (2) | element … | 0xff          an element: encoding and data | length of those, backwards
 *
 * A string that is the canonical text of an int64 is packed as an integer. These functions pack and unpack elements
 * in memory that the caller provides, so that the owner of the bytes decides how they grow. The layout is that of
 * Redis's published description of listpacks; numbers are little-endian. */
#ifndef REPLAY_STORE_LISTPACK_H
#define REPLAY_STORE_LISTPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LISTPACK_HEAD_BYTES 6u
#define LISTPACK_END 0xffu
#define LISTPACK_EMPTY_BYTES (LISTPACK_HEAD_BYTES + 1u)
#define LISTPACK_UNCOUNTED 65535u /* in the head where there are so many elements, or more */
#define LISTPACK_INTEGER_TEXT 21u /* the longest text of an integer, and its terminator */

struct listpack_element {
    bool is_integer;
    int64_t integer; /* if is_integer */
    const uint8_t *data; /* if not */
    size_t length;
};

/* ---- the whole --------------------------------------------------------------------------------------------------- */

void listpack_set_head(uint8_t *listpack, size_t total_bytes, size_t elements);
size_t listpack_bytes(const uint8_t *listpack);
size_t listpack_count(const uint8_t *listpack); /* of elements; walks where the head does not tell */
static inline const uint8_t *listpack_first(const uint8_t *listpack) {
    return listpack + LISTPACK_HEAD_BYTES;
}
static inline bool listpack_is_end(const uint8_t *at) {
    return *at == LISTPACK_END;
}
/* Whether these bytes are a listpack: of exactly this length, every element within it. What passes may be read by all
 * functions here. */
bool listpack_is_whole(const uint8_t *listpack, size_t length);

/* ---- elements ---------------------------------------------------------------------------------------------------- */

/* Reads the element at `at`, which is not the end. Returns what follows it. */
const uint8_t *listpack_get(const uint8_t *at, struct listpack_element *element);
/* What follows the element at `at`. */
const uint8_t *listpack_next(const uint8_t *at);
/* The element before `at`, which is not the first. */
const uint8_t *listpack_previous(const uint8_t *at);
/* The element as a string; `text` is used for integers. Returns its bytes. */
const uint8_t *listpack_text(const struct listpack_element *element, char text[LISTPACK_INTEGER_TEXT], size_t *length);
bool listpack_equals(const struct listpack_element *element, const uint8_t *data, size_t length);

/* Bytes that an element takes, and the element itself: `at` has room for it; returns what follows. */
size_t listpack_integer_bytes(int64_t value);
uint8_t *listpack_put_integer(uint8_t *at, int64_t value);
size_t listpack_string_bytes(const uint8_t *data, size_t length);
uint8_t *listpack_put_string(uint8_t *at, const uint8_t *data, size_t length);

#endif

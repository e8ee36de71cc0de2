/* t_string: strings: as values of keys, elements of lists and fields' values of hashes. */
#ifndef REPLAY_STORE_T_STRING_H
#define REPLAY_STORE_T_STRING_H

#include "base/blob.h"
#include "store/number.h"
#include "store/value.h"

#define STRING_MAX_BYTES (512ull << 20)
#define STRING_BLOB_BYTES 16384 /* strings of at least this many bytes live in blobs and travel without a copy */

struct string_integer {
    struct value head;
    int64_t integer;
};

struct string_bytes {
    struct value head;
    uint32_t length;
    uint8_t data[];
};

struct string_blob {
    struct value head;
    struct blob *blob; /* written in place only while this is its one reference */
    size_t capacity;   /* bytes allocated; blob->length of them are the string */
};

/* Bytes of a string for as long as it is not changed; `blob` is set where they lie in one. Not to be copied. */
struct string_view {
    const uint8_t *data;
    size_t length;
    struct blob *blob;
    char digits[NUMBER_INT64_TEXT];
};

/* A string of these bytes, stored as an integer if it reads as one. `blob`, where not NULL, holds the bytes and is
 * retained instead of copied. NULL: memory exhausted. */
struct value *string_new(const uint8_t *data, size_t length, struct blob *blob);
struct value *string_new_integer(int64_t integer);
struct value *string_copy(const struct value *value); /* large ones share their bytes; NULL: memory exhausted */
void string_free(struct value *value);

void string_view(const struct value *value, struct string_view *view);
size_t string_length(const struct value *value);
bool string_to_int64(const struct value *value, int64_t *integer);

/* Makes *place (NULL: nothing yet) a string of at least `length` bytes, zero-padded, whose bytes may be written through
 * the pointer returned. Keeps expiry and access. NULL: memory exhausted, and *place is as it was. */
uint8_t *string_writable(struct value **place, size_t length);
/* As string_writable; calls `rest` (NULL: nothing) after each piece of what is copied or cleared. Until it returns *place is as it
 * was, and must stay so. */
uint8_t *string_writable_in_pieces(struct value **place, size_t length, void (*rest)(void *context), void *context);
size_t string_writable_effort(const struct value *value, size_t length); /* bytes that it copies or clears */
/* Copies in such pieces; `from` NULL: zeros. */
void string_copy_in_pieces(uint8_t *to, const uint8_t *from, size_t bytes, void (*rest)(void *context), void *context);
size_t string_memory_bytes(const struct value *value);

#endif

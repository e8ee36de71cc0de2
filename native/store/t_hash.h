/* t_hash: hashes: few small fields packed in one buffer, in the order they came; otherwise a dict of strings. */
#ifndef REPLAY_STORE_T_HASH_H
#define REPLAY_STORE_T_HASH_H

#include "store/dict.h"
#include "store/t_string.h"
#include "store/value.h"

#define HASH_PACKED_FIELDS 128 /* fewer than Redis's default of 512: a field is found by walking the buffer */
#define HASH_PACKED_BYTES 64   /* of a field or a value: Redis's default for hash-max-listpack-value */

struct hash_packed {
    uint8_t *bytes; /* per field: a byte of field length, one of value length, the field, the value */
    uint32_t used, capacity;
    uint32_t count;
};

struct hash {
    struct value head;
    union {
        struct hash_packed packed;
        struct dict dict; /* of string values */
    };
};

struct hash *hash_new(void); /* NULL: memory exhausted */
size_t hash_count(const struct hash *hash);
/* False when the field is not there. The view holds until the hash changes. */
bool hash_get(struct hash *hash, const uint8_t *field, size_t length, struct string_view *value);

enum hash_set_result {
    HASH_SET_UPDATED = 0,
    HASH_SET_ADDED = 1,
    HASH_SET_EXHAUSTED = -1, /* memory; the hash is unchanged */
};
/* `blob`, where not NULL, holds the value's bytes and is retained instead of copied. */
enum hash_set_result hash_set(struct hash *hash, const uint8_t *field, size_t length, const uint8_t *value,
                              size_t value_length, struct blob *blob);
bool hash_delete(struct hash *hash, const uint8_t *field, size_t length); /* false: not there */

struct hash_position {
    uint32_t offset;
    struct dict_position position;
};
/* Walks all fields; the hash must not change in between. Start from a zeroed position; false at the end. */
bool hash_next(const struct hash *hash, struct hash_position *position, const uint8_t **field, size_t *length,
               struct string_view *value);

struct hash *hash_copy(const struct hash *hash); /* in the same form; NULL: memory exhausted */
bool hash_release(struct hash *hash, size_t *steps);
size_t hash_memory_bytes(const struct hash *hash); /* a dict's is extrapolated from some of its fields */

#endif

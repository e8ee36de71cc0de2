/* store_piece: a key and its value, or some parts of it, as bytes of a snapshot; and back. docs/snapshot.md has the
 * format. The bytes do not depend on the form that a value has in memory. */
#ifndef REPLAY_PERSIST_STORE_PIECE_H
#define REPLAY_PERSIST_STORE_PIECE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "persist/stream_piece.h"
#include "store/dict_walk.h"
#include "store/t_list.h"
#include "store/t_zset.h"
#include "store/value.h"

#define PIECE_BYTES 16384u   /* about so much of a large value goes into one piece, unless a part is larger */

enum piece_flags {
    PIECE_FIRST = 1,  /* of its key */
    PIECE_LAST = 2,
    PIECE_EXPIRES = 4, /* the key expires: its expiry time follows */
};

struct piece_head {
    uint8_t type;     /* enum value_type */
    uint8_t flags;
    uint16_t zero;
    uint32_t key_length;
    uint64_t parts;   /* in this piece: bytes of a string, elements, members, fields */
};
/* Behind it: with PIECE_EXPIRES int64, the expiry time in Unix milliseconds; with PIECE_FIRST and without PIECE_LAST
 * uint64, the parts of all pieces; the key; the parts. */
_Static_assert(sizeof(struct piece_head) == 16, "as documented");

/* Bytes that grow. Begin with zeros. */
struct piece_bytes {
    uint8_t *data;
    size_t length, capacity;
    bool failed; /* memory is exhausted */
};
void piece_bytes_add(struct piece_bytes *bytes, const void *data, size_t length);
void piece_bytes_free(struct piece_bytes *bytes);

struct piece_key {
    const uint8_t *key;
    size_t length;
    bool expires;
    int64_t at_ms; /* when, in Unix time; of weights, gradients and libraries see snapshot_format.h */
};
/* The head of a piece of a string, whose `parts` bytes the caller puts behind it. */
void piece_string_head(struct piece_bytes *bytes, const struct piece_key *key, uint8_t flags, uint64_t parts,
                       uint64_t total);

/* How far a value that is written piece by piece has come. Begin with zeros. It must not change meanwhile, reads may
 * go on. */
struct piece_walk {
    bool begun, list_ended;
    struct list_position list;
    struct zset_position zset;
    struct stream_piece_walk stream;
    struct dict_walk dict;
};
/* Whether the value is written whole by piece_write, in a moment. */
bool piece_is_small(const struct value *value);
void piece_write(struct piece_bytes *bytes, const struct piece_key *key, const struct value *value);
/* Adds the next piece; false: that was the last. */
bool piece_write_some(struct piece_bytes *bytes, const struct piece_key *key, struct value *value,
                      struct piece_walk *walk);

/* A piece that was read: its parts lie in `data`. */
struct piece {
    struct piece_head head;
    struct piece_key key;
    uint64_t total;
    const uint8_t *data;
    size_t length;
};
/* Takes the next piece off *data. Parts are not looked into yet. -1: malformed. */
int piece_read(const uint8_t **data, size_t *length, struct piece *piece, struct error *error);
/* Adds the parts to *value, which is made where it is NULL. -1: malformed, or no memory. */
int piece_add_parts(const struct piece *piece, struct value **value, struct error *error);

#endif

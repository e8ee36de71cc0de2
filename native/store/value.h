/* value: what a key holds. Each type begins with this header; value.c knows all types, t_*.c one each. */
#ifndef REPLAY_STORE_VALUE_H
#define REPLAY_STORE_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum value_type { VALUE_STRING, VALUE_LIST, VALUE_HASH, VALUE_SET, VALUE_SORTED_SET, VALUE_STREAM, VALUE_TYPES };

enum value_encoding {
    ENCODING_INTEGER,  /* string: an int64 */
    ENCODING_BYTES,    /* string: bytes behind the header */
    ENCODING_BLOB,     /* string: a blob, perhaps with room to grow */
    ENCODING_CHUNKS,   /* list */
    ENCODING_PACKED,   /* hash, set, sorted set: few small parts in one buffer */
    ENCODING_DICT,     /* hash, set, sorted set */
    ENCODING_INTEGERS, /* set: a sorted array */
    ENCODING_LISTPACKS, /* stream */
};

struct value {
    uint32_t type : 3;
    uint32_t cut_mark : 1; /* while a snapshot is taken: it is not to be copied any more (persist/store_cut.h) */
    uint32_t encoding : 4;
    uint32_t access : 24; /* when or how often it was used, as the eviction policy wants it */
    uint32_t expiry; /* place in the database's expiry heap, counted from 1; 0: lives until deleted */
};

const char *value_type_name(const struct value *value);     /* "string", "list", "hash", "set", "zset", "stream" */
const char *value_encoding_name(const struct value *value); /* as OBJECT ENCODING says it */
size_t value_memory_bytes(const struct value *value);       /* estimate: what freeing the value would give back */

struct value *value_copy(const struct value *value); /* without expiry; NULL: memory exhausted */

/* About how many frees the value takes: what decides whether it is freed at once or in slices. */
size_t value_free_effort(const struct value *value);
/* Frees up to *steps parts, and lowers *steps by as many; true when the value itself is gone. Until then it may only be
 * released further. The releases of all types are like this. */
bool value_release(struct value *value, size_t *steps);
void value_free(struct value *value); /* at once; NULL is allowed */

#endif

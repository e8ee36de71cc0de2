/* dict: a chained hash table of byte-string keys that grows and shrinks without ever stopping the loop.
 *
 * While it changes its size there are two bucket arrays; each find, add or unlink moves one bucket over, and
 * dict_rehash moves more when the loop has time. A scan cursor stays valid through all of it: every key that is there
 * from the first call of a scan to its last is reported at least once (the reversed-bits cursor of Redis, by Pieter
 * Noordhuis). Key and links are one allocation. */
#ifndef REPLAY_STORE_DICT_H
#define REPLAY_STORE_DICT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/random.h"

struct dict_entry {
    struct dict_entry *next;
    void *value;          /* the owner's */
    uint32_t hash;
    uint32_t key_length;
    uint8_t key[];
};

struct dict_table {
    struct dict_entry **buckets;
    uint8_t *lengths;     /* of the buckets' chains, in the same allocation */
    uint64_t size;        /* a power of two, or 0 */
    uint64_t used;
    uint32_t longest;     /* no chain is longer; none may be as long any more */
};

struct dict {
    struct dict_table tables[2]; /* the second is there only while the size changes */
    uint64_t rehash_index;       /* buckets of the first table below this have moved */
};

struct dict_position {
    unsigned table;
    uint64_t bucket;
    struct dict_entry *next;
};

typedef void (*dict_visit)(void *context, struct dict_entry *entry);
typedef void (*dict_drop)(void *context, void *value);

/* Sets the hash key of all dicts of the process; call once, before the first dict has entries. */
void dict_seed(uint64_t first, uint64_t second);

void dict_init(struct dict *dict); /* no allocation until the first entry */
static inline uint64_t dict_count(const struct dict *dict) {
    return dict->tables[0].used + dict->tables[1].used;
}
uint32_t dict_hash(const void *key, size_t length);
struct dict_entry *dict_find(struct dict *dict, uint32_t hash, const void *key, size_t length);
/* Any entry of that hash. */
struct dict_entry *dict_find_hash(struct dict *dict, uint32_t hash);
/* As dict_find, without moving anything: also while the dict is being walked. */
const struct dict_entry *dict_peek(const struct dict *dict, uint32_t hash, const void *key, size_t length);
/* Adds a key that is not there, with a NULL value. NULL: memory exhausted. */
struct dict_entry *dict_add(struct dict *dict, uint32_t hash, const void *key, size_t length);
/* Takes the entry out; the caller then disposes of its value and calls dict_entry_free. */
void dict_unlink(struct dict *dict, struct dict_entry *entry);
void dict_entry_free(struct dict_entry *entry);

/* Any entry, each with the same chance. NULL when empty. */
struct dict_entry *dict_random(struct dict *dict, struct random_state *random);

/* Visits one bucket (in each array) and returns the next cursor, 0 at the end. `visit` must not change the dict. */
uint64_t dict_scan(struct dict *dict, uint64_t cursor, dict_visit visit, void *context);
/* Walks all entries; the dict must not be touched in between. Start from a zeroed position; NULL at the end. */
struct dict_entry *dict_next(const struct dict *dict, struct dict_position *position);

static inline bool dict_is_rehashing(const struct dict *dict) {
    return dict->tables[1].size > 0;
}
/* Moves up to `buckets` non-empty buckets; false when there is nothing left to move. */
bool dict_rehash(struct dict *dict, unsigned buckets);

/* Frees up to *steps entries or buckets, and lowers *steps by as many; true when all is gone and the dict is as new.
 * Until then it may only be released further. `drop` disposes of a value; NULL: values need no disposal. */
bool dict_release(struct dict *dict, size_t *steps, dict_drop drop, void *context);
void dict_clear(struct dict *dict, dict_drop drop, void *context); /* all at once */
size_t dict_overhead_bytes(const struct dict *dict); /* bucket arrays */

#endif

/* t_zset: sorted sets: few short members packed in order in one buffer; otherwise a dict from members to scores and an
 * index that keeps them in order. */
#ifndef REPLAY_STORE_T_ZSET_H
#define REPLAY_STORE_T_ZSET_H

#include "store/dict.h"
#include "store/value.h"
#include "store/zset_index.h"

/* The borders are Redis's defaults for zset-max-listpack-entries and -value. */
#define ZSET_PACKED_MEMBERS 128
#define ZSET_PACKED_BYTES 64

struct zset_large {
    struct dict members; /* each entry's value is its score */
    struct zset_index order;
};

struct zset {
    struct value head;
    uint16_t used, capacity, count; /* of the packed form */
    union {
        uint8_t *packed; /* per member: length, form of the score, score, member, size of all this */
        struct zset_large *large;
    };
};

struct zset_item {
    double score;
    const uint8_t *member; /* valid until the set changes */
    size_t length;
};

/* Where a member is, or would be, in a set that has not changed since. */
struct zset_place {
    bool found;
    double score;             /* if found */
    uint32_t hash;            /* large */
    struct dict_entry *entry; /* large, if found */
    uint32_t offset;          /* packed, if found */
};

struct zset *zset_new(void); /* NULL: memory exhausted */
/* Brings a set that is small enough into the packed form, where a score of −0 is 0, as in Redis. False: memory exhausted,
 * the set is as it was. */
bool zset_pack(struct zset *zset);
uint64_t zset_count(const struct zset *zset);
/* True if the member is there. */
bool zset_find(struct zset *zset, const uint8_t *member, size_t length, struct zset_place *place);
/* Adds the member that was looked for, or gives it another score (not NaN). False: memory exhausted, nothing changed. */
bool zset_put(struct zset *zset, const struct zset_place *place, const uint8_t *member, size_t length, double score);
/* Removes the member that was found. */
void zset_take(struct zset *zset, const struct zset_place *place);
/* Removes up to `count` members from `rank` on. */
void zset_remove_range(struct zset *zset, uint64_t rank, uint64_t count);

/* A large set that is filled before it is put in order, which is quicker than member by member. Until zset_order only
 * zset_find, zset_note, zset_count and value_release are for it. */
struct zset *zset_new_unordered(void); /* NULL: memory exhausted */
bool zset_note(struct zset *zset, const struct zset_place *place, const uint8_t *member, size_t length, double score);
/* False: memory exhausted; the set can then only be released. `rest`: as of zset_sort. */
bool zset_order(struct zset *zset, void (*rest)(void *context), void *context);

/* How many members come before the one that was found. */
uint64_t zset_rank(const struct zset *zset, const struct zset_place *place, const uint8_t *member, size_t length);
/* The ranks of members from `least` to `greatest`: [first, last). A range by member over differing scores is found as
 * Redis finds it in a small set: walking from the front, or, `backwards`, from the end. */
void zset_range(const struct zset *zset, const struct zset_bound *least, const struct zset_bound *greatest,
                bool backwards, uint64_t *first, uint64_t *last);

/* A place between two members. A zeroed one is before the first. The set must not change while it is used. */
struct zset_position {
    const struct zset_leaf *leaf;
    uint32_t at; /* slot, or offset in the packed form */
};
void zset_seek(const struct zset *zset, uint64_t rank, struct zset_position *position); /* before this member */
/* Gives the member behind, or before, the position, and steps over it; false at the end. */
bool zset_next(const struct zset *zset, struct zset_position *position, struct zset_item *item);
bool zset_previous(const struct zset *zset, struct zset_position *position, struct zset_item *item);

struct zset *zset_copy(const struct zset *zset); /* NULL: memory exhausted */
size_t zset_free_effort(const struct zset *zset);
bool zset_release(struct zset *zset, size_t *steps);
size_t zset_memory_bytes(const struct zset *zset); /* the members' part is extrapolated from some of them */

static inline double zset_entry_score(const struct dict_entry *entry) {
    union {
        void *value;
        double score;
    } slot = {.value = entry->value};
    return slot.score;
}

#endif

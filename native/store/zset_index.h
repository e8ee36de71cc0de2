/* zset_index: the members of a large sorted set in order: a tree that counts what lies below it, so that a member's
 * rank, the member of a rank, and where a range begins and ends are all found in O(log n).
 *
 * A B+ tree: leaves of up to 64 members, linked in order; branches that hold for each child its first member and its
 * number of members. Members that arrive in order fill leaves completely. A node that has become half empty is joined
 * with a neighbour if both fit in three quarters of one node, so that no two neighbours stay nearly empty. */
#ifndef REPLAY_STORE_ZSET_INDEX_H
#define REPLAY_STORE_ZSET_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/dict.h"

#define ZSET_LEAF_SLOTS 64

/* Where a range begins or ends: between what is before it and the rest. */
struct zset_bound {
    enum {
        ZSET_BOUND_FIRST,  /* nothing is before it */
        ZSET_BOUND_LAST,   /* everything is */
        ZSET_BOUND_SCORE,  /* by score alone */
        ZSET_BOUND_MEMBER, /* by member alone: makes sense where all scores are equal */
        ZSET_BOUND_ITEM,   /* by score, then member: the order of the set */
    } kind;
    bool past;             /* what equals it is before it too */
    double score;
    const uint8_t *member;
    size_t length;
};

bool zset_is_before(const struct zset_bound *bound, double score, const uint8_t *member, size_t length);

struct zset_slot {
    double score;
    struct dict_entry *entry; /* its key is the member */
};

struct zset_node {
    uint32_t count;  /* slots, or children */
    uint32_t height; /* 0: a leaf */
};

struct zset_leaf {
    struct zset_node head;
    struct zset_leaf *next, *previous;
    struct zset_slot slots[ZSET_LEAF_SLOTS];
};

struct zset_index {
    struct zset_node *root;         /* NULL: empty */
    struct zset_leaf *first, *last;
    uint64_t count, leaves;
};

void zset_index_init(struct zset_index *index); /* no allocation until the first member */
/* False: memory exhausted, the order is unchanged. */
bool zset_index_insert(struct zset_index *index, double score, struct dict_entry *entry);
/* Puts slots in order, which takes as much memory again: false where there is none. Calls `rest` once in a while, where it
 * is not NULL, so that a large sort can be suspended. */
bool zset_sort(struct zset_slot *slots, uint64_t count, void (*rest)(void *context), void *context);
/* The member must be there, under this score. */
void zset_index_remove(struct zset_index *index, double score, const struct dict_entry *entry);
/* Gives the entry, which stays where it is in the dict, another score. False: memory exhausted, nothing has changed. */
bool zset_index_move(struct zset_index *index, double old_score, double score, struct dict_entry *entry);
/* Takes out at most `most` members (and at most a leaf's) from `rank` on, of which there is at least one; their entries
 * are put in `entries`. Returns how many. */
uint32_t zset_index_cut(struct zset_index *index, uint64_t rank, uint64_t most,
                        struct dict_entry *entries[ZSET_LEAF_SLOTS]);
/* How many members are before the bound. */
uint64_t zset_index_rank(const struct zset_index *index, const struct zset_bound *bound);
/* The leaf that holds the member of this rank, and its slot; the end of the last leaf for the rank after the last. */
struct zset_leaf *zset_index_at(const struct zset_index *index, uint64_t rank, uint32_t *slot);
/* Frees up to *steps nodes, and lowers *steps by as many; true when all are gone. Until then it may only be released
 * further. */
bool zset_index_release(struct zset_index *index, size_t *steps);
size_t zset_index_bytes(const struct zset_index *index);

#endif

/* ragged_store: the values of ragged columns: any number of rows for each item, kept apart from its slot.
 *
 * A value of B bytes lies in B / 2048 units, chained in order, and a rest, which lies in a block of a pool whose
 * sizes are 16 to 64 bytes apart. Why that wastes next to nothing, in whatever order values are removed:
 *   - All units have one size, so any free unit serves any value, and a fresh one is touched only when none is free.
 *     Each needs a link of 4 bytes, 0.2 % of its size.
 *   - Only the rest, less than a unit, is rounded up, by 22 bytes on average. The block of a rest can be reused for
 *     any rest of the same size.
 * So a value of B bytes takes at most B + 0.2 % of B + RAGGED_MOST_WASTE bytes, and no value ever moves.
 *
 * The slot holds a `struct ragged_value`: how many rows, where the chain ends, where the rest lies. Chains are rings:
 * the last unit links to the first, so that a whole chain is given back in constant time. A `struct ragged_value` of
 * zero bytes is a value without rows, which holds no memory. So a slot that was never written, or was given back,
 * needs no other mark.
 *
 * All address space is mapped at the beginning. Taking units costs O(units), taking a rest O(1). */
#ifndef REPLAY_REPLAY_RAGGED_STORE_H
#define REPLAY_REPLAY_RAGGED_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "replay/block_pool.h"
#include "replay/table.h"

#define RAGGED_UNIT_BYTES 2048u
#define RAGGED_MOST_BYTES (1ull << 42) /* address space of one table's ragged columns */
#define RAGGED_SLACK_BYTES \
    (2ull << 30) /* beyond what a full table holds: on its way in, or left while replies show it */
#define RAGGED_MOST_WASTE 96u          /* of one value, beyond the links of its units */

struct ragged_value {
    uint32_t length; /* rows */
    uint32_t last;   /* unit that the chain ends with, if it is as long as one */
    uint64_t rest;   /* offset in the pool of what does not fill a unit, if anything is left */
};

struct ragged_store {
    uint32_t columns; /* ragged ones */
    uint32_t column[TABLE_MAX_COLUMNS]; /* which they are, in the table */
    size_t row_bytes[TABLE_MAX_COLUMNS]; /* by the table's columns; 0: not ragged */
    uint32_t max_length[TABLE_MAX_COLUMNS];
    size_t largest; /* bytes of all values of the largest item */
    struct disk_region *region; /* that the units are of; NULL: they are in memory */
    uint8_t *units;
    uint32_t *next; /* by unit: the next of its chain, or of those given back */
    uint32_t unit_count, fresh, returned, returned_count; /* units from `fresh` on were never used */
    uint32_t returned_last; /* on a disk: the unit that was given back latest, which is the last to be used */
    struct block_pool rests;
    uint64_t used_bytes; /* that values take */
    uint64_t live_bytes; /* that the values of live items take; kept up by the table */
    uint64_t reserved_bytes; /* that those of reservations take */
};

/* A stretch of a value that lies in one piece. */
struct ragged_piece {
    const uint8_t *bytes;
    size_t size;
    size_t left; /* bytes of the value behind it */
    uint32_t unit; /* that it ends with */
};

size_t ragged_largest_bytes(const struct table_config *config); /* of all ragged values of an item; 0: there are none */
uint64_t ragged_most_taken(const struct table_config *config); /* what they take in a store at most */

/* On a disk unless that is NULL. NULL with `error` set. A table without ragged columns has none. */
struct ragged_store *ragged_store_new(const struct table_config *config, struct disk_memory *disk, struct error *error);
void ragged_store_free(struct ragged_store *store); /* NULL is allowed */

static inline bool ragged_store_has(const struct ragged_store *store, uint32_t column) {
    return store && store->row_bytes[column] > 0;
}

static inline size_t ragged_value_bytes(const struct ragged_store *store, uint32_t column,
                                        const struct ragged_value *value) {
    return value->length * store->row_bytes[column];
}

/* What a value of so many rows takes, links included. */
size_t ragged_store_takes(const struct ragged_store *store, uint32_t column, uint32_t length);
/* Copies rows in; `value` holds nothing before. -1: there is no room, and it still holds nothing. */
int ragged_store_put(struct ragged_store *store, uint32_t column, struct ragged_value *value, const uint8_t *rows,
                     uint32_t length);
void ragged_store_drop(struct ragged_store *store, uint32_t column,
                       struct ragged_value *value); /* it holds nothing then */
/* It will be read soon: where its pieces lie is looked up, and the first of them. */
static inline void ragged_store_prefetch(const struct ragged_store *store, uint32_t column,
                                         const struct ragged_value *value) {
    size_t bytes = ragged_value_bytes(store, column, value);
    if (bytes >= RAGGED_UNIT_BYTES)
        __builtin_prefetch(store->units + (size_t)store->next[value->last] * RAGGED_UNIT_BYTES);
    if (bytes % RAGGED_UNIT_BYTES) __builtin_prefetch(store->rests.base + value->rest);
}

/* Its pieces, in order; false: it has no rows, or no more. */
bool ragged_store_first(const struct ragged_store *store, uint32_t column, const struct ragged_value *value,
                        struct ragged_piece *piece);
bool ragged_store_next(const struct ragged_store *store, const struct ragged_value *value, struct ragged_piece *piece);
/* Copies its rows out. */
void ragged_store_read(const struct ragged_store *store, uint32_t column, const struct ragged_value *value,
                       uint8_t *rows);

#endif

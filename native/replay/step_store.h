/* step_store: the bytes of steps in column_arrays, and who still needs them.
 *
 * A step slot is free → reserved (bytes may land) → live, and free again when its last reference goes: one is held by the
 * stream that it was appended to while it is among the last of it, one by each place of an item's windows that shows it.
 * The arrays have address space for every step that could be needed; pages are touched only as slots are used, and the
 * slot freed last is used first, so that memory follows the most steps that were ever live at once.
 *
 * Where the table is compressed, a column whose steps are long enough is coded: instead of an array it has a block for each
 * step in a pool. */
#ifndef REPLAY_REPLAY_STEP_STORE_H
#define REPLAY_REPLAY_STEP_STORE_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "replay/block_pool.h"
#include "replay/codec.h"
#include "replay/column_arrays.h"
#include "replay/table.h"

#define STEP_STORE_MAX_MAPPED_BYTES (1ull << 44) /* address space of one table's steps */
#define STEP_STORE_NO_STEP UINT32_MAX

struct step_store {
    uint32_t slots; /* 0: a table without windows */
    uint32_t columns;
    struct column_arrays arrays; /* none for columns that steps do not have, and for coded ones */
    size_t column_step_bytes[TABLE_MAX_COLUMNS];
    size_t step_bytes;    /* all columns of one step */
    uint32_t *references; /* of live slots; 0: free or reserved */
    uint32_t *returned;   /* stack of slots that were given back */
    uint32_t returned_count;
    uint32_t fresh; /* slots from here on were never used, and their pages never touched */
    uint32_t reserved, live;
    uint64_t live_bytes; /* payload of live steps but those held; of coded columns what their blocks occupy */
    size_t plain_bytes;  /* of one step, without the coded columns */
    size_t coded_bytes;  /* of one step, the coded columns as they were */
    struct codec *codec; /* NULL: no column is coded */
    struct block_pool blocks;
    uint8_t **block[TABLE_MAX_COLUMNS]; /* of coded columns: the block of each step; NULL: none yet */
    uint8_t *scratch;                   /* room for a step of the largest coded column */
    uint32_t held; /* of those live: by a snapshot alone */
    struct step_cut *cut; /* a snapshot being taken; NULL: none */
};

/* Told before a step enters, and when the last reference of one went: true keeps it in its slot; see step_cut.h. */
void step_cut_before_enter(struct step_store *store, uint32_t step);
bool step_cut_holds(struct step_store *store, uint32_t step);

/* Bytes of a step's own columns. */
size_t step_store_step_bytes(const struct table_config *config);

/* Room for `slots` steps, or fewer where address space is short. Needs zeroed memory; free takes that as well. */
int step_store_init(struct step_store *store, const struct table_config *config, uint64_t slots, struct error *error);
void step_store_free(struct step_store *store);

uint32_t step_store_reserve(struct step_store *store); /* a slot must be free */
void step_store_unreserve(struct step_store *store, uint32_t step);
void step_store_enter(struct step_store *store, uint32_t step); /* reserved → live, with one reference */
void step_store_release(struct step_store *store, uint32_t step); /* for step_store_drop */
void step_store_forget(struct step_store *store, uint32_t step); /* used, without references → free */

static inline uint32_t step_store_free_slots(const struct step_store *store) {
    return store->returned_count + (store->slots - store->fresh);
}

/* What a step takes on average. */
static inline uint64_t step_store_mean_bytes(const struct step_store *store) {
    uint32_t live = store->live - store->held;
    return live ? store->live_bytes / live : store->step_bytes;
}

static inline bool step_store_is_coded(const struct step_store *store, uint32_t column) {
    return store->block[column] != NULL;
}

static inline void step_store_hold(struct step_store *store, uint32_t step) {
    assert(step < store->fresh && store->references[step] > 0 && store->references[step] < UINT32_MAX);
    store->references[step]++;
}

static inline void step_store_drop(struct step_store *store, uint32_t step) {
    assert(step < store->fresh && store->references[step] > 0);
    if (--store->references[step] == 0) {
        step_store_release(store, step);
    }
}

static inline uint8_t *step_store_step(const struct step_store *store, uint32_t column, uint32_t step) {
    return column_arrays_value(&store->arrays, column, step);
}

/* ---- coded columns ---- */
/* Keeps a copy of a block, or makes one of a step. -1: the pool is used up. */
int step_store_put_block(struct step_store *store, uint32_t column, uint32_t step, const uint8_t *block, size_t size);
int step_store_encode(struct step_store *store, uint32_t column, uint32_t step, const uint8_t *value);
const uint8_t *step_store_block(const struct step_store *store, uint32_t column, uint32_t step, size_t *size);
bool step_store_is_block(const struct step_store *store, uint32_t column, const uint8_t *block, size_t size);

/* What a live step takes. */
uint64_t step_store_bytes(const struct step_store *store, uint32_t step);

/* Writes a step as it was, whether its column is coded or not. */
void step_store_copy(const struct step_store *store, uint32_t column, uint32_t step, uint8_t *out);

/* Copies n packed steps into slots; the column is not coded. */
void step_store_scatter(struct step_store *store, uint32_t column, const uint32_t *steps, uint32_t n,
                        const void *values);

#endif

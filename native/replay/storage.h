/* storage: the bytes of items in column_arrays, and the life of the slots they lie in.
 *
 * A slot is free → reserved (bytes may land) → live (an item) → free again, or, when it is pinned by a reply in flight,
 * first a zombie until the last pin goes. Its generation counts the items it has held; a slot whose generation would wrap
 * is retired, so that an id never names two items. Taking and giving slots is O(1); the last given is taken first, while
 * its pages are warm. */
#ifndef REPLAY_REPLAY_STORAGE_H
#define REPLAY_REPLAY_STORAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "replay/column_arrays.h"
#include "replay/table.h"

#define STORAGE_MAX_GENERATION 0xffffffu
#define STORAGE_MAX_MAPPED_BYTES (1ull << 46) /* address space of one table */
#define STORAGE_NO_SLOT UINT32_MAX

enum slot_state { SLOT_FREE, SLOT_RESERVED, SLOT_LIVE, SLOT_ZOMBIE, SLOT_RETIRED };

struct slot {
    uint32_t generation;
    uint32_t pins;
    uint32_t times_sampled;
    uint32_t older, newer; /* selector_order: neighbours by age */
    uint8_t state;
    uint8_t unused[11]; /* two slots to a cache line: none lies across two */
};

struct storage {
    uint32_t slots;
    struct column_arrays arrays; /* none for columns that are not of items */
    size_t column_item_bytes[TABLE_MAX_COLUMNS];
    size_t item_bytes; /* all columns of items */
    struct slot *slot;
    uint32_t *returned; /* stack of slots that were given back */
    uint32_t returned_count;
    uint32_t fresh; /* slots from here on were never used, and their pages never touched */
    uint32_t reserved, live, zombies, retired, pinned;
    uint32_t held; /* of those pinned: by a snapshot */
    uint64_t *age; /* by slot: how many items had entered before the one in it */
    uint64_t next_age;
    uint32_t last_lives; /* live slots that will be retired when their item leaves */
    uint32_t least_generation; /* of items that enter: above what was given out and forgotten (storage_forget_ids) */
};

int storage_init(struct storage *storage, const struct table_config *config, uint32_t slots, struct error *error);
void storage_free(struct storage *storage);

static inline uint32_t storage_free_slots(const struct storage *storage) {
    return storage->returned_count + (storage->slots - storage->fresh);
}

uint32_t storage_reserve(struct storage *storage);                     /* a slot must be free */
void storage_unreserve(struct storage *storage, uint32_t slot);
void storage_enter(struct storage *storage, uint32_t slot);            /* reserved → live, next generation */
/* Items were given out that this storage does not know of (it was restored): those that enter from now on get generations
 * that those are unlikely to have had, a random jump above all that are known. */
void storage_forget_ids(struct storage *storage, uint64_t entropy);
/* These say whether the item's bytes are nobody's any more. */
bool storage_leave(struct storage *storage, uint32_t slot); /* live → free, or zombie while pinned */
bool storage_unpin(struct storage *storage, uint32_t slot);

static inline void storage_pin(struct storage *storage, uint32_t slot) {
    storage->pinned += storage->slot[slot].pins++ == 0;
}

static inline uint8_t *storage_item(const struct storage *storage, uint32_t column, uint32_t slot) {
    return column_arrays_value(&storage->arrays, column, slot);
}

/* Copies n packed items into slots, and out of slots. */
void storage_scatter(struct storage *storage, uint32_t column, const uint32_t *slots, uint32_t n, const void *items);
/* `result_bytes`: of the whole that these are a part of; a large one is copied past the caches. */
void storage_gather(const struct storage *storage, uint32_t column, const uint32_t *slots, uint32_t n, void *items,
                    size_t result_bytes);

#endif

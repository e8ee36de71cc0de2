/* slot_store: the bytes of items, or of steps, and the life of the slots that they lie in. A table has one store for its
 * items and, where it has windows, another for its steps.
 *
 * A slot is free, reserved (bytes may land in it), or occupied. Nobody's bytes are overwritten while someone needs them:
 *   - An occupied slot counts its references. It enters with one: of an item the table's index has it, of a step the stream
 *     that it was appended to. Each pin of a reply in flight has another, so has each place of an item's windows that shows
 *     a step, and a snapshot that keeps a slot until it has written it (slot_cut.h).
 *   - Only a slot whose last reference went is given back, only slots that were given back or never used can be reserved,
 *     and bytes land in reserved slots alone. So a removed item leaves the index at once and its bytes when the last pin
 *     goes, and an ADD never waits for a pin.
 *   - A reserved slot has SLOT_RESERVED in place of a count. Entering, holding or giving back a slot in the wrong state fails
 *     an assertion, and these stay on in every build.
 * It would break if bytes were read without a reference of the reader's own, or written after the slot has entered.
 *
 * Items are named by ids, which hold a slot's number and its generation: how many items the slot has held. A slot whose
 * generation would wrap is retired instead of given back, so that an id never names two items.
 *
 * An item can see slots of the store of steps. Its own slot then has a list of them, with a reference for each place in the
 * list; they go with the item's bytes.
 *
 * All memory is mapped at the beginning, as address space: a page is touched when a slot in it is first used. Reserving and
 * giving back are O(1). The slot given back last is used first, so that memory follows the most slots that were ever occupied
 * at once, and pages are warm. Where large columns lie on a disk it is the one given back longest ago. */
#ifndef REPLAY_REPLAY_SLOT_STORE_H
#define REPLAY_REPLAY_SLOT_STORE_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "replay/coded_columns.h"
#include "replay/column_arrays.h"
#include "replay/ragged_store.h"
#include "replay/table.h"

#define SLOT_NONE UINT32_MAX
/* Steps have lower slots. In a list, numbers from here on are of places without a step (item_windows.h). */
#define SLOT_STEPS_MOST 0xffff0000u
#define SLOT_RESERVED UINT32_MAX /* in place of a count of references */
#define SLOT_MOST_REFERENCES (UINT32_MAX - 1)
#define SLOT_MAX_GENERATION 0xffffffu

enum slot_kind { SLOT_OF_ITEM, SLOT_OF_STEP };

/* What is known of an item's slot. Of a step's it is the count of references alone. */
struct slot {
    uint32_t references; /* first, as in a store of steps */
    uint32_t generation;
    uint32_t times_sampled;
    uint32_t older, newer; /* selector_order: neighbours by age */
    bool live; /* the index has one of the references */
    uint64_t age; /* how many items had entered before it */
};
static_assert(sizeof(struct slot) == 32, "two to a cache line: none lies across two");

struct slot_store {
    enum slot_kind kind;
    uint32_t slots; /* 0: the table has no windows, and this would be its store of steps */
    uint32_t columns;
    size_t value_bytes[TABLE_MAX_COLUMNS]; /* 0: slots of this kind do not have the column */
    size_t slot_bytes; /* of all columns */
    size_t plain_bytes; /* of those that are not coded */
    struct column_arrays arrays; /* of those */
    struct coded_columns coded; /* of the others */
    struct ragged_store *ragged; /* of items: what the values of ragged columns refer to; NULL: there are none */
    struct disk_memory *disk; /* that large columns lie on, the table's; NULL: they are in memory */
    bool keeps_apart; /* some of what a slot has lies in `coded` or `ragged` */
    uint8_t *entries; /* by slot: its references and, of an item, the rest of `struct slot` */
    size_t entry_bytes;
    uint32_t *returned; /* stack of slots that were given back; of a store on a disk a ring */
    uint32_t returned_count, returned_first;
    uint32_t backed; /* slots of a disk that there is space for, but for those that records named */
    bool takes_by_number; /* records say which slots are taken (table_apply.h): none is kept for reuse */
    /* Slots below `uncollected` were not looked at since that ended. `uncollected_free` of them are free, and not in
     * `returned` yet. */
    uint32_t uncollected, uncollected_free;
    uint32_t newest_generation; /* that any item had (slot_store_see_generation) */
    uint32_t fresh; /* slots from here on were never used, and their pages never touched */
    uint32_t occupied;
    uint32_t held; /* of those: by a snapshot alone */
    uint32_t reserved;
    uint64_t block_bytes; /* of occupied slots but those held: what their coded columns take */
    struct slot_cut *cut; /* a snapshot being taken; NULL: none */
    struct slot_store *seen;
    uint32_t list_length; /* slots of `seen` that a slot sees; 0: none */
    uint32_t *list; /* by slot */
    struct reservation *pool; /* kept for the next, see slot_reservation.h */
    uint32_t pooled, reservations;
    /* of items */
    struct slot *slot; /* `entries`; NULL: the slots are of steps */
    uint64_t next_age;
    uint32_t live, retired;
    uint32_t pinned; /* slots with pins */
    uint32_t last_lives; /* live slots that will be retired when their item leaves */
    uint32_t least_generation; /* of items that enter: above what was given out and forgotten (slot_store_forget_ids) */
};

/* Bytes of a column in slots of a kind; 0: they do not have it. And of all columns. */
size_t slot_column_bytes(const struct column *column, enum slot_kind kind);
size_t slot_row_bytes(const struct table_config *config, enum slot_kind kind);

/* `disk`: NULL for all in memory. Of steps there may be fewer slots than asked for, where address space is short. */
int slot_store_init(struct slot_store *store, const struct table_config *config, enum slot_kind kind, uint64_t slots,
                    struct disk_memory *disk, struct error *error);
/* From now on each slot sees `length` slots of another store. -1: memory is exhausted. */
int slot_store_init_lists(struct slot_store *store, struct slot_store *seen, uint32_t length);
void slot_store_free(struct slot_store *store); /* takes zeroed memory as well */

static inline uint32_t slot_store_free_slots(const struct slot_store *store) {
    return store->returned_count + store->uncollected_free + (store->slots - store->fresh);
}

/* Of those the ones that can be reserved now: on a disk there is space for them. */
static inline uint32_t slot_store_ready_slots(const struct slot_store *store) {
    if (!store->disk) return slot_store_free_slots(store);
    return store->returned_count + store->uncollected_free +
           (store->backed > store->fresh ? store->backed - store->fresh : 0);
}

static inline uint32_t *slot_references(const struct slot_store *store, uint32_t slot) {
    return (uint32_t *)(void *)(store->entries + slot * store->entry_bytes);
}

static inline struct ragged_value *slot_ragged(const struct slot_store *store, uint32_t column, uint32_t slot) {
    return (struct ragged_value *)(void *)column_arrays_value(&store->arrays, column, slot);
}

static inline bool slot_is_occupied(const struct slot_store *store, uint32_t slot) {
    uint32_t references = *slot_references(store, slot);
    return references > 0 && references != SLOT_RESERVED;
}

static inline uint32_t *slot_list(const struct slot_store *store, uint32_t slot) {
    return store->list + (size_t)slot * store->list_length;
}

/* ---- the life of a slot ---- */
/* Has space on the disk for the slots of `more` beside all that were given out, so that they can be reserved. True where
 * there is no disk. False: it is full. */
bool slot_store_back(struct slot_store *store, uint64_t more);
uint32_t slot_store_reserve(struct slot_store *store); /* a slot must be free, and backed */
void slot_store_unreserve(struct slot_store *store, uint32_t slot);
void slot_store_enter(struct slot_store *store, uint32_t slot); /* reserved → occupied, with one reference */
void slot_store_release(struct slot_store *store, uint32_t slot); /* the last reference went; for slot_store_drop */
/* True: from here on slots are taken by the numbers that records name, and none is kept for reuse. False: that ends, and
 * slot_store_collect_some gives back every used slot without references, of which the lowest will be taken first. Slots can be
 * taken before it is done: those never used, first. */
void slot_store_take_by_number(struct slot_store *store, bool by_number);
bool slot_store_collect_some(struct slot_store *store, uint32_t slots); /* looks at so many; true: there are more */
/* All of it, for a store that was filled from a file. */
void slot_store_collect(struct slot_store *store);

static inline void slot_store_hold(struct slot_store *store, uint32_t slot) {
    uint32_t *references = slot_references(store, slot);
    assert(slot < store->fresh && *references > 0 && *references < SLOT_MOST_REFERENCES);
    ++*references;
}

static inline void slot_store_drop(struct slot_store *store, uint32_t slot) {
    uint32_t *references = slot_references(store, slot);
    assert(slot < store->fresh && *references > 0 && *references != SLOT_RESERVED);
    if (--*references == 0) slot_store_release(store, slot);
}

/* Lets go of what a list of this store, in a slot or on its way into one, has references to. */
static inline void slot_store_drop_list(const struct slot_store *store, const uint32_t *list) {
    for (uint32_t i = 0; i < store->list_length; i++)
        if (list[i] < SLOT_STEPS_MOST) slot_store_drop(store->seen, list[i]);
}

/* ---- items ---- */
void slot_store_enter_item(struct slot_store *store, uint32_t slot); /* as enter, in the next generation */
void slot_store_leave(struct slot_store *store, uint32_t slot); /* a live item leaves the index */
void slot_store_unpin(struct slot_store *store, uint32_t slot);
/* Items were given out that this store does not know of (it was restored): those that enter from now on get generations
 * that those are unlikely to have had, a random jump above all that are known. */
void slot_store_forget_ids(struct slot_store *store, uint64_t entropy);

/* A slot has had an item of that generation. Slots in their last generation are never used again, and do not count. */
static inline void slot_store_see_generation(struct slot_store *store, uint32_t generation) {
    if (generation > store->newest_generation && generation < SLOT_MAX_GENERATION)
        store->newest_generation = generation;
}

static inline void slot_store_pin(struct slot_store *store, uint32_t slot) { /* a live item */
    store->pinned += store->slot[slot].references++ == 1;
}

/* ---- bytes ---- */
/* What an occupied slot takes; what all but those held take; what one takes on average. */
uint64_t slot_store_slot_bytes(const struct slot_store *store, uint32_t slot);
uint64_t slot_store_bytes(const struct slot_store *store);
uint64_t slot_store_ragged_bytes(const struct slot_store *store, uint32_t slot); /* of a slot's ragged values alone */
uint64_t slot_store_mean_bytes(const struct slot_store *store);

#endif

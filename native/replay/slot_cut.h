/* slot_cut: hands out the slots of a store piece by piece, as they were at one moment, the cut, while the store
 * changes. Part of table_cut.h.
 *
 * Every slot that was occupied at the cut is handed out once, with the bytes that it had then:
 *   - The bytes of an occupied slot do not change (slot_store.h), so it can be handed out at any time before it is
 *     freed. Where a record changes those of a step, the slot is handed out first.
 *   - Before the store frees a slot, it asks slot_cut_holds. If the slot was not handed out yet, the cut keeps it by
 *     a reference, or, if it keeps as many as it may, hands it out at once.
 *   - `passed` is set for each slot that need not be handed out any more: it was handed out, it was not occupied at
 *     the cut, or something newer has entered it. The store tells the cut of each slot that is about to be entered. A
 *     slot beyond `slots` was first used after the cut.
 *   - First all kept slots are handed out, and then, in one walk, all occupied ones that have not passed.
 * For an item, `describe` comes first: once, it writes what the index says of the slot, and marks as passed what left
 * the index before the cut and is still pinned. This would break if an item left the index, or an index entry
 * changed, without it. */
#ifndef REPLAY_REPLAY_SLOT_CUT_H
#define REPLAY_REPLAY_SLOT_CUT_H

#include "replay/cut_sink.h"
#include "replay/slot_store.h"

struct slot_cut {
    struct slot_store *store;
    struct table_cut_sink *sink;
    enum table_record kind;
    void (*describe)(struct slot_cut *cut, uint32_t slot); /* NULL: there is nothing to say of slots but their bytes */
    uint32_t slots; /* used at the cut */
    uint64_t *passed; /* one bit a slot */
    uint32_t first, walked; /* the walk begins there */
    uint32_t expected; /* slots of the walk that a helper of the disk was told of */
    uint32_t group; /* slots of one record */
    uint32_t held_limit, held_count;
    uint32_t *held;
    bool failed; /* the sink had no room: what was written is of no use */
};

/* At most `held_limit` slots are kept for it. -1: memory is exhausted. */
int slot_cut_begin(struct slot_cut *cut, struct slot_store *store, struct table_cut_sink *sink, enum table_record kind,
                   uint32_t held_limit);
/* Hands out the next record; false when there are no more, or the sink had no room. */
bool slot_cut_step(struct slot_cut *cut);
void slot_cut_end(struct slot_cut *cut); /* gives back what is held; takes zeroed memory as well */

/* Room in the sink; NULL: there is none, and the cut has failed. */
uint8_t *slot_cut_record(struct slot_cut *cut, enum table_record kind, size_t bytes);

/* The store calls these: before a slot is entered, and when the last reference of one went. True keeps the slot. */
void slot_cut_before_enter(struct slot_cut *cut, uint32_t slot);
/* Before a record puts bytes into a slot that is occupied (table_apply.h). */
void slot_cut_before_rewrite(struct slot_cut *cut, uint32_t slot);
bool slot_cut_holds(struct slot_cut *cut, uint32_t slot);

#endif

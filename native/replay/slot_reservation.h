/* slot_reservation: items, or steps, on their way into a table: slots, or a staging area, that bytes may land in until
 * the caller commits them or gives them back. For the files of replay/; callers see table.h.
 *
 * A column lands in the reserved slots themselves, unless it lands `apart`, in a staging area with one value after
 * another. That holds for:
 *   - All columns of items, if there are no spare slots left. Their slots are taken at commit, after old items have
 *     left, and each value is copied once.
 *   - Coded columns of steps, which are compressed from there.
 * For a ragged column, only the reference in the slot lands like this; its rows are copied into the ragged store at
 * once. Only the reservation writes to its slots (slot_store.h), and nothing reads them before they have entered. It
 * can be released at any time before the commit, which gives everything back. So a client that stalls or vanishes
 * keeps nothing. */
#ifndef REPLAY_REPLAY_SLOT_RESERVATION_H
#define REPLAY_REPLAY_SLOT_RESERVATION_H

#include "replay/column_set.h"
#include "replay/slot_store.h"

#define RESERVATION_POOLED 64u /* kept for reuse, so that ADD allocates nothing */
#define RESERVATION_POOLED_ROOM 1024u /* slots; larger ones are freed */

struct reservation {
    struct table *table;
    struct slot_store *store; /* the table's items, or its steps */
    struct reservation *next; /* in the pool */
    uint32_t n, room;
    uint32_t laid; /* values of each column that staging was laid out for */
    uint32_t taken; /* slots[] that are reserved: the first ones. Of items without slots of their own yet: 0 */
    bool placed; /* all are */
    uint32_t resolved; /* items, the first ones, whose lists of steps hold references */
    uint8_t *staging; /* NULL: no column lands there */
    size_t staging_bytes;
    struct column_set apart; /* columns that have a place in staging */
    struct column_set staged; /* of those: the ones whose values lie there and are still to be copied or compressed */
    struct column_set unchecked; /* columns that came as blocks that nobody has looked into */
    bool admitted; /* the limiter has counted all n; those that have not entered are among the table's `entering` */
    uint32_t entered; /* items, or steps, that have: the first ones */
    uint32_t expects; /* steps: how many more their streams will hold, if it is let through … */
    uint32_t keeps; /* … and since it was, more than they do; among the table's `keeping` */
    uint32_t most_in_part; /* of those that were admitted: how many enter at once */
    double default_priority; /* theirs where none are given */
    uint32_t filled; /* blocks of the column that is being filled */
    size_t filled_bytes;
    uint64_t ragged_bytes; /* that its ragged values take: of those that have not entered */
    uint32_t coded; /* values that are done of the first column that is staged or unchecked */
    uint32_t slots[]; /* room for that many, then for their lists of steps */
};

/* Memory for bytes that have no place of their own yet. It is mapped, not from the heap: it is large, and its pages must go
 * back. One area is kept for the next. */
struct staging {
    uint8_t *kept;
    size_t kept_bytes, total_bytes;
};

/* n places in a store, with slots for them (`placed`) or without. NULL with `error` set. */
struct reservation *reservation_new(struct table *table, struct slot_store *store, uint32_t n, bool placed,
                                    struct error *error);
/* Takes slots for `count` places from `first` on of one that has none, and copies into them what lies in staging; as many
 * must be free. */
void reservation_place(struct reservation *reservation, uint32_t first, uint32_t count);
/* What it held has entered, or was given back: it goes back to its pool. */
void reservation_end(struct reservation *reservation);
/* Items have entered: what the ragged values of `count` of them from `first` on take is no longer the reservation's. */
void reservation_hand_over_ragged(struct reservation *reservation, uint32_t first, uint32_t count);
/* The items from `first` on let go of their steps. */
void reservation_unresolve(struct reservation *reservation, uint32_t first);
void reservation_free_pool(struct slot_store *store);

/* The list of steps of item i. */
static inline uint32_t *reservation_list(struct reservation *reservation, uint32_t i) {
    return reservation->slots + reservation->room + (size_t)i * reservation->store->list_length;
}

#endif

/* table_journal: what happened to a table, as records out of which the same table can be made (table_apply.h). Where they
 * go is the owner's business.
 *
 * A record names outcomes, never requests: which ids items got, which of them left, which priorities there are now. So it
 * can be applied at any time, whatever chance or the clock would have done. Each record also holds the table's counters as
 * they are after it, its random state, and its number: a record that is missing is noticed by the next.
 *
 *   change      draws, removals, updates and items that entered; applied in this order
 *   create      the spec                          drop, reset     nothing more: the table, or all its items, are gone
 *   settings    what REPLAY.CONFIG gave           close, open     the reason
 *   in_base     the number of the base of an append-only file that has the table, if that file was finished
 *
 * The bytes of items stand in a change as they lie in their slots, coded blocks as they are (slot_record.h). Steps are
 * written with the first item that sees them: an episode of which no item was made leaves nothing behind. Streams are not
 * written. They end with their connection, and a writer that comes back appends the steps again that its next items see.
 *
 * Why a step is there whenever an item that sees it is applied: `seen` counts, for each step, the places of live items that
 * show it. A step is written when its count leaves zero. Whoever applies the records keeps a step as long as a live item
 * sees it, and items are live in the same order of changes there as here. Items that were there before the journal began
 * (`first_age`) do not count: their steps may be written once more, and are known then.
 *
 * Where nothing takes a record, what it tells is lost, and the owner must see to it that a cut of the whole table
 * comes before the next one. Counts go on as if it were written: the cut has these steps.
 *
 * What it costs: a copy of what enters, 8 bytes an item that leaves, 16 an update, 128 a record. Nothing is allocated
 * after the beginning. Without a journal: one test and branch a change. */
#ifndef REPLAY_REPLAY_TABLE_JOURNAL_H
#define REPLAY_REPLAY_TABLE_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct table;

enum table_journal_kind {
    TABLE_JOURNAL_CHANGE = 1,
    TABLE_JOURNAL_CREATE = 2,
    TABLE_JOURNAL_DROP = 3,
    TABLE_JOURNAL_RESET = 4,
    TABLE_JOURNAL_SETTINGS = 5,
    TABLE_JOURNAL_CLOSE = 6,
    TABLE_JOURNAL_OPEN = 7,
    TABLE_JOURNAL_IN_BASE = 8
};

/* Little-endian, like all that the table writes. What follows depends on the kind; docs/explanation/table-log.md. */
struct table_journal_head {
    uint32_t kind;
    uint32_t reserved;
    uint64_t number; /* of this record: one more than that of the table's record before */
    uint64_t added, sampled, removed, stale_updates, stale_items, updates_applied;
    uint64_t limiter_inserts, limiter_samples; /* without batches that are amid their parts */
    uint64_t newest_version; /* heap_key_of_integer */
    uint64_t next_age;
    uint64_t random[4];
};

/* Follows the head of a change; then the arrays in the order of the counts, ids and priorities of 8 bytes, and
 * slots of 4 bytes last; then groups of slots up to the record's end. */
struct table_journal_counts {
    uint32_t left; /* u64 ids */
    uint32_t updated; /* u64 ids, f64 priorities */
    uint32_t entered; /* u64 ids, f64 priorities */
    uint32_t drawn; /* u32 slots */
};

/* Follows the arrays, as often as there are groups: a slot_record of items or of steps (cut_sink.h). */
struct table_journal_group {
    uint32_t kind; /* enum table_record */
    uint32_t length;
};

_Static_assert(sizeof(struct table_journal_head) == 128 && sizeof(struct table_journal_counts) == 16, "as documented");

#define TABLE_JOURNAL_BATCH 1024u /* draws, removals and updates of one record, each */
#define TABLE_JOURNAL_BYTES (512u << 10) /* of items in one record, unless a single one is larger */

/* Embedded in something of the owner's. */
struct table_journal_sink {
    /* Room for a record, to be filled before anything else is done. NULL: nothing takes it. */
    uint8_t *(*record)(struct table_journal_sink *sink, size_t bytes);
};

struct table_journal {
    struct table_journal_sink *sink;
    uint64_t first_age; /* items as old as that, or younger, count in `seen` */
    uint32_t *seen; /* by slot of steps; NULL: the table has no windows */
    uint32_t untold; /* items that have entered together with the next record's, and that later records tell */
    uint32_t *steps, step_room; /* those that the next record has: as many as a batch, and one item more, can see */
    struct table_journal_head last; /* as it was written */
    struct table_journal_counts counts; /* of what waits for the next record */
    uint64_t left[TABLE_JOURNAL_BATCH], updated[TABLE_JOURNAL_BATCH];
    double priorities[TABLE_JOURNAL_BATCH];
    uint32_t drawn[TABLE_JOURNAL_BATCH];
};

/* From now on what happens to the table is told. -1: memory is exhausted. A table has one journal. */
int table_journal_begin(struct table *table, struct table_journal_sink *sink, struct error *error);
void table_journal_end(struct table *table); /* of one that has none, too */
/* The records of a table's beginning and end, and of what is not told of by itself. `body`: see above; NULL where there is
 * none. False: nothing takes it. */
bool table_journal_tell(struct table *table, enum table_journal_kind kind, const void *body, size_t length);
bool table_journal_tell_created(struct table *table); /* false: nothing takes it */
/* At the beginning of a reset, which the record tells whole: until it is done no change of an item that is still there is
 * told. Sets work.resetting. */
void table_journal_tell_reset(struct table *table);
bool table_has_journal(const struct table *table);

/* ---- for the table's own files: the table has a journal ---- */
void table_journal_left(struct table *table, uint32_t slot); /* before it does */
void table_journal_updated(struct table *table, uint32_t slot, double priority);
void table_journal_drawn(struct table *table, uint32_t slot);
void table_journal_entered(struct table *table, const uint32_t *slots,
                           uint32_t n); /* counters are as they are after it */
void table_journal_write(struct table *table); /* what waits, or counters that differ from those written */

#endif

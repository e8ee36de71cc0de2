/* table_state: what a table is made of; for the files of replay/ and their tests, not for callers. */
#ifndef REPLAY_REPLAY_TABLE_STATE_H
#define REPLAY_REPLAY_TABLE_STATE_H

#include "base/random.h"
#include "replay/freshness.h"
#include "replay/item_windows.h"
#include "replay/max_tree.h"
#include "replay/priority_counts.h"
#include "replay/rate_limiter.h"
#include "replay/selector.h"
#include "replay/selector_order.h"
#include "replay/slot_reservation.h"
#include "replay/slot_store.h"
#include "replay/stream.h"
#include "replay/table.h"
#include "replay/table_journal.h"

#define TABLE_RESERVED_LIMIT (TABLE_SPARE_SLOTS / 2)

/* What a reset or a change of settings has still to do (table_change.c), in this order. */
struct table_work {
    bool resetting;   /* every item leaves */
    bool walking;     /* every item from `next` on is looked at, oldest first … */
    uint32_t next;
    bool fill_sampler, fill_remover, fill_freshness; /* … and enters these; */
    bool wearing;     /* … and leaves if it was sampled often enough */
    bool shrinking;   /* items beyond the effective capacity or max_bytes leave */
};

struct table {
    struct table_config config;
    uint32_t shard_bits; /* the shard's number, above the generation */
    struct disk_memory *disk; /* that large columns lie on; NULL: they are in memory */
    struct slot_store items;
    struct rate_limiter limiter;
    struct selector_order order;
    struct selector sampler, remover;
    struct freshness freshness;
    struct max_tree priorities;      /* raw p by slot; 0 where there is no item */
    struct priority_counts priority_counts; /* of live items; kept up beside each write of the above */
    struct random_state random;
    double max_priority_allowed;     /* larger ones would overflow p^alpha */
    uint64_t positive;               /* prioritized sampler: its items of positive weight */
    uint64_t positive_times;         /* how often those were sampled, together */
    uint64_t live_times;             /* how often all live items were, together */
    struct table_work work;
    uint64_t unused; /* of those sampled, draws that were given back */
    uint64_t added, sampled, removed, stale_items, stale_updates, updates_applied;
    uint64_t entering; /* items of large batches that were let through and have still to enter */
    uint64_t drawing; /* draws of large batches that were let through and have still to be made */
    struct staging staging;
    /* of a table with windows */
    struct slot_store *steps; /* its own, or those of `owner` */
    struct slot_store own_steps;
    struct table *owner; /* whose steps it shares; NULL: nobody's (table_share.c) */
    bool leaves; /* it was dropped, and holds steps of `owner` until it is freed */
    uint32_t let_go; /* items in slots below hold none any more */
    uint32_t sharers; /* tables that share its steps */
    uint64_t sharing_slots, leaving_slots; /* of their items: tables in service, and those that were dropped */
    bool freed; /* it goes with the last of them */
    uint32_t left_in_vain; /* items that left for max_bytes, one after the other, and freed little */
    bool lacks_references; /* amid a restore: its items do not hold the steps that they see yet */
    struct window_map windows;
    struct stream *streams;
    uint64_t stream_count, stream_steps; /* how many, and what their histories are together */
    uint64_t kept_steps;                 /* those that streams hold now */
    uint64_t keeping;                    /* those that they will hold beside them, of appends on their way */
    struct table_cut *cut; /* a snapshot being taken; NULL: none */
    struct table_journal *journal; /* is told what happens; NULL: nobody is */
    uint64_t changes; /* records of its journals, so far */
    bool closed; /* nothing enters (table_close.c) */
    char closed_reason[TABLE_MAX_REASON + 1];
};

/* To be called, while a cut is under way, before anything that the index says of a slot changes; see table_cut.h. */
void table_cut_before_change(struct table *table, uint32_t slot);

/* Live items that the sampler may draw, and how often those were sampled, together. */
uint64_t table_drawable(const struct table *table);
uint64_t table_drawable_times(const struct table *table);
/* Puts a live item into the sampler; `key`: selector_key of its priority. */
void table_enter_sampler(struct table *table, uint32_t slot, double key);
/* What the sampler and the remover make of one priority. */
struct table_keys {
    double sampler, remover;
};
#define TABLE_KEYS 64u /* made at once */
struct table_keys table_keys(const struct table *table, double priority);
/* As table_keys for n <= TABLE_KEYS. */
void table_keys_many(const struct table *table, const double *priorities, uint32_t n, struct table_keys *keys);
/* Puts a live item into all indexes, as the newest; trees need table_repair afterwards. */
void table_index(struct table *table, uint32_t slot, double priority, struct table_keys keys);
/* Takes a live item out of all indexes; trees need table_repair afterwards. */
void table_remove(struct table *table, uint32_t slot);
/* Writes one priority of a live item; trees need table_repair afterwards. */
void table_set_priority(struct table *table, uint32_t slot, double priority, struct table_keys keys);
void table_count_draw(struct table *table, uint32_t slot); /* of a live item */
void table_repair(struct table *table);
/* Removes n items, as the remover chooses; n <= live items. As after table_remove. */
void table_make_room(struct table *table, uint64_t n);
/* As many of them as leave for max_bytes, `most` at a time. Whether more have to: not where it is in vain. */
bool table_make_room_for_bytes(struct table *table, uint32_t most);
/* Whether no reset or change is under way; otherwise ERROR_TIMEOUT and the reason. */
bool table_is_ready(const struct table *table, struct error *error);
/* Whether items that are too old have left; otherwise ERROR_TIMEOUT and the reason. */
bool table_is_fresh(const struct table *table, struct error *error);
/* Pins a batch that was drawn, counts it, and writes its ids, probabilities and details (NULL: not), where items may be
 * sampled any number of times. */
void table_take_batch(struct table *table, uint32_t n, const uint32_t *slots, uint64_t *ids, double *probabilities,
                      struct table_detail *details);
/* A sample would wait for the reason in `error`: on a closed table that becomes ERROR_CLOSED, since nothing will be added. */
void table_refuse_wait(const struct table *table, struct error *error);
/* Has space for so many more slots of items, or steps, on the table's disk, if it has one. -1: there is none. */
int table_back_slots(struct table *table, struct slot_store *store, uint64_t more, struct error *error);
int table_refuse_slots(const struct table *table, const struct slot_store *store, uint64_t more, struct error *error);
/* Lets go of what the settings do not allow: a snapshot may have been cut in the middle of a change. */
void table_recheck(struct table *table);
void table_begin_recheck(struct table *table); /* table_step does it */
void table_limit_priorities(struct table *table); /* sets max_priority_allowed, after the exponents */
/* Removes items that are too far behind the newest version, for a bounded time. */
void table_sweep_stale(struct table *table);
uint64_t table_bytes(const struct table *table); /* payload of live items and steps */
/* The most steps that so many slots of items can need at once, of one table or of several that share steps. */
uint64_t table_step_slots(const struct table_config *config, uint64_t slots);
/* Room for the steps of items: those of the table, and three times as many of tables that share its steps. */
#define TABLE_STEPS_FOR 4u
void table_share_end(struct table *table); /* its items let go of the steps that they see, before it goes */

static inline uint64_t table_id(const struct table *table, uint32_t slot) {
    return (uint64_t)(table->shard_bits | table->items.slot[slot].generation) << 32 | slot;
}

/* The slot of a live item, or SLOT_NONE when the item has left or never was. */
static inline uint32_t table_slot(const struct table *table, uint64_t id) {
    uint32_t slot = (uint32_t)id;
    if (slot >= table->items.slots) return SLOT_NONE;
    const struct slot *entry = &table->items.slot[slot];
    return entry->live && (table->shard_bits | entry->generation) == id >> 32 ? slot : SLOT_NONE;
}

static inline void table_prefetch_id(const struct table *table, uint64_t id) {
    uint32_t slot = (uint32_t)id;
    if (slot < table->items.slots) {
        __builtin_prefetch(&table->items.slot[slot], 1);
        wide_tree_prefetch_leaf(&table->priorities.tree, slot);
        selector_prefetch(&table->sampler, slot);
    }
}

#endif

/* table_journal: gathers what happens between two records, and lays the records out. */
#include "replay/table_journal.h"

#include <string.h>

#include "base/memory.h"
#include "replay/cut_sink.h"
#include "replay/slot_record.h"
#include "replay/table_state.h"

/* Counters as they are now, but for items that later records tell; the number is that of the last record. Amid a reset they are
 * as they will be after it. */
static struct table_journal_head head_of(const struct table *table, enum table_journal_kind kind) {
    uint32_t untold = table->journal->untold;
    struct table_journal_head head = {
        .kind = kind,
        .number = table->changes,
        .added = table->added - untold,
        .sampled = table->sampled,
        .removed = table->removed,
        .stale_updates = table->stale_updates,
        .stale_items = table->stale_items,
        .updates_applied = table->updates_applied,
        .limiter_inserts = table->limiter.inserts - table->entering - untold,
        .limiter_samples = table->limiter.samples - table->drawing,
        .newest_version = heap_key_of_integer(table->freshness.newest),
        .next_age = table->items.next_age - untold,
    };
    memcpy(head.random, table->random.words, sizeof head.random);
    if (!table->work.resetting) return head;
    head.removed += table->items.live;
    head.limiter_inserts = head.limiter_samples = 0;
    head.newest_version = heap_key_of_integer(INT64_MIN);
    return head;
}

int table_journal_begin(struct table *table, struct table_journal_sink *sink, struct error *error) {
    assert(!table->journal);
    if (table->owner && !table->owner->journal)
        return error_set(error, ERROR_GENERIC, "table '%s' has no journal, and table '%s' shares its steps",
                         table->owner->config.name, table->config.name);
    struct table_journal *journal = table->journal = memory_calloc(1, sizeof *journal);
    if (journal && table_has_windows(table)) {
        journal->step_room = TABLE_JOURNAL_BATCH + table->items.list_length;
        journal->seen = memory_map((size_t)table->steps->slots * sizeof *journal->seen);
        journal->steps = memory_alloc(journal->step_room * sizeof *journal->steps);
    }
    if (!journal || (table_has_windows(table) && (!journal->seen || !journal->steps))) {
        table_journal_end(table);
        return error_set(error, ERROR_GENERIC, "out of memory for the journal of table '%s'", table->config.name);
    }
    journal->sink = sink;
    journal->first_age = table->items.next_age;
    journal->last = head_of(table, TABLE_JOURNAL_CHANGE);
    return 0;
}

void table_journal_end(struct table *table) {
    struct table_journal *journal = table->journal;
    if (!journal) return;
    memory_unmap(journal->seen, (size_t)table->steps->slots * sizeof *journal->seen);
    memory_free(journal->steps);
    table->journal = NULL;
    memory_free(journal);
}

/* ---- one record ---------------------------------------------------------------------------------------------------- */

/* Room for what follows the head; NULL: nothing takes it. */
static uint8_t *begin_record(struct table *table, enum table_journal_kind kind, size_t bytes) {
    struct table_journal *journal = table->journal;
    table->changes++;
    journal->last = head_of(table, kind);
    uint8_t *to = journal->sink->record(journal->sink, sizeof journal->last + bytes);
    if (!to) return NULL;
    memcpy(to, &journal->last, sizeof journal->last);
    return to + sizeof journal->last;
}

bool table_journal_tell(struct table *table, enum table_journal_kind kind, const void *body, size_t length) {
    if (!table->journal) return false;
    table_journal_write(table);
    uint8_t *to = begin_record(table, kind, length);
    if (to && length) memcpy(to, body, length);
    return to;
}

void table_journal_tell_reset(struct table *table) {
    table_journal_write(table);
    table->work.resetting = true;
    begin_record(table, TABLE_JOURNAL_RESET, 0);
}

bool table_journal_tell_created(struct table *table) {
    uint8_t *spec;
    size_t length;
    struct error error;
    if (!table->journal || table_config_write(&table->config, &spec, &length, &error)) return false;
    bool told = table_journal_tell(table, TABLE_JOURNAL_CREATE, spec, length);
    memory_free(spec);
    return told;
}

bool table_has_journal(const struct table *table) {
    return table->journal;
}

static uint8_t *put(uint8_t *to, const void *from, size_t bytes) {
    if (bytes) memcpy(to, from, bytes);
    return to + bytes;
}

/* ---- what enters --------------------------------------------------------------------------------------------------- */

/* Slots that stand in one record together. */
struct batch {
    const uint32_t *items;
    uint32_t item_count;
    uint32_t step_count; /* of the journal's `steps`: those that are seen for the first time */
};

static uint64_t slot_bytes(const struct slot_store *store, uint32_t slot) {
    return slot_store_slot_bytes(store, slot) + (store->ragged ? slot_store_ragged_bytes(store, slot) : 0);
}

/* How many of these slots stand in one group. */
static uint32_t group_of(const struct slot_store *store, const uint32_t *slots, uint32_t n) {
    uint32_t count = 1;
    uint64_t bytes = slot_bytes(store, slots[0]);
    for (; count < n && count < SLOT_RECORD_MOST && bytes < TABLE_CUT_RECORD_BYTES; count++)
        bytes += slot_bytes(store, slots[count]);
    return count;
}

static size_t groups_bytes(const struct slot_store *store, const uint32_t *slots, uint32_t n) {
    size_t bytes = 0;
    for (uint32_t i = 0, count; i < n; i += count) {
        count = group_of(store, slots + i, n - i);
        bytes += sizeof(struct table_journal_group) + slot_record_bytes(store, slots + i, count);
    }
    return bytes;
}

static uint8_t *write_groups(const struct slot_store *store, enum table_record kind, const uint32_t *slots, uint32_t n,
                             uint8_t *to) {
    for (uint32_t i = 0, count; i < n; i += count) {
        count = group_of(store, slots + i, n - i);
        struct table_journal_group group = {kind, (uint32_t)slot_record_bytes(store, slots + i, count)};
        to = put(to, &group, sizeof group);
        slot_record_write(store, slots + i, count, to);
        to += group.length;
    }
    return to;
}

static void write_change(struct table *table, const struct batch *batch) {
    struct table_journal *journal = table->journal;
    struct table_journal_counts counts = journal->counts;
    counts.entered = batch->item_count;
    size_t bytes = sizeof counts + counts.left * sizeof journal->left[0] +
                   (counts.updated + counts.entered) * (sizeof(uint64_t) + sizeof(double)) +
                   counts.drawn * sizeof journal->drawn[0] +
                   groups_bytes(table->steps, journal->steps, batch->step_count) +
                   groups_bytes(&table->items, batch->items, batch->item_count);
    journal->counts = (struct table_journal_counts){0};
    uint8_t *to = begin_record(table, TABLE_JOURNAL_CHANGE, bytes);
    if (!to) return;
    to = put(to, &counts, sizeof counts);
    to = put(to, journal->left, counts.left * sizeof journal->left[0]);
    to = put(to, journal->updated, counts.updated * sizeof journal->updated[0]);
    to = put(to, journal->priorities, counts.updated * sizeof journal->priorities[0]);
    for (uint32_t i = 0; i < counts.entered; i++, to += sizeof(uint64_t)) {
        uint64_t id = table_id(table, batch->items[i]);
        memcpy(to, &id, sizeof id);
    }
    for (uint32_t i = 0; i < counts.entered; i++, to += sizeof(double)) {
        double priority = max_tree_value(&table->priorities, batch->items[i]);
        memcpy(to, &priority, sizeof priority);
    }
    to = put(to, journal->drawn, counts.drawn * sizeof journal->drawn[0]);
    to = write_groups(table->steps, TABLE_RECORD_STEPS, journal->steps, batch->step_count, to);
    write_groups(&table->items, TABLE_RECORD_ITEMS, batch->items, batch->item_count, to);
}

/* Counts what the item sees; the steps that nothing saw before go into the batch. Returns how many bytes these have. */
static uint64_t see(struct table *table, uint32_t slot, struct batch *batch) {
    const uint32_t *list = slot_list(&table->items, slot);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < table->items.list_length; i++) {
        if (list[i] >= SLOT_STEPS_MOST || table->journal->seen[list[i]]++ > 0) continue;
        table->journal->steps[batch->step_count++] = list[i];
        bytes += slot_bytes(table->steps, list[i]);
    }
    return bytes;
}

void table_journal_entered(struct table *table, const uint32_t *slots, uint32_t n) {
    for (uint32_t first = 0; first < n;) {
        struct batch batch = {.items = slots + first};
        uint64_t bytes = 0;
        do {
            uint32_t slot = slots[first++];
            if (table->items.list_length) bytes += see(table, slot, &batch);
            bytes += slot_bytes(&table->items, slot);
            batch.item_count++;
        } while (first < n && bytes < TABLE_JOURNAL_BYTES && batch.step_count < TABLE_JOURNAL_BATCH);
        table->journal->untold = n - first;
        write_change(table, &batch);
    }
}

/* ---- what waits ---------------------------------------------------------------------------------------------------- */

void table_journal_write(struct table *table) {
    const struct batch nothing = {.item_count = 0};
    const struct table_journal *journal = table->journal;
    struct table_journal_head head = head_of(table, (enum table_journal_kind)journal->last.kind);
    bool waits = journal->counts.left || journal->counts.updated || journal->counts.drawn;
    if (waits || memcmp(&head, &journal->last, sizeof head) != 0) write_change(table, &nothing);
}

void table_journal_left(struct table *table, uint32_t slot) {
    struct table_journal *journal = table->journal;
    const struct slot_store *items = &table->items;
    if (items->list_length && items->slot[slot].age >= journal->first_age) {
        const uint32_t *list = slot_list(items, slot);
        for (uint32_t i = 0; i < items->list_length; i++)
            if (list[i] < SLOT_STEPS_MOST) journal->seen[list[i]]--;
    }
    if (table->work.resetting) return; /* one record has said that all leave */
    if (journal->counts.left == TABLE_JOURNAL_BATCH) table_journal_write(table);
    journal->left[journal->counts.left++] = table_id(table, slot);
}

void table_journal_updated(struct table *table, uint32_t slot, double priority) {
    struct table_journal *journal = table->journal;
    if (table->work.resetting) return; /* it has left as far as the records go */
    if (journal->counts.updated == TABLE_JOURNAL_BATCH) table_journal_write(table);
    journal->updated[journal->counts.updated] = table_id(table, slot);
    journal->priorities[journal->counts.updated++] = priority;
}

void table_journal_drawn(struct table *table, uint32_t slot) {
    struct table_journal *journal = table->journal;
    if (journal->counts.drawn == TABLE_JOURNAL_BATCH) table_journal_write(table);
    journal->drawn[journal->counts.drawn++] = slot;
}

/* table_apply: records into a table, in the order that table_journal.h gives. */
#include "replay/table_apply.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/words.h"
#include "replay/cut_sink.h"
#include "replay/slot_cut.h"
#include "replay/slot_record.h"
#include "replay/table_state.h"

/* What is still to be read of a record. */
struct record {
    struct table_journal_head head;
    const uint8_t *at, *end;
};

static int refuse(const struct table *table, const struct record *record, struct error *error, const char *what) {
    return error_set(error, ERROR_GENERIC, "table '%s', its change %" PRIu64 ": %s", table->config.name,
                     record->head.number, what);
}

static bool open_record(struct record *record, const uint8_t *bytes, size_t length) {
    if (length < sizeof record->head) return false;
    memcpy(&record->head, bytes, sizeof record->head);
    record->at = bytes + sizeof record->head;
    record->end = bytes + length;
    return true;
}

uint32_t table_apply_kind(const uint8_t *record, size_t length) {
    struct record opened;
    return open_record(&opened, record, length) ? opened.head.kind : 0;
}

const uint8_t *table_apply_body(const uint8_t *record, size_t length, size_t *body_length) {
    *body_length = length - sizeof(struct table_journal_head);
    return record + sizeof(struct table_journal_head);
}

static const uint8_t *take(struct record *record, size_t bytes) {
    const uint8_t *from = record->at;
    if (bytes > (size_t)(record->end - record->at)) return NULL;
    record->at += bytes;
    return from;
}

/* Priorities of a record, from number `first` on, and the keys that they are found by. False: one of them cannot be. */
static bool read_keys(const struct table *table, const uint8_t *from, uint32_t first, uint32_t n, double *priorities,
                      struct table_keys *keys) {
    struct error error;
    memcpy(priorities, from + first * sizeof *priorities, n * sizeof *priorities);
    if (table_check_priorities(table, priorities, n, first, &error)) return false;
    table_keys_many(table, priorities, n, keys);
    return true;
}

/* ---- counters ------------------------------------------------------------------------------------------------------ */

static int check_head(const struct table *table, const struct record *record, struct error *error) {
    const uint64_t *random = record->head.random;
    if (record->head.number == table->changes + 1)
        return random[0] | random[1] | random[2] | random[3]
                   ? 0
                   : refuse(table, record, error, "its random state is all zero");
    return error_set(error, ERROR_GENERIC,
                     "table '%s': expected its change %" PRIu64 ", got %" PRIu64 "; one is missing, or came twice",
                     table->config.name, table->changes + 1, record->head.number);
}

static int take_counters(struct table *table, const struct record *record, struct error *error) {
    const struct table_journal_head *head = &record->head;
    if (record->at != record->end) return refuse(table, record, error, "it is longer than what it tells");
    if (head->next_age != table->items.next_age)
        return refuse(table, record, error, "more items, or fewer, had entered before it than it says");
    table->changes = head->number;
    table->added = head->added;
    table->sampled = head->sampled;
    table->removed = head->removed - (table->work.resetting ? table->items.live : 0); /* they leave in table_step */
    table->stale_updates = head->stale_updates;
    table->stale_items = head->stale_items;
    table->updates_applied = head->updates_applied;
    table->limiter.inserts = head->limiter_inserts;
    table->limiter.samples = head->limiter_samples;
    table->freshness.newest = heap_integer_of_key(head->newest_version);
    memcpy(table->random.words, head->random, sizeof table->random.words);
    return 0;
}

/* ---- slots --------------------------------------------------------------------------------------------------------- */

/* A free slot becomes reserved. False: it is not free, there is none of that number, or no space for it on the disk. */
static bool take_slot(struct slot_store *store, uint32_t slot) {
    if (slot >= store->slots) return false;
    uint32_t *references = slot_references(store, slot);
    if (*references != 0) return false;
    if (slot >= store->fresh && store->disk && !column_arrays_back(&store->arrays, slot + (uint64_t)1)) return false;
    *references = SLOT_RESERVED;
    store->reserved++;
    if (slot >= store->fresh) store->fresh = slot + 1;
    return true;
}

/* Bytes of a group into slots. Steps may come once more; each has a reference then that let_go_of_steps takes back. */
static const char *read_group(struct slot_store *store, const uint8_t *body, size_t length, const uint32_t *slots,
                              uint32_t n) {
    uint64_t known = 0;
    for (uint32_t i = 0; i < n; i++) {
        bool is_known = slots[i] < store->slots && slot_is_occupied(store, slots[i]);
        if (is_known && store->kind == SLOT_OF_ITEM) return "an item enters a slot that has one";
        if (!is_known && !take_slot(store, slots[i]))
            return store->disk && disk_memory_is_full(store->disk) ? "no space on disk for its slot"
                                                                   : "a slot that cannot be entered";
        if (!is_known) continue;
        for (uint32_t j = 0; j < i; j++)
            if (slots[j] == slots[i]) return "a slot that came twice";
        known |= 1ull << i;
        if (store->cut) slot_cut_before_rewrite(store->cut, slots[i]);
        store->block_bytes -= coded_columns_bytes(&store->coded, slots[i]);
        coded_columns_forget(&store->coded, slots[i]);
        slot_store_hold(store, slots[i]);
    }
    const char *wrong = slot_record_read(store, body, length);
    for (uint32_t i = 0; i < n && !wrong; i++)
        if (known >> i & 1)
            store->block_bytes += coded_columns_bytes(&store->coded, slots[i]);
        else if (store->kind == SLOT_OF_STEP)
            slot_store_enter(store, slots[i]);
    return wrong;
}

_Static_assert(SLOT_RECORD_MOST <= 64, "read_group has a bit for each slot of a group");

/* ---- items that enter ---------------------------------------------------------------------------------------------- */

struct entering {
    const uint8_t *ids, *priorities;
    uint32_t n, done;
};

static const char *bind_steps(struct table *table, uint32_t slot) {
    struct slot_store *steps = table->steps;
    const uint32_t *list = slot_list(&table->items, slot);
    if (!window_map_is_list(&table->windows, list)) return "an item lacks steps that it must see";
    for (uint32_t i = 0; i < table->items.list_length; i++) {
        if (list[i] >= SLOT_STEPS_MOST) continue;
        if (list[i] >= steps->fresh || !slot_is_occupied(steps, list[i]))
            return "an item sees a step that is not there";
        slot_store_hold(steps, list[i]);
    }
    return NULL;
}

static const char *enter_item(struct table *table, uint64_t id, double priority, struct table_keys keys) {
    struct slot_store *items = &table->items;
    uint32_t slot = (uint32_t)id;
    uint64_t generation = id >> 32 & SLOT_MAX_GENERATION;
    if (items->live >= table->config.capacity) return "more items enter than the table may hold";
    if (generation <= items->slot[slot].generation) return "an id that cannot be";
    const char *wrong = bind_steps(table, slot);
    if (wrong) return wrong;
    items->slot[slot].generation = (uint32_t)generation - 1;
    slot_store_enter_item(items, slot);
    table_index(table, slot, priority, keys);
    return NULL;
}

static const char *enter_group(struct table *table, struct entering *entering, const uint32_t *slots, uint32_t n) {
    double priorities[SLOT_RECORD_MOST];
    struct table_keys keys[SLOT_RECORD_MOST];
    if (n > entering->n - entering->done) return "slots that are not those of its ids";
    if (!read_keys(table, entering->priorities, entering->done, n, priorities, keys))
        return "a priority that cannot be";
    for (uint32_t i = 0; i < n; i++, entering->done++) {
        uint64_t id = u64_at(entering->ids, entering->done);
        if ((uint32_t)id != slots[i]) return "slots that are not those of its ids";
        const char *wrong = enter_item(table, id, priorities[i], keys[i]);
        if (wrong) return wrong;
    }
    return NULL;
}

_Static_assert(SLOT_RECORD_MOST <= TABLE_KEYS, "enter_group makes the keys of a group at once");

static const char *read_groups(struct table *table, struct record *record, struct entering *entering,
                               const uint8_t **first_items) {
    while (record->at < record->end) {
        struct table_journal_group group;
        uint32_t slots[SLOT_RECORD_MOST], n;
        const uint8_t *from = take(record, sizeof group);
        if (from) memcpy(&group, from, sizeof group);
        const uint8_t *body = from ? take(record, group.length) : NULL;
        if (!body) return "it ends within its slots";
        bool of_steps = group.kind == TABLE_RECORD_STEPS && table_has_windows(table) && !*first_items;
        if (!of_steps && group.kind != TABLE_RECORD_ITEMS) return "slots of a kind that does not belong here";
        if (!of_steps && !*first_items) *first_items = from;
        struct slot_store *store = of_steps ? table->steps : &table->items;
        const char *wrong = slot_record_read_slots(store, body, group.length, slots, &n);
        if (!wrong) wrong = read_group(store, body, group.length, slots, n);
        if (!wrong && !of_steps) wrong = enter_group(table, entering, slots, n);
        if (wrong) return wrong;
    }
    return entering->done == entering->n ? NULL : "ids without slots";
}

/* Steps were entered with a reference of their own, until the items that see them have theirs. */
static void let_go_of_steps(struct table *table, const uint8_t *from, const uint8_t *end) {
    while (from < end) {
        struct table_journal_group group;
        memcpy(&group, from, sizeof group);
        from += sizeof group;
        uint32_t n = u32_at(from, 0);
        for (uint32_t i = 0; i < n; i++) slot_store_drop(table->steps, u32_at(from, 1 + i));
        from += group.length;
    }
}

/* The slot of a live item. Shards may be numbered anew between two runs. */
static uint32_t slot_of(const struct table *table, uint64_t id) {
    uint64_t generation = id >> 32 & SLOT_MAX_GENERATION;
    return table_slot(table, (table->shard_bits | generation) << 32 | (uint32_t)id);
}

/* ---- a change ------------------------------------------------------------------------------------------------------ */

static const char *apply_draws(struct table *table, const uint8_t *slots, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = u32_at(slots, i);
        if (slot >= table->items.fresh || !table->items.slot[slot].live) return "a draw of an item that is not there";
        table_count_draw(table, slot);
    }
    return NULL;
}

static const char *apply_removals(struct table *table, const uint8_t *ids, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = slot_of(table, u64_at(ids, i));
        if (slot == SLOT_NONE) return "an item leaves that is not there";
        table_remove(table, slot);
    }
    return NULL;
}

static const char *apply_updates(struct table *table, const uint8_t *ids, const uint8_t *priorities, uint32_t n) {
    double priority[TABLE_KEYS];
    struct table_keys keys[TABLE_KEYS];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i % TABLE_KEYS, left = n - i;
        if (at == 0 && !read_keys(table, priorities, i, left < TABLE_KEYS ? left : TABLE_KEYS, priority, keys))
            return "a priority that cannot be";
        uint32_t slot = slot_of(table, u64_at(ids, i));
        if (slot == SLOT_NONE) return "an update of an item that is not there";
        table_set_priority(table, slot, priority[at], keys[at]);
    }
    return NULL;
}

static const char *apply_change(struct table *table, struct record *record) {
    struct table_journal_counts counts;
    const uint8_t *from = take(record, sizeof counts);
    if (!from) return "it ends within its head";
    memcpy(&counts, from, sizeof counts);
    const uint8_t *left = take(record, counts.left * sizeof(uint64_t));
    const uint8_t *updated = take(record, counts.updated * sizeof(uint64_t));
    const uint8_t *priorities = take(record, counts.updated * sizeof(double));
    struct entering entering = {.n = counts.entered};
    entering.ids = take(record, counts.entered * sizeof(uint64_t));
    entering.priorities = take(record, counts.entered * sizeof(double));
    const uint8_t *drawn = take(record, counts.drawn * sizeof(uint32_t));
    if (!left || !updated || !priorities || !entering.ids || !entering.priorities || !drawn)
        return "it ends within its items";
    const char *wrong = apply_draws(table, drawn, counts.drawn);
    if (!wrong) wrong = apply_removals(table, left, counts.left);
    if (!wrong) wrong = apply_updates(table, updated, priorities, counts.updated);
    const uint8_t *groups = record->at, *items = NULL;
    if (!wrong) wrong = read_groups(table, record, &entering, &items);
    if (wrong) return wrong;
    if (items) let_go_of_steps(table, groups, items);
    table_repair(table);
    return NULL;
}

/* ---- the others ---------------------------------------------------------------------------------------------------- */

/* Items that the settings do not allow leave by records of their own. */
static int apply_settings(struct table *table, struct record *record, struct error *error) {
    struct table_work *work = &table->work;
    size_t length = (size_t)(record->end - record->at);
    if (table_begin_configure(table, take(record, length), length, error)) return -1;
    work->wearing = work->shrinking = false;
    work->walking = work->fill_sampler || work->fill_remover || work->fill_freshness;
    return 0;
}

int table_apply(struct table *table, const uint8_t *bytes, size_t length, struct error *error) {
    struct record record;
    if (!open_record(&record, bytes, length))
        return error_set(error, ERROR_GENERIC, "table '%s': a change of %zu bytes", table->config.name, length);
    if (check_head(table, &record, error)) return -1;
    if (table_has_work(table)) return refuse(table, &record, error, "an earlier one is not done");
    const char *wrong = NULL;
    switch (record.head.kind) {
    case TABLE_JOURNAL_CHANGE: wrong = apply_change(table, &record); break;
    case TABLE_JOURNAL_RESET: table_begin_reset(table); break;
    case TABLE_JOURNAL_SETTINGS:
        if (apply_settings(table, &record, error)) return -1;
        break;
    case TABLE_JOURNAL_CLOSE:
        length = (size_t)(record.end - record.at);
        if (table_close(table, (const char *)take(&record, length), length, error)) return -1;
        break;
    case TABLE_JOURNAL_OPEN: table_open(table); break;
    case TABLE_JOURNAL_IN_BASE: record.at = record.end; break; /* it is in it */
    default: wrong = "it is of a kind that this version does not know";
    }
    return wrong ? refuse(table, &record, error, wrong) : take_counters(table, &record, error);
}

/* ---- the beginning and the end ------------------------------------------------------------------------------------- */

static void take_slots_by_number(struct table *table, bool by_number) {
    slot_store_take_by_number(&table->items, by_number);
    if (table_has_windows(table) && !table->owner) slot_store_take_by_number(table->steps, by_number);
}

void table_apply_begin(struct table *table) {
    take_slots_by_number(table, true);
}

void table_apply_stop(struct table *table) {
    table_step(table, CLOCK_NEVER);
    take_slots_by_number(table, false);
    slot_store_forget_ids(&table->items, random_entropy());
}

void table_apply_end(struct table *table) {
    table_apply_stop(table);
    table_step(table, CLOCK_NEVER);
}

void table_apply_begin_to_settle(struct table *table) {
    table_begin_recheck(table);
}

void table_apply_settle(struct table *table) {
    table_recheck(table);
}

struct table *table_apply_create(const uint8_t *bytes, size_t length, const char *name, struct error *error) {
    struct record record;
    struct table_config *config = memory_alloc(sizeof *config);
    struct table *table = NULL;
    if (!config)
        error_set(error, ERROR_GENERIC, "out of memory for a table's spec");
    else if (!open_record(&record, bytes, length) || record.head.number == 0)
        error_set(error, ERROR_GENERIC, "table '%s': a beginning of %zu bytes", name, length);
    else if (table_config_parse(config, name, record.at, (size_t)(record.end - record.at), error) == 0)
        table = table_new(config, error);
    memory_free(config);
    if (!table) return NULL;
    record.at = record.end;
    if (take_counters(table, &record, error)) {
        table_free(table);
        return NULL;
    }
    table_apply_begin(table);
    return table;
}

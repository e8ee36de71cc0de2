/* table_restore: slots and items as they come, the indexes at the end, in the order of the items' age. */
#include "replay/table_restore.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

/* What the description holds beside the spec and the random state. */
enum number {
    SIZE,
    SLOTS_USED,
    NEXT_AGE,
    STEPS,
    STEPS_USED,
    ADDED,
    SAMPLED,
    REMOVED,
    STALE_UPDATES,
    STALE_ITEMS,
    NEWEST_VERSION,
    UPDATES_APPLIED,
    LIMITER_INSERTS,
    LIMITER_SAMPLES,
    NUMBERS
};
static const char *const number_keys[NUMBERS] = {
    "size",           "slots_used",      "next_age",        "steps",          "steps_used",
    "added",          "sampled",         "removed",         "stale_updates",  "stale_items",
    "newest_version", "updates_applied", "limiter_inserts", "limiter_samples"};

struct table_restore {
    struct table *table;
    uint64_t numbers[NUMBERS];
    uint32_t described, live, filled; /* slots */
    uint8_t *seen;                    /* by slot: SEEN_… */
    double *priorities;               /* by slot */
    uint32_t steps_filled;
    uint64_t *steps_seen;             /* one bit a step slot */
};

#define SEEN_INDEX 1u
#define SEEN_ITEM 2u

/* ---- description --------------------------------------------------------------------------------------------------- */

struct description {
    const uint8_t *spec;
    size_t spec_length;
    uint64_t numbers[NUMBERS];
    uint64_t random[4];
    struct msgpack_value closed; /* a string: the reason; of another type: it is open */
};

static int malformed(struct error *error, const char *what) {
    return error_set(error, ERROR_GENERIC, "a table's description is malformed: %s", what);
}

static int read_random(struct msgpack_reader *reader, uint64_t words[4], struct error *error) {
    struct msgpack_value value;
    if (!msgpack_read(reader, &value) || value.type != MSGPACK_ARRAY || value.count != 4) {
        return malformed(error, "expected four words of random state");
    }
    for (int i = 0; i < 4; i++) {
        if (!msgpack_read(reader, &value) || value.type != MSGPACK_UNSIGNED) {
            return malformed(error, "expected four words of random state");
        }
        words[i] = value.unsigned_integer;
    }
    return words[0] | words[1] | words[2] | words[3] ? 0 : malformed(error, "the random state is all zero");
}

static int number_of(const struct msgpack_value *key) {
    for (int i = 0; i < NUMBERS; i++) {
        if (msgpack_string_is(key, number_keys[i])) {
            return i;
        }
    }
    return -1;
}

/* Keys that are not known are passed over: a later version may say more of a table than this one needs. */
static int read_description(struct msgpack_reader *reader, struct description *out, struct error *error) {
    struct msgpack_value map, key, value;
    uint32_t seen = 0, seen_random = 0;
    *out = (struct description){0};
    if (!msgpack_read(reader, &map) || map.type != MSGPACK_MAP) {
        return malformed(error, "expected a map");
    }
    for (uint32_t i = 0; i < map.count; i++) {
        if (!msgpack_read(reader, &key)) {
            return malformed(error, "it ends early");
        }
        int number = number_of(&key);
        if (number >= 0) {
            if (!msgpack_read(reader, &value) || value.type != MSGPACK_UNSIGNED) {
                return malformed(error, number_keys[number]);
            }
            out->numbers[number] = value.unsigned_integer;
            seen |= 1u << number;
        } else if (msgpack_string_is(&key, "random")) {
            if (read_random(reader, out->random, error)) {
                return -1;
            }
            seen_random = 1;
        } else if (msgpack_string_is(&key, "closed")) {
            if (!msgpack_read(reader, &out->closed) || out->closed.type != MSGPACK_STRING) {
                return malformed(error, "closed");
            }
        } else {
            const uint8_t *from = reader->at;
            if (!msgpack_skip(reader)) {
                return malformed(error, "it ends early");
            }
            if (msgpack_string_is(&key, "spec")) {
                out->spec = from;
                out->spec_length = (size_t)(reader->at - from);
            }
        }
    }
    if (!out->spec || !seen_random || seen != (1u << NUMBERS) - 1) {
        return malformed(error, "something is missing");
    }
    return 0;
}

static void take_description(struct table_restore *restore, const struct description *from) {
    struct table *table = restore->table;
    memcpy(restore->numbers, from->numbers, sizeof restore->numbers);
    memcpy(table->random.words, from->random, sizeof table->random.words);
    table->storage.fresh = (uint32_t)from->numbers[SLOTS_USED];
    table->storage.next_age = from->numbers[NEXT_AGE];
    table->steps.fresh = (uint32_t)from->numbers[STEPS_USED];
    table->added = from->numbers[ADDED];
    table->sampled = from->numbers[SAMPLED];
    table->removed = from->numbers[REMOVED];
    table->stale_updates = from->numbers[STALE_UPDATES];
    table->stale_items = from->numbers[STALE_ITEMS];
    table->freshness.newest = heap_integer_of_key(from->numbers[NEWEST_VERSION]);
    table->updates_applied = from->numbers[UPDATES_APPLIED];
    table->limiter.inserts = from->numbers[LIMITER_INSERTS];
    table->limiter.samples = from->numbers[LIMITER_SAMPLES];
}

static struct table *make_table(const struct description *description, struct error *error) {
    struct table_config *config = memory_alloc(sizeof *config);
    if (!config) {
        error_set(error, ERROR_GENERIC, "out of memory for a table's spec");
        return NULL;
    }
    struct table *table = NULL;
    if (table_config_parse(config, NULL, description->spec, description->spec_length, error) == 0) {
        table = table_new(config, error);
    }
    memory_free(config);
    return table;
}

struct table_restore *table_restore_begin(const uint8_t *bytes, size_t length, struct error *error) {
    struct msgpack_reader reader = {bytes, bytes + length};
    struct description description;
    if (read_description(&reader, &description, error)) {
        return NULL;
    }
    struct table_restore *restore = memory_calloc(1, sizeof *restore);
    if (!restore) {
        error_set(error, ERROR_GENERIC, "out of memory for a table");
        return NULL;
    }
    restore->table = make_table(&description, error);
    if (!restore->table) {
        table_restore_free(restore);
        return NULL;
    }
    const struct table *table = restore->table;
    uint64_t used = description.numbers[SLOTS_USED], size = description.numbers[SIZE];
    if (used > table->storage.slots || size > used || size > table->config.capacity) {
        error_set(error, ERROR_GENERIC,
                  "table '%s': %" PRIu64 " items in %" PRIu64 " slots do not fit its capacity of %" PRIu64,
                  table->config.name, size, used, table->config.capacity);
        table_restore_free(restore);
        return NULL;
    }
    uint64_t steps_used = description.numbers[STEPS_USED];
    if (steps_used > table->steps.slots || description.numbers[STEPS] > steps_used) {
        error_set(error, ERROR_GENERIC, "table '%s': %" PRIu64 " steps in %" PRIu64 " slots do not fit it",
                  table->config.name, description.numbers[STEPS], steps_used);
        table_restore_free(restore);
        return NULL;
    }
    restore->steps_seen = memory_map(cut_bitmap_bytes((uint32_t)steps_used));
    restore->seen = memory_map(used);
    restore->priorities = memory_map(used * sizeof *restore->priorities);
    if (!restore->seen || !restore->priorities || !restore->steps_seen) {
        error_set(error, ERROR_GENERIC, "out of memory for table '%s'", table->config.name);
        table_restore_free(restore);
        return NULL;
    }
    const struct msgpack_value *closed = &description.closed;
    if (closed->type == MSGPACK_STRING &&
        table_close(restore->table, (const char *)closed->bytes.data, closed->bytes.length, error)) {
        table_restore_free(restore);
        return NULL;
    }
    take_description(restore, &description);
    return restore;
}

const struct table_config *table_restore_config(const struct table_restore *restore) {
    return &restore->table->config;
}

static void forget_work(struct table_restore *restore) {
    if (restore->steps_seen) {
        memory_unmap(restore->steps_seen, cut_bitmap_bytes((uint32_t)restore->numbers[STEPS_USED]));
    }
    if (restore->seen) {
        memory_unmap(restore->seen, restore->numbers[SLOTS_USED]);
    }
    if (restore->priorities) {
        memory_unmap(restore->priorities, restore->numbers[SLOTS_USED] * sizeof *restore->priorities);
    }
    memory_free(restore);
}

void table_restore_free(struct table_restore *restore) {
    if (!restore) {
        return;
    }
    if (restore->table) {
        table_free(restore->table);
    }
    forget_work(restore);
}

/* ---- records ------------------------------------------------------------------------------------------------------- */

static uint32_t u32_at(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static int refuse(const struct table_restore *restore, struct error *error, const char *what, uint64_t slot) {
    return error_set(error, ERROR_GENERIC, "table '%s', slot %" PRIu64 ": %s", restore->table->config.name, slot, what);
}

struct index_record {
    uint32_t first, count;
    const uint8_t *generations, *times, *ages, *priorities, *lives;
};

static int restore_slot(struct table_restore *restore, const struct index_record *record, uint32_t i,
                        struct error *error) {
    struct storage *storage = &restore->table->storage;
    uint32_t slot = record->first + i;
    if (restore->seen[slot]) {
        return refuse(restore, error, "described twice", slot);
    }
    struct slot *entry = &storage->slot[slot];
    entry->generation = u32_at(record->generations + 4 * i);
    if (entry->generation > STORAGE_MAX_GENERATION) {
        return refuse(restore, error, "a generation that no id can hold", slot);
    }
    restore->seen[slot] = SEEN_INDEX;
    restore->described++;
    if (!record->lives[i]) {
        return 0;
    }
    entry->times_sampled = u32_at(record->times + 4 * i);
    memcpy(&storage->age[slot], record->ages + 8 * i, 8);
    memcpy(&restore->priorities[slot], record->priorities + 8 * i, 8);
    if (record->lives[i] != 1 || entry->generation == 0 || storage->age[slot] >= storage->next_age) {
        return refuse(restore, error, "an item that cannot be", slot);
    }
    if (table_check_priorities(restore->table, &restore->priorities[slot], 1, error)) {
        return refuse(restore, error, "an item of a priority that cannot be", slot);
    }
    entry->state = SLOT_LIVE;
    storage->live++;
    storage->last_lives += entry->generation == STORAGE_MAX_GENERATION;
    restore->live++;
    return 0;
}

static int restore_index(struct table_restore *restore, const uint8_t *body, size_t length, struct error *error) {
    struct index_record record = {0};
    if (length >= 8) {
        record.first = u32_at(body);
        record.count = u32_at(body + 4);
    }
    if (length < 8 || record.count > TABLE_CUT_CHUNK || length != 8 + (size_t)record.count * 25 ||
        (uint64_t)record.first + record.count > restore->numbers[SLOTS_USED]) {
        return refuse(restore, error, "the description of slots from here on is malformed", record.first);
    }
    record.generations = body + 8;
    record.times = record.generations + 4 * record.count;
    record.ages = record.times + 4 * record.count;
    record.priorities = record.ages + 8 * record.count;
    record.lives = record.priorities + 8 * record.count;
    for (uint32_t i = 0; i < record.count; i++) {
        if (restore_slot(restore, &record, i, error)) {
            return -1;
        }
    }
    return 0;
}

static int restore_items(struct table_restore *restore, const uint8_t *body, size_t length, struct error *error) {
    struct table *table = restore->table;
    struct storage *storage = &table->storage;
    uint32_t n = length >= 4 ? u32_at(body) : 0, slots[TABLE_CUT_CHUNK];
    size_t list_bytes = table->windows.steps * sizeof(uint32_t);
    if (n < 1 || n > TABLE_CUT_CHUNK || length != 4 + (size_t)n * (4 + list_bytes + storage->item_bytes)) {
        return error_set(error, ERROR_GENERIC, "table '%s': a record of %" PRIu32 " items has %zu bytes",
                         table->config.name, n, length);
    }
    memcpy(slots, body + 4, n * sizeof slots[0]);
    for (uint32_t i = 0; i < n; i++) {
        if (slots[i] >= restore->numbers[SLOTS_USED] || storage->slot[slots[i]].state != SLOT_LIVE) {
            return refuse(restore, error, "bytes came of an item that is not described", slots[i]);
        }
        if (restore->seen[slots[i]] & SEEN_ITEM) {
            return refuse(restore, error, "the bytes of its item came twice", slots[i]);
        }
        restore->seen[slots[i]] |= SEEN_ITEM;
    }
    restore->filled += n;
    const uint8_t *at = body + 4 + n * sizeof slots[0];
    for (uint32_t i = 0; i < n && list_bytes > 0; i++, at += list_bytes) {
        memcpy(window_map_list(&table->windows, slots[i]), at, list_bytes); /* checked when all steps are there */
    }
    for (uint32_t column = 0; column < storage->arrays.columns; column++) {
        if (storage->column_item_bytes[column] > 0) {
            storage_scatter(storage, column, slots, n, at);
            at += n * storage->column_item_bytes[column];
        }
    }
    return 0;
}

static int refuse_steps(const struct table_restore *restore, struct error *error, const char *what, uint64_t step) {
    return error_set(error, ERROR_GENERIC, "table '%s', step slot %" PRIu64 ": %s", restore->table->config.name, step,
                     what);
}

/* n sizes and the blocks; each must be one of the table's codec, since what samples it will not look again. */
static int restore_blocks(struct table_restore *restore, uint32_t column, const uint32_t *steps, uint32_t n,
                          const uint8_t **at, const uint8_t *end, struct error *error) {
    struct step_store *store = &restore->table->steps;
    const uint8_t *sizes = *at;
    if ((size_t)(end - *at) < n * sizeof(uint32_t)) {
        return refuse_steps(restore, error, "a record ends within its blocks", steps[0]);
    }
    *at += n * sizeof(uint32_t);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t size = u32_at(sizes + i * sizeof size);
        if (size > (size_t)(end - *at) || size > store->column_step_bytes[column] ||
            !step_store_is_block(store, column, *at, size)) {
            return refuse_steps(restore, error, "a block that is none", steps[i]);
        }
        if (step_store_put_block(store, column, steps[i], *at, size)) {
            return refuse_steps(restore, error, "no memory for its block", steps[i]);
        }
        *at += size;
    }
    return 0;
}

static int restore_step_columns(struct table_restore *restore, const uint32_t *steps, uint32_t n, const uint8_t *at,
                                const uint8_t *end, struct error *error) {
    struct step_store *store = &restore->table->steps;
    for (uint32_t column = 0; column < store->columns; column++) {
        size_t bytes = n * store->column_step_bytes[column];
        if (step_store_is_coded(store, column)) {
            if (restore_blocks(restore, column, steps, n, &at, end, error)) {
                return -1;
            }
        } else if (bytes > (size_t)(end - at)) {
            return refuse_steps(restore, error, "a record ends within a column", steps[0]);
        } else if (bytes > 0) {
            step_store_scatter(store, column, steps, n, at);
            at += bytes;
        }
    }
    return at == end ? 0 : refuse_steps(restore, error, "a record is longer than its steps", steps[0]);
}

static int restore_steps(struct table_restore *restore, const uint8_t *body, size_t length, struct error *error) {
    struct step_store *store = &restore->table->steps;
    uint32_t n = length >= 4 ? u32_at(body) : 0, steps[TABLE_CUT_CHUNK];
    if (n < 1 || n > TABLE_CUT_CHUNK || length < 4 + n * sizeof steps[0]) {
        return error_set(error, ERROR_GENERIC, "table '%s': a record of %" PRIu32 " steps has %zu bytes",
                         restore->table->config.name, n, length);
    }
    memcpy(steps, body + 4, n * sizeof steps[0]);
    for (uint32_t i = 0; i < n; i++) {
        if (steps[i] >= store->fresh || cut_bit(restore->steps_seen, steps[i])) {
            return refuse_steps(restore, error, "out of bounds, or came twice", steps[i]);
        }
        cut_set_bit(restore->steps_seen, steps[i]);
    }
    restore->steps_filled += n;
    return restore_step_columns(restore, steps, n, body + 4 + n * sizeof steps[0], body + length, error);
}

int table_restore_record(struct table_restore *restore, uint32_t kind, const uint8_t *body, size_t length,
                         struct error *error) {
    switch (kind) {
    case TABLE_RECORD_SLOTS: return restore_index(restore, body, length, error);
    case TABLE_RECORD_ITEMS: return restore_items(restore, body, length, error);
    case TABLE_RECORD_STEPS: return restore_steps(restore, body, length, error);
    default: break;
    }
    return error_set(error, ERROR_GENERIC, "table '%s': a record of kind %" PRIu32 ", which this version does not know",
                     restore->table->config.name, kind);
}

/* ---- the end ------------------------------------------------------------------------------------------------------- */

struct aged_slot {
    uint64_t age;
    uint32_t slot;
};

static int compare_ages(const void *left, const void *right) {
    const struct aged_slot *a = left, *b = right;
    return a->age < b->age ? -1 : a->age > b->age;
}

/* Items enter the indexes as they once did, oldest first. */
static int restore_order(struct table_restore *restore, struct aged_slot *items, struct error *error) {
    struct table *table = restore->table;
    uint32_t count = 0;
    for (uint32_t slot = 0; slot < table->storage.fresh; slot++) {
        if (table->storage.slot[slot].state == SLOT_LIVE) {
            items[count++] = (struct aged_slot){table->storage.age[slot], slot};
        }
    }
    qsort(items, count, sizeof *items, compare_ages);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot = items[i].slot;
        if (i > 0 && items[i - 1].age == items[i].age) {
            return refuse(restore, error, "its item is as old as another", slot);
        }
        double priority = restore->priorities[slot];
        table_index(table, slot, priority, table_keys(table, priority));
    }
    table_repair(table);
    return 0;
}

/* A reference for each place at which an item sees a step; steps that none sees were kept by streams that are no more. */
static int restore_references(struct table_restore *restore, const struct aged_slot *items, struct error *error) {
    struct table *table = restore->table;
    struct step_store *store = &table->steps;
    for (uint32_t i = 0; i < restore->live; i++) {
        const uint32_t *list = window_map_list(&table->windows, items[i].slot);
        for (uint32_t k = 0; k < table->windows.steps; k++) {
            if (list[k] >= store->fresh || !cut_bit(restore->steps_seen, list[k])) {
                return refuse(restore, error, "its item sees a step that is not there", items[i].slot);
            }
            if (store->references[list[k]]++ == 0) {
                store->live++;
                store->live_bytes += step_store_bytes(store, list[k]);
            }
        }
    }
    for (uint32_t step = store->fresh; step-- > 0;) {
        if (store->references[step] == 0) {
            step_store_forget(store, step);
        }
    }
    return 0;
}

/* Slots that were used and hold nothing: the lowest is taken first. */
static void restore_free_slots(struct storage *storage) {
    for (uint32_t slot = storage->fresh; slot-- > 0;) {
        struct slot *entry = &storage->slot[slot];
        if (entry->state == SLOT_LIVE) {
            continue;
        }
        if (entry->generation >= STORAGE_MAX_GENERATION) {
            entry->state = SLOT_RETIRED;
            storage->retired++;
        } else {
            storage->returned[storage->returned_count++] = slot;
        }
    }
}

struct table *table_restore_finish(struct table_restore *restore, struct error *error) {
    struct table *table = restore->table;
    if (restore->described != restore->numbers[SLOTS_USED] || restore->live != restore->numbers[SIZE] ||
        restore->filled != restore->live || restore->steps_filled != restore->numbers[STEPS]) {
        error_set(error, ERROR_GENERIC,
                  "table '%s' is not whole: %" PRIu32 " of %" PRIu64 " slots are described, %" PRIu32 " of %" PRIu64
                  " items, %" PRIu32 " of %" PRIu64 " steps are there",
                  table->config.name, restore->described, restore->numbers[SLOTS_USED], restore->filled,
                  restore->numbers[SIZE], restore->steps_filled, restore->numbers[STEPS]);
        table_restore_free(restore);
        return NULL;
    }
    struct aged_slot *items = memory_alloc((restore->live + 1) * sizeof *items);
    if (!items) {
        error_set(error, ERROR_GENERIC, "out of memory for the order of table '%s'", table->config.name);
        table_restore_free(restore);
        return NULL;
    }
    int failed =
        restore_order(restore, items, error) || (table_has_windows(table) && restore_references(restore, items, error));
    memory_free(items);
    if (failed) {
        table_restore_free(restore);
        return NULL;
    }
    restore_free_slots(&table->storage);
    storage_forget_ids(&table->storage, random_entropy());
    table_recheck(table);
    forget_work(restore);
    return table;
}

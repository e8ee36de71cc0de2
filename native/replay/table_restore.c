/* table_restore: slots and items as they come, the indexes at the end, in the order of the items' age. */
#include "replay/table_restore.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/bitmap.h"
#include "base/memory.h"
#include "base/words.h"
#include "replay/slot_record.h"

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
    const struct table_restore *owner; /* of the steps that its items see: itself, or another */
    uint64_t numbers[NUMBERS];
    double *priorities;  /* by slot */
    uint64_t *described; /* one bit a slot of items */
    uint64_t *came[2];   /* by kind of slot: one bit each, its bytes came */
    uint32_t described_count, came_count[2];
};

/* ---- description --------------------------------------------------------------------------------------------------- */

struct description {
    const uint8_t *spec;
    size_t spec_length;
    uint64_t numbers[NUMBERS];
    uint64_t changes; /* records of its journals; 0 in files of before there were any */
    uint64_t random[4];
    struct msgpack_value closed; /* a string: the reason; of another type: it is open */
};

static int malformed(struct error *error, const char *what) {
    return error_set(error, ERROR_GENERIC, "a table's description is malformed: %s", what);
}

static int read_random(struct msgpack_reader *reader, uint64_t words[4], struct error *error) {
    struct msgpack_value value;
    if (!msgpack_read(reader, &value) || value.type != MSGPACK_ARRAY || value.count != 4)
        return malformed(error, "expected four words of random state");
    for (int i = 0; i < 4; i++) {
        if (!msgpack_read(reader, &value) || value.type != MSGPACK_UNSIGNED)
            return malformed(error, "expected four words of random state");
        words[i] = value.unsigned_integer;
    }
    return words[0] | words[1] | words[2] | words[3] ? 0 : malformed(error, "the random state is all zero");
}

static int number_of(const struct msgpack_value *key) {
    for (int i = 0; i < NUMBERS; i++)
        if (msgpack_string_is(key, number_keys[i])) return i;
    return -1;
}

/* Keys that are not known are passed over: a later version may say more of a table than this one needs. */
static int read_description(struct msgpack_reader *reader, struct description *out, struct error *error) {
    struct msgpack_value map, key, value;
    uint32_t seen = 0, seen_random = 0;
    *out = (struct description){0};
    if (!msgpack_read(reader, &map) || map.type != MSGPACK_MAP) return malformed(error, "expected a map");
    for (uint32_t i = 0; i < map.count; i++) {
        if (!msgpack_read(reader, &key)) return malformed(error, "it ends early");
        int number = number_of(&key);
        if (number >= 0) {
            if (!msgpack_read(reader, &value) || value.type != MSGPACK_UNSIGNED)
                return malformed(error, number_keys[number]);
            out->numbers[number] = value.unsigned_integer;
            seen |= 1u << number;
        } else if (msgpack_string_is(&key, "random")) {
            if (read_random(reader, out->random, error)) return -1;
            seen_random = 1;
        } else if (msgpack_string_is(&key, "changes")) {
            if (!msgpack_read(reader, &value) || value.type != MSGPACK_UNSIGNED) return malformed(error, "changes");
            out->changes = value.unsigned_integer;
        } else if (msgpack_string_is(&key, "closed")) {
            if (!msgpack_read(reader, &out->closed) || out->closed.type != MSGPACK_STRING)
                return malformed(error, "closed");
        } else {
            const uint8_t *from = reader->at;
            if (!msgpack_skip(reader)) return malformed(error, "it ends early");
            if (msgpack_string_is(&key, "spec")) {
                out->spec = from;
                out->spec_length = (size_t)(reader->at - from);
            }
        }
    }
    if (!out->spec || !seen_random || seen != (1u << NUMBERS) - 1) return malformed(error, "something is missing");
    return 0;
}

static void take_description(struct table *table, const struct description *from) {
    memcpy(table->random.words, from->random, sizeof table->random.words);
    table->items.fresh = (uint32_t)from->numbers[SLOTS_USED];
    table->items.next_age = from->numbers[NEXT_AGE];
    table->own_steps.fresh = (uint32_t)from->numbers[STEPS_USED];
    table->added = from->numbers[ADDED];
    table->sampled = from->numbers[SAMPLED];
    table->removed = from->numbers[REMOVED];
    table->stale_updates = from->numbers[STALE_UPDATES];
    table->stale_items = from->numbers[STALE_ITEMS];
    table->freshness.newest = heap_integer_of_key(from->numbers[NEWEST_VERSION]);
    table->updates_applied = from->numbers[UPDATES_APPLIED];
    table->limiter.inserts = from->numbers[LIMITER_INSERTS];
    table->limiter.samples = from->numbers[LIMITER_SAMPLES];
    table->changes = from->changes;
}

static struct table *make_table(const struct description *description, struct error *error) {
    struct table_config *config = memory_alloc(sizeof *config);
    if (!config) {
        error_set(error, ERROR_GENERIC, "out of memory for a table's spec");
        return NULL;
    }
    struct table *table = NULL;
    if (table_config_parse(config, NULL, description->spec, description->spec_length, error) == 0)
        table = table_new(config, error);
    memory_free(config);
    return table;
}

/* Makes the table, and room for what is known of it until it is whole. */
static int begin(struct table_restore *restore, const struct description *description, struct error *error) {
    restore->table = make_table(description, error);
    restore->owner = restore;
    if (!restore->table) return -1;
    restore->table->lacks_references = true;
    const struct table *table = restore->table;
    uint64_t used = description->numbers[SLOTS_USED], size = description->numbers[SIZE];
    if (used > table->items.slots || size > used || size > table->config.capacity) {
        return error_set(error, ERROR_GENERIC,
                         "table '%s': %" PRIu64 " items in %" PRIu64 " slots do not fit its capacity of %" PRIu64,
                         table->config.name, size, used, table->config.capacity);
    }
    uint64_t steps_used = description->numbers[STEPS_USED], steps = description->numbers[STEPS];
    if (steps_used > table->own_steps.slots || steps > steps_used) {
        return error_set(error, ERROR_GENERIC, "table '%s': %" PRIu64 " steps in %" PRIu64 " slots do not fit it",
                         table->config.name, steps, steps_used);
    }
    restore->priorities = memory_map(used * sizeof *restore->priorities);
    restore->described = memory_map(bitmap_bytes((uint32_t)used));
    restore->came[SLOT_OF_ITEM] = memory_map(bitmap_bytes((uint32_t)used));
    restore->came[SLOT_OF_STEP] = memory_map(bitmap_bytes((uint32_t)steps_used));
    memcpy(restore->numbers, description->numbers, sizeof restore->numbers); /* which say how large those are */
    if (!restore->priorities || !restore->described || !restore->came[SLOT_OF_ITEM] || !restore->came[SLOT_OF_STEP])
        return error_set(error, ERROR_GENERIC, "out of memory for table '%s'", table->config.name);
    const struct msgpack_value *closed = &description->closed;
    if (closed->type == MSGPACK_STRING &&
        table_close(restore->table, (const char *)closed->bytes.data, closed->bytes.length, error))
        return -1;
    if (table_back_slots(restore->table, &restore->table->items, used, error) ||
        (steps_used && table_back_slots(restore->table, &restore->table->own_steps, steps_used, error)))
        return -1;
    take_description(restore->table, description);
    return 0;
}

struct table_restore *table_restore_begin(const uint8_t *bytes, size_t length, struct error *error) {
    struct msgpack_reader reader = {bytes, bytes + length};
    struct description description;
    if (read_description(&reader, &description, error)) return NULL;
    struct table_restore *restore = memory_calloc(1, sizeof *restore);
    if (!restore) {
        error_set(error, ERROR_GENERIC, "out of memory for a table");
        return NULL;
    }
    if (begin(restore, &description, error)) {
        table_restore_free(restore);
        return NULL;
    }
    return restore;
}

int table_restore_share(struct table_restore *restore, struct table_restore *owner, struct error *error) {
    restore->owner = owner;
    return table_share_steps(restore->table, owner->table, error);
}

const struct table_config *table_restore_config(const struct table_restore *restore) {
    return &restore->table->config;
}

static void forget_work(struct table_restore *restore) {
    uint32_t used = (uint32_t)restore->numbers[SLOTS_USED];
    memory_unmap(restore->priorities, used * sizeof *restore->priorities);
    memory_unmap(restore->described, bitmap_bytes(used));
    memory_unmap(restore->came[SLOT_OF_ITEM], bitmap_bytes(used));
    memory_unmap(restore->came[SLOT_OF_STEP], bitmap_bytes((uint32_t)restore->numbers[STEPS_USED]));
    memory_free(restore);
}

void table_restore_free(struct table_restore *restore) {
    if (!restore) return;
    if (restore->table) table_free(restore->table);
    forget_work(restore);
}

/* ---- records ------------------------------------------------------------------------------------------------------- */

static int refuse(const struct table_restore *restore, struct error *error, const char *what, uint64_t slot) {
    return error_set(error, ERROR_GENERIC, "table '%s', slot %" PRIu64 ": %s", restore->table->config.name, slot, what);
}

struct index_record {
    uint32_t first, count;
    const uint8_t *generations, *times, *ages, *priorities, *lives;
};

static int restore_slot(struct table_restore *restore, const struct index_record *record, uint32_t i,
                        struct error *error) {
    struct slot_store *items = &restore->table->items;
    uint32_t slot = record->first + i;
    if (bitmap_has(restore->described, slot)) return refuse(restore, error, "described twice", slot);
    struct slot *entry = &items->slot[slot];
    entry->generation = load_u32(record->generations + 4 * i);
    if (entry->generation > SLOT_MAX_GENERATION)
        return refuse(restore, error, "a generation that no id can hold", slot);
    slot_store_see_generation(items, entry->generation);
    bitmap_set(restore->described, slot);
    restore->described_count++;
    if (!record->lives[i]) return 0;
    entry->times_sampled = load_u32(record->times + 4 * i);
    memcpy(&entry->age, record->ages + 8 * i, 8);
    memcpy(&restore->priorities[slot], record->priorities + 8 * i, 8);
    if (record->lives[i] != 1 || entry->generation == 0 || entry->age >= items->next_age)
        return refuse(restore, error, "an item that cannot be", slot);
    if (table_check_priorities(restore->table, &restore->priorities[slot], 1, slot, error))
        return refuse(restore, error, "an item of a priority that cannot be", slot);
    entry->live = true;
    entry->references = 1;
    items->live++;
    items->occupied++;
    items->last_lives += entry->generation == SLOT_MAX_GENERATION;
    return 0;
}

static int restore_index(struct table_restore *restore, const uint8_t *body, size_t length, struct error *error) {
    struct index_record record = {0};
    if (length >= 8) {
        record.first = load_u32(body);
        record.count = load_u32(body + 4);
    }
    if (length < 8 || record.count > TABLE_CUT_CHUNK || length != 8 + (size_t)record.count * 25 ||
        (uint64_t)record.first + record.count > restore->numbers[SLOTS_USED])
        return refuse(restore, error, "the description of slots from here on is malformed", record.first);
    record.generations = body + 8;
    record.times = record.generations + 4 * record.count;
    record.ages = record.times + 4 * record.count;
    record.priorities = record.ages + 8 * record.count;
    record.lives = record.priorities + 8 * record.count;
    for (uint32_t i = 0; i < record.count; i++)
        if (restore_slot(restore, &record, i, error)) return -1;
    return 0;
}

/* Bytes of items or of steps. Items have been described; which steps they see is checked when all steps are there. */
static int restore_slots(struct table_restore *restore, enum slot_kind kind, const uint8_t *body, size_t length,
                         struct error *error) {
    struct slot_store *store = kind == SLOT_OF_ITEM ? &restore->table->items : &restore->table->own_steps;
    const char *of = kind == SLOT_OF_ITEM ? "items" : "steps", *name = restore->table->config.name;
    uint32_t slots[SLOT_RECORD_MOST], n;
    uint64_t *came = restore->came[kind];
    const char *wrong = slot_record_read_slots(store, body, length, slots, &n);
    for (uint32_t i = 0; i < n && !wrong; i++)
        if (slots[i] >= store->fresh || (store->slot && !store->slot[slots[i]].live))
            wrong = "a slot that is not described";
        else if (bitmap_has(came, slots[i]))
            wrong = "a slot that came twice";
        else
            bitmap_set(came, slots[i]);
    if (!wrong) wrong = slot_record_read(store, body, length);
    if (wrong) return error_set(error, ERROR_GENERIC, "table '%s', a record of its %s: %s", name, of, wrong);
    restore->came_count[kind] += n;
    return 0;
}

int table_restore_record(struct table_restore *restore, uint32_t kind, const uint8_t *body, size_t length,
                         struct error *error) {
    switch (kind) {
    case TABLE_RECORD_SLOTS: return restore_index(restore, body, length, error);
    case TABLE_RECORD_ITEMS: return restore_slots(restore, SLOT_OF_ITEM, body, length, error);
    case TABLE_RECORD_STEPS: return restore_slots(restore, SLOT_OF_STEP, body, length, error);
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

static void make_keys(const struct table_restore *restore, const struct aged_slot *order, uint32_t n,
                      struct table_keys *keys) {
    double priorities[TABLE_KEYS];
    for (uint32_t i = 0; i < n; i++) priorities[i] = restore->priorities[order[i].slot];
    table_keys_many(restore->table, priorities, n, keys);
}

/* Items enter the indexes as they once did, oldest first. */
static int restore_order(struct table_restore *restore, struct aged_slot *order, struct error *error) {
    struct table *table = restore->table;
    const struct slot_store *items = &table->items;
    uint32_t count = 0;
    for (uint32_t slot = 0; slot < items->fresh; slot++)
        if (items->slot[slot].live) order[count++] = (struct aged_slot){items->slot[slot].age, slot};
    qsort(order, count, sizeof *order, compare_ages);
    struct table_keys keys[TABLE_KEYS];
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot = order[i].slot;
        if (i % TABLE_KEYS == 0) make_keys(restore, order + i, count - i < TABLE_KEYS ? count - i : TABLE_KEYS, keys);
        if (i > 0 && order[i - 1].age == order[i].age)
            return refuse(restore, error, "its item is as old as another", slot);
        table_index(table, slot, restore->priorities[slot], keys[i % TABLE_KEYS]);
    }
    table_repair(table);
    return 0;
}

/* A reference for each place at which an item sees a step. Steps that none sees were kept by streams that are no more. */
static int restore_references(struct table_restore *restore, const struct aged_slot *order, struct error *error) {
    const struct slot_store *items = &restore->table->items;
    struct slot_store *steps = restore->table->steps;
    for (uint32_t i = 0; i < items->live; i++) {
        const uint32_t *list = slot_list(items, order[i].slot);
        if (!window_map_is_list(&restore->table->windows, list))
            return refuse(restore, error, "its item lacks steps that it must see", order[i].slot);
        for (uint32_t k = 0; k < items->list_length; k++) {
            if (list[k] >= SLOT_STEPS_MOST) continue;
            if (list[k] >= steps->fresh || !bitmap_has(restore->owner->came[SLOT_OF_STEP], list[k]))
                return refuse(restore, error, "its item sees a step that is not there", order[i].slot);
            uint32_t *references = slot_references(steps, list[k]);
            if (*references == SLOT_MOST_REFERENCES)
                return refuse(restore, error, "its item sees a step that is seen too often", order[i].slot);
            if ((*references)++ > 0) continue;
            steps->occupied++;
            steps->block_bytes += coded_columns_bytes(&steps->coded, list[k]);
        }
    }
    return 0;
}

static int check_whole(const struct table_restore *restore, struct error *error) {
    const struct table *table = restore->table;
    const uint32_t *came = restore->came_count;
    if (restore->described_count == restore->numbers[SLOTS_USED] && table->items.live == restore->numbers[SIZE] &&
        came[SLOT_OF_ITEM] == table->items.live && came[SLOT_OF_STEP] == restore->numbers[STEPS])
        return 0;
    return error_set(error, ERROR_GENERIC,
                     "table '%s' is not whole: %" PRIu32 " of %" PRIu64 " slots are described, %" PRIu32 " of %" PRIu64
                     " items, %" PRIu32 " of %" PRIu64 " steps are there",
                     table->config.name, restore->described_count, restore->numbers[SLOTS_USED], came[SLOT_OF_ITEM],
                     restore->numbers[SIZE], came[SLOT_OF_STEP], restore->numbers[STEPS]);
}

struct table *table_restore_finish(struct table_restore *restore, struct error *error) {
    struct table *table = restore->table;
    struct aged_slot *order = memory_alloc((table->items.live + 1) * sizeof *order);
    int failed = order
                     ? check_whole(restore, error)
                     : error_set(error, ERROR_GENERIC, "out of memory for the order of table '%s'", table->config.name);
    failed = failed || restore_order(restore, order, error) || restore_references(restore, order, error);
    memory_free(order);
    if (failed) {
        table_restore_free(restore);
        return NULL;
    }
    table->lacks_references = false;
    slot_store_collect(&table->own_steps);
    slot_store_collect(&table->items);
    slot_store_forget_ids(&table->items, random_entropy());
    if (!table->owner) table_recheck(table);
    forget_work(restore);
    return table;
}

/* table_cut: which slots were handed out, which are held, and the records. */
#include "replay/table_cut.h"

#include <assert.h>
#include <string.h>

#include "base/memory.h"
#include "replay/step_cut.h"

struct table_cut {
    struct table_cut_sink *sink;
    uint32_t slots;        /* used at the cut; what lies beyond was never used before it */
    uint32_t chunks, next_chunk;
    uint64_t *chunks_done; /* one bit a chunk: the index of its slots was handed out */
    uint64_t *passed;      /* one bit a slot: its item was handed out, or came after the cut */
    uint32_t first_slot, walked;
    uint32_t group;        /* items of one record */
    uint32_t held_limit, held_count;
    uint32_t *held;
    bool failed;
};

/* ---- beginning and ending ------------------------------------------------------------------------------------------ */

static void cut_free(struct table_cut *cut) {
    memory_free(cut->held);
    if (cut->chunks_done) {
        memory_unmap(cut->chunks_done, cut_bitmap_bytes(cut->chunks));
    }
    if (cut->passed) {
        memory_unmap(cut->passed, cut_bitmap_bytes(cut->slots));
    }
    memory_free(cut);
}

static uint64_t at_most(uint64_t value, uint64_t limit) {
    return value < limit ? value : limit;
}

static int cut_steps(struct table *table, struct table_cut_sink *sink, uint64_t held_bytes) {
    return table_has_windows(table)
               ? step_cut_begin(&table->steps, sink,
                                (uint32_t)at_most(held_bytes / table->steps.step_bytes, TABLE_HELD_SLOTS))
               : 0;
}

int table_cut_begin(struct table *table, struct table_cut_sink *sink, uint64_t held_bytes, struct error *error) {
    assert(!table->cut);
    struct storage *storage = &table->storage;
    struct table_cut *cut = memory_calloc(1, sizeof *cut);
    if (cut) {
        cut->sink = sink;
        cut->slots = storage->fresh;
        cut->chunks = (cut->slots + TABLE_CUT_CHUNK - 1) / TABLE_CUT_CHUNK;
        cut->chunks_done = memory_map(cut_bitmap_bytes(cut->chunks));
        cut->passed = memory_map(cut_bitmap_bytes(cut->slots));
        cut->held = memory_alloc(TABLE_HELD_SLOTS * sizeof *cut->held);
        size_t item_bytes = 4 + table->windows.steps * sizeof(uint32_t) + storage->item_bytes;
        uint64_t held = held_bytes / (storage->item_bytes ? storage->item_bytes : 1);
        cut->held_limit = table_has_windows(table) ? 0 : (uint32_t)at_most(held, TABLE_HELD_SLOTS);
        cut->group = (uint32_t)at_most(TABLE_CUT_RECORD_BYTES / item_bytes, TABLE_CUT_CHUNK);
        cut->group += cut->group == 0;
    }
    if (!cut || !cut->chunks_done || !cut->passed || !cut->held || cut_steps(table, sink, held_bytes)) {
        if (cut) {
            cut_free(cut);
        }
        return error_set(error, ERROR_GENERIC, "out of memory for a snapshot of table '%s'", table->config.name);
    }
    /* Who leaves by age leaves in the order in which its slots were taken: the walk begins where that is about to happen. */
    uint32_t oldest = table->order.oldest;
    cut->first_slot = oldest == STORAGE_NO_SLOT ? 0 : oldest / TABLE_CUT_CHUNK * TABLE_CUT_CHUNK;
    table->cut = cut;
    return 0;
}

static void release_held(struct table *table, uint32_t slot) {
    table->storage.held--;
    table_unpin(table, &slot, 1);
}

void table_cut_end(struct table *table) {
    struct table_cut *cut = table->cut;
    if (!cut) {
        return;
    }
    while (cut->held_count > 0) {
        release_held(table, cut->held[--cut->held_count]);
    }
    step_cut_end(&table->steps);
    table->cut = NULL;
    cut_free(cut);
}

bool table_cut_failed(const struct table *table) {
    return table->cut->failed || (table_has_windows(table) && step_cut_failed(&table->steps));
}

/* ---- records ------------------------------------------------------------------------------------------------------- */

static uint8_t *record(struct table_cut *cut, enum table_record kind, size_t bytes) {
    uint8_t *body = cut->failed ? NULL : cut->sink->record(cut->sink, kind, bytes);
    cut->failed |= !body;
    return body;
}

/* u32 first, count; u32 generation[count], times_sampled[count]; u64 age[count]; f64 priority[count]; u8 live[count] */
static void write_chunk(struct table *table, uint32_t chunk) {
    struct table_cut *cut = table->cut;
    uint32_t first = chunk * TABLE_CUT_CHUNK;
    uint32_t count = (uint32_t)at_most(cut->slots - first, TABLE_CUT_CHUNK);
    cut_set_bit(cut->chunks_done, chunk);
    uint8_t *body = record(cut, TABLE_RECORD_SLOTS, 8 + (size_t)count * 25);
    if (!body) {
        return;
    }
    memcpy(body, &first, 4);
    memcpy(body + 4, &count, 4);
    uint8_t *generations = body + 8, *times = generations + 4 * count, *ages = times + 4 * count;
    uint8_t *priorities = ages + 8 * count, *lives = priorities + 8 * count;
    for (uint32_t i = 0; i < count; i++) {
        const struct slot *slot = &table->storage.slot[first + i];
        double priority = max_tree_value(&table->priorities, first + i);
        memcpy(generations + 4 * i, &slot->generation, 4);
        memcpy(times + 4 * i, &slot->times_sampled, 4);
        memcpy(ages + 8 * i, &table->storage.age[first + i], 8);
        memcpy(priorities + 8 * i, &priority, 8);
        lives[i] = slot->state == SLOT_LIVE;
    }
}

/* u32 n; u32 slots[n]; step slots of each, u32 for each place of its windows; then each column of items of these n, in the
 * order of the signature */
static void write_items(struct table *table, const uint32_t *slots, uint32_t n) {
    const struct table_config *config = &table->config;
    for (uint32_t i = 0; i < n; i++) {
        cut_set_bit(table->cut->passed, slots[i]);
    }
    size_t list_bytes = table->windows.steps * sizeof(uint32_t);
    uint8_t *at = record(table->cut, TABLE_RECORD_ITEMS, 4 + n * (4 + list_bytes + table->storage.item_bytes));
    if (!at) {
        return;
    }
    memcpy(at, &n, 4);
    memcpy(at + 4, slots, 4 * (size_t)n);
    at += 4 + 4 * (size_t)n;
    for (uint32_t i = 0; i < n && list_bytes > 0; i++, at += list_bytes) {
        memcpy(at, window_map_list(&table->windows, slots[i]), list_bytes);
    }
    for (uint32_t column = 0; column < config->columns; column++) {
        if (config->column[column].kind == COLUMN_ITEM) {
            table_gather(table, column, slots, n, at);
            at += n * config->column[column].item_bytes;
        }
    }
}

/* ---- hooks --------------------------------------------------------------------------------------------------------- */

void table_cut_before_change(struct table *table, uint32_t slot) {
    struct table_cut *cut = table->cut;
    if (slot < cut->slots && !cut_bit(cut->chunks_done, slot / TABLE_CUT_CHUNK)) {
        write_chunk(table, slot / TABLE_CUT_CHUNK);
    }
}

void table_cut_before_enter(struct table *table, uint32_t slot) {
    struct table_cut *cut = table->cut;
    table_cut_before_change(table, slot);
    if (slot < cut->slots) {
        cut_set_bit(cut->passed, slot);
    }
}

void table_cut_before_leave(struct table *table, uint32_t slot) {
    struct table_cut *cut = table->cut;
    table_cut_before_change(table, slot);
    if (cut->failed || slot >= cut->slots || cut_bit(cut->passed, slot)) {
        return;
    }
    if (cut->held_count < cut->held_limit) {
        storage_pin(&table->storage, slot);
        table->storage.held++;
        cut->held[cut->held_count++] = slot;
    } else {
        write_items(table, &slot, 1);
    }
}

/* ---- handing out in turn ------------------------------------------------------------------------------------------- */

static void write_held(struct table *table) {
    struct table_cut *cut = table->cut;
    uint32_t n = (uint32_t)at_most(cut->held_count, cut->group);
    const uint32_t *slots = cut->held + cut->held_count - n;
    write_items(table, slots, n);
    cut->held_count -= n;
    for (uint32_t i = 0; i < n; i++) {
        release_held(table, slots[i]);
    }
}

/* The items of the next chunk that are still to be handed out, no more than fit one record. */
static void write_next_items(struct table *table) {
    struct table_cut *cut = table->cut;
    uint32_t slots[TABLE_CUT_CHUNK], n = 0;
    while (n < cut->group && cut->walked < cut->slots) {
        uint32_t slot = (uint32_t)(((uint64_t)cut->first_slot + cut->walked) % cut->slots);
        if (n > 0 && slot % TABLE_CUT_CHUNK == 0) {
            break;
        }
        cut->walked++;
        if (table->storage.slot[slot].state == SLOT_LIVE && !cut_bit(cut->passed, slot)) {
            slots[n++] = slot;
        } else if (n == 0 && slot % TABLE_CUT_CHUNK == TABLE_CUT_CHUNK - 1) {
            break; /* nothing here: the caller looks at its clock before the next */
        }
    }
    if (n > 0) {
        write_items(table, slots, n);
    }
}

bool table_cut_step(struct table *table) {
    struct table_cut *cut = table->cut;
    if (table_cut_failed(table)) {
        return false;
    }
    if (table->steps.held > 0) {
        return step_cut_step(&table->steps);
    }
    if (cut->held_count > 0) {
        write_held(table);
    } else if (cut->next_chunk < cut->chunks) {
        uint32_t chunk = cut->next_chunk++;
        if (!cut_bit(cut->chunks_done, chunk)) {
            write_chunk(table, chunk);
        }
    } else if (cut->walked < cut->slots) {
        write_next_items(table);
    } else {
        return table_has_windows(table) && step_cut_step(&table->steps);
    }
    return !cut->failed;
}

/* ---- description --------------------------------------------------------------------------------------------------- */

void table_cut_describe(const struct table *table, struct msgpack_writer *writer) {
    const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {
        {"size", table->storage.live},
        {"slots_used", table->storage.fresh},
        {"next_age", table->storage.next_age},
        {"steps", table->steps.live},
        {"steps_used", table->steps.fresh},
        {"added", table->added},
        {"sampled", table->sampled},
        {"removed", table->removed},
        {"stale_updates", table->stale_updates},
        {"stale_items", table->stale_items},
        {"newest_version", heap_key_of_integer(table->freshness.newest)},
        {"updates_applied", table->updates_applied},
        {"limiter_inserts", table->limiter.inserts},
        {"limiter_samples", table->limiter.samples},
    };
    const uint32_t count = sizeof numbers / sizeof numbers[0];
    uint8_t *spec;
    size_t length;
    struct error error;
    if (table_config_write(&table->config, &spec, &length, &error)) {
        writer->failed = true;
        return;
    }
    msgpack_write_map(writer, count + 2 + table->closed);
    msgpack_write_string(writer, "spec", 4);
    msgpack_write_encoded(writer, spec, length);
    memory_free(spec);
    for (uint32_t i = 0; i < count; i++) {
        msgpack_write_string(writer, numbers[i].key, strlen(numbers[i].key));
        msgpack_write_unsigned(writer, numbers[i].value);
    }
    if (table->closed) {
        msgpack_write_string(writer, "closed", 6);
        msgpack_write_string(writer, table->closed_reason, strlen(table->closed_reason));
    }
    msgpack_write_string(writer, "random", 6);
    msgpack_write_array(writer, 4);
    for (uint32_t i = 0; i < 4; i++) {
        msgpack_write_unsigned(writer, table->random.words[i]);
    }
}

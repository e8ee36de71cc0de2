/* table_cut: what the index says of slots, and the order of the records. */
#include "replay/table_cut.h"

#include <string.h>

#include "base/arithmetic.h"
#include "base/bitmap.h"
#include "base/memory.h"
#include "replay/slot_cut.h"

struct table_cut {
    struct slot_cut items; /* first: `describe` is given it */
    struct slot_cut steps; /* zero: the table has none of its own */
    struct table *table;
    uint32_t chunks, next_chunk;
    uint64_t *chunks_done; /* one bit a chunk: the index of its slots was handed out */
};

/* ---- the index ----------------------------------------------------------------------------------------------------- */

/* u32 first, count; u32 generation[count], times_sampled[count]; u64 age[count]; f64 priority[count]; u8 live[count] */
static void write_chunk(struct table_cut *cut, uint32_t chunk) {
    const struct table *table = cut->table;
    uint32_t first = chunk * TABLE_CUT_CHUNK;
    uint32_t count = (uint32_t)at_most(cut->items.slots - first, TABLE_CUT_CHUNK);
    bitmap_set(cut->chunks_done, chunk);
    uint8_t *body = slot_cut_record(&cut->items, TABLE_RECORD_SLOTS, 8 + (size_t)count * 25);
    if (!body) return;
    memcpy(body, &first, 4);
    memcpy(body + 4, &count, 4);
    uint8_t *generations = body + 8, *times = generations + 4 * count, *ages = times + 4 * count;
    uint8_t *priorities = ages + 8 * count, *lives = priorities + 8 * count;
    for (uint32_t i = 0; i < count; i++) {
        const struct slot *slot = &table->items.slot[first + i];
        double priority = max_tree_value(&table->priorities, first + i);
        memcpy(generations + 4 * i, &slot->generation, 4);
        memcpy(times + 4 * i, &slot->times_sampled, 4);
        memcpy(ages + 8 * i, &slot->age, 8);
        memcpy(priorities + 8 * i, &priority, 8);
        lives[i] = slot->live;
        if (!slot->live) bitmap_set(cut->items.passed, first + i); /* an item that left before the cut may be pinned */
    }
}

static void describe(struct slot_cut *items, uint32_t slot) {
    struct table_cut *cut = (struct table_cut *)(void *)items;
    if (slot < items->slots && !bitmap_has(cut->chunks_done, slot / TABLE_CUT_CHUNK))
        write_chunk(cut, slot / TABLE_CUT_CHUNK);
}

void table_cut_before_change(struct table *table, uint32_t slot) {
    describe(&table->cut->items, slot);
}

/* ---- the cut ------------------------------------------------------------------------------------------------------- */

static int begin(struct table_cut *cut, struct table *table, struct table_cut_sink *sink, uint64_t held_bytes) {
    struct slot_store *items = &table->items, *steps = &table->own_steps;
    bool windows = table_has_windows(table);
    uint64_t largest = items->slot_bytes + (items->ragged ? items->ragged->largest : 0);
    uint64_t held = at_most(held_bytes / (largest ? largest : 1), TABLE_HELD_SLOTS);
    cut->table = table;
    cut->chunks = (items->fresh + TABLE_CUT_CHUNK - 1) / TABLE_CUT_CHUNK;
    cut->chunks_done = memory_map(bitmap_bytes(cut->chunks));
    if (!cut->chunks_done || slot_cut_begin(&cut->items, items, sink, TABLE_RECORD_ITEMS, windows ? 0 : (uint32_t)held))
        return -1;
    cut->items.describe = describe;
    /* Items that leave by age leave in the order in which their slots were taken: the walk begins where that is about to
     * happen. */
    uint32_t oldest = table->order.oldest;
    cut->items.first = oldest == SLOT_NONE ? 0 : oldest;
    if (!windows || table->owner) return 0; /* steps are in the cut of their owner */
    held = at_most(held_bytes / (steps->slot_bytes ? steps->slot_bytes : 1), TABLE_HELD_SLOTS);
    return slot_cut_begin(&cut->steps, steps, sink, TABLE_RECORD_STEPS, (uint32_t)held);
}

int table_cut_begin(struct table *table, struct table_cut_sink *sink, uint64_t held_bytes, struct error *error) {
    assert(!table->cut);
    table->cut = memory_calloc(1, sizeof *table->cut);
    if (table->cut && begin(table->cut, table, sink, held_bytes) == 0) return 0;
    table_cut_end(table);
    return error_set(error, ERROR_GENERIC, "out of memory for a snapshot of table '%s'", table->config.name);
}

void table_cut_end(struct table *table) {
    struct table_cut *cut = table->cut;
    if (!cut) return;
    slot_cut_end(&cut->items);
    slot_cut_end(&cut->steps);
    memory_unmap(cut->chunks_done, bitmap_bytes(cut->chunks));
    table->cut = NULL;
    memory_free(cut);
}

bool table_cut_failed(const struct table *table) {
    return table->cut->items.failed || table->cut->steps.failed;
}

bool table_cut_step(struct table *table) {
    struct table_cut *cut = table->cut;
    if (table_cut_failed(table)) return false;
    if (cut->steps.held_count > 0) return slot_cut_step(&cut->steps);
    if (cut->items.held_count > 0) return slot_cut_step(&cut->items);
    if (cut->next_chunk < cut->chunks) {
        describe(&cut->items, cut->next_chunk++ * TABLE_CUT_CHUNK);
        return !cut->items.failed;
    }
    return slot_cut_step(&cut->items) || slot_cut_step(&cut->steps);
}

/* ---- description --------------------------------------------------------------------------------------------------- */

void table_cut_describe(const struct table *table, struct msgpack_writer *writer) {
    const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {
        {"size", table->items.live},
        {"slots_used", table->items.fresh},
        {"next_age", table->items.next_age},
        {"steps", table->own_steps.occupied},
        {"steps_used", table->own_steps.fresh},
        {"added", table->added},
        {"sampled", table->sampled},
        {"removed", table->removed},
        {"stale_updates", table->stale_updates},
        {"stale_items", table->stale_items},
        {"newest_version", heap_key_of_integer(table->freshness.newest)},
        {"updates_applied", table->updates_applied},
        /* Batches that are amid their parts end with the server. */
        {"limiter_inserts", table->limiter.inserts - table->entering},
        {"limiter_samples", table->limiter.samples - table->drawing},
        {"changes", table->changes},
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
    for (uint32_t i = 0; i < 4; i++) msgpack_write_unsigned(writer, table->random.words[i]);
}

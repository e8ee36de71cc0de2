/* table_ragged: rows of slots, counted, copied and shown where they lie. */
#include "replay/table_ragged.h"

#include "replay/table_state.h"

#define AHEAD 8u /* values to prefetch ahead of a copy */

uint64_t table_ragged_rows(const struct table *table, uint32_t column, const uint32_t *slots, uint32_t n) {
    uint64_t rows = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (i + AHEAD < n) __builtin_prefetch(slot_ragged(&table->items, column, slots[i + AHEAD]));
        rows += slot_ragged(&table->items, column, slots[i])->length;
    }
    return rows;
}

int64_t table_ragged_offsets(const struct table *table, uint32_t column, const uint32_t *slots, uint32_t n,
                             int64_t *offsets) {
    offsets[0] = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (i + AHEAD < n) __builtin_prefetch(slot_ragged(&table->items, column, slots[i + AHEAD]));
        offsets[i + 1] = offsets[i] + slot_ragged(&table->items, column, slots[i])->length;
    }
    return offsets[n];
}

size_t table_ragged_gather(const struct table *table, uint32_t column, const uint32_t *slots, uint32_t n, void *rows) {
    const struct ragged_store *ragged = table->items.ragged;
    uint8_t *to = rows;
    for (uint32_t i = 0; i < n; i++) {
        const struct ragged_value *value = slot_ragged(&table->items, column, slots[i]);
        if (i + 1 < n) ragged_store_prefetch(ragged, column, slot_ragged(&table->items, column, slots[i + 1]));
        ragged_store_read(ragged, column, value, to);
        to += ragged_value_bytes(ragged, column, value);
    }
    return (size_t)(to - (uint8_t *)rows);
}

bool table_ragged_first(const struct table *table, uint32_t column, uint32_t slot, struct ragged_piece *piece) {
    return ragged_store_first(table->items.ragged, column, slot_ragged(&table->items, column, slot), piece);
}

bool table_ragged_next(const struct table *table, uint32_t column, uint32_t slot, struct ragged_piece *piece) {
    return ragged_store_next(table->items.ragged, slot_ragged(&table->items, column, slot), piece);
}

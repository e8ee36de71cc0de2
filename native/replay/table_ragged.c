/* table_ragged: rows of slots, counted, copied and shown where they lie. */
#include "replay/table_ragged.h"

#include "replay/table_state.h"

#define AHEAD 8u /* values to prefetch ahead of a copy */

static bool is_window(const struct table *table, uint32_t column) {
    return column_is_ragged_window(&table->config.column[column]);
}

static uint32_t rows_of(const struct table *table, uint32_t column, uint32_t slot) {
    return is_window(table, column)
               ? window_map_rows(&table->windows, &table->items, column, table->config.column[column].max_length, slot)
               : slot_ragged(&table->items, column, slot)->length;
}

/* What says how many they are. */
static void prefetch(const struct table *table, uint32_t column, uint32_t slot) {
    if (is_window(table, column))
        __builtin_prefetch(slot_list(&table->items, slot) + table->windows.first[column] +
                           table->config.column[column].max_length - 1);
    else
        __builtin_prefetch(slot_ragged(&table->items, column, slot));
}

uint64_t table_ragged_rows(const struct table *table, uint32_t column, const uint32_t *slots, uint32_t n) {
    uint64_t rows = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (i + AHEAD < n) prefetch(table, column, slots[i + AHEAD]);
        rows += rows_of(table, column, slots[i]);
    }
    return rows;
}

int64_t table_ragged_offsets(const struct table *table, uint32_t column, const uint32_t *slots, uint32_t n,
                             int64_t *offsets) {
    offsets[0] = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (i + AHEAD < n) prefetch(table, column, slots[i + AHEAD]);
        offsets[i + 1] = offsets[i] + rows_of(table, column, slots[i]);
    }
    return offsets[n];
}

static size_t gather_windows(const struct table *table, uint32_t column, const uint32_t *slots, uint32_t n,
                             uint8_t *to) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < n; i++)
        bytes += window_map_read(&table->windows, &table->items, &table->config.column[column], column, slots[i],
                                 rows_of(table, column, slots[i]), to + bytes);
    return bytes;
}

size_t table_ragged_gather(const struct table *table, uint32_t column, const uint32_t *slots, uint32_t n, void *rows) {
    const struct ragged_store *ragged = table->items.ragged;
    uint8_t *to = rows;
    if (is_window(table, column)) return gather_windows(table, column, slots, n, to);
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

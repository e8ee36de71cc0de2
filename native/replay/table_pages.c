/* table_pages: runs of bytes by column and slot, and reading them. */
#include "replay/table_pages.h"

#include <stdlib.h>

#include "base/disk_memory.h"
#include "base/memory.h"
#include "replay/table_ragged.h"
#include "replay/table_state.h"

#define FIRST_RUNS 256u

struct disk_memory *table_disk(const struct table *table) {
    return table->disk;
}

/* ---- listing ------------------------------------------------------------------------------------------------------- */

/* Neighbours become one run. */
static int add(struct page_runs *runs, const uint8_t *bytes, size_t size_bytes) {
    struct page_run *last = runs->count ? &runs->runs[runs->count - 1] : NULL;
    if (last && bytes >= last->bytes && bytes <= last->bytes + last->size_bytes) {
        size_t end = (size_t)(bytes - last->bytes) + size_bytes;
        if (end > last->size_bytes) last->size_bytes = end;
        return 0;
    }
    struct page_run *grown = memory_grow(runs->runs, runs->count, &runs->capacity, FIRST_RUNS, sizeof *grown);
    if (!grown) return -1;
    runs->runs = grown;
    grown[runs->count++] = (struct page_run){bytes, size_bytes};
    return 0;
}

static int add_rows(const struct table *table, uint32_t column, uint32_t slot, struct page_runs *runs) {
    struct ragged_piece piece;
    if (!table_ragged_first(table, column, slot, &piece)) return 0;
    do
        if (add(runs, piece.bytes, piece.size)) return -1;
    while (table_ragged_next(table, column, slot, &piece));
    return 0;
}

/* A column of a step; the size of a block is known without a look at it. */
static int add_step(const struct slot_store *steps, uint32_t source, uint32_t step, struct page_runs *runs) {
    const struct coded_columns *coded = &steps->coded;
    if (coded_columns_has(coded, source)) {
        const uint8_t *block = coded->block[source][step];
        return add(runs, block, block_pool_taken(&coded->pool, block));
    }
    if (!steps->arrays.region[source]) return 0;
    return add(runs, column_arrays_value(&steps->arrays, source, step), steps->value_bytes[source]);
}

static int add_window(const struct table *table, uint32_t column, uint32_t slot, struct page_runs *runs) {
    const struct column *window = &table->config.column[column];
    uint32_t length =
        column_is_ragged(window) ? (uint32_t)table_ragged_rows(table, column, &slot, 1) : column_steps(window);
    const uint32_t *list = slot_list(&table->items, slot) + table->windows.first[column];
    for (uint32_t k = 0; k < length; k++)
        if ((k == 0 || list[k] != list[k - 1]) && add_step(table->steps, window->source, list[k], runs)) return -1;
    return 0;
}

static int add_value(const struct table *table, uint32_t column, uint32_t slot, struct page_runs *runs) {
    const struct column *shape = &table->config.column[column];
    const struct slot_store *items = &table->items;
    if (shape->kind == COLUMN_WINDOW) return add_window(table, column, slot, runs);
    if (column_is_ragged(shape)) return add_rows(table, column, slot, runs);
    return add(runs, column_arrays_value(&items->arrays, column, slot), items->value_bytes[column]);
}

/* Small columns of items are in memory. */
static bool may_be_absent(const struct table *table, uint32_t column) {
    const struct column *shape = &table->config.column[column];
    return shape->kind == COLUMN_WINDOW || column_is_ragged(shape) || table->items.arrays.region[column];
}

int table_list_pages(const struct table *table, const uint8_t *columns, uint32_t column_count, const uint32_t *slots,
                     uint32_t n, struct page_runs *runs) {
    for (uint32_t i = 0; i < column_count; i++) {
        if (!may_be_absent(table, columns[i])) continue;
        for (uint32_t k = 0; k < n; k++)
            if (add_value(table, columns[i], slots[k], runs)) return -1;
    }
    return 0;
}

void page_runs_free(struct page_runs *runs) {
    memory_free(runs->runs);
    *runs = (struct page_runs){.runs = NULL};
}

/* ---- reading ------------------------------------------------------------------------------------------------------- */

uint32_t page_runs_first_absent(const struct page_runs *runs) {
    uint32_t at = 0;
    while (at < runs->count && pages_are_resident(runs->runs[at].bytes, runs->runs[at].size_bytes)) at++;
    return at;
}

static int compare_runs(const void *left, const void *right) {
    const struct page_run *a = left, *b = right;
    return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

/* In order, overlapping ones and neighbours joined; returns how many are left. */
static uint32_t join(struct page_run *runs, uint32_t count) {
    qsort(runs, count, sizeof *runs, compare_runs);
    struct page_runs joined = {.runs = runs, .capacity = count};
    for (uint32_t i = 0; i < count; i++) {
        struct page_run run = runs[i];
        (void)add(&joined, run.bytes, run.size_bytes); /* there is room: what is written was read */
    }
    return joined.count;
}

bool page_runs_read(struct page_run *runs, uint32_t count, uint64_t *absent) {
    count = join(runs, count);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t pages = pages_absent(runs[i].bytes, runs[i].size_bytes);
        *absent += pages;
        if (pages) pages_begin_reading(runs[i].bytes, runs[i].size_bytes);
    }
    bool readable = true;
    for (uint32_t i = 0; i < count; i++) readable &= pages_read(runs[i].bytes, runs[i].size_bytes);
    return readable;
}

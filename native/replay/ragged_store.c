/* ragged_store: chains of units, and the rests of values in a pool. */
#include "replay/ragged_store.h"

#include <assert.h>
#include <string.h>

#include "base/arithmetic.h"
#include "base/memory.h"

#define LEAST_REST_BYTES 16u
#define REST_CLASSES_IN_DOUBLING 16u
#define REST_CHUNK_BYTES (16u << 10)
#define UNITS_BEING_READ 4096u /* given back to a disk, and not used again at once */

size_t ragged_largest_bytes(const struct table_config *config) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < config->columns; i++)
        if (config->column[i].kind == COLUMN_ITEM) bytes += config->column[i].row_bytes * config->column[i].max_length;
    return bytes;
}

uint64_t ragged_most_taken(const struct table_config *config) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < config->columns; i++) {
        const struct column *column = &config->column[i];
        uint64_t value = column->row_bytes * (uint64_t)column->max_length;
        if (column_is_ragged(column) && !column_is_ragged_window(column))
            bytes += value + value / RAGGED_UNIT_BYTES * sizeof(uint32_t) + RAGGED_MOST_WASTE;
    }
    return bytes;
}

/* ---- memory -------------------------------------------------------------------------------------------------------- */

/* Room for all that a full table holds, and for as much as may be on its way in, or have left while replies show it.
 * max_bytes, which may be changed, is none of its business: this is address space alone. */
static uint64_t most_bytes(const struct table_config *config, size_t largest) {
    uint64_t slack = at_most((TABLE_SPARE_SLOTS + TABLE_HELD_SLOTS) * (uint64_t)largest, RAGGED_SLACK_BYTES);
    return at_most(config->capacity * largest + slack, RAGGED_MOST_BYTES);
}

static int map(struct ragged_store *store, const struct table_config *config, struct disk_memory *disk) {
    static const struct block_sizes sizes = {LEAST_REST_BYTES, RAGGED_UNIT_BYTES, REST_CLASSES_IN_DOUBLING,
                                             REST_CHUNK_BYTES};
    uint64_t bytes = most_bytes(config, store->largest);
    uint64_t values = (config->capacity + TABLE_SPARE_SLOTS + TABLE_HELD_SLOTS) * store->columns;
    /* Twice, since chunks of rests may be half empty. */
    uint64_t rests = 2 * at_most(bytes, values * RAGGED_UNIT_BYTES);
    store->unit_count = (uint32_t)(bytes / RAGGED_UNIT_BYTES + 1);
    store->next = memory_map(store->unit_count * sizeof *store->next);
    size_t unit_bytes = (size_t)store->unit_count * RAGGED_UNIT_BYTES;
    store->region = disk ? disk_region_new(disk, unit_bytes) : NULL;
    store->units = disk ? store->region ? store->region->base : NULL : memory_map(unit_bytes);
    if (!store->next || !store->units || block_pool_init(&store->rests, &sizes, rests, disk)) return -1;
    if (disk) return 0;
    /* Both are touched from their beginning on. */
    if (bytes >= MEMORY_HUGE_BYTES) memory_advise_huge(store->units, unit_bytes);
    if (rests >= MEMORY_HUGE_BYTES)
        memory_advise_huge(store->rests.base, store->rests.chunks * store->rests.chunk_bytes);
    return 0;
}

struct ragged_store *ragged_store_new(const struct table_config *config, struct disk_memory *disk,
                                      struct error *error) {
    struct ragged_store *store = memory_calloc(1, sizeof *store);
    if (!store) {
        error_set(error, ERROR_GENERIC, "out of memory for table '%s'", config->name);
        return NULL;
    }
    for (uint32_t i = 0; i < config->columns; i++) {
        if (!column_is_ragged(&config->column[i])) continue;
        store->column[store->columns++] = i;
        store->row_bytes[i] = config->column[i].row_bytes;
        store->max_length[i] = config->column[i].max_length;
    }
    store->largest = ragged_largest_bytes(config);
    if (map(store, config, disk) == 0) return store;
    if (!disk || !disk_memory_failed(disk, error)) {
        error_set(error, ERROR_GENERIC,
                  "out of memory: %llu bytes for the ragged columns of table '%s' could not be mapped; set a smaller "
                  "max_length, or capacity",
                  (unsigned long long)most_bytes(config, store->largest), config->name);
    }
    ragged_store_free(store);
    return NULL;
}

void ragged_store_free(struct ragged_store *store) {
    if (!store) return;
    memory_unmap(store->next, store->unit_count * sizeof *store->next);
    if (!store->region) memory_unmap(store->units, (size_t)store->unit_count * RAGGED_UNIT_BYTES);
    block_pool_free(&store->rests);
    memory_free(store);
}

/* ---- units --------------------------------------------------------------------------------------------------------- */

static uint8_t *unit_at(const struct ragged_store *store, uint32_t unit) {
    return store->units + (size_t)unit * RAGGED_UNIT_BYTES;
}

/* As it is with slots of a disk (slot_store.c): the pages of a unit may be absent when it is given back, so a helper is asked
 * for them, and those are used that were given back longest ago, and none before there are some. */
static void expect_units(const struct ragged_store *store, uint32_t first, uint32_t count) {
    while (count > 0) {
        uint32_t last = first, run = 1;
        for (; run < count && store->next[last] == last + 1; run++) last++;
        disk_memory_expect(store->region->disk, unit_at(store, first), (size_t)run * RAGGED_UNIT_BYTES, DISK_TO_WRITE);
        first = store->next[last];
        count -= run;
    }
}

/* A chain that ends with `last`. */
static void give_units(struct ragged_store *store, uint32_t last, uint32_t count) {
    uint32_t first = store->next[last];
    if (store->region) expect_units(store, first, count);
    if (store->region && store->returned_count > 0) {
        store->next[store->returned_last] = first;
    } else {
        store->next[last] = store->returned;
        store->returned = first;
    }
    store->returned_last = last;
    store->returned_count += count;
}

/* How many of so many units shall be ones that were never used. False: there is no room. */
static bool choose_units(struct ragged_store *store, uint32_t count, uint32_t *fresh) {
    uint32_t left = store->unit_count - store->fresh;
    bool spares = store->region && store->returned_count < UNITS_BEING_READ + count && count <= left;
    *fresh = spares ? count : 0;
    if (spares && disk_region_back(store->region, ((size_t)store->fresh + count) * RAGGED_UNIT_BYTES)) return true;
    *fresh = count > store->returned_count ? count - store->returned_count : 0;
    return *fresh <= left && (!*fresh || !store->region ||
                              disk_region_back(store->region, ((size_t)store->fresh + *fresh) * RAGGED_UNIT_BYTES));
}

static uint32_t take_unit(struct ragged_store *store, uint32_t *fresh) {
    if (*fresh > 0) {
        --*fresh;
        return store->fresh++;
    }
    uint32_t unit = store->returned;
    store->returned = store->next[unit];
    store->returned_count--;
    return unit;
}

/* Fills a chain of `count` units, at least one and so many of them fresh; returns the last. */
static uint32_t put_units(struct ragged_store *store, const uint8_t *bytes, uint32_t count, uint32_t fresh) {
    uint32_t first = take_unit(store, &fresh), last = first;
    memcpy(unit_at(store, first), bytes, RAGGED_UNIT_BYTES);
    for (uint32_t i = 1; i < count; i++) {
        uint32_t unit = take_unit(store, &fresh);
        memcpy(unit_at(store, unit), bytes + (size_t)i * RAGGED_UNIT_BYTES, RAGGED_UNIT_BYTES);
        store->next[last] = unit;
        last = unit;
    }
    store->next[last] = first;
    return last;
}

/* ---- values -------------------------------------------------------------------------------------------------------- */

size_t ragged_store_takes(const struct ragged_store *store, uint32_t column, uint32_t length) {
    size_t bytes = length * store->row_bytes[column], rest = bytes % RAGGED_UNIT_BYTES;
    size_t units = bytes / RAGGED_UNIT_BYTES;
    return units * (RAGGED_UNIT_BYTES + sizeof *store->next) + (rest ? block_pool_size(&store->rests, rest) : 0);
}

int ragged_store_put(struct ragged_store *store, uint32_t column, struct ragged_value *value, const uint8_t *rows,
                     uint32_t length) {
    size_t bytes = length * store->row_bytes[column], rest = bytes % RAGGED_UNIT_BYTES;
    uint32_t units = (uint32_t)(bytes / RAGGED_UNIT_BYTES), fresh;
    assert(value->length == 0);
    if (store->region) disk_memory_forget_refusal(store->region->disk);
    if (!choose_units(store, units, &fresh)) return -1;
    uint8_t *block = rest ? block_pool_take(&store->rests, rest) : NULL;
    if (rest && !block) return -1;
    *value = (struct ragged_value){.length = length};
    store->used_bytes += ragged_store_takes(store, column, length);
    if (units) value->last = put_units(store, rows, units, fresh);
    if (block) {
        memcpy(block, rows + bytes - rest, rest);
        value->rest = (uint64_t)(block - store->rests.base);
    }
    return 0;
}

void ragged_store_drop(struct ragged_store *store, uint32_t column, struct ragged_value *value) {
    size_t bytes = ragged_value_bytes(store, column, value);
    uint32_t units = (uint32_t)(bytes / RAGGED_UNIT_BYTES);
    if (bytes == 0) return;
    store->used_bytes -= ragged_store_takes(store, column, value->length);
    if (units) give_units(store, value->last, units);
    if (bytes % RAGGED_UNIT_BYTES) block_pool_give(&store->rests, store->rests.base + value->rest);
    *value = (struct ragged_value){.length = 0};
}

/* ---- reading ------------------------------------------------------------------------------------------------------- */

/* The piece that begins with `unit`, of a value of which `left` bytes lie from there on: units that are neighbours are one. */
static void units_from(const struct ragged_store *store, uint32_t unit, size_t left, struct ragged_piece *piece) {
    size_t whole = left / RAGGED_UNIT_BYTES, count = 1;
    piece->bytes = unit_at(store, unit);
    while (count < whole && store->next[unit] == unit + 1) {
        unit++;
        count++;
    }
    piece->unit = unit;
    piece->size = count * RAGGED_UNIT_BYTES;
    piece->left = left - piece->size;
}

static void rest_of(const struct ragged_store *store, const struct ragged_value *value, size_t left,
                    struct ragged_piece *piece) {
    piece->bytes = store->rests.base + value->rest;
    piece->size = left;
    piece->left = 0;
}

bool ragged_store_first(const struct ragged_store *store, uint32_t column, const struct ragged_value *value,
                        struct ragged_piece *piece) {
    size_t bytes = ragged_value_bytes(store, column, value);
    if (bytes >= RAGGED_UNIT_BYTES)
        units_from(store, store->next[value->last], bytes, piece);
    else
        rest_of(store, value, bytes, piece);
    return bytes > 0;
}

bool ragged_store_next(const struct ragged_store *store, const struct ragged_value *value, struct ragged_piece *piece) {
    if (piece->left == 0) return false;
    if (piece->left >= RAGGED_UNIT_BYTES)
        units_from(store, store->next[piece->unit], piece->left, piece);
    else
        rest_of(store, value, piece->left, piece);
    return true;
}

void ragged_store_read(const struct ragged_store *store, uint32_t column, const struct ragged_value *value,
                       uint8_t *rows) {
    struct ragged_piece piece;
    if (!ragged_store_first(store, column, value, &piece)) return;
    do {
        memcpy(rows, piece.bytes, piece.size);
        rows += piece.size;
    } while (ragged_store_next(store, value, &piece));
}

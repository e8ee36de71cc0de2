/* column_arrays: the layout of rows, the mappings, and copying values in and out. */
#include "replay/column_arrays.h"

#include <string.h>

#include "base/arithmetic.h"
#include "base/copy.h"
#include "base/memory.h"

#define LINE_BYTES 64u
#define NO_OFFSET SIZE_MAX
#define ROW_PADDING_PARTS 5u /* rows begin on a cache line where that adds at most one part in so many */
#define WHOLE_LINES_BYTES 512u /* values from here on begin on a cache line, smaller ones are packed */
#define AHEAD 8u               /* values to prefetch ahead of a copy */
#define SMALL_AHEAD 24u        /* the same out of columns of small values, which take less time */

static bool is_small(size_t value_bytes) {
    return value_bytes > 0 && value_bytes < COLUMN_ARRAYS_SMALL_BYTES;
}

/* The alignment of elements that the size of a value allows, at most 8. */
static size_t alignment(size_t value_bytes) {
    size_t lowest_bit = value_bytes & -value_bytes;
    return lowest_bit < 8 ? lowest_bit : 8;
}

/* The most aligned columns come first: then none needs padding before it. */
static void lay_out_row(struct column_arrays *arrays, const size_t *value_bytes) {
    size_t strictest = 1;
    for (size_t aligned = 8; aligned > 0; aligned /= 2) {
        for (uint32_t i = 0; i < arrays->columns; i++) {
            if (is_small(value_bytes[i]) && alignment(value_bytes[i]) == aligned) {
                arrays->offset[i] = arrays->row_bytes;
                arrays->row_bytes += value_bytes[i];
                strictest = aligned > strictest ? aligned : strictest;
            }
        }
    }
    arrays->row_bytes = round_up(arrays->row_bytes, strictest);
    size_t lines = round_up(arrays->row_bytes, LINE_BYTES);
    if (lines - arrays->row_bytes <= arrays->row_bytes / ROW_PADDING_PARTS) arrays->row_bytes = lines;
}

void column_arrays_init(struct column_arrays *arrays, uint32_t columns, const size_t *value_bytes) {
    memset(arrays, 0, sizeof *arrays);
    arrays->columns = columns;
    memcpy(arrays->value_bytes, value_bytes, columns * sizeof *value_bytes);
    lay_out_row(arrays, value_bytes);
    arrays->slot_bytes = arrays->row_bytes;
    for (uint32_t i = 0; i < columns; i++) {
        if (is_small(value_bytes[i])) {
            arrays->stride[i] = arrays->row_bytes;
            continue;
        }
        arrays->offset[i] = NO_OFFSET;
        bool packed = value_bytes[i] < WHOLE_LINES_BYTES;
        arrays->stride[i] = packed ? value_bytes[i] : round_up(value_bytes[i], LINE_BYTES);
        arrays->slot_bytes += arrays->stride[i];
    }
}

static uint8_t *map(size_t size_bytes) {
    uint8_t *memory = memory_map(size_bytes);
    if (memory && size_bytes >= MEMORY_HUGE_BYTES) memory_advise_huge(memory, size_bytes);
    return memory;
}

/* Whether a column has an array of its own. */
static bool is_apart(const struct column_arrays *arrays, uint32_t column) {
    return arrays->stride[column] > 0 && arrays->offset[column] == NO_OFFSET;
}

/* An array for a column: on the disk, if there is one. */
static uint8_t *map_apart(struct column_arrays *arrays, uint32_t column) {
    size_t size_bytes = arrays->stride[column] * arrays->slots;
    if (!arrays->disk) return map(size_bytes);
    arrays->region[column] = disk_region_new(arrays->disk, size_bytes);
    return arrays->region[column] ? arrays->region[column]->base : NULL;
}

int column_arrays_map(struct column_arrays *arrays, uint64_t slots, struct disk_memory *disk) {
    arrays->slots = slots;
    arrays->disk = disk;
    bool failed = arrays->row_bytes && !(arrays->rows = map(arrays->row_bytes * slots));
    for (uint32_t i = 0; i < arrays->columns && !failed; i++) {
        if (is_apart(arrays, i)) {
            arrays->base[i] = map_apart(arrays, i);
            failed = !arrays->base[i];
        } else if (arrays->stride[i]) {
            arrays->base[i] = arrays->rows + arrays->offset[i];
        }
    }
    return failed ? -1 : 0;
}

void column_arrays_free(struct column_arrays *arrays) {
    for (uint32_t i = 0; i < arrays->columns; i++)
        if (is_apart(arrays, i) && !arrays->disk) memory_unmap(arrays->base[i], arrays->stride[i] * arrays->slots);
    memory_unmap(arrays->rows, arrays->row_bytes * arrays->slots);
    memset(arrays, 0, sizeof *arrays);
}

bool column_arrays_back(struct column_arrays *arrays, uint64_t slots) {
    for (uint32_t i = 0; i < arrays->columns; i++)
        if (arrays->region[i] && !disk_region_back(arrays->region[i], arrays->stride[i] * slots)) return false;
    return true;
}

void column_arrays_expect(const struct column_arrays *arrays, uint32_t slot, uint32_t slots, enum disk_use use) {
    for (uint32_t i = 0; i < arrays->columns; i++)
        if (arrays->region[i])
            disk_memory_expect(arrays->disk, column_arrays_value(arrays, i, slot), arrays->stride[i] * slots, use);
}

/* ---- copying ------------------------------------------------------------------------------------------------------- */

/* Inlined for sizes that are known at compile time: a copy of a few bytes needs no call then. */
static inline __attribute__((always_inline)) void scatter(uint8_t *base, size_t stride, size_t value_bytes,
                                                          const uint32_t *slots, uint32_t n, const uint8_t *values) {
    for (uint32_t i = 0; i < n; i++) {
        if (i + AHEAD < n) __builtin_prefetch(base + slots[i + AHEAD] * stride, 1);
        memcpy(base + slots[i] * stride, values + i * value_bytes, value_bytes);
    }
}

void column_arrays_scatter(const struct column_arrays *arrays, uint32_t column, const uint32_t *slots, uint32_t n,
                           const void *values) {
    size_t stride = arrays->stride[column], value_bytes = arrays->value_bytes[column];
    uint8_t *base = arrays->base[column];
    const uint8_t *value = values;
    switch (value_bytes) {
    case 1: scatter(base, stride, 1, slots, n, value); return;
    case 4: scatter(base, stride, 4, slots, n, value); return;
    case 8: scatter(base, stride, 8, slots, n, value); return;
    default: scatter(base, stride, value_bytes, slots, n, value); return;
    }
}

/* Copies values of a size known at compile time. */
static inline __attribute__((always_inline)) void gather_fixed(const uint8_t *base, size_t stride, size_t value_bytes,
                                                               const uint32_t *slots, uint32_t n, uint8_t *values) {
    for (uint32_t i = 0; i < n; i++) memcpy(values + i * value_bytes, base + slots[i] * stride, value_bytes);
}

#define SMALL_BYTES 256u /* values up to here are copied by words, without a call for each */

/* 8 to SMALL_BYTES bytes: whole words, and a last one that may overlap them. */
static inline __attribute__((always_inline)) void copy_small(uint8_t *to, const uint8_t *from, size_t bytes) {
    if (bytes < 16) {
        memcpy(to, from, 8);
        memcpy(to + bytes - 8, from + bytes - 8, 8);
        return;
    }
    for (size_t at = 0; at + 16 < bytes; at += 16) memcpy(to + at, from + at, 16);
    memcpy(to + bytes - 16, from + bytes - 16, 16);
}

static void gather_small(const uint8_t *base, size_t stride, size_t value_bytes, const uint32_t *slots, uint32_t n,
                         uint8_t *values) {
    for (uint32_t i = 0; i < n; i++) {
        if (i + SMALL_AHEAD < n) {
            const uint8_t *ahead = base + slots[i + SMALL_AHEAD] * stride;
            for (size_t line = 0; line < value_bytes; line += 64) __builtin_prefetch(ahead + line);
            __builtin_prefetch(ahead + value_bytes - 1);
        }
        copy_small(values + i * value_bytes, base + slots[i] * stride, value_bytes);
    }
}

/* Large results: the caches could not hold them anyway. */
static void gather_streamed(const uint8_t *base, size_t stride, size_t value_bytes, const uint32_t *slots, uint32_t n,
                            uint8_t *values) {
    for (uint32_t i = 0; i < n; i++) {
        if (i + 1 < n) __builtin_prefetch(base + slots[i + 1] * stride);
        copy_streamed(values + i * value_bytes, base + slots[i] * stride, value_bytes);
    }
    copy_streamed_end();
}

void column_arrays_gather(const struct column_arrays *arrays, uint32_t column, const uint32_t *slots, uint32_t n,
                          void *values, size_t result_bytes) {
    size_t stride = arrays->stride[column], value_bytes = arrays->value_bytes[column];
    const uint8_t *base = arrays->base[column];
    uint8_t *value = values;
    switch (value_bytes) {
    case 1: gather_fixed(base, stride, 1, slots, n, value); return;
    case 2: gather_fixed(base, stride, 2, slots, n, value); return;
    case 4: gather_fixed(base, stride, 4, slots, n, value); return;
    case 8: gather_fixed(base, stride, 8, slots, n, value); return;
    default: break;
    }
    if (value_bytes > 8 && value_bytes <= SMALL_BYTES) {
        gather_small(base, stride, value_bytes, slots, n, value);
        return;
    }
    if (copy_streams(result_bytes, value_bytes)) {
        gather_streamed(base, stride, value_bytes, slots, n, value);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (i + AHEAD < n) {
            const uint8_t *ahead = base + slots[i + AHEAD] * stride;
            __builtin_prefetch(ahead);
            __builtin_prefetch(ahead + (value_bytes > 64 ? 64 : 0));
        }
        memcpy(value + i * value_bytes, base + slots[i] * stride, value_bytes);
    }
}

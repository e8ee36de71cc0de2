/* column_arrays: where the columns of items, or of steps, lie: the value of a slot at base + slot * stride.
 *
 * Small columns lie side by side, one row a slot, so that reading or writing a slot touches a cache line or two in all;
 * every other column has an array of its own, large values beginning on a cache line. The memory is address space: pages are
 * touched only as slots are used. The arrays of their own can lie on a disk (disk_memory.h); rows are always in memory. */
#ifndef REPLAY_REPLAY_COLUMN_ARRAYS_H
#define REPLAY_REPLAY_COLUMN_ARRAYS_H

#include <stddef.h>
#include <stdint.h>

#include "base/disk_memory.h"
#include "replay/table.h"

#define COLUMN_ARRAYS_SMALL_BYTES 64u /* values below this lie in rows */

struct column_arrays {
    uint32_t columns;
    uint64_t slots;
    uint8_t *base[TABLE_MAX_COLUMNS]; /* NULL: no such column */
    size_t stride[TABLE_MAX_COLUMNS];
    size_t value_bytes[TABLE_MAX_COLUMNS];
    size_t offset[TABLE_MAX_COLUMNS]; /* in the row */
    uint8_t *rows;                    /* NULL: no small columns */
    size_t row_bytes;
    size_t slot_bytes; /* of all columns, padding included */
    struct disk_memory *disk; /* NULL: all is in memory */
    struct disk_region *region[TABLE_MAX_COLUMNS]; /* on the disk: of columns with arrays of their own; else NULL */
};

/* Columns of so many bytes a value, 0: none. Nothing is mapped yet. */
void column_arrays_init(struct column_arrays *arrays, uint32_t columns, const size_t *value_bytes);
/* `disk`: NULL for arrays in memory. -1: memory is exhausted; column_arrays_free is then still to be called. */
int column_arrays_map(struct column_arrays *arrays, uint64_t slots, struct disk_memory *disk);
/* Reserves space on the disk for the first `slots`. False: there is none. */
bool column_arrays_back(struct column_arrays *arrays, uint64_t slots);
/* A slot's arrays will be read, or written, soon; those on a disk may be absent. */
void column_arrays_expect(const struct column_arrays *arrays, uint32_t slot, uint32_t slots, enum disk_use use);
void column_arrays_free(struct column_arrays *arrays); /* takes zeroed memory as well */

static inline uint8_t *column_arrays_value(const struct column_arrays *arrays, uint32_t column, uint32_t slot) {
    return arrays->base[column] + (size_t)slot * arrays->stride[column];
}

/* Copies n packed values into slots, and out of slots. */
void column_arrays_scatter(const struct column_arrays *arrays, uint32_t column, const uint32_t *slots, uint32_t n,
                           const void *values);
/* `result_bytes`: of the whole that these are a part of; a large one is copied past the caches. */
void column_arrays_gather(const struct column_arrays *arrays, uint32_t column, const uint32_t *slots, uint32_t n,
                          void *values, size_t result_bytes);

/* A slot's small columns will be read soon. */
static inline void column_arrays_prefetch(const struct column_arrays *arrays, uint32_t slot) {
    const uint8_t *row = arrays->rows + (size_t)slot * arrays->row_bytes;
    for (size_t line = 0; line < arrays->row_bytes; line += 64) __builtin_prefetch(row + line);
}

#endif

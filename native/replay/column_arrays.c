/* column_arrays: the layout of rows, and the mappings. */
#include "replay/column_arrays.h"

#include <string.h>

#include "base/memory.h"

#define LINE_BYTES 64u
#define NO_OFFSET SIZE_MAX
#define ROW_PADDING_PARTS 5u /* rows begin on a cache line where that adds at most one part in so many */
#define WHOLE_LINES_BYTES 512u /* values from here on begin on a cache line, smaller ones are packed */

static size_t round_up(size_t value, size_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

static bool is_small(size_t value_bytes) {
    return value_bytes > 0 && value_bytes < COLUMN_ARRAYS_SMALL_BYTES;
}

/* What the size of a value allows its elements to be aligned to, at most 8. */
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
    if (lines - arrays->row_bytes <= arrays->row_bytes / ROW_PADDING_PARTS) {
        arrays->row_bytes = lines;
    }
}

void column_arrays_init(struct column_arrays *arrays, uint32_t columns, const size_t *value_bytes) {
    memset(arrays, 0, sizeof *arrays);
    arrays->columns = columns;
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
    if (memory && size_bytes >= MEMORY_HUGE_BYTES) {
        memory_advise_huge(memory, size_bytes);
    }
    return memory;
}

/* Whether a column has an array of its own. */
static bool is_apart(const struct column_arrays *arrays, uint32_t column) {
    return arrays->stride[column] > 0 && arrays->offset[column] == NO_OFFSET;
}

int column_arrays_map(struct column_arrays *arrays, uint64_t slots) {
    arrays->slots = slots;
    bool failed = arrays->row_bytes && !(arrays->rows = map(arrays->row_bytes * slots));
    for (uint32_t i = 0; i < arrays->columns && !failed; i++) {
        if (is_apart(arrays, i)) {
            arrays->base[i] = map(arrays->stride[i] * slots);
            failed = !arrays->base[i];
        } else if (arrays->stride[i]) {
            arrays->base[i] = arrays->rows + arrays->offset[i];
        }
    }
    return failed ? -1 : 0;
}

void column_arrays_free(struct column_arrays *arrays) {
    for (uint32_t i = 0; i < arrays->columns; i++) {
        if (arrays->base[i] && is_apart(arrays, i)) {
            memory_unmap(arrays->base[i], arrays->stride[i] * arrays->slots);
        }
    }
    if (arrays->rows) {
        memory_unmap(arrays->rows, arrays->row_bytes * arrays->slots);
    }
    memset(arrays, 0, sizeof *arrays);
}

/* coded_columns: columns whose values are kept compressed: for each slot that has a value, a block in a pool.
 *
 * A block in the pool begins with its size. Every block was encoded here, or checked by coded_columns_is_block before
 * it can be read. So decoding it later cannot fail. */
#ifndef REPLAY_REPLAY_CODED_COLUMNS_H
#define REPLAY_REPLAY_CODED_COLUMNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "replay/block_pool.h"
#include "replay/codec.h"
#include "replay/column_set.h"
#include "replay/table.h"

struct coded_columns {
    struct codec *codec; /* NULL: no column is coded */
    uint32_t columns;
    uint64_t slots;
    struct column_set set;                 /* which columns are coded */
    size_t value_bytes[TABLE_MAX_COLUMNS]; /* as they were; 0: the column is not coded */
    size_t slot_bytes;                     /* of all coded columns of one slot, as they were */
    size_t largest;                        /* of value_bytes */
    uint8_t **block[TABLE_MAX_COLUMNS];    /* by slot; NULL: it has none yet */
    struct block_pool pool;
    uint8_t *scratch; /* room for the largest value */
};

/* Columns of so many bytes a value, 0: not coded. Nothing is mapped yet. */
void coded_columns_init(struct coded_columns *coded, uint32_t columns, const size_t *value_bytes);
/* Room for the blocks of so many slots, at most `most_bytes`, on a disk unless that is NULL. -1: memory is exhausted; free is
 * then still to be called. */
int coded_columns_map(struct coded_columns *coded, enum step_codec codec, uint64_t slots, uint64_t most_bytes,
                      struct disk_memory *disk);
void coded_columns_free(struct coded_columns *coded); /* takes zeroed memory as well */

static inline bool coded_columns_has(const struct coded_columns *coded, uint32_t column) {
    return column_set_has(&coded->set, column);
}

/* Keeps a copy of a block, or makes one of a value. -1: the pool is used up. */
int coded_columns_put(struct coded_columns *coded, uint32_t column, uint32_t slot, const uint8_t *block, size_t size);
int coded_columns_encode(struct coded_columns *coded, uint32_t column, uint32_t slot, const uint8_t *value);
/* The block of a slot that has one. */
const uint8_t *coded_columns_block(const struct coded_columns *coded, uint32_t column, uint32_t slot, size_t *size);
/* Whether the codec can make a value of this column of it. */
bool coded_columns_is_block(const struct coded_columns *coded, uint32_t column, const uint8_t *block, size_t size);
void coded_columns_decode(const struct coded_columns *coded, uint32_t column, uint32_t slot, uint8_t *value);
/* What a slot's blocks occupy in the pool; it has one for each column. */
uint64_t coded_columns_bytes(const struct coded_columns *coded, uint32_t slot);
void coded_columns_forget(struct coded_columns *coded, uint32_t slot); /* gives the slot's blocks back, if it has any */

#endif

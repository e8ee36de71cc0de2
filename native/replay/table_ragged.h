/* table_ragged: what ragged columns and ragged windows of drawn items show: how many rows each item has, and where they lie. */
#ifndef REPLAY_REPLAY_TABLE_RAGGED_H
#define REPLAY_REPLAY_TABLE_RAGGED_H

#include "replay/ragged_store.h"
#include "replay/table.h"

uint64_t table_ragged_rows(const struct table *table, uint32_t column, const uint32_t *slots,
                           uint32_t n); /* together */
/* Writes where the rows of n slots begin and end when they lie one behind the other, offsets[n + 1]; returns the last, which
 * is how many there are. */
int64_t table_ragged_offsets(const struct table *table, uint32_t column, const uint32_t *slots, uint32_t n,
                             int64_t *offsets);
/* Copies the rows of n slots out, one behind the other; returns their bytes. */
size_t table_ragged_gather(const struct table *table, uint32_t column, const uint32_t *slots, uint32_t n, void *rows);
/* The pieces of a slot's rows, in order, but of no window (table_window_step); false: it has none, or no more. */
bool table_ragged_first(const struct table *table, uint32_t column, uint32_t slot, struct ragged_piece *piece);
bool table_ragged_next(const struct table *table, uint32_t column, uint32_t slot, struct ragged_piece *piece);

#endif

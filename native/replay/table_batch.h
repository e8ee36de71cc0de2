/* table_batch: an add or a sample in one call, for callers whose arrays are at hand; the server goes step by step. */
#ifndef REPLAY_REPLAY_TABLE_BATCH_H
#define REPLAY_REPLAY_TABLE_BATCH_H

#include "replay/table.h"

/* Adds n items from one array for each COLUMN_ITEM, in the signature's order. As table_can_add and table_commit. */
int table_add_batch(struct table *table, uint32_t n, const void *const *items, const double *priorities, uint64_t *ids,
                    struct error *error);
/* table_sample, and the named columns of the items copied to `out`, one array each. `slots` is for n numbers. */
int table_sample_batch(struct table *table, uint32_t n, double beta, bool replace, uint32_t column_count,
                       const uint32_t *columns, void *const *out, uint32_t *slots, uint64_t *ids, double *probabilities,
                       float *weights, struct error *error);

#endif

/* table_batch: an add, an append or a sample in one call, for callers that have all arrays in memory. (The server
 * calls each step by itself.) A caller that may be interrupted between two calls, as any in Python, never holds a
 * reservation or a pin this way. */
#ifndef REPLAY_REPLAY_TABLE_BATCH_H
#define REPLAY_REPLAY_TABLE_BATCH_H

#include "replay/table.h"

/* A ragged column of n items: in place of an array there is one of these. */
struct table_rows {
    int64_t *offsets; /* n + 1: rows of item i are those from offsets[i] to offsets[i + 1] */
    uint8_t *rows;
    size_t length; /* bytes of `rows`; where they are written the room for them, and then what was needed */
};

/* Adds n items from one array for each COLUMN_ITEM, in the signature's order. As table_can_add and table_commit. */
int table_add_batch(struct table *table, uint32_t n, const void *const *items, const double *priorities, uint64_t *ids,
                    struct error *error);
/* table_sample, and the named columns of the items copied to `out`, one array each. `slots` is for n + 1
 * numbers. 1: ragged columns have too little room. Their offsets and lengths are written, and the items are still pinned, which
 * the last number says, n: table_take_rows or table_let_go is to follow. */
int table_sample_batch(struct table *table, uint32_t n, double beta, bool replace, uint32_t column_count,
                       const uint32_t *columns, void *const *out, uint32_t *slots, uint64_t *ids, double *probabilities,
                       float *weights, struct table_detail *details, struct error *error);

/* table_get, and the named columns of the items copied to `out` likewise. */
int table_get_batch(struct table *table, uint32_t n, const uint64_t *ids, uint32_t column_count,
                    const uint32_t *columns, void *const *out, uint32_t *slots, double *probabilities,
                    struct error *error);

/* Copies the rows of the ragged columns, for which there is room now, and unpins the items. */
void table_take_rows(struct table *table, uint32_t n, uint32_t *slots, uint32_t column_count, const uint32_t *columns,
                     void *const *out);
/* Unpins the items of a call that was interrupted, if they are pinned. */
void table_let_go(struct table *table, uint32_t n, uint32_t *slots);

/* n streams, or none: a refusal leaves nothing. */
int table_streams_new(struct table *table, uint32_t n, uint32_t history, struct stream **streams, struct error *error);
/* Frees those that are not NULL, and makes them NULL. */
void table_streams_free(struct table *table, uint32_t n, struct stream **streams);
/* Appends n steps from one array for each named column. As table_append. */
int table_append_batch(struct table *table, uint32_t n, struct stream *const *streams, const uint8_t *flags,
                       uint32_t column_count, const uint32_t *columns, const void *const *steps, struct error *error);
/* Makes as many of the first of n items as table_admits, from one array for each named column, of a ragged window of n
 * table_spans; `made` says how many. As table_can_add, table_resolve and table_commit. */
int table_items_batch(struct table *table, uint32_t n, struct stream *const *streams, const uint64_t *steps,
                      uint32_t column_count, const uint32_t *columns, const void *const *items,
                      const double *priorities, uint64_t *ids, uint32_t *made, struct error *error);

#endif

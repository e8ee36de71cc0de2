/* table_batch: an add or a sample in one call. */
#include "replay/table_batch.h"

int table_add_batch(struct table *table, uint32_t n, const void *const *items, const double *priorities, uint64_t *ids,
                    struct error *error) {
    /* Asked first, so that a wait copies nothing. */
    if (table_can_add(table, n, error)) {
        return -1;
    }
    struct reservation *reservation = table_reserve(table, n, error);
    if (!reservation) {
        return -1;
    }
    const struct table_config *config = table_config(table);
    for (uint32_t i = 0; i < config->columns; i++) {
        if (config->column[i].kind == COLUMN_ITEM) {
            reservation_fill(reservation, i, *items++);
        }
    }
    if (table_commit(table, reservation, priorities, ids, error)) {
        reservation_release(reservation);
        return -1;
    }
    return 0;
}

int table_sample_batch(struct table *table, uint32_t n, double beta, bool replace, uint32_t column_count,
                       const uint32_t *columns, void *const *out, uint32_t *slots, uint64_t *ids, double *probabilities,
                       float *weights, struct error *error) {
    if (table_sample(table, n, beta, replace, slots, ids, probabilities, weights, error)) {
        return -1;
    }
    for (uint32_t i = 0; i < column_count; i++) {
        table_gather(table, columns[i], slots, n, out[i]);
    }
    table_unpin(table, slots, n);
    return 0;
}

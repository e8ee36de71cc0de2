/* table_batch: an add, an append or a sample in one call. */
#include "replay/table_batch.h"

int table_add_batch(struct table *table, uint32_t n, const void *const *items, const double *priorities, uint64_t *ids,
                    struct error *error) {
    /* Asked first, so that a wait copies nothing. */
    if (!table_can_add(table, n, error)) return -1;
    struct reservation *reservation = table_reserve(table, n, error);
    if (!reservation) return -1;
    const struct table_config *config = table_config(table);
    for (uint32_t i = 0; i < config->columns; i++)
        if (config->column[i].kind == COLUMN_ITEM) reservation_fill(reservation, i, *items++);
    if (table_commit(table, reservation, priorities, ids, error)) {
        reservation_release(reservation);
        return -1;
    }
    return 0;
}

/* Copies columns of pinned slots out, and unpins them. */
static void take_out(struct table *table, uint32_t n, uint32_t *slots, uint32_t column_count, const uint32_t *columns,
                     void *const *out) {
    for (uint32_t i = 0; i < column_count; i++) table_gather(table, columns[i], slots, n, out[i]);
    table_unpin(table, slots, n);
}

int table_sample_batch(struct table *table, uint32_t n, double beta, bool replace, uint32_t column_count,
                       const uint32_t *columns, void *const *out, uint32_t *slots, uint64_t *ids, double *probabilities,
                       float *weights, struct error *error) {
    if (table_sample(table, n, beta, replace, slots, ids, probabilities, weights, error)) return -1;
    take_out(table, n, slots, column_count, columns, out);
    return 0;
}

int table_get_batch(struct table *table, uint32_t n, const uint64_t *ids, uint32_t column_count,
                    const uint32_t *columns, void *const *out, uint32_t *slots, double *probabilities,
                    struct error *error) {
    if (table_get(table, n, ids, 0, slots, probabilities, error)) return -1;
    take_out(table, n, slots, column_count, columns, out);
    return 0;
}

int table_streams_new(struct table *table, uint32_t n, uint32_t history, struct stream **streams, struct error *error) {
    for (uint32_t i = 0; i < n; i++) {
        streams[i] = table_stream_new(table, history, error);
        if (!streams[i]) {
            table_streams_free(table, i, streams);
            return -1;
        }
    }
    return 0;
}

void table_streams_free(struct table *table, uint32_t n, struct stream **streams) {
    for (uint32_t i = 0; i < n; i++) {
        if (streams[i]) {
            table_stream_free(table, streams[i]);
            streams[i] = NULL;
        }
    }
}

int table_append_batch(struct table *table, uint32_t n, struct stream *const *streams, const uint8_t *flags,
                       uint32_t column_count, const uint32_t *columns, const void *const *steps, struct error *error) {
    struct reservation *reservation = table_reserve_steps(table, n, error);
    if (!reservation) return -1;
    for (uint32_t i = 0; i < column_count; i++) reservation_fill(reservation, columns[i], steps[i]);
    if (table_append(table, reservation, streams, flags, error)) {
        reservation_release(reservation);
        return -1;
    }
    return 0;
}

int table_items_batch(struct table *table, uint32_t n, struct stream *const *streams, const uint64_t *steps,
                      uint32_t column_count, const uint32_t *columns, const void *const *items,
                      const double *priorities, uint64_t *ids, uint32_t *made, struct error *error) {
    /* Asked first, so that a wait copies nothing. */
    uint32_t count = table_admits(table, n);
    if (count == 0) {
        count = 1; /* that one is refused, with the reason */
        if (!table_can_add(table, count, error)) return -1;
    }
    struct reservation *reservation = table_reserve(table, count, error);
    if (!reservation) return -1;
    for (uint32_t i = 0; i < column_count; i++) reservation_fill(reservation, columns[i], items[i]);
    if (table_resolve(table, reservation, streams, steps, error) ||
        table_commit(table, reservation, priorities, ids, error)) {
        reservation_release(reservation);
        return -1;
    }
    *made = count;
    return 0;
}

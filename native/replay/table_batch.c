#include "replay/table_batch.h"

#include "base/clock.h"
#include "replay/table_ragged.h"

/* Puts columns of a reservation into place. */
static int fill(struct reservation *reservation, const struct table_config *config, uint32_t column, const void *values,
                struct error *error) {
    if (!column_is_ragged(&config->column[column])) {
        reservation_fill(reservation, column, values);
        return 0;
    }
    const struct table_rows *rows = values;
    return reservation_fill_ragged(reservation, column, rows->offsets, rows->rows, rows->length, CLOCK_NEVER, error);
}

int table_add_batch(struct table *table, uint32_t n, const void *const *items, const double *priorities, uint64_t *ids,
                    struct error *error) {
    /* Asked first, so that a wait copies nothing. */
    if (!table_can_add(table, n, error)) return -1;
    struct reservation *reservation = table_reserve(table, n, error);
    if (!reservation) return -1;
    const struct table_config *config = table_config(table);
    int refused = 0;
    for (uint32_t i = 0; i < config->columns && !refused; i++)
        if (config->column[i].kind == COLUMN_ITEM) refused = fill(reservation, config, i, *items++, error);
    if (refused || table_commit(table, reservation, priorities, ids, error)) {
        reservation_release(reservation);
        return -1;
    }
    return 0;
}

/* Writes where the rows of a ragged column begin; whether there is room for them. */
static bool rows_fit(const struct table *table, uint32_t n, const uint32_t *slots, uint32_t column,
                     struct table_rows *rows) {
    size_t room = rows->length;
    uint64_t count = (uint64_t)table_ragged_offsets(table, column, slots, n, rows->offsets);
    rows->length = count * table_config(table)->column[column].row_bytes;
    return rows->length <= room;
}

void table_let_go(struct table *table, uint32_t n, uint32_t *slots) {
    table_unpin(table, slots, slots[n]);
    slots[n] = 0;
}

void table_take_rows(struct table *table, uint32_t n, uint32_t *slots, uint32_t column_count, const uint32_t *columns,
                     void *const *out) {
    const struct table_config *config = table_config(table);
    for (uint32_t i = 0; i < column_count; i++)
        if (column_is_ragged(&config->column[columns[i]]))
            table_ragged_gather(table, columns[i], slots, n, ((const struct table_rows *)out[i])->rows);
    slots[n] = n;
    table_let_go(table, n, slots);
}

/* Copies columns of pinned slots out, and unpins them. 1: there is too little room for rows, and they are still pinned. */
static int take_out(struct table *table, uint32_t n, uint32_t *slots, uint32_t column_count, const uint32_t *columns,
                    void *const *out) {
    const struct table_config *config = table_config(table);
    bool fits = true;
    for (uint32_t i = 0; i < column_count; i++)
        if (column_is_ragged(&config->column[columns[i]]))
            fits = rows_fit(table, n, slots, columns[i], out[i]) && fits;
        else
            table_gather(table, columns[i], slots, n, out[i]);
    slots[n] = fits ? 0 : n;
    if (!fits) return 1;
    table_take_rows(table, n, slots, column_count, columns, out);
    return 0;
}

int table_sample_batch(struct table *table, uint32_t n, double beta, bool replace, uint32_t column_count,
                       const uint32_t *columns, void *const *out, uint32_t *slots, uint64_t *ids, double *probabilities,
                       float *weights, struct table_detail *details, struct error *error) {
    if (table_sample(table, n, beta, replace, slots, ids, probabilities, weights, details, error)) return -1;
    return take_out(table, n, slots, column_count, columns, out);
}

int table_get_batch(struct table *table, uint32_t n, const uint64_t *ids, uint32_t column_count,
                    const uint32_t *columns, void *const *out, uint32_t *slots, double *probabilities,
                    struct error *error) {
    if (table_get(table, n, ids, 0, slots, probabilities, error)) return -1;
    return take_out(table, n, slots, column_count, columns, out);
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

/* What ragged windows show is given in place of a column. */
static struct table_spans spans_of(const struct table_config *config, uint32_t column_count, const uint32_t *columns,
                                   const void *const *items) {
    struct table_spans spans = {{NULL}};
    for (uint32_t i = 0; i < column_count; i++)
        if (config->column[columns[i]].kind == COLUMN_WINDOW) spans.of[columns[i]] = items[i];
    return spans;
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
    const struct table_config *config = table_config(table);
    const struct table_spans spans = spans_of(config, column_count, columns, items);
    int refused = 0;
    for (uint32_t i = 0; i < column_count && !refused; i++)
        if (config->column[columns[i]].kind == COLUMN_ITEM)
            refused = fill(reservation, config, columns[i], items[i], error);
    if (refused || table_resolve(table, reservation, streams, steps, &spans, error) ||
        table_commit(table, reservation, priorities, ids, error)) {
        reservation_release(reservation);
        return -1;
    }
    *made = count;
    return 0;
}

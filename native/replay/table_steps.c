/* table_steps: streams of steps, appending to them, and binding items to what their windows see. */
#include "replay/table_state.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"

#define STEPS_BETWEEN_LOOKS 8u /* at the clock, while steps are coded */

bool table_has_windows(const struct table *table) {
    return table->windows.steps > 0;
}

uint64_t table_step_slots(const struct table_config *config, uint32_t slots) {
    struct window_map map;
    window_map_plan(&map, config);
    uint64_t of_an_item = map.steps < map.span ? map.steps : map.span;
    return of_an_item * slots + TABLE_MAX_STREAM_STEPS + TABLE_MAX_BATCH;
}

/* ---- streams ------------------------------------------------------------------------------------------------------- */

struct stream *table_stream_new(struct table *table, uint32_t history, struct error *error) {
    const char *name = table->config.name;
    if (!table_has_windows(table)) {
        error_set(error, ERROR_BADSCHEMA, "table '%s' has no windows, so it takes no steps; add items to it", name);
        return NULL;
    }
    if (history < table->windows.span || history > STREAM_MAX_HISTORY) {
        error_set(error, ERROR_LIMIT,
                  "expected a history of %" PRIu32
                  " steps, as many as an item of table '%s' can see, to %u, got %" PRIu32,
                  table->windows.span, name, STREAM_MAX_HISTORY, history);
        return NULL;
    }
    if (table->stream_steps + (uint64_t)history > TABLE_MAX_STREAM_STEPS) {
        error_set(error, ERROR_LIMIT,
                  "the streams of table '%s' keep up to %" PRIu64 " of at most %u steps; close streams that are no "
                  "longer written to, or give them a smaller history than %" PRIu32,
                  name, table->stream_steps, TABLE_MAX_STREAM_STEPS, history);
        return NULL;
    }
    struct stream *stream = memory_calloc(1, sizeof *stream + history * sizeof stream->ring[0]);
    if (!stream) {
        error_set(error, ERROR_GENERIC, "out of memory for a stream of table '%s'", name);
        return NULL;
    }
    stream->table = table;
    stream->history = history;
    stream->next = table->streams;
    if (table->streams) {
        table->streams->previous = stream;
    }
    table->streams = stream;
    table->stream_count++;
    table->stream_steps += history;
    return stream;
}

void table_stream_free(struct table *table, struct stream *stream) {
    while (table_stream_free_some(table, stream, UINT32_MAX)) {
    }
}

bool table_stream_free_some(struct table *table, struct stream *stream, uint32_t most) {
    assert(stream->table == table);
    uint32_t cleared = stream_clear(stream, &table->steps, most);
    table->kept_steps -= cleared;
    if (cleared == most) {
        return true;
    }
    *(stream->previous ? &stream->previous->next : &table->streams) = stream->next;
    if (stream->next) {
        stream->next->previous = stream->previous;
    }
    table->stream_count--;
    table->stream_steps -= stream->history;
    memory_free(stream);
    return false;
}

uint64_t stream_steps(const struct stream *stream) {
    return stream->steps;
}

/* ---- steps: reserve, land ------------------------------------------------------------------------------------------ */

static struct step_reservation *reservation_take(struct table *table, uint32_t n) {
    struct step_reservation *reservation = table->step_pool;
    if (n <= TABLE_POOLED_RESERVATION_ROOM && reservation) {
        table->step_pool = reservation->next;
        table->pooled_steps--;
        return reservation;
    }
    uint32_t room = n <= TABLE_POOLED_RESERVATION_ROOM ? TABLE_POOLED_RESERVATION_ROOM : n;
    reservation = memory_alloc(sizeof *reservation + room * sizeof reservation->steps[0]);
    if (reservation) {
        reservation->room = room;
    }
    return reservation;
}

static void reservation_give(struct table *table, struct step_reservation *reservation) {
    table->step_reservations--;
    if (reservation->staging) {
        table_staging_give(table, reservation->staging, reservation->staging_bytes);
    }
    if (reservation->room == TABLE_POOLED_RESERVATION_ROOM && table->pooled_steps < TABLE_POOLED_RESERVATIONS) {
        reservation->next = table->step_pool;
        table->step_pool = reservation;
        table->pooled_steps++;
        return;
    }
    memory_free(reservation);
}

static int check_reservation(const struct table *table, uint32_t n, struct error *error) {
    const struct step_store *store = &table->steps;
    if (!table_has_windows(table)) {
        return error_set(error, ERROR_BADSCHEMA, "table '%s' has no windows, so it takes no steps; add items to it",
                         table->config.name);
    }
    if (n < 1 || n > TABLE_MAX_BATCH) {
        return error_set(error, ERROR_LIMIT, "expected 1 to %u steps at once, got %" PRIu32, TABLE_MAX_BATCH, n);
    }
    uint64_t reserved = store->reserved + (uint64_t)n;
    if (reserved > TABLE_MAX_BATCH || reserved * store->step_bytes > TABLE_MAX_STAGING_BYTES ||
        n > step_store_free_slots(store)) {
        return error_set(error, ERROR_LIMIT,
                         "no room for %" PRIu32 " steps of %zu bytes: %" PRIu32 " are on their way to table '%s', "
                         "%" PRIu32 " in it; append fewer at once",
                         n, store->step_bytes, store->reserved, table->config.name, store->live);
    }
    return 0;
}

struct step_reservation *table_reserve_steps(struct table *table, uint32_t n, struct error *error) {
    if (table_check_open(table, error) || check_reservation(table, n, error)) {
        return NULL;
    }
    struct step_reservation *reservation = reservation_take(table, n);
    if (!reservation) {
        error_set(error, ERROR_GENERIC, "out of memory for a reservation of %" PRIu32 " steps", n);
        return NULL;
    }
    reservation->table = table;
    reservation->n = n;
    reservation->staging = NULL;
    reservation->staged = reservation->unchecked = 0;
    reservation->coded = 0;
    table->step_reservations++;
    if (table->steps.codec) {
        size_t bytes = n * table->steps.coded_bytes;
        reservation->staging = table_staging_take(table, bytes, &reservation->staging_bytes, error);
        if (!reservation->staging) {
            reservation_give(table, reservation);
            return NULL;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        reservation->steps[i] = step_store_reserve(&table->steps);
    }
    return reservation;
}

/* Where a coded column begins in the staging area. */
static uint8_t *staging_column(const struct step_reservation *reservation, uint32_t column) {
    const struct step_store *store = &reservation->table->steps;
    uint8_t *base = reservation->staging;
    for (uint32_t i = 0; i < column; i++) {
        base += step_store_is_coded(store, i) ? reservation->n * store->column_step_bytes[i] : 0;
    }
    return base;
}

void step_reservation_landing(struct step_reservation *reservation, uint32_t column, uint8_t **base, size_t *stride,
                              const uint32_t **slots) {
    const struct step_store *store = &reservation->table->steps;
    assert(column < store->columns && store->column_step_bytes[column]);
    if (step_store_is_coded(store, column)) {
        *base = staging_column(reservation, column);
        *stride = store->column_step_bytes[column];
        *slots = NULL;
        reservation->staged |= 1ull << column;
    } else {
        *base = store->arrays.base[column];
        *stride = store->arrays.stride[column];
        *slots = reservation->steps;
    }
}

void step_reservation_fill(struct step_reservation *reservation, uint32_t column, const void *steps) {
    struct step_store *store = &reservation->table->steps;
    assert(column < store->columns && store->column_step_bytes[column]);
    if (step_store_is_coded(store, column)) {
        memcpy(staging_column(reservation, column), steps, reservation->n * store->column_step_bytes[column]);
        reservation->staged |= 1ull << column;
    } else {
        step_store_scatter(store, column, reservation->steps, reservation->n, steps);
    }
}

static int refuse_pool(const struct table *table, struct error *error) {
    return error_set(error, ERROR_LIMIT, "no room for compressed steps of table '%s': %" PRIu32 " are in it",
                     table->config.name, table->steps.live);
}

static int refuse_block(const struct table *table, uint32_t column, uint32_t index, uint32_t size,
                        struct error *error) {
    return error_set(error, ERROR_BADSHAPE,
                     "column '%s' of table '%s': expected blocks of steps of %zu bytes (compression: %s), got one of "
                     "%" PRIu32 " bytes at index %" PRIu32 " that is none",
                     table->config.column[column].name, table->config.name, table->steps.column_step_bytes[column],
                     codec_name(step_store_is_coded(&table->steps, column) ? table->config.codec : CODEC_NONE), size,
                     index);
}

int step_reservation_fill_coded(struct step_reservation *reservation, uint32_t column, const uint32_t *sizes,
                                const uint8_t *blocks, size_t length, struct error *error) {
    struct table *table = reservation->table;
    struct step_store *store = &table->steps;
    bool is_coded = step_store_is_coded(store, column);
    size_t total = 0;
    for (uint32_t i = 0; i < reservation->n; i++) {
        if (sizes[i] > store->column_step_bytes[column] || (!is_coded && sizes[i] < store->column_step_bytes[column])) {
            return refuse_block(table, column, i, sizes[i], error);
        }
        total += sizes[i];
    }
    if (length != total) {
        return error_set(error, ERROR_BADSHAPE, "expected %zu bytes of blocks for column '%s', got %zu", total,
                         table->config.column[column].name, length);
    }
    if (!is_coded) {
        step_store_scatter(store, column, reservation->steps, reservation->n, blocks);
        return 0;
    }
    for (uint32_t i = 0; i < reservation->n; blocks += sizes[i++]) {
        if (step_store_put_block(store, column, reservation->steps[i], blocks, sizes[i])) {
            return refuse_pool(table, error);
        }
    }
    reservation->staged &= ~(1ull << column);
    reservation->unchecked |= 1ull << column;
    return 0;
}

/* Makes a block of a step that landed as it was, or looks into one that came. */
static int code_step(struct step_reservation *reservation, uint32_t column, uint32_t index, struct error *error) {
    struct table *table = reservation->table;
    struct step_store *store = &table->steps;
    uint32_t step = reservation->steps[index];
    if (reservation->staged & 1ull << column) {
        const uint8_t *value = staging_column(reservation, column) + index * store->column_step_bytes[column];
        return step_store_encode(store, column, step, value) ? refuse_pool(table, error) : 0;
    }
    size_t size;
    const uint8_t *block = step_store_block(store, column, step, &size);
    return step_store_is_block(store, column, block, size) ? 0
                                                           : refuse_block(table, column, index, (uint32_t)size, error);
}

int step_reservation_code(struct step_reservation *reservation, uint64_t deadline_us, struct error *error) {
    for (uint32_t column = 0; reservation->staged | reservation->unchecked; column++) {
        uint64_t bit = 1ull << column;
        if (!((reservation->staged | reservation->unchecked) & bit)) {
            continue;
        }
        while (reservation->coded < reservation->n) {
            if (code_step(reservation, column, reservation->coded, error)) {
                return -1;
            }
            if (++reservation->coded % STEPS_BETWEEN_LOOKS == 0 && deadline_us != CLOCK_NEVER &&
                clock_monotonic_us() >= deadline_us) {
                return 1;
            }
        }
        reservation->staged &= ~bit;
        reservation->unchecked &= ~bit;
        reservation->coded = 0;
    }
    return 0;
}

void step_reservation_release(struct step_reservation *reservation) {
    struct table *table = reservation->table;
    for (uint32_t i = reservation->n; i-- > 0;) {
        step_store_unreserve(&table->steps, reservation->steps[i]);
    }
    reservation_give(table, reservation);
}

/* ---- append -------------------------------------------------------------------------------------------------------- */

uint64_t table_bytes(const struct table *table) {
    return (uint64_t)table->storage.live * table->storage.item_bytes + table->steps.live_bytes;
}

void table_evict_for_bytes(struct table *table, uint64_t more_bytes) {
    while (table->storage.live && table_bytes(table) + more_bytes > table->config.max_bytes) {
        table_make_room(table, 1);
    }
}

/* Items leave for steps where max_bytes is near; what the streams themselves keep cannot. */
static int check_append(const struct table *table, uint32_t n, struct stream *const *streams, const uint8_t *flags,
                        struct error *error) {
    uint64_t kept = table->kept_steps;
    for (uint32_t i = 0; i < n; i++) {
        assert(streams[i]->table == table);
        kept += streams[i]->steps < streams[i]->history;
        if (flags && flags[i] & ~(STEP_FIRST | STEP_LAST)) {
            return error_set(error, ERROR_GENERIC,
                             "expected flags of 1 (first of an episode) and 2 (last), got %u at index %" PRIu32,
                             flags[i], i);
        }
    }
    uint64_t max_bytes = table->config.max_bytes;
    if (max_bytes && kept * step_store_mean_bytes(&table->steps) > max_bytes) {
        return error_set(error, ERROR_LIMIT,
                         "max_bytes of table '%s' is %" PRIu64 ", and the %" PRIu64
                         " last steps of its streams need %" PRIu64
                         "; raise max_bytes, use fewer streams, or a smaller history",
                         table->config.name, max_bytes, kept, kept * step_store_mean_bytes(&table->steps));
    }
    return 0;
}

int table_append(struct table *table, struct step_reservation *reservation, struct stream *const *streams,
                 const uint8_t *flags, struct error *error) {
    assert(reservation->table == table);
    uint32_t n = reservation->n;
    if (table_check_open(table, error) || check_append(table, n, streams, flags, error) ||
        step_reservation_code(reservation, CLOCK_NEVER, error)) {
        return -1;
    }
    for (uint32_t i = 0; i < n; i++) {
        table->kept_steps += streams[i]->steps < streams[i]->history;
        step_store_enter(&table->steps, reservation->steps[i]);
        stream_append(streams[i], &table->steps, reservation->steps[i], flags ? flags[i] : 0);
    }
    if (table->config.max_bytes) {
        table_evict_for_bytes(table, 0);
        table_repair(table);
    }
    reservation_give(table, reservation);
    return 0;
}

/* ---- items --------------------------------------------------------------------------------------------------------- */

int table_resolve(struct table *table, struct reservation *reservation, struct stream *const *streams,
                  const uint64_t *steps, struct error *error) {
    const struct window_map *map = &table->windows;
    assert(reservation->table == table && table_has_windows(table) && !reservation->resolved);
    for (uint32_t i = 0; i < reservation->n; i++) {
        assert(streams[i]->table == table);
        struct error why = {.code = ERROR_NONE};
        if (window_map_resolve(map, &table->steps, streams[i], steps[i], reservation_list(reservation, i), &why)) {
            for (uint32_t resolved = i; resolved-- > 0;) {
                window_map_drop(map, &table->steps, reservation_list(reservation, resolved));
            }
            return error_set(error, why.code, "item %" PRIu32 " of %" PRIu32 ": %s", i, reservation->n, why.message);
        }
    }
    reservation->resolved = true;
    return 0;
}

void table_unresolve(struct table *table, struct reservation *reservation, uint32_t first) {
    for (uint32_t i = first; reservation->resolved && i < reservation->n; i++) {
        window_map_drop(&table->windows, &table->steps, reservation_list(reservation, i));
    }
    reservation->resolved = reservation->resolved && first > 0;
}

const uint8_t *table_window_step(const struct table *table, uint32_t column, uint32_t slot, uint32_t index,
                                 size_t *size_bytes) {
    uint32_t source = table->config.column[column].source;
    uint32_t step = table_window_step_number(table, column, slot, index);
    if (step_store_is_coded(&table->steps, source)) {
        return step_store_block(&table->steps, source, step, size_bytes);
    }
    *size_bytes = table->steps.column_step_bytes[source];
    return step_store_step(&table->steps, source, step);
}

uint32_t table_window_step_number(const struct table *table, uint32_t column, uint32_t slot, uint32_t index) {
    assert(column < table->config.columns && table->config.column[column].kind == COLUMN_WINDOW);
    assert(slot < table->windows.slots && table->windows.first[column] + index < table->windows.steps);
    return window_map_list(&table->windows, slot)[table->windows.first[column] + index];
}

/* table_steps: streams of steps, appending to them, and binding items to what their windows see.
 *
 * Why a part of an append does little, however many items must leave for max_bytes: a step goes with the last item that shows
 * it, so a remover that chooses at random may free nothing many times in a row. At most MOST_LEAVING items leave with a part.
 * What is left to do is work of table_step, in slices, and whoever appends waits for that: between two parts of an append the
 * table is above max_bytes by the steps of one part at most. Where other tables show the steps, too, items that leave may free
 * nothing at all: at most MOST_IN_VAIN do, one after the other, and then an append is refused. */
#include "replay/table_state.h"

#include <assert.h>
#include <inttypes.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/memory.h"

#define PART_STEPS 8192u /* that items see which are resolved at once */
#define MOST_LEAVING 1024u /* items, with a part of an append */
#define MOST_IN_VAIN 64u /* items that leave one after the other and free little */

bool table_has_windows(const struct table *table) {
    return table->windows.steps > 0;
}

uint64_t table_step_slots(const struct table_config *config, uint64_t slots) {
    struct window_map map;
    window_map_init(&map, config);
    return (uint64_t)window_map_most_steps(&map) * slots + TABLE_MAX_STREAM_STEPS + TABLE_MAX_BATCH;
}

/* ---- streams ------------------------------------------------------------------------------------------------------- */

static int check_takes_steps(const struct table *table, struct error *error) {
    const struct table_config *config = &table->config;
    if (!table_has_windows(table))
        return error_set(error, ERROR_BADSCHEMA, "table '%s' has no windows, so it takes no steps; add items to it",
                         config->name);
    return *config->steps_of
               ? error_set(error, ERROR_BADSCHEMA, "table '%s' shares the steps of table '%s'; append them there",
                           config->name, config->steps_of)
               : 0;
}

struct stream *table_stream_new(struct table *table, uint32_t history, struct error *error) {
    const char *name = table->config.name;
    if (check_takes_steps(table, error)) return NULL;
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
    /* Of its history nothing is read before it was written: a megabyte need not be cleared now. */
    struct stream *stream = memory_alloc(sizeof *stream + history * sizeof stream->ring[0]);
    if (!stream) {
        error_set(error, ERROR_GENERIC, "out of memory for a stream of table '%s'", name);
        return NULL;
    }
    *stream = (struct stream){.table = table, .history = history};
    LIST_PUSH(table->streams, stream, next, previous);
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
    uint32_t cleared = stream_clear(stream, table->steps, most);
    table->kept_steps -= cleared;
    if (cleared == most) return true;
    LIST_TAKE_OUT(table->streams, stream, next, previous);
    table->stream_count--;
    table->stream_steps -= stream->history;
    memory_free(stream);
    return false;
}

uint64_t stream_steps(const struct stream *stream) {
    return stream->steps;
}

/* ---- steps ---------------------------------------------------------------------------------------------------------- */

static int check_reservation(const struct table *table, uint32_t n, struct error *error) {
    const struct slot_store *store = table->steps;
    if (check_takes_steps(table, error)) return -1;
    if (n < 1 || n > TABLE_MAX_BATCH)
        return error_set(error, ERROR_LIMIT, "expected 1 to %u steps at once, got %" PRIu32, TABLE_MAX_BATCH, n);
    uint64_t reserved = store->reserved + (uint64_t)n;
    if (reserved > TABLE_MAX_BATCH || reserved * store->slot_bytes > TABLE_MAX_STAGING_BYTES ||
        n > slot_store_free_slots(store)) {
        return error_set(error, ERROR_LIMIT,
                         "no room for %" PRIu32 " steps of %zu bytes: %" PRIu32 " are on their way to table '%s', "
                         "%" PRIu32 " in it; append fewer at once",
                         n, store->slot_bytes, store->reserved, table->config.name, store->occupied);
    }
    return 0;
}

struct reservation *table_reserve_steps(struct table *table, uint32_t n, struct error *error) {
    if (table_check_open(table, error) || check_reservation(table, n, error) ||
        table_back_slots(table, table->steps, n, error)) {
        return NULL;
    }
    return reservation_new(table, table->steps, n, n <= TABLE_RESERVED_LIMIT, error);
}

uint64_t table_bytes(const struct table *table) {
    uint64_t ragged = table->items.ragged ? table->items.ragged->live_bytes : 0;
    return (uint64_t)table->items.live * table->items.slot_bytes + ragged + slot_store_bytes(&table->own_steps);
}

static bool exceeds_bytes(const struct table *table) {
    return table->config.max_bytes && table_bytes(table) > table->config.max_bytes;
}

/* What other tables show stays when the owner's items leave, so these may leave in vain: what they free is less than half of
 * an item and a step. After MOST_IN_VAIN in a row one more is tried each time, since the others may have changed. */
bool table_make_room_for_bytes(struct table *table, uint32_t most) {
    for (uint32_t i = 0; i < most && table->items.live && exceeds_bytes(table); i++) {
        uint64_t before = table_bytes(table);
        uint64_t with_a_step = table->sharers ? table->items.slot_bytes + slot_store_mean_bytes(table->steps) : 0;
        table_make_room(table, 1);
        bool is_in_vain = before - table_bytes(table) < with_a_step / 2;
        table->left_in_vain = is_in_vain ? table->left_in_vain + 1 : 0;
        if (table->left_in_vain >= MOST_IN_VAIN) return false;
    }
    if (!exceeds_bytes(table)) table->left_in_vain = 0;
    return table->items.live && exceeds_bytes(table);
}

/* Whether more have to leave, which is work of table_step. */
static bool evict_for_bytes(struct table *table) {
    bool more = table_make_room_for_bytes(table, MOST_LEAVING);
    table->work.shrinking |= more;
    table_repair(table);
    if (table->journal) table_journal_write(table);
    return more;
}

void reservation_expect(struct reservation *reservation, uint32_t n, struct stream *const *streams) {
    uint32_t keeps = 0;
    for (uint32_t i = 0; i < n; i++) {
        assert(streams[i]->table == reservation->table);
        keeps += streams[i]->steps + streams[i]->expected++ < streams[i]->history;
    }
    reservation->expects += keeps;
}

void reservation_expect_nothing(struct reservation *reservation) {
    reservation->expects = 0;
}

void table_stream_expect_nothing(struct stream *stream) {
    stream->expected = 0;
}

static int check_flags(uint32_t n, const uint8_t *flags, struct error *error) {
    for (uint32_t i = 0; flags && i < n; i++) {
        if (flags[i] & ~(STEP_FIRST | STEP_LAST)) {
            return error_set(error, ERROR_GENERIC,
                             "expected flags of 1 (first of an episode) and 2 (last), got %u at index %" PRIu32,
                             flags[i], i);
        }
    }
    return 0;
}

/* Items leave to make room for steps within max_bytes. The steps that streams keep do not leave, so they must fit. */
static int check_kept(const struct table *table, uint32_t more, struct error *error) {
    uint64_t kept = table->kept_steps + table->keeping + more, max_bytes = table->config.max_bytes;
    if (max_bytes && kept * slot_store_mean_bytes(table->steps) > max_bytes) {
        return error_set(error, ERROR_LIMIT,
                         "max_bytes of table '%s' is %" PRIu64 ", and the %" PRIu64
                         " last steps of its streams need %" PRIu64
                         "; raise max_bytes, use fewer streams, or a smaller history",
                         table->config.name, max_bytes, kept, kept * slot_store_mean_bytes(table->steps));
    }
    return 0;
}

/* Where other tables share the steps, the table may hold more than max_bytes although its items have left. 1: some have still
 * to leave. */
static int check_bytes(struct table *table, struct error *error) {
    uint64_t max_bytes = table->config.max_bytes;
    if (!table->sharers || !exceeds_bytes(table)) return 0;
    if (evict_for_bytes(table)) return 1;
    if (!exceeds_bytes(table)) return 0;
    return error_set(error, ERROR_LIMIT,
                     "table '%s' takes %" PRIu64 " bytes with its steps, its max_bytes is %" PRIu64
                     ", and its items free too little when they leave: streams, or items of the tables that share its "
                     "steps, show those too; let some of these go, or raise max_bytes",
                     table->config.name, table_bytes(table), max_bytes);
}

int table_begin_append(struct table *table, struct reservation *reservation, struct error *error) {
    assert(reservation->table == table);
    int left;
    while ((left = reservation_place_steps(reservation, error)) > 0) {
    }
    if (left < 0 || table_check_open(table, error) || check_kept(table, reservation->expects, error)) return -1;
    if (reservation_code(reservation, CLOCK_NEVER, error)) return -1;
    if ((left = check_bytes(table, error))) return left;
    /* Not before: what may still be refused takes no room from others. */
    reservation->keeps = reservation->expects;
    table->keeping += reservation->keeps;
    return 0;
}

void table_append_part(struct table *table, struct reservation *reservation, uint32_t n, struct stream *const *streams,
                       const uint8_t *flags) {
    const uint32_t *slots = reservation->slots + reservation->entered;
    uint64_t kept = table->kept_steps;
    assert(reservation->table == table && n <= reservation->n - reservation->entered);
    for (uint32_t i = 0; i < n; i++) {
        table->kept_steps += streams[i]->steps < streams[i]->history;
        streams[i]->expected--;
        slot_store_enter(table->steps, slots[i]);
        stream_append(streams[i], table->steps, slots[i], flags ? flags[i] : 0);
    }
    reservation->entered += n;
    reservation->keeps -= (uint32_t)(table->kept_steps - kept);
    table->keeping -= table->kept_steps - kept;
    if (table->config.max_bytes) evict_for_bytes(table);
    if (reservation->entered < reservation->n) return;
    assert(reservation->keeps == 0);
    reservation_end(reservation);
}

int table_append(struct table *table, struct reservation *reservation, struct stream *const *streams,
                 const uint8_t *flags, struct error *error) {
    if (check_flags(reservation->n, flags, error)) return -1;
    reservation_expect(reservation, reservation->n, streams);
    int left;
    while ((left = table_begin_append(table, reservation, error)) > 0) table_step(table, CLOCK_NEVER);
    if (left < 0) {
        reservation_expect_nothing(reservation);
        for (uint32_t i = 0; i < reservation->n; i++) table_stream_expect_nothing(streams[i]);
        return -1;
    }
    table_append_part(table, reservation, reservation->n, streams, flags);
    if (table->work.shrinking) table_step(table, CLOCK_NEVER);
    return 0;
}

bool table_is_shrinking(const struct table *table) {
    return table->work.shrinking;
}

/* ---- items --------------------------------------------------------------------------------------------------------- */

int table_resolve_part(struct table *table, struct reservation *reservation, uint32_t n, struct stream *const *streams,
                       const uint64_t *steps, const struct table_spans *spans, struct error *error) {
    const struct window_map *map = &table->windows;
    uint32_t most = PART_STEPS / map->steps + 1, count = n < most ? n : most;
    assert(reservation->table == table && table_has_windows(table) && n <= reservation->n - reservation->resolved);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t item = reservation->resolved;
        assert(streams[i]->table == table_owner_of_steps(table));
        struct error why = {.code = ERROR_NONE};
        if (window_map_resolve(map, table->steps, streams[i], steps[i], spans, item,
                               reservation_list(reservation, item), &why)) {
            reservation_unresolve(reservation, 0);
            return error_set(error, why.code, "item %" PRIu32 " of %" PRIu32 ": %s", item, reservation->n, why.message);
        }
        reservation->resolved++;
    }
    return (int)count;
}

int table_resolve(struct table *table, struct reservation *reservation, struct stream *const *streams,
                  const uint64_t *steps, const struct table_spans *spans, struct error *error) {
    assert(reservation->resolved == 0);
    for (uint32_t at = 0; at < reservation->n;) {
        int count = table_resolve_part(table, reservation, reservation->n - at, streams + at, steps + at, spans, error);
        if (count < 0) return -1;
        at += (uint32_t)count;
    }
    return 0;
}

const uint8_t *table_window_step(const struct table *table, uint32_t column, uint32_t slot, uint32_t index,
                                 size_t *size_bytes) {
    uint32_t source = table->config.column[column].source;
    uint32_t step = table_window_step_number(table, column, slot, index);
    if (coded_columns_has(&table->steps->coded, source))
        return coded_columns_block(&table->steps->coded, source, step, size_bytes);
    *size_bytes = table->steps->value_bytes[source];
    if (*size_bytes == 0) return (const uint8_t *)"";
    return column_arrays_value(&table->steps->arrays, source, step);
}

void table_window_read(const struct table *table, uint32_t column, uint32_t slot, uint32_t index, void *out) {
    uint32_t source = table->config.column[column].source;
    uint32_t step = table_window_step_number(table, column, slot, index);
    if (coded_columns_has(&table->steps->coded, source))
        coded_columns_decode(&table->steps->coded, source, step, out);
    else
        memcpy(out, column_arrays_value(&table->steps->arrays, source, step), table->steps->value_bytes[source]);
}

uint32_t table_window_step_number(const struct table *table, uint32_t column, uint32_t slot, uint32_t index) {
    assert(column < table->config.columns && table->config.column[column].kind == COLUMN_WINDOW);
    assert(slot < table->items.slots && table->windows.first[column] + index < table->windows.steps);
    return slot_list(&table->items, slot)[table->windows.first[column] + index];
}

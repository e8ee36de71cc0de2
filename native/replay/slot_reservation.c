/* slot_reservation: reserve and land, for items and steps. */
#include "replay/slot_reservation.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/words.h"
#include "replay/table_state.h"

#define CODED_BYTES_BETWEEN_LOOKS (32u << 10) /* at the clock, while steps are coded */
#define BYTES_BETWEEN_LOOKS (64u << 10) /* the same, while ragged values, or blocks, are copied */
#define VALUE_COST_BYTES 256u /* a value or block, however short, costs about as much as copying so many bytes */
#define PLACED_BYTES (256u << 10) /* of steps that are given slots at once; short ones count as above */

/* ---- staging ------------------------------------------------------------------------------------------------------- */

static int staging_take(struct reservation *reservation, size_t bytes, struct error *error) {
    struct staging *staging = &reservation->table->staging;
    if (staging->kept && staging->kept_bytes >= bytes) {
        reservation->staging = staging->kept;
        reservation->staging_bytes = staging->kept_bytes;
        staging->kept = NULL;
        return 0;
    }
    if (bytes > TABLE_MAX_STAGING_BYTES || staging->total_bytes > TABLE_MAX_STAGING_BYTES - bytes) {
        return error_set(error, ERROR_LIMIT,
                         "an ADD of this size needs %zu bytes of staging, and %zu of %llu are in use; add at most %u "
                         "items at once",
                         bytes, staging->total_bytes, (unsigned long long)TABLE_MAX_STAGING_BYTES,
                         TABLE_RESERVED_LIMIT);
    }
    reservation->staging = memory_map(bytes);
    if (!reservation->staging)
        return error_set(error, ERROR_GENERIC, "out of memory: %zu bytes of staging could not be mapped", bytes);
    staging->total_bytes += bytes;
    reservation->staging_bytes = bytes;
    return 0;
}

static void staging_give(struct reservation *reservation) {
    struct staging *staging = &reservation->table->staging;
    if (!reservation->staging) return;
    if (!staging->kept && reservation->staging_bytes <= TABLE_KEPT_STAGING_BYTES) {
        staging->kept = reservation->staging;
        staging->kept_bytes = reservation->staging_bytes;
        return;
    }
    staging->total_bytes -= reservation->staging_bytes;
    memory_unmap(reservation->staging, reservation->staging_bytes);
}

/* Where a column begins in staging: columns follow one another, as many values each as were reserved. */
static uint8_t *staging_column(const struct reservation *reservation, uint32_t column) {
    uint8_t *base = reservation->staging;
    for (uint32_t i = 0; i < column; i++)
        if (column_set_has(&reservation->apart, i)) base += reservation->laid * reservation->store->value_bytes[i];
    return base;
}

/* ---- reserving and giving back ------------------------------------------------------------------------------------- */

static struct reservation *take(struct slot_store *store, uint32_t n) {
    struct reservation *reservation = store->pool;
    if (n <= RESERVATION_POOLED_ROOM && reservation) {
        store->pool = reservation->next;
        store->pooled--;
        return reservation;
    }
    uint32_t room = n <= RESERVATION_POOLED_ROOM ? RESERVATION_POOLED_ROOM : n;
    size_t slot_bytes = (1 + (size_t)store->list_length) * sizeof reservation->slots[0];
    reservation = memory_alloc(sizeof *reservation + room * slot_bytes);
    if (reservation) reservation->room = room;
    return reservation;
}

void reservation_end(struct reservation *reservation) {
    struct slot_store *store = reservation->store;
    store->reservations--;
    staging_give(reservation);
    if (reservation->room > RESERVATION_POOLED_ROOM || store->pooled == RESERVATION_POOLED) {
        memory_free(reservation);
        return;
    }
    reservation->next = store->pool;
    store->pool = reservation;
    store->pooled++;
}

void reservation_free_pool(struct slot_store *store) {
    assert(store->reservations == 0);
    while (store->pool) {
        struct reservation *next = store->pool->next;
        memory_free(store->pool);
        store->pool = next;
    }
}

static void take_slots(struct reservation *reservation, uint32_t first, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) reservation->slots[first + i] = slot_store_reserve(reservation->store);
}

struct reservation *reservation_new(struct table *table, struct slot_store *store, uint32_t n, bool placed,
                                    struct error *error) {
    struct reservation *reservation = take(store, n);
    if (!reservation) {
        error_set(error, ERROR_GENERIC, "out of memory for a reservation of %" PRIu32, n);
        return NULL;
    }
    size_t bytes = placed ? store->coded.slot_bytes : store->slot_bytes;
    uint32_t room = reservation->room;
    *reservation = (struct reservation){.table = table, .store = store, .n = n, .laid = n, .room = room};
    reservation->apart = store->coded.set;
    if (!placed) memset(&reservation->apart, 0xff, sizeof reservation->apart);
    store->reservations++;
    if (bytes > 0 && staging_take(reservation, n * bytes, error)) {
        reservation_end(reservation);
        return NULL;
    }
    if (placed) take_slots(reservation, 0, n);
    reservation->taken = placed ? n : 0;
    reservation->placed = placed;
    return reservation;
}

void reservation_unresolve(struct reservation *reservation, uint32_t first) {
    for (; reservation->resolved > first; reservation->resolved--)
        slot_store_drop_list(reservation->store, reservation_list(reservation, reservation->resolved - 1));
}

/* Where the ragged value of a place is; NULL: none was given. */
static struct ragged_value *ragged_place(const struct reservation *reservation, uint32_t column, uint32_t index) {
    if (reservation->placed) return slot_ragged(reservation->store, column, reservation->slots[index]);
    if (!column_set_has(&reservation->staged, column)) return NULL;
    return (struct ragged_value *)(void *)(staging_column(reservation, column) + index * sizeof(struct ragged_value));
}

static void drop_ragged(struct reservation *reservation, uint32_t first) {
    struct ragged_store *ragged = reservation->store->ragged;
    for (uint32_t i = 0; i < ragged->columns; i++) {
        uint32_t column = ragged->column[i];
        for (uint32_t index = first; index < reservation->n; index++) {
            struct ragged_value *value = ragged_place(reservation, column, index);
            if (!value || value->length == 0) continue;
            size_t bytes = ragged_store_takes(ragged, column, value->length);
            reservation->ragged_bytes -= bytes;
            ragged->reserved_bytes -= bytes;
            ragged_store_drop(ragged, column, value);
        }
    }
}

void reservation_hand_over_ragged(struct reservation *reservation, uint32_t first, uint32_t count) {
    const struct slot_store *store = reservation->store;
    for (uint32_t i = first; i < first + count; i++) {
        uint64_t bytes = slot_store_ragged_bytes(store, reservation->slots[i]);
        reservation->ragged_bytes -= bytes;
        store->ragged->reserved_bytes -= bytes;
    }
}

/* Gives back what the places from `first` on hold. */
static void give_up(struct reservation *reservation, uint32_t first) {
    reservation_unresolve(reservation, first);
    if (reservation->store->ragged) drop_ragged(reservation, first);
    for (; reservation->taken > first; reservation->taken--)
        slot_store_unreserve(reservation->store, reservation->slots[reservation->taken - 1]);
}

void reservation_release(struct reservation *reservation) {
    struct table *table = reservation->table;
    uint32_t left = reservation->n - reservation->entered;
    give_up(reservation, reservation->entered);
    table->keeping -= reservation->keeps;
    if (reservation->admitted) {
        rate_limiter_not_added(&table->limiter, left);
        table->entering -= left;
    }
    reservation_end(reservation);
}

void reservation_shorten(struct reservation *reservation, uint32_t n) {
    assert(n >= 1 && n <= reservation->n);
    give_up(reservation, n);
    reservation->n = n;
}

/* ---- landing ------------------------------------------------------------------------------------------------------- */

/* Whether values of a column go to staging now. Those of steps that have their slots do only to be compressed. */
static bool lands_apart(const struct reservation *reservation, uint32_t column) {
    bool is_coded = coded_columns_has(&reservation->store->coded, column);
    return column_set_has(&reservation->apart, column) && (is_coded || !reservation->placed);
}

void reservation_landing(struct reservation *reservation, uint32_t column, uint8_t **base, size_t *stride,
                         const uint32_t **slots) {
    const struct slot_store *store = reservation->store;
    assert(column < store->columns && store->value_bytes[column]);
    if (lands_apart(reservation, column)) {
        *base = staging_column(reservation, column);
        *stride = store->value_bytes[column];
        *slots = NULL;
        column_set_add(&reservation->staged, column);
    } else {
        *base = store->arrays.base[column];
        *stride = store->arrays.stride[column];
        *slots = reservation->slots;
    }
}

static void fill_part(struct reservation *reservation, uint32_t column, uint32_t first, uint32_t count,
                      const void *values) {
    const struct slot_store *store = reservation->store;
    size_t bytes = store->value_bytes[column];
    assert(column < store->columns);
    if (bytes == 0) return;
    if (lands_apart(reservation, column)) {
        memcpy(staging_column(reservation, column) + first * bytes, values, count * bytes);
        column_set_add(&reservation->staged, column);
    } else {
        column_arrays_scatter(&store->arrays, column, reservation->slots + first, count, values);
    }
}

void reservation_fill(struct reservation *reservation, uint32_t column, const void *values) {
    fill_part(reservation, column, 0, reservation->n, values);
}

/* Copies values out of staging, which stay there where they are still to be compressed. */
static void place_values(struct reservation *reservation, uint32_t first, uint32_t count) {
    const struct slot_store *store = reservation->store;
    COLUMN_SET_EACH(column, &reservation->staged) {
        const uint8_t *values = staging_column(reservation, column) + first * store->value_bytes[column];
        if (!coded_columns_has(&store->coded, column))
            column_arrays_scatter(&store->arrays, column, reservation->slots + first, count, values);
    }
}

void reservation_place(struct reservation *reservation, uint32_t first, uint32_t count) {
    take_slots(reservation, first, count);
    place_values(reservation, first, count);
}

static void forget_placed(struct reservation *reservation) {
    COLUMN_SET_EACH(column, &reservation->staged)
    if (!coded_columns_has(&reservation->store->coded, column)) column_set_remove(&reservation->staged, column);
}

int reservation_place_steps(struct reservation *reservation, struct error *error) {
    struct slot_store *store = reservation->store;
    uint32_t left = reservation->n - reservation->taken,
             most = (uint32_t)(PLACED_BYTES / (store->plain_bytes + VALUE_COST_BYTES)) + 1;
    uint32_t count = left < most ? left : most;
    if (reservation->placed) return 0;
    if (slot_store_free_slots(store) < count) {
        return error_set(error, ERROR_LIMIT,
                         "no room for %" PRIu32 " steps of table '%s': %" PRIu32 " are in it; append fewer at once",
                         left, reservation->table->config.name, store->occupied);
    }
    if (table_back_slots(reservation->table, store, count, error)) return -1;
    reservation_place(reservation, reservation->taken, count);
    reservation->taken += count;
    if (reservation->taken < reservation->n) return 1;
    forget_placed(reservation);
    reservation->placed = true;
    return 0;
}

/* ---- ragged columns ------------------------------------------------------------------------------------------------ */

static int refuse_offsets(const struct reservation *reservation, uint32_t column, uint64_t rows, uint32_t index,
                          const uint8_t *offsets, struct error *error) {
    const struct column *shape = &reservation->table->config.column[column];
    return error_set(error, ERROR_BADSHAPE,
                     "column '%s': expected offsets that begin with 0, end with the number of rows, %" PRIu64
                     ", and ascend by at most max_length = %" PRIu32 ", got %" PRId64 " at index %" PRIu32
                     "; nothing was stored",
                     shape->name, rows, shape->max_length, (int64_t)u64_at(offsets, index), index);
}

/* Before the first value is taken: of the offsets the first and the last, and whether so much may be on its way. */
static int begin_ragged(struct reservation *reservation, uint32_t column, const uint8_t *offsets, size_t length,
                        struct error *error) {
    const struct ragged_store *ragged = reservation->store->ragged;
    uint32_t n = reservation->n;
    uint64_t rows = length / ragged->row_bytes[column];
    if (u64_at(offsets, 0) != 0) return refuse_offsets(reservation, column, rows, 0, offsets, error);
    if (u64_at(offsets, n) != rows || length % ragged->row_bytes[column])
        return refuse_offsets(reservation, column, rows, n, offsets, error);
    if (ragged->reserved_bytes + length > TABLE_MAX_RAGGED_RESERVED_BYTES) {
        return error_set(error, ERROR_LIMIT,
                         "%zu bytes of column '%s' beside the %" PRIu64 " on their way to table '%s': expected at most "
                         "%llu together; add fewer items at once",
                         length, reservation->table->config.column[column].name, ragged->reserved_bytes,
                         reservation->table->config.name, TABLE_MAX_RAGGED_RESERVED_BYTES);
    }
    if (reservation->placed) return 0;
    memset(staging_column(reservation, column), 0, n * sizeof(struct ragged_value));
    column_set_add(&reservation->staged, column);
    return 0;
}

static int put_ragged(struct reservation *reservation, uint32_t column, const uint8_t *rows, uint32_t length,
                      struct error *error) {
    struct ragged_store *ragged = reservation->store->ragged;
    struct ragged_value *value = ragged_place(reservation, column, reservation->filled);
    size_t bytes = ragged_store_takes(ragged, column, length);
    uint64_t max_bytes = reservation->table->config.max_bytes;
    bool is_full = max_bytes && ragged->used_bytes + bytes > max_bytes + RAGGED_SLACK_BYTES;
    if (is_full || ragged_store_put(ragged, column, value, rows, length)) {
        struct disk_memory *disk = reservation->store->disk;
        if (!is_full && disk && disk_memory_is_full(disk))
            return disk_memory_refuse(disk, "the rows of ragged columns", error);
        return error_set(error, ERROR_LIMIT,
                         "no room for the rows of column '%s': table '%s' holds %" PRIu64 " bytes of such, %" PRIu64
                         " are on their way, and replies in flight show others; read replies faster, or add fewer at "
                         "once",
                         reservation->table->config.column[column].name, reservation->table->config.name,
                         ragged->live_bytes, ragged->reserved_bytes);
    }
    reservation->ragged_bytes += bytes;
    ragged->reserved_bytes += bytes;
    return 0;
}

int reservation_fill_ragged(struct reservation *reservation, uint32_t column, const void *offsets, const uint8_t *rows,
                            size_t length, uint64_t deadline_us, struct error *error) {
    const struct ragged_store *ragged = reservation->store->ragged;
    assert(ragged_store_has(ragged, column));
    size_t row_bytes = ragged->row_bytes[column], copied = 0;
    uint64_t all = length / row_bytes;
    if (reservation->filled == 0 && begin_ragged(reservation, column, offsets, length, error)) return -1;
    while (reservation->filled < reservation->n) {
        uint32_t index = reservation->filled;
        uint64_t from = u64_at(offsets, index), to = u64_at(offsets, index + 1);
        if (to < from || to > all || to - from > ragged->max_length[column])
            return refuse_offsets(reservation, column, all, index + 1, offsets, error);
        if (put_ragged(reservation, column, rows + from * row_bytes, (uint32_t)(to - from), error)) return -1;
        copied += (to - from) * row_bytes + VALUE_COST_BYTES;
        if (++reservation->filled == reservation->n || copied < BYTES_BETWEEN_LOOKS) continue;
        if (deadline_us != CLOCK_NEVER && clock_monotonic_us() >= deadline_us) return 1;
        copied = 0;
    }
    reservation->filled = 0;
    return 0;
}

/* ---- coded columns ------------------------------------------------------------------------------------------------- */

static int refuse_pool(const struct reservation *reservation, struct error *error) {
    struct disk_memory *disk = reservation->store->disk;
    if (disk && disk_memory_is_full(disk)) return disk_memory_refuse(disk, "compressed steps", error);
    return error_set(error, ERROR_LIMIT, "no room for compressed steps of table '%s': %" PRIu32 " are in it",
                     reservation->table->config.name, reservation->store->occupied);
}

static int refuse_block(const struct reservation *reservation, uint32_t column, uint32_t index, size_t size,
                        struct error *error) {
    const struct table_config *config = &reservation->table->config;
    bool is_coded = coded_columns_has(&reservation->store->coded, column);
    return error_set(error, ERROR_BADSHAPE,
                     "column '%s' of table '%s': expected blocks of steps of %zu bytes (compression: %s), got one of "
                     "%zu bytes at index %" PRIu32 " that is none",
                     config->column[column].name, config->name, reservation->store->value_bytes[column],
                     codec_name(is_coded ? config->codec : CODEC_NONE), size, index);
}

static int check_sizes(const struct reservation *reservation, uint32_t column, const uint8_t *sizes, size_t length,
                       struct error *error) {
    const struct slot_store *store = reservation->store;
    bool is_coded = coded_columns_has(&store->coded, column);
    size_t total = 0, most = store->value_bytes[column];
    uint32_t largest = 0, least = UINT32_MAX;
    for (uint32_t i = 0; i < reservation->n; i++) {
        uint32_t size = u32_at(sizes, i);
        total += size;
        largest = size > largest ? size : largest;
        least = size < least ? size : least;
    }
    for (uint32_t i = 0; largest > most || (!is_coded && least < most); i++) {
        size_t size = u32_at(sizes, i);
        if (size > most || (!is_coded && size < most)) return refuse_block(reservation, column, i, size, error);
    }
    return length == total ? 0
                           : error_set(error, ERROR_BADSHAPE, "expected %zu bytes of blocks for column '%s', got %zu",
                                       total, reservation->table->config.column[column].name, length);
}

int reservation_fill_coded(struct reservation *reservation, uint32_t column, const void *sizes, const uint8_t *blocks,
                           size_t length, uint64_t deadline_us, struct error *error) {
    struct slot_store *store = reservation->store;
    if (reservation->filled == 0 && check_sizes(reservation, column, sizes, length, error)) return -1;
    size_t copied = 0;
    while (reservation->filled < reservation->n) {
        uint32_t index = reservation->filled;
        const uint8_t *block = blocks + reservation->filled_bytes;
        size_t size = u32_at(sizes, index);
        if (!coded_columns_has(&store->coded, column))
            fill_part(reservation, column, index, 1, block);
        else if (coded_columns_put(&store->coded, column, reservation->slots[index], block, size))
            return refuse_pool(reservation, error);
        reservation->filled_bytes += size;
        copied += size + VALUE_COST_BYTES;
        if (++reservation->filled == reservation->n || copied < BYTES_BETWEEN_LOOKS) continue;
        if (deadline_us != CLOCK_NEVER && clock_monotonic_us() >= deadline_us) return 1;
        copied = 0;
    }
    reservation->filled = 0;
    reservation->filled_bytes = 0;
    column_set_remove(&reservation->staged, column);
    if (coded_columns_has(&store->coded, column)) column_set_add(&reservation->unchecked, column);
    return 0;
}

/* Makes a block of a value that landed as it was, or looks into a block that came. */
static int code_value(struct reservation *reservation, uint32_t column, uint32_t index, struct error *error) {
    struct coded_columns *coded = &reservation->store->coded;
    uint32_t slot = reservation->slots[index];
    if (column_set_has(&reservation->staged, column)) {
        const uint8_t *value = staging_column(reservation, column) + index * coded->value_bytes[column];
        return coded_columns_encode(coded, column, slot, value) ? refuse_pool(reservation, error) : 0;
    }
    size_t size;
    const uint8_t *block = coded_columns_block(coded, column, slot, &size);
    bool is_block = coded_columns_is_block(coded, column, block, size);
    return is_block ? 0 : refuse_block(reservation, column, index, size, error);
}

static uint32_t first_uncoded(const struct reservation *reservation) {
    uint32_t staged = column_set_next(&reservation->staged, 0), unchecked = column_set_next(&reservation->unchecked, 0);
    return staged < unchecked ? staged : unchecked;
}

int reservation_code(struct reservation *reservation, uint64_t deadline_us, struct error *error) {
    assert(reservation->placed);
    uint32_t column;
    size_t coded_bytes = 0;
    while ((column = first_uncoded(reservation)) < TABLE_MAX_COLUMNS) {
        while (reservation->coded < reservation->n) {
            if (code_value(reservation, column, reservation->coded, error)) return -1;
            reservation->coded++;
            coded_bytes += reservation->store->value_bytes[column] + VALUE_COST_BYTES;
            if (coded_bytes < CODED_BYTES_BETWEEN_LOOKS) continue;
            if (deadline_us != CLOCK_NEVER && clock_monotonic_us() >= deadline_us) return 1;
            coded_bytes = 0;
        }
        column_set_remove(&reservation->staged, column);
        column_set_remove(&reservation->unchecked, column);
        reservation->coded = 0;
    }
    return 0;
}

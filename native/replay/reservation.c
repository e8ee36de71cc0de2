/* reservation: reserve and land, for items and steps. */
#include "replay/reservation.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "replay/table_state.h"

#define VALUES_BETWEEN_LOOKS 8u /* at the clock, while steps are coded */

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
        if (reservation->apart >> i & 1) base += reservation->laid * reservation->store->value_bytes[i];
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
    reservation->apart = placed ? store->coded.bits : UINT64_MAX;
    store->reservations++;
    if (bytes > 0 && staging_take(reservation, n * bytes, error)) {
        reservation_end(reservation);
        return NULL;
    }
    if (placed) take_slots(reservation, 0, n);
    reservation->placed = placed;
    return reservation;
}

void reservation_unresolve(struct reservation *reservation, uint32_t first) {
    for (uint32_t i = first; reservation->resolved && i < reservation->n; i++)
        slot_store_drop_list(reservation->store, reservation_list(reservation, i));
    reservation->resolved = reservation->resolved && first > 0;
}

/* Gives back what the places from `first` on hold. */
static void give_up(struct reservation *reservation, uint32_t first) {
    reservation_unresolve(reservation, first);
    for (uint32_t i = reservation->n; reservation->placed && i-- > first;)
        slot_store_unreserve(reservation->store, reservation->slots[i]);
}

void reservation_release(struct reservation *reservation) {
    uint32_t left = reservation->n - reservation->entered;
    give_up(reservation, reservation->entered);
    if (reservation->admitted) {
        rate_limiter_not_added(&reservation->table->limiter, left);
        reservation->table->entering -= left;
    }
    reservation_end(reservation);
}

void reservation_shorten(struct reservation *reservation, uint32_t n) {
    assert(n >= 1 && n <= reservation->n);
    give_up(reservation, n);
    reservation->n = n;
}

/* ---- landing ------------------------------------------------------------------------------------------------------- */

void reservation_landing(struct reservation *reservation, uint32_t column, uint8_t **base, size_t *stride,
                         const uint32_t **slots) {
    const struct slot_store *store = reservation->store;
    assert(column < store->columns && store->value_bytes[column]);
    if (reservation->apart >> column & 1) {
        *base = staging_column(reservation, column);
        *stride = store->value_bytes[column];
        *slots = NULL;
        reservation->staged |= 1ull << column;
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
    assert(column < store->columns && bytes);
    if (reservation->apart >> column & 1) {
        memcpy(staging_column(reservation, column) + first * bytes, values, count * bytes);
        reservation->staged |= 1ull << column;
    } else {
        column_arrays_scatter(&store->arrays, column, reservation->slots + first, count, values);
    }
}

void reservation_fill(struct reservation *reservation, uint32_t column, const void *values) {
    fill_part(reservation, column, 0, reservation->n, values);
}

void reservation_place(struct reservation *reservation, uint32_t first, uint32_t count) {
    const struct slot_store *store = reservation->store;
    take_slots(reservation, first, count);
    for (uint64_t left = reservation->staged; left; left &= left - 1) {
        uint32_t column = (uint32_t)__builtin_ctzll(left);
        const uint8_t *values = staging_column(reservation, column) + first * store->value_bytes[column];
        column_arrays_scatter(&store->arrays, column, reservation->slots + first, count, values);
    }
}

/* ---- coded columns ------------------------------------------------------------------------------------------------- */

static int refuse_pool(const struct reservation *reservation, struct error *error) {
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

static size_t size_at(const uint8_t *sizes, uint32_t index) {
    uint32_t size;
    memcpy(&size, sizes + index * sizeof size, sizeof size);
    return size;
}

static int check_sizes(const struct reservation *reservation, uint32_t column, const uint8_t *sizes, size_t length,
                       struct error *error) {
    const struct slot_store *store = reservation->store;
    bool is_coded = coded_columns_has(&store->coded, column);
    size_t total = 0, most = store->value_bytes[column];
    for (uint32_t i = 0; i < reservation->n; i++) {
        size_t size = size_at(sizes, i);
        if (size > most || (!is_coded && size < most)) return refuse_block(reservation, column, i, size, error);
        total += size;
    }
    return length == total ? 0
                           : error_set(error, ERROR_BADSHAPE, "expected %zu bytes of blocks for column '%s', got %zu",
                                       total, reservation->table->config.column[column].name, length);
}

int reservation_fill_coded(struct reservation *reservation, uint32_t column, const void *sizes, const uint8_t *blocks,
                           size_t length, uint64_t deadline_us, struct error *error) {
    struct slot_store *store = reservation->store;
    uint64_t bit = 1ull << column;
    if (reservation->filled == 0 && check_sizes(reservation, column, sizes, length, error)) return -1;
    while (reservation->filled < reservation->n) {
        uint32_t index = reservation->filled;
        const uint8_t *block = blocks + reservation->filled_bytes;
        size_t size = size_at(sizes, index);
        if (!coded_columns_has(&store->coded, column))
            fill_part(reservation, column, index, 1, block);
        else if (coded_columns_put(&store->coded, column, reservation->slots[index], block, size))
            return refuse_pool(reservation, error);
        reservation->filled_bytes += size;
        if (++reservation->filled % VALUES_BETWEEN_LOOKS == 0 && deadline_us != CLOCK_NEVER &&
            clock_monotonic_us() >= deadline_us && reservation->filled < reservation->n)
            return 1;
    }
    reservation->filled = 0;
    reservation->filled_bytes = 0;
    reservation->staged &= ~bit;
    if (coded_columns_has(&store->coded, column)) reservation->unchecked |= bit;
    return 0;
}

/* Makes a block of a value that landed as it was, or looks into a block that came. */
static int code_value(struct reservation *reservation, uint32_t column, uint32_t index, struct error *error) {
    struct coded_columns *coded = &reservation->store->coded;
    uint32_t slot = reservation->slots[index];
    if (reservation->staged >> column & 1) {
        const uint8_t *value = staging_column(reservation, column) + index * coded->value_bytes[column];
        return coded_columns_encode(coded, column, slot, value) ? refuse_pool(reservation, error) : 0;
    }
    size_t size;
    const uint8_t *block = coded_columns_block(coded, column, slot, &size);
    bool is_block = coded_columns_is_block(coded, column, block, size);
    return is_block ? 0 : refuse_block(reservation, column, index, size, error);
}

int reservation_code(struct reservation *reservation, uint64_t deadline_us, struct error *error) {
    assert(reservation->placed);
    while (reservation->staged | reservation->unchecked) {
        uint32_t column = (uint32_t)__builtin_ctzll(reservation->staged | reservation->unchecked);
        while (reservation->coded < reservation->n) {
            if (code_value(reservation, column, reservation->coded, error)) return -1;
            if (++reservation->coded % VALUES_BETWEEN_LOOKS == 0 && deadline_us != CLOCK_NEVER &&
                clock_monotonic_us() >= deadline_us)
                return 1;
        }
        reservation->staged &= ~(1ull << column);
        reservation->unchecked &= ~(1ull << column);
        reservation->coded = 0;
    }
    return 0;
}

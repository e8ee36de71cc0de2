/* table_add: reserve, land, validate, commit. */
#include "replay/table_state.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/memory.h"

/* ---- reservations -------------------------------------------------------------------------------------------------- */

/* Staging is mapped, not from the heap: it is large, and its pages must go back. One area is kept for the next. */
uint8_t *table_staging_take(struct table *table, size_t bytes, size_t *taken_bytes, struct error *error) {
    if (table->staging && table->staging_bytes >= bytes) {
        uint8_t *staging = table->staging;
        *taken_bytes = table->staging_bytes;
        table->staging = NULL;
        return staging;
    }
    if (bytes > TABLE_MAX_STAGING_BYTES || table->staging_total_bytes > TABLE_MAX_STAGING_BYTES - bytes) {
        error_set(error, ERROR_LIMIT,
                  "an ADD of this size needs %zu bytes of staging, and %zu of %llu are in use; add at most %u "
                  "items at once",
                  bytes, table->staging_total_bytes, (unsigned long long)TABLE_MAX_STAGING_BYTES, TABLE_RESERVED_LIMIT);
        return NULL;
    }
    uint8_t *staging = memory_map(bytes);
    if (!staging) {
        error_set(error, ERROR_GENERIC, "out of memory: %zu bytes of staging could not be mapped", bytes);
        return NULL;
    }
    table->staging_total_bytes += bytes;
    *taken_bytes = bytes;
    return staging;
}

void table_staging_give(struct table *table, uint8_t *staging, size_t bytes) {
    if (!table->staging && bytes <= TABLE_KEPT_STAGING_BYTES) {
        table->staging = staging;
        table->staging_bytes = bytes;
        return;
    }
    table->staging_total_bytes -= bytes;
    memory_unmap(staging, bytes);
}

static struct reservation *reservation_take(struct table *table, uint32_t n) {
    struct reservation *reservation = table->pool;
    if (n <= TABLE_POOLED_RESERVATION_ROOM && reservation) {
        table->pool = reservation->next;
        table->pooled--;
        return reservation;
    }
    uint32_t room = n <= TABLE_POOLED_RESERVATION_ROOM ? TABLE_POOLED_RESERVATION_ROOM : n;
    size_t item_bytes = (1 + (size_t)table->windows.steps) * sizeof reservation->slots[0];
    reservation = memory_alloc(sizeof *reservation + room * item_bytes);
    if (reservation) {
        reservation->room = room;
    }
    return reservation;
}

static void reservation_give(struct table *table, struct reservation *reservation) {
    table->reservations--;
    if (reservation->staging) {
        table_staging_give(table, reservation->staging, reservation->staging_bytes);
    }
    if (reservation->room == TABLE_POOLED_RESERVATION_ROOM && table->pooled < TABLE_POOLED_RESERVATIONS) {
        reservation->next = table->pool;
        table->pool = reservation;
        table->pooled++;
        return;
    }
    memory_free(reservation);
}

struct reservation *table_reserve(struct table *table, uint32_t n, struct error *error) {
    if (n < 1 || n > TABLE_MAX_BATCH) {
        error_set(error, ERROR_LIMIT, "expected 1 to %u items at once, got %" PRIu32, TABLE_MAX_BATCH, n);
        return NULL;
    }
    if (n > table_effective_capacity(&table->config)) {
        error_set(error, ERROR_LIMIT, "%" PRIu32 " items at once never fit a table of %" PRIu64 "; add fewer at once",
                  n, table_effective_capacity(&table->config));
        return NULL;
    }
    struct reservation *reservation = reservation_take(table, n);
    if (!reservation) {
        error_set(error, ERROR_GENERIC, "out of memory for a reservation of %" PRIu32 " items", n);
        return NULL;
    }
    reservation->table = table;
    reservation->n = reservation->laid = n;
    reservation->staging = NULL;
    reservation->resolved = false;
    struct storage *storage = &table->storage;
    table->reservations++;
    if (storage->reserved + (uint64_t)n <= TABLE_RESERVED_LIMIT && n <= storage_free_slots(storage)) {
        for (uint32_t i = 0; i < n; i++) {
            reservation->slots[i] = storage_reserve(storage);
        }
        return reservation;
    }
    reservation->staging = table_staging_take(table, n * storage->item_bytes, &reservation->staging_bytes, error);
    if (!reservation->staging) {
        reservation_give(table, reservation);
        return NULL;
    }
    return reservation;
}

/* Where a column begins in the staging area: columns follow one another, as many items each as were reserved. */
static uint8_t *staging_column(const struct reservation *reservation, uint32_t column) {
    const struct storage *storage = &reservation->table->storage;
    uint8_t *base = reservation->staging;
    for (uint32_t i = 0; i < column; i++) {
        base += (size_t)reservation->laid * storage->column_item_bytes[i];
    }
    return base;
}

void reservation_landing(struct reservation *reservation, uint32_t column, uint8_t **base, size_t *stride,
                         const uint32_t **slots) {
    const struct storage *storage = &reservation->table->storage;
    assert(column < storage->arrays.columns && storage->arrays.base[column]);
    if (reservation->staging) {
        *base = staging_column(reservation, column);
        *stride = storage->column_item_bytes[column];
        *slots = NULL;
    } else {
        *base = storage->arrays.base[column];
        *stride = storage->arrays.stride[column];
        *slots = reservation->slots;
    }
}

void reservation_fill(struct reservation *reservation, uint32_t column, const void *items) {
    struct storage *storage = &reservation->table->storage;
    assert(column < storage->arrays.columns && storage->arrays.base[column]);
    if (reservation->staging) {
        memcpy(staging_column(reservation, column), items, (size_t)reservation->n * storage->column_item_bytes[column]);
    } else {
        storage_scatter(storage, column, reservation->slots, reservation->n, items);
    }
}

/* Gives back what the items from `first` on hold. */
static void give_up(struct reservation *reservation, uint32_t first) {
    struct table *table = reservation->table;
    table_unresolve(table, reservation, first);
    if (!reservation->staging) {
        for (uint32_t i = reservation->n; i-- > first;) {
            storage_unreserve(&table->storage, reservation->slots[i]);
        }
    }
}

void reservation_release(struct reservation *reservation) {
    give_up(reservation, 0);
    reservation_give(reservation->table, reservation);
}

void reservation_shorten(struct reservation *reservation, uint32_t n) {
    assert(n >= 1 && n <= reservation->n);
    give_up(reservation, n);
    reservation->n = n;
}

/* ---- commit -------------------------------------------------------------------------------------------------------- */

int table_can_add(const struct table *table, uint64_t n, struct error *error) {
    uint64_t capacity = table_effective_capacity(&table->config);
    if (n > capacity) {
        return error_set(error, ERROR_LIMIT,
                         "%" PRIu64 " items at once never fit a table of %" PRIu64 "; add fewer at once", n, capacity);
    }
    if (table_check_open(table, error) || table_is_ready(table, error)) return -1;
    return rate_limiter_can_add(&table->limiter, table->storage.live, n, error);
}

uint32_t table_admits(const struct table *table, uint32_t n) {
    struct error error;
    uint64_t capacity = table_effective_capacity(&table->config);
    if (table->closed || table_is_ready(table, &error)) return 0;
    return (uint32_t)rate_limiter_admits(&table->limiter, table->storage.live, n < capacity ? n : capacity);
}

/* Staged bytes need slots at commit. Whoever leaves to make room gives his slot, unless he is pinned or a snapshot has
 * still to write him, or it has had its last item; at worst they are all of that kind. The bounds on reservations and pins leave enough, unless a caller holds more pins
 * than it should, or many slots were retired. */
static int staged_slots(const struct table *table, uint32_t n, uint64_t excess, struct error *error) {
    const struct storage *storage = &table->storage;
    uint64_t kept = (uint64_t)storage->pinned - storage->zombies + storage->last_lives;
    kept += table->cut ? TABLE_HELD_SLOTS - storage->held : 0;
    uint64_t available = storage_free_slots(storage) + (excess > kept ? excess - kept : 0);
    if (available < n) {
        return error_set(error, ERROR_LIMIT,
                         "no slots for %" PRIu32 " items: %" PRIu32 " are held by replies in flight, %" PRIu32
                         " by unfinished ADDs; add at most %u items at once, or read replies faster",
                         n, storage->pinned, storage->reserved, TABLE_RESERVED_LIMIT);
    }
    return 0;
}

static void unstage(struct table *table, struct reservation *reservation) {
    struct storage *storage = &table->storage;
    for (uint32_t i = 0; i < reservation->n; i++) {
        reservation->slots[i] = storage_reserve(storage);
    }
    for (uint32_t column = 0; column < storage->arrays.columns; column++) {
        if (storage->arrays.base[column]) {
            storage_scatter(storage, column, reservation->slots, reservation->n, staging_column(reservation, column));
        }
    }
}

/* The items' lists of steps, and with them their references, go over to the slots. */
static void keep_lists(struct table *table, struct reservation *reservation) {
    size_t list_bytes = table->windows.steps * sizeof(uint32_t);
    for (uint32_t i = 0; i < reservation->n; i++) {
        memcpy(window_map_list(&table->windows, reservation->slots[i]), reservation_list(reservation, i), list_bytes);
    }
    reservation->resolved = false;
}

struct table_keys table_keys(const struct table *table, double priority) {
    return (struct table_keys){selector_key(&table->sampler, priority), selector_key(&table->remover, priority)};
}

void table_keys_many(const struct table *table, const double *priorities, uint32_t n, struct table_keys *keys) {
    double sampler[TABLE_KEYS], remover[TABLE_KEYS];
    assert(n <= TABLE_KEYS);
    selector_keys(&table->sampler, priorities, n, sampler);
    selector_keys(&table->remover, priorities, n, remover);
    for (uint32_t i = 0; i < n; i++) {
        keys[i] = (struct table_keys){sampler[i], remover[i]};
    }
}

void table_index(struct table *table, uint32_t slot, double priority, struct table_keys keys) {
    selector_order_append(&table->order, &table->storage, slot);
    priority_counts_enter(&table->priority_counts, priority);
    max_tree_write(&table->priorities, slot, priority);
    table_enter_sampler(table, slot, keys.sampler);
    selector_insert(&table->remover, slot, keys.remover);
    freshness_insert(&table->freshness, &table->storage, slot);
    table->live_times += table->storage.slot[slot].times_sampled;
}

static void enter(struct table *table, uint32_t slot, double priority, struct table_keys keys) {
    if (table->cut) {
        table_cut_before_enter(table, slot);
    }
    storage_enter(&table->storage, slot);
    table_index(table, slot, priority, keys);
}

/* What a table with windows asks beyond the rest: items that see steps, and room for them beside the streams' own. */
static int check_windows(const struct table *table, const struct reservation *reservation, struct error *error) {
    uint64_t max_bytes = table->config.max_bytes;
    uint64_t needed =
        reservation->n * (uint64_t)table->storage.item_bytes + table->kept_steps * step_store_mean_bytes(&table->steps);
    if (!reservation->resolved) {
        return error_set(error, ERROR_BADSCHEMA,
                         "table '%s' has windows: its items are made from steps; append steps, then make items of "
                         "them (a writer does both), instead of adding items",
                         table->config.name);
    }
    return max_bytes && needed > max_bytes
               ? error_set(error, ERROR_LIMIT,
                           "%" PRIu32 " items beside the last steps of the streams need %" PRIu64
                           " bytes, and max_bytes of table '%s' is %" PRIu64 "; raise it, or make fewer at once",
                           reservation->n, needed, table->config.name, max_bytes)
               : 0;
}

int table_commit(struct table *table, struct reservation *reservation, const double *priorities, uint64_t *ids,
                 struct error *error) {
    assert(reservation->table == table);
    uint32_t n = reservation->n;
    if (table_has_windows(table) && check_windows(table, reservation, error)) {
        return -1;
    }
    if ((priorities && table_check_priorities(table, priorities, n, error)) || table_can_add(table, n, error)) {
        return -1;
    }
    struct storage *storage = &table->storage;
    uint64_t capacity = table_effective_capacity(&table->config);
    uint64_t excess = (uint64_t)storage->live + n > capacity ? (uint64_t)storage->live + n - capacity : 0;
    if (reservation->staging && staged_slots(table, n, excess, error)) {
        return -1;
    }
    double default_priority = storage->live ? max_tree_maximum(&table->priorities) : 1.0;
    struct table_keys default_keys = table_keys(table, default_priority);
    table_make_room(table, excess);
    if (table_has_windows(table) && table->config.max_bytes) {
        table_evict_for_bytes(table, (uint64_t)n * storage->item_bytes);
    }
    if (reservation->staging) {
        unstage(table, reservation);
    }
    if (reservation->resolved) {
        keep_lists(table, reservation);
    }
    struct table_keys keys[TABLE_KEYS];
    for (uint32_t i = 0; i < n; i++) {
        if (priorities && i % TABLE_KEYS == 0) {
            table_keys_many(table, priorities + i, n - i < TABLE_KEYS ? n - i : TABLE_KEYS, keys);
        }
        enter(table, reservation->slots[i], priorities ? priorities[i] : default_priority,
              priorities ? keys[i % TABLE_KEYS] : default_keys);
        ids[i] = table_id(table, reservation->slots[i]);
    }
    table_repair(table);
    rate_limiter_added(&table->limiter, n);
    table->added += n;
    table_sweep_stale(table);
    reservation_give(table, reservation);
    return 0;
}

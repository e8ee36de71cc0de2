/* table_add: reserve, land, validate, commit. */
#include "replay/table_state.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

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
    const struct slot_store *items = &table->items;
    bool spare = items->reserved + (uint64_t)n <= TABLE_RESERVED_LIMIT && n <= slot_store_free_slots(items);
    return reservation_new(table, &table->items, n, spare, error);
}

bool table_can_add(const struct table *table, uint64_t n, struct error *error) {
    uint64_t capacity = table_effective_capacity(&table->config);
    if (n > capacity) {
        return error_because(error, ERROR_LIMIT,
                             "%" PRIu64 " items at once never fit a table of %" PRIu64 "; add fewer at once", n,
                             capacity);
    }
    return table_check_open(table, error) == 0 && table_is_ready(table, error) &&
           rate_limiter_can_add(&table->limiter, table->items.live, n, error);
}

uint32_t table_admits(const struct table *table, uint32_t n) {
    struct error error;
    uint64_t capacity = table_effective_capacity(&table->config);
    if (table->closed || !table_is_ready(table, &error)) return 0;
    return (uint32_t)rate_limiter_admits(&table->limiter, table->items.live, n < capacity ? n : capacity);
}

/* ---- commit -------------------------------------------------------------------------------------------------------- */

/* Staged bytes need slots at commit. Evicting an item frees its slot, unless a reply or a snapshot still needs it, or the
 * slot has had its last item; at worst all that are evicted are of that kind. The bounds on reservations and pins leave
 * enough slots, unless a caller holds more pins than it should, or many slots were retired. */
static bool has_slots_for_staged(const struct table *table, uint32_t n, uint64_t excess, struct error *error) {
    const struct slot_store *items = &table->items;
    uint64_t pinned_live = (uint64_t)items->pinned + items->held - (items->occupied - items->live);
    uint64_t kept = pinned_live + items->last_lives;
    kept += table->cut ? TABLE_HELD_SLOTS - items->held : 0;
    uint64_t available = slot_store_free_slots(items) + (excess > kept ? excess - kept : 0);
    if (available >= n) return true;
    return error_because(error, ERROR_LIMIT,
                         "no slots for %" PRIu32 " items: %" PRIu32 " are held by replies in flight, %" PRIu32
                         " by unfinished ADDs; add at most %u items at once, or read replies faster",
                         n, items->pinned, items->reserved, TABLE_RESERVED_LIMIT);
}

/* Moves the items' lists of steps, and with them their references, to the slots. */
static void keep_lists(struct reservation *reservation) {
    const struct slot_store *items = reservation->store;
    size_t list_bytes = items->list_length * sizeof(uint32_t);
    for (uint32_t i = 0; i < reservation->n; i++)
        memcpy(slot_list(items, reservation->slots[i]), reservation_list(reservation, i), list_bytes);
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
    for (uint32_t i = 0; i < n; i++) keys[i] = (struct table_keys){sampler[i], remover[i]};
}

void table_index(struct table *table, uint32_t slot, double priority, struct table_keys keys) {
    selector_order_append(&table->order, &table->items, slot);
    priority_counts_enter(&table->priority_counts, priority);
    max_tree_write(&table->priorities, slot, priority);
    table_enter_sampler(table, slot, keys.sampler);
    selector_insert(&table->remover, slot, keys.remover);
    freshness_insert(&table->freshness, &table->items, slot);
    table->live_times += table->items.slot[slot].times_sampled;
}

static void enter(struct table *table, uint32_t slot, double priority, struct table_keys keys) {
    slot_store_enter_item(&table->items, slot);
    table_index(table, slot, priority, keys);
}

/* Checks what a table with windows asks beyond the rest: its items see steps, and there is room for them beside the
 * steps that streams keep. */
static int check_windows(const struct table *table, const struct reservation *reservation, struct error *error) {
    uint64_t max_bytes = table->config.max_bytes;
    uint64_t needed =
        reservation->n * (uint64_t)table->items.slot_bytes + table->kept_steps * slot_store_mean_bytes(&table->steps);
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
    if (table_has_windows(table) && check_windows(table, reservation, error)) return -1;
    if ((priorities && table_check_priorities(table, priorities, n, error)) || !table_can_add(table, n, error))
        return -1;
    const struct slot_store *items = &table->items;
    uint64_t capacity = table_effective_capacity(&table->config);
    uint64_t excess = (uint64_t)items->live + n > capacity ? (uint64_t)items->live + n - capacity : 0;
    if (!reservation->placed && !has_slots_for_staged(table, n, excess, error)) return -1;
    double default_priority = items->live ? max_tree_maximum(&table->priorities) : 1.0;
    struct table_keys default_keys = table_keys(table, default_priority);
    table_make_room(table, excess);
    if (table_has_windows(table) && table->config.max_bytes)
        table_evict_for_bytes(table, (uint64_t)n * items->slot_bytes);
    if (!reservation->placed) reservation_place(reservation);
    if (reservation->resolved) keep_lists(reservation);
    struct table_keys keys[TABLE_KEYS];
    for (uint32_t i = 0; i < n; i++) {
        if (priorities && i % TABLE_KEYS == 0)
            table_keys_many(table, priorities + i, n - i < TABLE_KEYS ? n - i : TABLE_KEYS, keys);
        enter(table, reservation->slots[i], priorities ? priorities[i] : default_priority,
              priorities ? keys[i % TABLE_KEYS] : default_keys);
        ids[i] = table_id(table, reservation->slots[i]);
    }
    table_repair(table);
    rate_limiter_added(&table->limiter, n);
    table->added += n;
    table_sweep_stale(table);
    reservation_end(reservation);
    return 0;
}

/* table_add: reserve, land, validate, commit.
 *
 * A batch of more items than PART_ITEMS, or of more bytes to copy than PART_BYTES, enters in parts, between which the
 * caller may do other things with the table. Why nobody can tell but by the table's size:
 *   - It is let through as a whole or not at all: priorities, the limiter and slots are asked for all n before the first
 *     item enters. From then on nothing refuses it.
 *   - The limiter has counted all of it by then, and items that have still to enter count in the size that other adds are
 *     held against. So no other add takes their place in a queue or in the band of a ratio.
 *   - Resets and changes of settings wait until no batch is entering, and closing the table stops only what was not let
 *     through.
 *   - A part enters as a whole batch does: room is made, items are indexed, trees are repaired. The table is whole between
 *     two parts.
 *   - Items leave for the whole batch before its first part, but where the oldest leave first: else the remover might choose
 *     items of the batch itself. (The oldest are never of the batch, since it fits the table.)
 * It would break if a check that can refuse were made after the first part. */
#include "replay/table_state.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#define PART_ITEMS 1024u
#define PART_BYTES (256u << 10) /* of staged bytes, which are copied */

/* How many items too many the table has with n more. */
static uint64_t excess_of(const struct table *table, uint64_t n) {
    uint64_t capacity = table_effective_capacity(&table->config), size = table->items.live + n;
    return size > capacity ? size - capacity : 0;
}

/* Evicting an item frees its slot, unless a reply or a snapshot still needs it, or the slot has had its last item. How many
 * slots come in any case where so many are evicted: at worst all that are kept are among them. */
static uint64_t slots_to_come(const struct table *table, uint64_t excess) {
    const struct slot_store *items = &table->items;
    uint64_t pinned_live = (uint64_t)items->pinned + items->held - (items->occupied - items->live);
    uint64_t kept = pinned_live + items->last_lives;
    kept += table->cut ? TABLE_HELD_SLOTS - items->held : 0;
    return excess > kept ? excess - kept : 0;
}

/* Whether a full disk has the slots for n more, and for those that were let through, with those that they evict. */
static bool has_space_for_staged(const struct table *table, uint32_t n) {
    uint64_t all = table->entering + n;
    return slot_store_ready_slots(&table->items) + slots_to_come(table, excess_of(table, all)) >= all;
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
    const struct slot_store *items = &table->items;
    bool spare = items->reserved + (uint64_t)n <= TABLE_RESERVED_LIMIT && n <= slot_store_free_slots(items);
    /* Space for those that were let through and have still to be placed stays theirs. Where a disk has none, the batch is
     * staged, and takes the slots of items that leave for it. */
    if (spare && !slot_store_back(&table->items, table->entering + n)) {
        if (!has_space_for_staged(table, n)) return table_refuse_slots(table, items, table->entering + n, error), NULL;
        spare = false;
    }
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
           rate_limiter_can_add(&table->limiter, table->items.live + table->entering, n, error);
}

uint32_t table_admits(const struct table *table, uint32_t n) {
    struct error error;
    uint64_t capacity = table_effective_capacity(&table->config);
    if (table->closed || !table_is_ready(table, &error)) return 0;
    uint64_t size = table->items.live + table->entering;
    return (uint32_t)rate_limiter_admits(&table->limiter, size, n < capacity ? n : capacity);
}

/* ---- commit -------------------------------------------------------------------------------------------------------- */

/* Staged bytes need slots at commit. The bounds on reservations and pins leave enough slots, unless a caller holds more pins
 * than it should, or many slots were retired. */
static bool has_slots_for_staged(const struct table *table, uint32_t n, struct error *error) {
    const struct slot_store *items = &table->items;
    if (slot_store_free_slots(items) + slots_to_come(table, excess_of(table, n)) >= n) return true;
    return error_because(error, ERROR_LIMIT,
                         "no slots for %" PRIu32 " items: %" PRIu32 " are held by replies in flight, %" PRIu32
                         " by unfinished ADDs; add at most %u items at once, or read replies faster",
                         n, items->pinned, items->reserved, TABLE_RESERVED_LIMIT);
}

/* Moves the lists of steps of these items, and with them their references, to the slots. */
static void keep_lists(struct reservation *reservation, uint32_t first, uint32_t count) {
    const struct slot_store *items = reservation->store;
    size_t list_bytes = items->list_length * sizeof(uint32_t);
    for (uint32_t i = first; i < first + count; i++)
        memcpy(slot_list(items, reservation->slots[i]), reservation_list(reservation, i), list_bytes);
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
    if (table->items.ragged) table->items.ragged->live_bytes += slot_store_ragged_bytes(&table->items, slot);
}

static void enter(struct table *table, uint32_t slot, double priority, struct table_keys keys) {
    slot_store_enter_item(&table->items, slot);
    table_index(table, slot, priority, keys);
}

/* Checks what a table with windows or ragged columns asks beyond the rest: items see steps, and there is room for them beside
 * the steps that streams keep. */
static int check_room(const struct table *table, const struct reservation *reservation, struct error *error) {
    uint64_t max_bytes = table->config.max_bytes;
    uint64_t needed = reservation->n * (uint64_t)table->items.slot_bytes + reservation->ragged_bytes;
    if (table->items.ragged && max_bytes && needed > max_bytes) {
        return error_set(error, ERROR_LIMIT,
                         "%" PRIu32 " items need %" PRIu64 " bytes, and max_bytes of table '%s' is %" PRIu64
                         "; raise it, or add fewer or shorter ones at once",
                         reservation->n, needed, table->config.name, max_bytes);
    }
    if (!table_has_windows(table)) return 0;
    needed += table->kept_steps * slot_store_mean_bytes(table->steps);
    if (reservation->resolved < reservation->n) {
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

/* Of items that are copied, with their lists, into their slots or to the journal, so many as take a fraction of a
 * millisecond. */
static uint32_t most_in_part(const struct reservation *reservation) {
    const struct table *table = reservation->table;
    size_t bytes = reservation->placed ? 0 : reservation->store->slot_bytes;
    if (reservation->resolved) bytes += reservation->store->list_length * sizeof(uint32_t);
    if (table->journal) bytes += reservation->store->slot_bytes + slot_store_mean_bytes(table->steps);
    if (table->journal) bytes += reservation->ragged_bytes / (reservation->n - reservation->entered);
    if (bytes * PART_ITEMS <= PART_BYTES) return PART_ITEMS;
    return bytes < PART_BYTES ? (uint32_t)(PART_BYTES / bytes) : 1;
}

int table_begin_commit(struct table *table, struct reservation *reservation, struct error *error) {
    assert(reservation->table == table && !reservation->admitted);
    uint32_t n = reservation->n;
    if ((table_has_windows(table) || table->items.ragged) && check_room(table, reservation, error)) return -1;
    if (!table_can_add(table, n, error)) return -1;
    if (!reservation->placed) {
        if (!has_slots_for_staged(table, n, error)) return -1;
        if (!slot_store_back(&table->items, table->entering + n) && !has_space_for_staged(table, n))
            return table_refuse_slots(table, &table->items, table->entering + n, error);
    }
    reservation->default_priority = table->items.live ? max_tree_maximum(&table->priorities) : 1.0;
    rate_limiter_added(&table->limiter, n);
    table->entering += n;
    reservation->most_in_part = most_in_part(reservation);
    reservation->admitted = true;
    return 0;
}

uint32_t reservation_part(const struct reservation *reservation) {
    uint32_t left = reservation->n - reservation->entered;
    uint32_t most = reservation->admitted ? reservation->most_in_part : most_in_part(reservation);
    return left < most ? left : most;
}

/* Whether items must leave for all that have still to enter, not for the next part alone: where the remover may choose items
 * that have just entered. */
static bool leaves_room_first(const struct table *table) {
    return table->config.remover != SELECTOR_FIFO;
}

/* Of fixed columns alone as many items fit as the effective capacity says. */
static bool lacks_bytes(const struct table *table, const struct reservation *reservation, uint32_t n) {
    uint64_t most = table_has_windows(table) || table->items.ragged ? table->config.max_bytes : 0;
    uint64_t more = n * (uint64_t)table->items.slot_bytes + reservation->ragged_bytes;
    return most && table->items.live && table_bytes(table) + more > most;
}

/* Staged items need slots, of which those that leave may give back none, since others hold them. Then more of those leave
 * that must sooner or later. */
static bool lacks_slots(const struct table *table, const struct reservation *reservation) {
    return !reservation->placed && slot_store_ready_slots(&table->items) < reservation_part(reservation) &&
           excess_of(table, reservation->n - reservation->entered) > 0;
}

/* Lets items leave for the next n of the reservation, or some of those that must. False: more must leave. */
static bool make_room_for(struct table *table, const struct reservation *reservation, uint32_t n) {
    uint64_t excess = excess_of(table, n);
    uint32_t leaving = excess < PART_ITEMS ? (uint32_t)excess : PART_ITEMS;
    table_make_room(table, leaving);
    if (leaving < excess) return false;
    for (; lacks_bytes(table, reservation, n) || lacks_slots(table, reservation); leaving++) {
        if (leaving >= PART_ITEMS) return false;
        table_make_room(table, 1);
    }
    return true;
}

static void enter_part(struct table *table, struct reservation *reservation, uint32_t n, const double *priorities,
                       uint64_t *ids) {
    uint32_t first = reservation->entered;
    struct table_keys default_keys = table_keys(table, reservation->default_priority);
    if (!reservation->placed) reservation_place(reservation, first, n);
    if (reservation->resolved) keep_lists(reservation, first, n);
    struct table_keys keys[TABLE_KEYS];
    for (uint32_t i = 0; i < n; i++) {
        if (priorities && i % TABLE_KEYS == 0)
            table_keys_many(table, priorities + i, n - i < TABLE_KEYS ? n - i : TABLE_KEYS, keys);
        uint32_t slot = reservation->slots[first + i];
        enter(table, slot, priorities ? priorities[i] : reservation->default_priority,
              priorities ? keys[i % TABLE_KEYS] : default_keys);
        ids[i] = table_id(table, slot);
    }
    if (table->items.ragged) reservation_hand_over_ragged(reservation, first, n);
    reservation->entered += n;
    table->entering -= n;
    table->added += n;
    if (table->journal) table_journal_entered(table, reservation->slots + first, n);
}

int table_commit_part(struct table *table, struct reservation *reservation, const double *priorities, uint64_t *ids) {
    assert(reservation->table == table && reservation->admitted);
    uint32_t n = reservation_part(reservation), left = reservation->n - reservation->entered;
    bool is_ready = make_room_for(table, reservation, leaves_room_first(table) ? left : n);
    bool has_slots = reservation->placed || slot_store_ready_slots(&table->items) >= n;
    if (is_ready && has_slots) enter_part(table, reservation, n, priorities, ids);
    table_repair(table);
    if (table->journal) table_journal_write(table);
    if (!is_ready || !has_slots) return is_ready ? -1 : 0;
    if (reservation->entered == reservation->n) {
        table_sweep_stale(table);
        reservation_end(reservation);
    }
    return (int)n;
}

int table_commit(struct table *table, struct reservation *reservation, const double *priorities, uint64_t *ids,
                 struct error *error) {
    uint32_t n = reservation->n;
    if ((priorities && table_check_priorities(table, priorities, n, 0, error)) ||
        table_begin_commit(table, reservation, error)) {
        return -1;
    }
    for (uint32_t at = 0; at < n;) {
        int entered = table_commit_part(table, reservation, priorities ? priorities + at : NULL, ids + at);
        assert(entered >= 0); /* nobody has come in between since slots were asked for */
        at += (uint32_t)entered;
    }
    return 0;
}

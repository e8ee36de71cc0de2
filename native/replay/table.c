/* table: creation, state, removal, update; adding is in table_add.c, drawing in table_sample.c, changing in table_change.c. */
#include "replay/table_state.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"

#define DISK_FOLDER "." /* a server's data folder, in which it runs */

uint64_t table_effective_capacity(const struct table_config *config) {
    uint64_t item_bytes = slot_row_bytes(config, SLOT_OF_ITEM); /* 0: all that items have are windows */
    uint64_t by_bytes = config->max_bytes && item_bytes ? config->max_bytes / item_bytes : UINT64_MAX;
    return by_bytes < config->capacity ? by_bytes : config->capacity;
}

/* Of a slot's columns, what lies in memory. */
static uint64_t resident_bytes(const struct table_config *config, enum slot_kind kind) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < config->columns; i++) {
        size_t column_bytes = slot_column_bytes(&config->column[i], kind);
        bytes += column_bytes < COLUMN_ARRAYS_SMALL_BYTES ? column_bytes : 0;
    }
    return bytes;
}

uint64_t table_full_memory_bytes(const struct table_config *config) {
    if (config->storage == STORAGE_MEMORY) return table_full_bytes(config);
    uint64_t item_bytes = resident_bytes(config, SLOT_OF_ITEM) + resident_bytes(config, SLOT_OF_STEP);
    return table_effective_capacity(config) * item_bytes;
}

uint64_t table_full_bytes(const struct table_config *config) {
    bool owns_steps = !*config->steps_of; /* max_bytes counts them with their owner */
    uint64_t items = table_effective_capacity(config), steps_bytes = items * slot_row_bytes(config, SLOT_OF_STEP);
    uint64_t bytes = items * (slot_row_bytes(config, SLOT_OF_ITEM) + ragged_largest_bytes(config));
    if (owns_steps) bytes += steps_bytes;
    if (config->max_bytes && bytes > config->max_bytes) bytes = config->max_bytes;
    return owns_steps ? bytes : bytes + steps_bytes;
}

static int init_stores(struct table *table, uint32_t slots, struct error *error) {
    const struct table_config *config = &table->config;
    window_map_init(&table->windows, config);
    table->steps = &table->own_steps;
    if (config->storage == STORAGE_DISK && !(table->disk = disk_memory_new(DISK_FOLDER, error))) return -1;
    if (slot_store_init(&table->items, config, SLOT_OF_ITEM, slots, table->disk, error)) return -1;
    if (!table_has_windows(table)) return 0;
    uint64_t item_slots = config->storage == STORAGE_DISK ? slots : TABLE_STEPS_FOR * (uint64_t)slots;
    uint64_t step_slots = table_step_slots(config, item_slots) + TABLE_HELD_SLOTS;
    if (!*config->steps_of && slot_store_init(&table->own_steps, config, SLOT_OF_STEP, step_slots, table->disk, error))
        return -1;
    if (slot_store_init_lists(&table->items, &table->own_steps, table->windows.steps)) {
        return error_set(error, ERROR_GENERIC, "out of memory: the windows of table '%s' could not be mapped",
                         config->name);
    }
    return 0;
}

struct table *table_new(const struct table_config *config, struct error *error) {
    struct table *table = memory_calloc(1, sizeof *table);
    if (!table) {
        error_set(error, ERROR_GENERIC, "out of memory for table '%s'", config->name);
        return NULL;
    }
    table->config = *config;
    assert(config->capacity >= 1 && config->capacity <= TABLE_MAX_CAPACITY);
    uint32_t capacity = (uint32_t)config->capacity, slots = capacity + TABLE_SPARE_SLOTS + TABLE_HELD_SLOTS;
    if (init_stores(table, slots, error)) {
        table_free(table);
        return NULL;
    }
    freshness_init(&table->freshness, config);
    bool failed = max_tree_init(&table->priorities, slots) ||
                  selector_init(&table->sampler, config->sampler, config->priority_exponent, capacity, slots) ||
                  selector_init(&table->remover, config->remover, config->remover_exponent, capacity, slots) ||
                  freshness_limit(&table->freshness, config->max_staleness, capacity, slots);
    table->sampler.independent = config->independent;
    if (failed) {
        table_free(table);
        error_set(error, ERROR_GENERIC, "out of memory: the index of table '%s' could not be mapped", config->name);
        return NULL;
    }
    selector_order_init(&table->order);
    rate_limiter_init(&table->limiter, config);
    table_limit_priorities(table);
    table_seed(table, config->seed ? config->seed : random_entropy());
    return table;
}

void table_free(struct table *table) {
    assert(table->items.pinned == 0);
    table_journal_end(table);
    while (table->streams) table_stream_free(table, table->streams);
    table->freed = true;
    if (table->sharers) return;
    table_share_end(table);
    reservation_free_pool(&table->items);
    reservation_free_pool(&table->own_steps);
    memory_unmap(table->staging.kept, table->staging.kept_bytes);
    selector_free(&table->sampler);
    selector_free(&table->remover);
    freshness_free(&table->freshness);
    max_tree_free(&table->priorities);
    slot_store_free(&table->own_steps);
    slot_store_free(&table->items);
    disk_memory_free(table->disk);
    memory_free(table);
}

const struct table_config *table_config(const struct table *table) {
    return &table->config;
}

void table_priorities(const struct table *table, uint64_t counts[TABLE_PRIORITY_BUCKETS]) {
    priority_counts_gather(&table->priority_counts, counts);
}

void table_set_shard(struct table *table, uint8_t shard) {
    table->shard_bits = (uint32_t)shard << 24;
}

void table_seed(struct table *table, uint64_t seed) {
    random_seed(&table->random, seed);
}

uint64_t table_newest_id(const struct table *table) {
    return table->order.newest == SLOT_NONE ? 0 : table_id(table, table->order.newest);
}

int table_column_index(const struct table *table, const char *name, size_t length) {
    for (uint32_t i = 0; i < table->config.columns; i++) {
        const char *column = table->config.column[i].name;
        if (strlen(column) == length && memcmp(column, name, length) == 0) return (int)i;
    }
    return -1;
}

void table_info(const struct table *table, struct table_info *info) {
    const struct slot_store *items = &table->items, *steps = &table->own_steps;
    *info = (struct table_info){
        .size = items->live,
        .capacity = table->config.capacity,
        .bytes = table_bytes(table),
        .added = table->added,
        .sampled = table->sampled,
        .unused = table->unused,
        .removed = table->removed,
        .stale_updates = table->stale_updates,
        .updates_applied = table->updates_applied,
        .stale_items = table->stale_items,
        .newest_version = table->freshness.newest,
        .reserved_slots = items->reserved,
        .pinned_slots = items->pinned,
        .free_slots = slot_store_free_slots(items),
        .retired_slots = items->retired,
        .item_bytes = items->slot_bytes,
        .steps = steps->occupied - steps->held,
        .step_bytes = slot_store_bytes(steps),
        .streams = table->stream_count,
        .max_priority = max_tree_maximum(&table->priorities),
        .total_priority = selector_total(&table->sampler),
        .disk_bytes = table->disk ? disk_memory_backed_bytes(table->disk) : 0,
        .cold_pages = table->disk ? disk_memory_cold_pages(table->disk) : 0,
        .closed = table->closed,
    };
    memcpy(info->closed_reason, table->closed_reason, sizeof info->closed_reason);
}

int table_back_slots(struct table *table, struct slot_store *store, uint64_t more, struct error *error) {
    return slot_store_back(store, more) ? 0 : table_refuse_slots(table, store, more, error);
}

int table_refuse_slots(const struct table *table, const struct slot_store *store, uint64_t more, struct error *error) {
    char what[TABLE_MAX_NAME + 64];
    snprintf(what, sizeof what, "%" PRIu64 " %s of table '%.100s'", more,
             store->kind == SLOT_OF_ITEM ? "items" : "steps", table->config.name);
    return disk_memory_refuse(table->disk, what, error);
}

double table_priority_limit(const struct table *table) {
    return table->max_priority_allowed;
}

int table_check_priorities(const struct table *table, const double *priorities, uint32_t n, uint32_t first,
                           struct error *error) {
    for (uint32_t i = 0; i < n; i++) {
        if (!(priorities[i] >= 0 && priorities[i] <= table->max_priority_allowed)) {
            if (isfinite(priorities[i]) && priorities[i] > 0) {
                return error_set(
                    error, ERROR_BADPRIORITY,
                    "expected priorities of at most %g (as priority_exponent allows), got %g at index %" PRIu32
                    "; scale them down",
                    table->max_priority_allowed, priorities[i], first + i);
            }
            return error_set(error, ERROR_BADPRIORITY,
                             "expected finite priorities >= 0, got %g at index %" PRIu32 "; nothing was changed",
                             priorities[i], first + i);
        }
    }
    return 0;
}

/* ---- indexes ------------------------------------------------------------------------------------------------------- */

static bool sampler_is_prioritized(const struct table *table) {
    return table->config.sampler == SELECTOR_PRIORITIZED;
}

uint64_t table_drawable(const struct table *table) {
    return sampler_is_prioritized(table) ? table->positive : table->items.live;
}

uint64_t table_drawable_times(const struct table *table) {
    return sampler_is_prioritized(table) ? table->positive_times : table->live_times;
}

/* Writes a weight of a prioritized sampler, and keeps count of the positive ones. */
static void weigh(struct table *table, uint32_t slot, double weight) {
    bool was = sum_tree_weight(&table->sampler.weights, slot) > 0, is = weight > 0;
    sum_tree_write(&table->sampler.weights, slot, weight);
    if (was != is) {
        uint64_t times = table->items.slot[slot].times_sampled;
        table->positive += is ? 1 : UINT64_MAX;
        table->positive_times += is ? times : -times;
    }
}

void table_enter_sampler(struct table *table, uint32_t slot, double key) {
    if (sampler_is_prioritized(table))
        weigh(table, slot, key);
    else
        selector_insert(&table->sampler, slot, key);
}

void table_remove(struct table *table, uint32_t slot) {
    if (table->work.next == slot) table->work.next = table->items.slot[slot].newer;
    if (table->cut) table_cut_before_change(table, slot);
    if (table->journal) table_journal_left(table, slot);
    if (table->items.ragged) table->items.ragged->live_bytes -= slot_store_ragged_bytes(&table->items, slot);
    if (sampler_is_prioritized(table))
        weigh(table, slot, 0);
    else
        selector_remove(&table->sampler, slot);
    selector_remove(&table->remover, slot);
    freshness_remove(&table->freshness, slot);
    selector_order_remove(&table->order, &table->items, slot);
    priority_counts_leave(&table->priority_counts, max_tree_value(&table->priorities, slot));
    max_tree_write(&table->priorities, slot, 0);
    table->live_times -= table->items.slot[slot].times_sampled;
    slot_store_leave(&table->items, slot);
    table->removed++;
}

void table_repair(struct table *table) {
    selector_repair(&table->sampler);
    selector_repair(&table->remover);
    max_tree_repair(&table->priorities);
}

/* The item that leaves next. A prioritized remover may find only priorities of zero, and one that is being filled
 * may hold nothing yet: then it is the oldest. */
static uint32_t next_to_leave(struct table *table) {
    uint32_t slot = table->order.oldest;
    selector_repair(&table->remover);
    if (selector_can_draw(&table->remover, &table->order))
        selector_draw(&table->remover, &table->order, &table->items, &table->random, 1, &slot);
    return slot;
}

void table_make_room(struct table *table, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) table_remove(table, next_to_leave(table));
}

/* ---- updates ------------------------------------------------------------------------------------------------------- */

void table_set_priority(struct table *table, uint32_t slot, double priority, struct table_keys keys) {
    if (table->cut) table_cut_before_change(table, slot);
    if (table->journal && table->config.log_priorities) table_journal_updated(table, slot, priority);
    priority_counts_leave(&table->priority_counts, max_tree_value(&table->priorities, slot));
    priority_counts_enter(&table->priority_counts, priority);
    max_tree_write(&table->priorities, slot, priority);
    if (sampler_is_prioritized(table))
        weigh(table, slot, keys.sampler);
    else
        selector_update(&table->sampler, slot, keys.sampler);
    selector_update(&table->remover, slot, keys.remover);
}

int table_update(struct table *table, uint32_t n, const uint64_t *ids, const double *priorities, uint64_t *applied,
                 uint64_t *stale, struct error *error) {
    if (table_check_priorities(table, priorities, n, 0, error)) return -1;
    *applied = *stale = 0;
    struct table_keys keys[TABLE_KEYS];
    for (uint32_t i = 0; i < n; i++) {
        if (i % TABLE_KEYS == 0) table_keys_many(table, priorities + i, n - i < TABLE_KEYS ? n - i : TABLE_KEYS, keys);
        if (i + 16 < n) table_prefetch_id(table, ids[i + 16]);
        uint32_t slot = table_slot(table, ids[i]);
        if (slot == SLOT_NONE) {
            ++*stale;
            continue;
        }
        table_set_priority(table, slot, priorities[i], keys[i % TABLE_KEYS]);
        ++*applied;
    }
    table_repair(table);
    table->updates_applied += *applied;
    table->stale_updates += *stale;
    if (table->journal && table->config.log_priorities) table_journal_write(table);
    return 0;
}

uint64_t table_delete(struct table *table, uint32_t n, const uint64_t *ids) {
    uint64_t count = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = table_slot(table, ids[i]);
        if (slot != SLOT_NONE) {
            table_remove(table, slot);
            count++;
        }
    }
    table_repair(table);
    if (table->journal) table_journal_write(table);
    return count;
}

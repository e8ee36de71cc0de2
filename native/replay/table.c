/* table: creation, state, removal, update; adding is in table_add.c, drawing in table_sample.c. */
#include "replay/table_state.h"

#include <assert.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"

static uint64_t item_bytes_of(const struct table_config *config) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < config->columns; i++) {
        bytes += config->column[i].kind == COLUMN_ITEM ? config->column[i].item_bytes : 0;
    }
    return bytes;
}

uint64_t table_effective_capacity(const struct table_config *config) {
    uint64_t item_bytes = item_bytes_of(config); /* 0: all that items have are windows, whose steps are counted */
    uint64_t by_bytes = config->max_bytes && item_bytes ? config->max_bytes / item_bytes : UINT64_MAX;
    return by_bytes < config->capacity ? by_bytes : config->capacity;
}

uint64_t table_full_bytes(const struct table_config *config) {
    uint64_t bytes = table_effective_capacity(config) * (item_bytes_of(config) + step_store_step_bytes(config));
    return config->max_bytes && bytes > config->max_bytes ? config->max_bytes : bytes;
}

struct table *table_new(const struct table_config *config, struct error *error) {
    struct table *table = memory_calloc(1, sizeof *table);
    if (!table) {
        error_set(error, ERROR_GENERIC, "out of memory for table '%s'", config->name);
        return NULL;
    }
    table->config = *config;
    assert(config->capacity >= 1 && config->capacity <= TABLE_MAX_CAPACITY);
    uint32_t slots = (uint32_t)config->capacity + TABLE_SPARE_SLOTS + TABLE_HELD_SLOTS;
    if (storage_init(&table->storage, config, slots, error)) {
        memory_free(table);
        return NULL;
    }
    if (window_map_init(&table->windows, config, slots, error) ||
        (table->windows.steps && step_store_init(&table->steps, config, table_step_slots(config, slots), error))) {
        table_free(table);
        return NULL;
    }
    bool failed = max_tree_init(&table->priorities, slots) != 0;
    failed = failed || (config->sampler == SAMPLER_PRIORITIZED && sum_tree_init(&table->weights, slots));
    failed = failed ||
             (config->sampler == SAMPLER_UNIFORM && selector_uniform_init(&table->uniform, (uint32_t)config->capacity));
    if (failed) {
        table_free(table);
        error_set(error, ERROR_GENERIC, "out of memory: the index of table '%s' could not be mapped", config->name);
        return NULL;
    }
    selector_order_init(&table->order);
    rate_limiter_init(&table->limiter, config);
    double exponent = config->priority_exponent;
    table->max_priority_allowed =
        exponent > 1 ? pow(SUM_TREE_MAX_WEIGHT, 1 / exponent) * (1 - 1e-9) : SUM_TREE_MAX_WEIGHT;
    table_seed(table, config->seed ? config->seed : random_entropy());
    return table;
}

void table_free(struct table *table) {
    assert(table->storage.pinned == 0 && table->reservations == 0 && table->step_reservations == 0);
    while (table->streams) {
        table_stream_free(table, table->streams);
    }
    while (table->step_pool) {
        struct step_reservation *reservation = table->step_pool;
        table->step_pool = reservation->next;
        memory_free(reservation);
    }
    while (table->pool) {
        struct reservation *reservation = table->pool;
        table->pool = reservation->next;
        memory_free(reservation);
    }
    if (table->staging) {
        memory_unmap(table->staging, table->staging_bytes);
    }
    selector_uniform_free(&table->uniform);
    sum_tree_free(&table->weights);
    max_tree_free(&table->priorities);
    window_map_free(&table->windows);
    step_store_free(&table->steps);
    storage_free(&table->storage);
    memory_free(table);
}

const struct table_config *table_config(const struct table *table) {
    return &table->config;
}

void table_seed(struct table *table, uint64_t seed) {
    random_seed(&table->random, seed);
}

int table_column_index(const struct table *table, const char *name, size_t length) {
    for (uint32_t i = 0; i < table->config.columns; i++) {
        const char *column = table->config.column[i].name;
        if (strlen(column) == length && memcmp(column, name, length) == 0) {
            return (int)i;
        }
    }
    return -1;
}

void table_info(const struct table *table, struct table_info *info) {
    const struct storage *storage = &table->storage;
    *info = (struct table_info){
        .size = storage->live,
        .capacity = table->config.capacity,
        .bytes = table_bytes(table),
        .added = table->added,
        .sampled = table->sampled,
        .removed = table->removed,
        .stale_updates = table->stale_updates,
        .updates_applied = table->updates_applied,
        .reserved_slots = storage->reserved,
        .pinned_slots = storage->pinned - storage->held,
        .free_slots = storage_free_slots(storage),
        .retired_slots = storage->retired,
        .item_bytes = storage->item_bytes,
        .steps = table->steps.live,
        .step_bytes = step_store_live_bytes(&table->steps),
        .streams = table->stream_count,
        .max_priority = max_tree_maximum(&table->priorities),
        .total_priority = table->config.sampler == SAMPLER_PRIORITIZED ? sum_tree_total(&table->weights) : 0,
    };
}

double table_weight(const struct table *table, double priority) {
    double exponent = table->config.priority_exponent;
    if (!(priority > 0)) {
        return 0;
    }
    double weight = exponent == 1 ? priority : exponent == 0.5 ? sqrt(priority) : pow(priority, exponent);
    return weight > DBL_MIN ? weight : DBL_MIN; /* a positive priority stays drawable where the power underflows */
}

int table_check_priorities(const struct table *table, const double *priorities, uint32_t n, struct error *error) {
    for (uint32_t i = 0; i < n; i++) {
        if (!(priorities[i] >= 0 && priorities[i] <= table->max_priority_allowed)) {
            if (isfinite(priorities[i]) && priorities[i] > 0) {
                return error_set(error, ERROR_BADPRIORITY,
                                 "expected priorities of at most %g (priority_exponent is %g), got %g at "
                                 "index %" PRIu32 "; scale them down",
                                 table->max_priority_allowed, table->config.priority_exponent, priorities[i], i);
            }
            return error_set(error, ERROR_BADPRIORITY,
                             "expected finite priorities >= 0, got %g at index %" PRIu32 "; nothing was changed",
                             priorities[i], i);
        }
    }
    return 0;
}

bool table_is_drawable(const struct table *table, uint32_t slot) {
    return table->config.sampler != SAMPLER_PRIORITIZED || sum_tree_weight(&table->weights, slot) > 0;
}

void table_remove(struct table *table, uint32_t slot) {
    if (table->cut) {
        table_cut_before_leave(table, slot);
    }
    if (table_is_drawable(table, slot)) {
        table->drawable--;
        table->drawable_times -= table->storage.slot[slot].times_sampled;
    }
    selector_order_remove(&table->order, &table->storage, slot);
    if (table->config.sampler == SAMPLER_UNIFORM) {
        selector_uniform_remove(&table->uniform, &table->storage, slot);
    } else if (table->config.sampler == SAMPLER_PRIORITIZED) {
        sum_tree_write(&table->weights, slot, 0);
    }
    max_tree_write(&table->priorities, slot, 0);
    if (storage_leave(&table->storage, slot)) {
        table_forget_steps(table, slot);
    }
    table->removed++;
}

void table_repair(struct table *table) {
    if (table->config.sampler == SAMPLER_PRIORITIZED) {
        sum_tree_repair(&table->weights);
    }
    max_tree_repair(&table->priorities);
}

void table_reset(struct table *table) {
    while (table->order.oldest != STORAGE_NO_SLOT) {
        table_remove(table, table->order.oldest);
    }
    table_repair(table);
    rate_limiter_reset(&table->limiter);
}

/* Writes one priority of a live item; the trees need table_repair. */
static void set_priority(struct table *table, uint32_t slot, double priority) {
    if (table->cut) {
        table_cut_before_change(table, slot);
    }
    max_tree_write(&table->priorities, slot, priority);
    if (table->config.sampler != SAMPLER_PRIORITIZED) {
        return;
    }
    bool was = sum_tree_weight(&table->weights, slot) > 0;
    double weight = table_weight(table, priority);
    sum_tree_write(&table->weights, slot, weight);
    if (was != (weight > 0)) {
        uint64_t times = table->storage.slot[slot].times_sampled;
        table->drawable += was ? UINT64_MAX : 1;
        table->drawable_times += was ? -times : times;
    }
}

int table_update(struct table *table, uint32_t n, const uint64_t *ids, const double *priorities, uint64_t *applied,
                 uint64_t *stale, struct error *error) {
    if (table_check_priorities(table, priorities, n, error)) {
        return -1;
    }
    *applied = *stale = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (i + 16 < n) {
            table_prefetch_id(table, ids[i + 16]);
        }
        uint32_t slot = table_slot(table, ids[i]);
        if (slot == STORAGE_NO_SLOT) {
            ++*stale;
            continue;
        }
        set_priority(table, slot, priorities[i]);
        ++*applied;
    }
    table_repair(table);
    table->updates_applied += *applied;
    table->stale_updates += *stale;
    return 0;
}

uint64_t table_delete(struct table *table, uint32_t n, const uint64_t *ids) {
    uint64_t count = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = table_slot(table, ids[i]);
        if (slot != STORAGE_NO_SLOT) {
            table_remove(table, slot);
            count++;
        }
    }
    table_repair(table);
    return count;
}

/* Applies limits that table_configure has parsed: items beyond them leave at once, oldest first. */
static void apply_limits(struct table *table) {
    uint64_t capacity = table_effective_capacity(&table->config);
    uint32_t max_times_sampled = table->config.max_times_sampled;
    for (uint32_t slot = table->order.oldest; slot != STORAGE_NO_SLOT;) {
        uint32_t newer = table->storage.slot[slot].newer;
        bool worn_out = max_times_sampled && table->storage.slot[slot].times_sampled >= max_times_sampled;
        if (worn_out || table->storage.live > capacity) {
            table_remove(table, slot);
        }
        slot = newer;
    }
    if (table->config.max_bytes) {
        table_evict_for_bytes(table, 0);
    }
    table_repair(table);
    rate_limiter_configure(&table->limiter, &table->config);
}

int table_configure(struct table *table, const uint8_t *spec, size_t length, struct error *error) {
    struct table_config config = table->config;
    if (table_config_change(&config, spec, length, error)) {
        return -1;
    }
    table->config = config;
    apply_limits(table);
    return 0;
}

/* table_change: a reset and a change of settings, in slices; items that are too old leave here as well. */
#include "replay/table_state.h"

#include <inttypes.h>

#include "base/clock.h"
#include "replay/selector_prioritized.h"

#define SLICE_ITEMS 32u /* between two looks at the clock: some ten microseconds where all are far from the caches */
#define SLICE_SLOTS 256u /* that are looked at alone */
#define SWEEP_US 200u   /* for stale items within one command; table_step does the rest */

/* ---- state --------------------------------------------------------------------------------------------------------- */

static bool has_too_many(const struct table *table) {
    return table->items.live > table_effective_capacity(&table->config);
}

bool table_is_ready(const struct table *table, struct error *error) {
    const struct table_work *work = &table->work;
    if (work->resetting) {
        return error_because(error, ERROR_TIMEOUT, "the table is being reset: %" PRIu32 " items have still to leave",
                             table->items.live);
    }
    if (work->walking) {
        return error_because(error, ERROR_TIMEOUT,
                             "the table is being changed: its %" PRIu32 " items are looked at once more",
                             table->items.live);
    }
    /* Amid an eviction for max_bytes alone the items are whole, and commits make room as ever. */
    if (work->shrinking && has_too_many(table)) {
        return error_because(error, ERROR_TIMEOUT,
                             "the table is being changed: it holds %" PRIu32 " items, more than it may",
                             table->items.live);
    }
    return true;
}

/* Where records are applied, items that are too old leave by records of their own. */
static bool has_stale(const struct table *table) {
    uint32_t slot;
    return !table->items.takes_by_number && freshness_stale(&table->freshness, &slot);
}

static bool has_uncollected(const struct table *table) {
    return table->items.uncollected || table->own_steps.uncollected;
}

bool table_has_work(const struct table *table) {
    const struct table_work *work = &table->work;
    return work->resetting || work->walking || work->shrinking || has_uncollected(table) || has_stale(table);
}

/* ---- slices -------------------------------------------------------------------------------------------------------- */

static void reset_slice(struct table *table) {
    for (uint32_t i = 0; i < SLICE_ITEMS && table->order.oldest != SLOT_NONE; i++)
        table_remove(table, table->order.oldest);
    if (table->order.oldest != SLOT_NONE) return;
    table->work = (struct table_work){.resetting = false};
    rate_limiter_reset(&table->limiter);
    /* A caller that begins anew counts versions anew: none of its items may be too old. */
    freshness_forget(&table->freshness);
}

static void look_again(struct table *table, uint32_t slot) {
    const struct table_work *work = &table->work;
    uint32_t limit = table->config.max_times_sampled;
    if (work->wearing && limit && table->items.slot[slot].times_sampled >= limit) {
        table_remove(table, slot);
        return;
    }
    double priority = max_tree_value(&table->priorities, slot);
    if (work->fill_sampler) table_enter_sampler(table, slot, selector_key(&table->sampler, priority));
    if (work->fill_remover) selector_insert(&table->remover, slot, selector_key(&table->remover, priority));
    if (work->fill_freshness) freshness_insert(&table->freshness, &table->items, slot);
}

static void walk_slice(struct table *table) {
    struct table_work *work = &table->work;
    for (uint32_t i = 0; i < SLICE_ITEMS && work->next != SLOT_NONE; i++) {
        uint32_t slot = work->next;
        work->next = table->items.slot[slot].newer; /* before it may leave */
        look_again(table, slot);
    }
    if (work->next == SLOT_NONE) {
        bool shrinking = work->shrinking;
        *work = (struct table_work){.shrinking = shrinking};
    }
}

static bool too_large(const struct table *table) {
    uint64_t max_bytes = table->config.max_bytes;
    return has_too_many(table) || (table->items.live && max_bytes && table_bytes(table) > max_bytes);
}

static void shrink_slice(struct table *table) {
    uint32_t left = SLICE_ITEMS;
    for (; left > 0 && has_too_many(table); left--) table_make_room(table, 1);
    if (left > 0) table->work.shrinking = table_make_room_for_bytes(table, left);
}

static void sweep_slice(struct table *table) {
    uint32_t slot;
    for (uint32_t i = 0; i < SLICE_ITEMS && freshness_stale(&table->freshness, &slot); i++) {
        table_remove(table, slot);
        table->stale_items++;
    }
}

static void collect_slice(struct table *table) {
    if (!slot_store_collect_some(&table->items, SLICE_SLOTS)) slot_store_collect_some(&table->own_steps, SLICE_SLOTS);
}

bool table_step(struct table *table, uint64_t deadline_us) {
    while (table_has_work(table)) {
        if (table->work.resetting)
            reset_slice(table);
        else if (table->work.walking)
            walk_slice(table);
        else if (table->work.shrinking)
            shrink_slice(table);
        else if (has_uncollected(table))
            collect_slice(table);
        else
            sweep_slice(table);
        table_repair(table);
        if (table->journal && !table->work.resetting) table_journal_write(table);
        if (deadline_us != CLOCK_NEVER && clock_monotonic_us() >= deadline_us) return table_has_work(table);
    }
    return false;
}

/* ---- beginning ----------------------------------------------------------------------------------------------------- */

void table_begin_reset(struct table *table) {
    if (table->journal) table_journal_tell_reset(table);
    table->work.resetting = true;
}

void table_reset(struct table *table) {
    table_begin_reset(table);
    table_step(table, CLOCK_NEVER);
}

/* The largest priority that both selectors can hold. */
static double priority_limit(const struct table_config *config) {
    double sampler =
        selector_prioritized_limit(config->sampler == SELECTOR_PRIORITIZED ? config->priority_exponent : 0);
    double remover = selector_prioritized_limit(config->remover == SELECTOR_PRIORITIZED ? config->remover_exponent : 0);
    return sampler < remover ? sampler : remover;
}

void table_limit_priorities(struct table *table) {
    table->max_priority_allowed = priority_limit(&table->config);
}

static int check_priorities_fit(const struct table *table, const struct table_config *config, struct error *error) {
    double largest = max_tree_maximum(&table->priorities), limit = priority_limit(config);
    return largest <= limit ? 0
                            : error_set(error, ERROR_BADSCHEMA,
                                        "priority_exponent: expected one that the table's priorities allow; they go up "
                                        "to %g, and with this exponent to %g at most; lower them first",
                                        largest, limit);
}

static bool selector_differs(const struct selector *selector, enum selector_kind kind, double exponent) {
    return selector->kind != kind || (kind == SELECTOR_PRIORITIZED && selector->exponent != exponent);
}

/* Makes new and empty selectors where the configuration asks for others; on failure nothing has changed. */
static int replace_selectors(struct table *table, const struct table_config *config, struct error *error) {
    uint32_t capacity = (uint32_t)config->capacity, slots = table->items.slots;
    struct table_work *work = &table->work;
    struct selector sampler = table->sampler, remover = table->remover;
    bool other_sampler = selector_differs(&sampler, config->sampler, config->priority_exponent);
    bool other_remover = selector_differs(&remover, config->remover, config->remover_exponent);
    bool limits = table->freshness.max_staleness < 0 && config->max_staleness >= 0;
    if (other_sampler && selector_init(&sampler, config->sampler, config->priority_exponent, capacity, slots))
        return error_set(error, ERROR_GENERIC, "out of memory for another sampler; nothing was changed");
    if ((other_remover && selector_init(&remover, config->remover, config->remover_exponent, capacity, slots)) ||
        freshness_limit(&table->freshness, config->max_staleness, capacity, slots)) {
        if (other_sampler) selector_free(&sampler);
        if (other_remover) selector_free(&remover);
        return error_set(error, ERROR_GENERIC,
                         "out of memory for another remover or max_staleness; nothing was changed");
    }
    if (other_sampler) {
        selector_free(&table->sampler);
        table->sampler = sampler;
        table->positive = table->positive_times = 0;
    }
    if (other_remover) {
        selector_free(&table->remover);
        table->remover = remover;
    }
    table->sampler.independent = config->independent;
    work->fill_sampler = other_sampler && selector_is_indexed(config->sampler);
    work->fill_remover = other_remover && selector_is_indexed(config->remover);
    work->fill_freshness = limits;
    return 0;
}

/* Out of records that lack updates of priorities, items may have larger ones than when these settings were given. */
static void limit_unlogged_priorities(struct table *table, const struct table_config *config) {
    double limit = priority_limit(config);
    if (max_tree_maximum(&table->priorities) <= limit) return;
    for (uint32_t slot = table->order.oldest; slot != SLOT_NONE; slot = table->items.slot[slot].newer)
        if (max_tree_value(&table->priorities, slot) > limit)
            table_set_priority(table, slot, limit, table_keys(table, limit));
    table_repair(table);
}

int table_begin_configure(struct table *table, const uint8_t *spec, size_t length, struct error *error) {
    struct table_config config = table->config;
    if (!table_is_ready(table, error) || table_config_change(&config, spec, length, error)) return -1;
    if (table->items.takes_by_number && !config.log_priorities) limit_unlogged_priorities(table, &config);
    if (check_priorities_fit(table, &config, error) || replace_selectors(table, &config, error)) return -1;
    struct table_work *work = &table->work;
    uint32_t before = table->config.max_times_sampled, limit = config.max_times_sampled;
    work->wearing = limit && (before == 0 || limit < before);
    work->walking = work->wearing || work->fill_sampler || work->fill_remover || work->fill_freshness;
    work->next = table->order.oldest;
    table->config = config;
    work->shrinking = too_large(table);
    table_limit_priorities(table);
    rate_limiter_configure(&table->limiter, &config);
    table_journal_tell(table, TABLE_JOURNAL_SETTINGS, spec, length);
    return 0;
}

int table_configure(struct table *table, const uint8_t *spec, size_t length, struct error *error) {
    if (table_begin_configure(table, spec, length, error)) return -1;
    table_step(table, CLOCK_NEVER);
    return 0;
}

void table_begin_recheck(struct table *table) {
    bool wearing = table->config.max_times_sampled > 0;
    table->work = (struct table_work){
        .walking = wearing, .wearing = wearing, .next = table->order.oldest, .shrinking = too_large(table)};
}

void table_recheck(struct table *table) {
    table_begin_recheck(table);
    table_step(table, CLOCK_NEVER);
}

/* ---- staleness ----------------------------------------------------------------------------------------------------- */

void table_sweep_stale(struct table *table) {
    uint32_t slot;
    if (!freshness_stale(&table->freshness, &slot)) return;
    uint64_t deadline_us = clock_monotonic_us() + SWEEP_US;
    do {
        sweep_slice(table);
        table_repair(table);
    } while (freshness_stale(&table->freshness, &slot) && clock_monotonic_us() < deadline_us);
    if (table->journal) table_journal_write(table);
}

int table_see_version(struct table *table, int64_t version, struct error *error) {
    if (table->freshness.column < 0) {
        return error_set(error, ERROR_BADSCHEMA,
                         "a policy version was given, but table '%s' has no column '%s' (int64, a single number); "
                         "leave the version out, or create the table with that column",
                         table->config.name, TABLE_VERSION_COLUMN);
    }
    freshness_see(&table->freshness, version);
    table_sweep_stale(table);
    if (table->journal) table_journal_write(table);
    return 0;
}

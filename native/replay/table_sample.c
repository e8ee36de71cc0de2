/* table_sample: drawing batches, pinning what was drawn, and reading items by id. */
#include "replay/table_state.h"

#include <assert.h>
#include <inttypes.h>

#include "base/memory.h"

bool table_is_fresh(const struct table *table, struct error *error) {
    uint32_t slot;
    if (!freshness_stale(&table->freshness, &slot)) return true;
    return error_because(error, ERROR_TIMEOUT,
                         "items of policies more than max_staleness = %" PRId64 " versions behind %" PRId64
                         " have still to leave",
                         table->freshness.max_staleness, table->freshness.newest);
}

/* A batch without replacement needs as many different items. */
static bool enough_distinct(const struct table *table, uint64_t n, struct error *error) {
    if (n > table_effective_capacity(&table->config)) {
        return error_because(error, ERROR_LIMIT,
                             "a sample of %" PRIu64 " without replacement is more than a table of %" PRIu64
                             " can hold; sample fewer at once, or with replacement",
                             n, table_effective_capacity(&table->config));
    }
    if (n > table_drawable(table)) {
        return error_because(error, ERROR_TIMEOUT,
                             "too few items: %" PRIu64 " may be drawn, a sample of %" PRIu64
                             " without replacement waits",
                             table_drawable(table), n);
    }
    return true;
}

/* `distinct`: no item may come twice. */
static bool enough_items(const struct table *table, uint64_t n, bool distinct, struct error *error) {
    uint64_t size = table->items.live, max_times_sampled = table->config.max_times_sampled;
    if (size == 0) return error_because(error, ERROR_TIMEOUT, "too few items: the table is empty");
    if (selector_is_ordered(table->config.sampler) && n > size) {
        return error_because(error, ERROR_TIMEOUT,
                             "too few items: a %s sample of %" PRIu64 " waits, the table holds %" PRIu64,
                             selector_name(table->config.sampler), n, size);
    }
    uint64_t drawable = table_drawable(table);
    if (drawable == 0) {
        return error_because(error, ERROR_TIMEOUT,
                             "all priorities are zero: the table holds %" PRIu64 " items, none may be drawn", size);
    }
    uint64_t draws = drawable * max_times_sampled - table_drawable_times(table);
    draws -= table->drawing < draws ? table->drawing : draws;
    if (max_times_sampled && n > draws) {
        return error_because(error, ERROR_TIMEOUT,
                             "too few items: %" PRIu64 " may be drawn %" PRIu64 " times more within "
                             "max_times_sampled = %" PRIu64 ", a sample of %" PRIu64 " waits",
                             drawable, draws, max_times_sampled, n);
    }
    return !distinct || enough_distinct(table, n, error);
}

bool table_can_sample(const struct table *table, uint64_t n, bool replace, struct error *error) {
    if (n < 1 || n > TABLE_MAX_BATCH) {
        return error_because(error, ERROR_LIMIT, "expected a sample of 1 to %u items, got %" PRIu64, TABLE_MAX_BATCH,
                             n);
    }
    bool ordered = selector_is_ordered(table->config.sampler);
    if (ordered && n > table_effective_capacity(&table->config)) {
        return error_because(error, ERROR_LIMIT,
                             "a %s sample of %" PRIu64 " is more than a table of %" PRIu64
                             " can hold; sample fewer at once",
                             selector_name(table->config.sampler), n, table_effective_capacity(&table->config));
    }
    uint64_t max_times_sampled = table->config.max_times_sampled;
    if (max_times_sampled && n > table_effective_capacity(&table->config) * max_times_sampled) {
        return error_because(error, ERROR_LIMIT,
                             "a sample of %" PRIu64 " is more than %" PRIu64
                             " items allow within max_times_sampled = %" PRIu64 "; sample fewer at once",
                             n, table_effective_capacity(&table->config), max_times_sampled);
    }
    if (!table_is_ready(table, error) || !table_is_fresh(table, error)) return false;
    bool passes = rate_limiter_can_sample(&table->limiter, table->items.live, n, error);
    if (passes && enough_items(table, n, !replace && !ordered, error)) return true;
    /* An update of priorities may make more of them drawable. */
    if (!passes || table_drawable(table) == table->items.live) table_refuse_wait(table, error);
    return false;
}

/* P of an item as drawn now. A draw in order is certain. */
static double probability(const struct table *table, uint32_t slot, double total) {
    switch (table->config.sampler) {
    case SELECTOR_PRIORITIZED: return sum_tree_weight(&table->sampler.weights, slot) / total;
    case SELECTOR_UNIFORM: return 1.0 / (double)table->items.live;
    default: return 1.0;
    }
}

static void draw(struct table *table, uint32_t n, uint32_t *slots) {
    selector_draw(&table->sampler, &table->order, &table->items, &table->random, n, slots);
}

/* As draw, no slot twice. `scratch` is for n doubles. */
static void draw_distinct(struct table *table, uint32_t n, uint32_t *slots, double *scratch) {
    selector_draw_distinct(&table->sampler, &table->order, &table->items, &table->random, n, slots, scratch);
}

void table_count_draw(struct table *table, uint32_t slot) {
    struct slot *entry = &table->items.slot[slot];
    if (table->cut) table_cut_before_change(table, slot);
    if (entry->times_sampled < UINT32_MAX) {
        entry->times_sampled++;
        table->live_times++;
        table->positive_times++; /* of a prioritized sampler: it draws no others */
    }
}

/* Of an item that was just counted as drawn. */
static struct table_detail detail(const struct table *table, uint32_t slot) {
    return (struct table_detail){
        .priority = max_tree_value(&table->priorities, slot),
        .times_sampled = table->items.slot[slot].times_sampled,
        .age = table->items.next_age - table->items.slot[slot].age - 1,
        .size = table->items.live,
    };
}

void table_take_batch(struct table *table, uint32_t n, const uint32_t *slots, uint64_t *ids, double *probabilities,
                      struct table_detail *details) {
    double total = selector_total(&table->sampler);
    for (uint32_t i = 0; i < n; i++) {
        if (i + 16 < n) __builtin_prefetch(&table->items.slot[slots[i + 16]], 1);
        column_arrays_prefetch(&table->items.arrays, slots[i]);
        table_count_draw(table, slots[i]);
        slot_store_pin(&table->items, slots[i]);
        if (ids) ids[i] = table_id(table, slots[i]);
        if (probabilities) probabilities[i] = probability(table, slots[i], total);
        if (details) details[i] = detail(table, slots[i]);
    }
}

/* As table_take_batch, with a bound on how often an item is sampled: an item that reaches it leaves at once, and where
 * this batch has it again another one is drawn from what is left. Probabilities are those of the moment of the draw. */
static void take_one_by_one(struct table *table, uint32_t n, uint32_t *slots, uint64_t *ids, double *probabilities,
                            struct table_detail *details) {
    double total = selector_total(&table->sampler);
    for (uint32_t i = 0; i < n; i++) {
        if (!table->items.slot[slots[i]].live)
            draw(table, 1, &slots[i]); /* table_can_sample has counted: something is left */
        uint32_t slot = slots[i];
        table_count_draw(table, slot);
        if (table->journal) table_journal_drawn(table, slot);
        slot_store_pin(&table->items, slot);
        if (ids) ids[i] = table_id(table, slot);
        if (probabilities) probabilities[i] = probability(table, slot, total);
        if (details) details[i] = detail(table, slot);
        if (table->items.slot[slot].times_sampled >= table->config.max_times_sampled) {
            table_remove(table, slot);
            table_repair(table);
            total = selector_total(&table->sampler);
        }
    }
}

/* Draws n items and pins them. `probabilities`: for n, which may be NULL where nothing needs them. */
static void take(struct table *table, uint32_t n, bool replace, uint32_t *slots, uint64_t *ids, double *probabilities,
                 struct table_detail *details) {
    if (replace)
        draw(table, n, slots);
    else
        draw_distinct(table, n, slots, probabilities);
    if (table->config.max_times_sampled)
        take_one_by_one(table, n, slots, ids, probabilities, details);
    else
        table_take_batch(table, n, slots, ids, probabilities, details);
    table->sampled += n;
}

static int check_beta(double beta, struct error *error) {
    return beta >= 0 && beta <= TABLE_MAX_EXPONENT
               ? 0
               : error_set(error, ERROR_GENERIC, "expected an importance_sampling_exponent from 0 to %g, got %g",
                           TABLE_MAX_EXPONENT, beta);
}

int table_sample(struct table *table, uint32_t n, double beta, bool replace, uint32_t *slots, uint64_t *ids,
                 double *probabilities, float *weights, struct table_detail *details, struct error *error) {
    if (check_beta(beta, error) || !table_can_sample(table, n, replace, error)) return -1;
    bool prioritized = table->config.sampler == SELECTOR_PRIORITIZED;
    double *own = NULL; /* the only place for the probability of an item that leaves in this draw */
    if (prioritized && (weights || !replace) && !probabilities &&
        !(own = probabilities = memory_alloc(n * sizeof *own))) {
        return error_set(error, ERROR_GENERIC, "out of memory for the probabilities of a sample of %" PRIu32, n);
    }
    take(table, n, replace, slots, ids, probabilities, details);
    if (weights)
        table_weigh(table, n, beta, prioritized ? table_least_probability(n, probabilities) : 1, probabilities,
                    weights);
    memory_free(own);
    rate_limiter_sampled(&table->limiter, n);
    if (table->journal) table_journal_write(table);
    return 0;
}

/* ---- in parts ------------------------------------------------------------------------------------------------------ */

bool table_samples_in_parts(const struct table *table, bool replace) {
    return selector_is_ordered(table->config.sampler) ? table->config.max_times_sampled == 1 : replace;
}

int table_begin_sample(struct table *table, uint32_t n, double beta, bool replace, struct error *error) {
    assert(table_samples_in_parts(table, replace));
    if (check_beta(beta, error) || !table_can_sample(table, n, replace, error)) return -1;
    rate_limiter_sampled(&table->limiter, n);
    table->drawing += n;
    return 0;
}

int table_sample_part(struct table *table, uint32_t n, uint32_t *slots, uint64_t *ids, double *probabilities,
                      struct table_detail *details, struct error *error) {
    assert(n <= table->drawing);
    struct error stale = {.code = ERROR_NONE};
    if (!table_is_fresh(table, &stale)) return 1;
    uint64_t drawable = table_drawable(table), most = table->config.max_times_sampled;
    if (drawable == 0 || (most && drawable * most - table_drawable_times(table) < n)) {
        return error_set(error, ERROR_GENERIC,
                         "items of table '%s' have left while a large sample was drawn; sample again, or fewer at once",
                         table->config.name);
    }
    take(table, n, true, slots, ids, probabilities, details);
    table->drawing -= n;
    if (table->journal) table_journal_write(table);
    return 0;
}

void table_end_sample(struct table *table, uint32_t left) {
    rate_limiter_not_sampled(&table->limiter, left);
    table->drawing -= left;
}

int table_get(struct table *table, uint32_t n, const uint64_t *ids, uint32_t first, uint32_t *slots,
              double *probabilities, struct error *error) {
    for (uint32_t i = 0; i < n; i++) {
        slots[i] = table_slot(table, ids[i]);
        if (slots[i] == SLOT_NONE) {
            return error_set(error, ERROR_GENERIC,
                             "item %" PRIu64 " (index %" PRIu32 ") is not in table '%s': it has left, or never "
                             "was; ask for live ids only",
                             ids[i], first + i, table->config.name);
        }
    }
    double total = selector_total(&table->sampler);
    for (uint32_t i = 0; i < n; i++) {
        slot_store_pin(&table->items, slots[i]);
        if (probabilities)  /* of a table whose priorities are all zero no item can be drawn */
            probabilities[i] = table_drawable(table) ? probability(table, slots[i], total) : 0;
    }
    return 0;
}

void table_column_view(const struct table *table, uint32_t column, const uint8_t **base, size_t *stride) {
    assert(column < table->items.arrays.columns && table->items.arrays.base[column]);
    *base = table->items.arrays.base[column];
    *stride = table->items.arrays.stride[column];
}

void table_gather(const struct table *table, uint32_t column, const uint32_t *slots, uint32_t n, void *out) {
    table_gather_part(table, column, slots, n, out, table->config.column[column].item_bytes * n);
}

void table_gather_part(const struct table *table, uint32_t column, const uint32_t *slots, uint32_t n, void *out,
                       size_t result_bytes) {
    assert(column < table->items.arrays.columns && table->config.column[column].kind != COLUMN_STEP);
    assert(!column_is_ragged(&table->config.column[column]));
    if (table->config.column[column].item_bytes == 0) return;
    if (table->config.column[column].kind == COLUMN_WINDOW) {
        window_map_gather(&table->windows, &table->items, &table->config.column[column], column, slots, n, out,
                          result_bytes);
    } else {
        column_arrays_gather(&table->items.arrays, column, slots, n, out, result_bytes);
    }
}

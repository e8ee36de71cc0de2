/* table_timed: the draws of one shard, as they merge with those of others into one exact sample of the whole.
 *
 * Every item arrives by itself, at the times of a Poisson process whose rate is its p^alpha (1 in a uniform table). So a
 * shard's arrivals are a Poisson process whose rate is its sum S, each arrival is item i with probability p_i^alpha / S
 * whenever it comes, and the arrivals of all shards together are such a process over all their items (superposition;
 * Kingman, Poisson Processes, 1993, sections 2.2 and 5.2). Merged by time, the first B arrivals are therefore B independent
 * draws by p^alpha over the whole, however the items lie on the shards, and whatever the caller believed of their sums
 * when it chose how far to ask. What keeps it exact where an answer must be bounded:
 *   - Times are made one after another, each an exponential gap after the one before. To stop at the n-th is to stop at a
 *     moment that depends only on what has come by then. What follows it is a Poisson process again, independent of all
 *     before, which the caller may ask for later. `until` says where it begins: no arrival up to there is missing, and the
 *     caller uses none of any shard that is later than the least `until`.
 *   - The rate limiter lets through a number that is known before the first draw. That is a smaller n.
 *   - Without replacement an item counts when it first arrives. Of the items that have not arrived yet the next is one by
 *     weight, after a gap of their sum: what was drawn is taken out of the sum, in rounds. In a round an item that is
 *     drawn again has arrived before, so it is passed over. A question that begins later than 0 knows nothing of what the
 *     one before it answered: the caller passes over items that it has.
 *   - `sum` is the S that the gaps were made of. It belongs to these arrivals even if priorities change before the next.
 *
 * What has no such form is refused. Fifo, lifo and heaps give the first items of an order, and no shard knows where the
 * others' items stand in it. With max_times_sampled, draws that the merge does not use would use items up. Draws are never
 * stratified: the strata are parts of the sum over all shards, which nobody knows before their answers. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>

#include "replay/table_state.h"

#define ROUND_DRAWS 64u /* between two repairs of the sums, at most */

bool table_can_sample_timed(const struct table *table, uint64_t n, struct error *error) {
    const struct table_config *config = &table->config;
    if (n < 1 || n > TABLE_MAX_BATCH) {
        return error_because(error, ERROR_LIMIT, "expected a sample of 1 to %u items, got %" PRIu64, TABLE_MAX_BATCH,
                             n);
    }
    if (selector_is_ordered(config->sampler)) {
        return error_because(
            error, ERROR_GENERIC,
            "TIMED: expected a table whose sampler is prioritized or uniform, got %s, whose order over "
            "all shards no shard knows; sample each shard by itself",
            selector_name(config->sampler));
    }
    if (config->max_times_sampled) {
        return error_because(error, ERROR_GENERIC,
                             "TIMED: expected a table without max_times_sampled, got %" PRIu32
                             ": draws that are not used would use its items up; sample each shard by itself",
                             config->max_times_sampled);
    }
    return table_is_ready(table, error) && table_is_fresh(table, error);
}

/* The next arrivals, at most `most`, after *time and up to `to`; moves *time to where they are complete. */
static uint32_t arrive(struct random_state *random, double rate, uint32_t most, double to, double *time,
                       double *times) {
    uint32_t count = 0;
    double last = *time;
    while (count < most && rate > 0) {
        double next = last - log1p(-random_unit(random)) / rate;
        if (!(next <= to)) break;
        times[count++] = last = next;
    }
    *time = count < most || rate <= 0 ? to : last;
    return count;
}

static uint32_t draw_distinct_by_weight(struct table *table, uint32_t most, double to, double *time, uint32_t *slots,
                                        double *powers, double *times) {
    struct sum_tree *weights = &table->sampler.weights;
    double came_at[ROUND_DRAWS];
    uint32_t drawn[ROUND_DRAWS], found = 0, asked = most < ROUND_DRAWS ? most : ROUND_DRAWS;
    while (found < most) {
        uint32_t came = arrive(&table->random, sum_tree_total(weights), asked, to, time, came_at), before = found;
        if (came == 0) break;
        sum_tree_sample(weights, &table->random, came, false, drawn);
        for (uint32_t i = 0; i < came; i++) {
            double power = sum_tree_weight(weights, drawn[i]);
            if (power == 0) continue; /* it has arrived before */
            slots[found] = drawn[i];
            powers[found] = power;
            times[found++] = came_at[i];
            sum_tree_write(weights, drawn[i], 0);
        }
        sum_tree_repair(weights);
        if (came < asked) break;
        /* A few heavy items, drawn again and again, cost little, as in sum_tree_sample_distinct. */
        uint32_t twice = 2 * (found - before);
        asked = twice < ROUND_DRAWS ? twice : ROUND_DRAWS;
        if (asked > most - found) asked = most - found;
    }
    sum_tree_set(weights, slots, powers, found);
    return found;
}

/* The gaps grow as items leave; which item each is does not depend on them. */
static uint32_t draw_distinct_evenly(struct table *table, uint32_t most, double to, double *time, uint32_t *slots,
                                     double *times) {
    uint32_t found = 0, left = table->items.live;
    while (found < most && arrive(&table->random, left - found, 1, to, time, times + found)) found++;
    selector_uniform_sample_distinct(&table->sampler.uniform, &table->random, found, slots);
    return found;
}

void table_not_used(struct table *table, uint64_t n) {
    uint64_t most = table->sampled - table->unused;
    table->unused += n < most ? n : most;
    rate_limiter_not_sampled(&table->limiter, n);
}

uint32_t table_sample_timed(struct table *table, uint32_t n, double from, double to, bool replace, uint32_t *slots,
                            uint64_t *ids, double *powers, double *times, struct table_detail *details,
                            struct table_arrivals *arrivals) {
    assert(from < to);
    bool prioritized = table->config.sampler == SELECTOR_PRIORITIZED;
    *arrivals = (struct table_arrivals){
        .until = from,
        .sum = prioritized ? sum_tree_total(&table->sampler.weights) : table->items.live,
        .size = table->items.live,
    };
    uint32_t most = (uint32_t)rate_limiter_admits_samples(&table->limiter, table->items.live, n), count;
    if (replace) {
        count = arrive(&table->random, arrivals->sum, most, to, &arrivals->until, times);
        if (count && prioritized)
            sum_tree_sample(&table->sampler.weights, &table->random, count, false, slots);
        else if (count)
            selector_uniform_sample(&table->sampler.uniform, &table->random, count, slots);
    } else if (prioritized) {
        count = draw_distinct_by_weight(table, most, to, &arrivals->until, slots, powers, times);
    } else {
        count = draw_distinct_evenly(table, most, to, &arrivals->until, slots, times);
    }
    for (uint32_t i = 0; i < count; i++)
        powers[i] = prioritized ? sum_tree_weight(&table->sampler.weights, slots[i]) : 1;
    table_take_batch(table, count, slots, ids, NULL, details);
    table->sampled += count;
    rate_limiter_sampled(&table->limiter, count);
    if (table->journal) table_journal_write(table);
    if (most < n && count == most && arrivals->until < to) {
        /* Not for want of items: the whole must have that many, not this shard. */
        uint64_t least = table->limiter.min_size_to_sample, size = table->items.live;
        rate_limiter_can_sample(&table->limiter, size > least ? size : least, 1, &arrivals->limit);
    }
    return count;
}

/* Tests of one sample over many tables: what a shard answers, and that the merge of several is exact. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/msgpack.h"
#include "check.h"
#include "replay/table_state.h"
#include "table_stage.h"

#define MOST 512u

/* An answer of a shard. */
struct answer {
    uint32_t n;
    uint32_t slots[MOST];
    uint64_t ids[MOST];
    double powers[MOST], times[MOST];
    struct table_arrivals arrivals;
};

static void ask(struct table *table, uint32_t most, double from, double to, bool replace, struct answer *answer) {
    CHECK(table_can_sample_timed(table, most, &error));
    answer->n = table_sample_timed(table, most, from, to, replace, answer->slots, answer->ids, answer->powers,
                                   answer->times, NULL, &answer->arrivals);
    CHECK(answer->n <= most && answer->arrivals.until <= to);
    for (uint32_t i = 0; i < answer->n; i++) {
        CHECK(answer->times[i] >= (i ? answer->times[i - 1] : from));
        CHECK(answer->times[i] <= answer->arrivals.until);
    }
    table_unpin(table, answer->slots, answer->n);
}

static struct table *shard_of(uint8_t number, uint32_t items, uint64_t first, const double *priorities, uint64_t *ids) {
    struct table_config config = small_config(1000, SELECTOR_PRIORITIZED);
    config.seed = 100 + number;
    struct table *table = make(&config);
    table_set_shard(table, number);
    CHECK(add(table, items, first, priorities, ids) == 0);
    return table;
}

/* ---- ids ----------------------------------------------------------------------------------------------------------- */

static void ids_carry_the_shard_and_those_of_another_shard_have_left(void) {
    uint64_t ours[3], theirs[3], applied, stale;
    uint32_t slots[3];
    const double ones[3] = {1, 1, 1}, fives[3] = {5, 5, 5};
    struct table *first = shard_of(255, 3, 0, ones, ours), *second = shard_of(7, 3, 0, ones, theirs);
    for (int i = 0; i < 3; i++)
        CHECK(ours[i] >> 56 == 255 && theirs[i] >> 56 == 7 && (uint32_t)ours[i] == (uint32_t)theirs[i]);
    CHECK(table_update(first, 3, theirs, fives, &applied, &stale, &error) == 0 && applied == 0 && stale == 3);
    CHECK(table_get(first, 3, theirs, 0, slots, NULL, &error) == -1 && table_delete(first, 3, theirs) == 0);
    CHECK(table_update(first, 3, ours, fives, &applied, &stale, &error) == 0 && applied == 3);
    CHECK(table_delete(second, 3, theirs) == 3 && info_of(first).size == 3);
    table_free(first);
    table_free(second);
}

/* ---- one shard ----------------------------------------------------------------------------------------------------- */

static void an_answer_has_what_arrived_and_says_up_to_when_it_is_complete(void) {
    struct answer answer;
    uint64_t ids[4];
    const double priorities[4] = {1, 2, 0, 5};
    struct table *table = shard_of(3, 4, 0, priorities, ids);
    ask(table, MOST, 2, 10, true, &answer); /* 64 on average */
    CHECK(answer.n > 20 && answer.n < 200 && answer.arrivals.until == 10);
    CHECK(answer.arrivals.sum == 8 && answer.arrivals.size == 4 && answer.arrivals.limit.code == ERROR_NONE);
    for (uint32_t i = 0; i < answer.n; i++) {
        uint32_t item = (uint32_t)(answer.ids[i] - ids[0]);
        CHECK(item < 4 && answer.ids[i] == ids[item] && answer.powers[i] == priorities[item] && item != 2);
    }
    CHECK(info_of(table).sampled == answer.n);
    ask(table, 5, 0, 10, true, &answer); /* more have come than that */
    CHECK(answer.n == 5 && answer.arrivals.until == answer.times[4]);
    table_free(table);
}

static void as_many_arrive_as_the_rate_says_however_they_are_asked_for(void) {
    struct answer answer;
    uint64_t ids[4];
    const double priorities[4] = {1, 2, 0, 5};
    struct table *table = shard_of(0, 4, 0, priorities, ids);
    double sum[2] = {0}, squares[2] = {0};
    enum { ROUNDS = 4000 };
    for (int round = 0; round < ROUNDS; round++) {
        ask(table, MOST, 0, 2, true, &answer);
        double counts[2] = {answer.n, 0};
        for (double from = 0; from < 2; from = answer.arrivals.until) {
            ask(table, 3, from, 2, true, &answer);
            counts[1] += answer.n;
        }
        for (int way = 0; way < 2; way++) {
            sum[way] += counts[way];
            squares[way] += counts[way] * counts[way];
        }
    }
    for (int way = 0; way < 2; way++) { /* Poisson of 16: mean and variance; 5 standard errors of each */
        double mean = sum[way] / ROUNDS, variance = squares[way] / ROUNDS - mean * mean;
        CHECK(fabs(mean - 16) < 5 * 4 / sqrt(ROUNDS) &&
              fabs(variance - 16) < 5 * sqrt(2 * 16. * 16 + 16) / sqrt(ROUNDS));
    }
    table_free(table);
}

static void nothing_arrives_where_there_is_nothing_to_draw(void) {
    struct answer answer;
    uint64_t ids[2];
    struct table_config config = small_config(10, SELECTOR_PRIORITIZED);
    struct table *table = make(&config);
    for (int replace = 0; replace < 2; replace++) {
        ask(table, MOST, 0, 1e9, replace, &answer);
        CHECK(answer.n == 0 && answer.arrivals.until == 1e9 && answer.arrivals.sum == 0 && answer.arrivals.size == 0);
    }
    CHECK(add(table, 2, 0, (double[]){0, 0}, ids) == 0);
    ask(table, MOST, 0, 1e9, true, &answer);
    CHECK(answer.n == 0 && answer.arrivals.until == 1e9 && answer.arrivals.sum == 0 && answer.arrivals.size == 2);
    table_free(table);
}

static struct table *two_samples_per_insert(void) {
    struct table_config config = small_config(100, SELECTOR_UNIFORM);
    config.limiter = LIMITER_SAMPLE_TO_INSERT_RATIO;
    config.min_size_to_sample = 1;
    config.samples_per_insert = 2;
    config.error_buffer = 2;
    return make(&config);
}

static void the_rate_limiter_lets_through_what_it_may_and_says_so(void) {
    struct answer answer;
    uint64_t ids[10];
    struct table *table = two_samples_per_insert();
    for (int i = 0; i < 2; i++) CHECK(add(table, 1, 0, NULL, ids) == 0);
    ask(table, MOST, 0, 100, true, &answer); /* the lead, 4, may fall to 0 */
    CHECK(answer.n == 4 && answer.arrivals.until == answer.times[3] && answer.arrivals.until < 100);
    CHECK(answer.arrivals.limit.code == ERROR_TIMEOUT && strstr(answer.arrivals.limit.message, "waits for inserts"));
    table_not_used(table, 3); /* what the merge left over may be drawn again */
    CHECK(info_of(table).unused == 3);
    double reached = answer.arrivals.until;
    ask(table, MOST, reached, 100, true, &answer);
    CHECK(answer.n == 3 && answer.arrivals.until < 100);
    reached = answer.arrivals.until;
    ask(table, MOST, reached, 100, true, &answer);
    CHECK(answer.n == 0 && answer.arrivals.until == reached && answer.arrivals.limit.code == ERROR_TIMEOUT);
    CHECK(add(table, 1, 0, NULL, ids) == 0);
    ask(table, MOST, reached, 100, true, &answer);
    CHECK(answer.n == 2 && info_of(table).sampled == 9);
    table_not_used(table, 16); /* 7 more than were counted here: another shard counts them */
    CHECK(info_of(table).unused == 9);
    ask(table, MOST, reached, 100, true, &answer);
    CHECK(answer.n == 16 && info_of(table).sampled == 25);
    table_free(table);
}

/* Where other settings put it to 0, the shards together counted samples that nobody drew. */
static void a_count_of_samples_below_0_outlives_other_settings(void) {
    struct table *table = two_samples_per_insert();
    struct msgpack_writer settings = {0};
    msgpack_write_map(&settings, 1);
    msgpack_write_string(&settings, "remover", 7);
    msgpack_write_string(&settings, "lifo", 4);
    table_not_used(table, 1000);
    CHECK(table_configure(table, settings.data, settings.length, &error) == 0);
    CHECK(rate_limiter_samples(&table->limiter) == -1000);
    memory_free(settings.data);
    table_free(table);
}

static void tables_whose_draws_do_not_merge_are_refused(void) {
    const enum selector_kind ordered[] = {SELECTOR_FIFO, SELECTOR_LIFO, SELECTOR_MAX_HEAP, SELECTOR_MIN_HEAP};
    for (size_t i = 0; i < sizeof ordered / sizeof ordered[0]; i++) {
        struct table_config config = small_config(10, ordered[i]);
        struct table *table = make(&config);
        CHECK(!table_can_sample_timed(table, 1, &error) && error.code == ERROR_GENERIC);
        CHECK(strstr(error.message, selector_name(ordered[i])));
        table_free(table);
    }
    struct table_config config = small_config(10, SELECTOR_UNIFORM);
    config.max_times_sampled = 1;
    struct table *table = make(&config);
    CHECK(!table_can_sample_timed(table, 1, &error) && strstr(error.message, "max_times_sampled"));
    CHECK(!table_can_sample_timed(table, 0, &error) && error.code == ERROR_LIMIT);
    table_free(table);
}

/* ---- merged -------------------------------------------------------------------------------------------------------- */

#define SHARDS 3u
#define ITEMS 60u /* 6, 18 and 36 */

static const uint32_t first_of[SHARDS + 1] = {0, 6, 24, 60};

static double priority_of(uint32_t item) {
    return 0.2 + (double)(item * item % 17) * (item < 6 ? 4 : 1);
}

static void make_shards(struct table **tables) {
    for (uint32_t s = 0; s < SHARDS; s++) {
        double priorities[ITEMS];
        uint64_t ids[ITEMS];
        uint32_t items = first_of[s + 1] - first_of[s];
        for (uint32_t i = 0; i < items; i++) priorities[i] = priority_of(first_of[s] + i);
        tables[s] = shard_of((uint8_t)s, items, first_of[s], priorities, ids);
    }
}

static uint32_t item_of(uint64_t id) {
    return first_of[id >> 56] + (uint32_t)id;
}

/* Draws the first n by time over all shards, asked for up to `horizon` and then as far again; or a fixed share of each. */
static void merge(struct table *const *tables, uint32_t n, double horizon, bool replace, bool fixed_share,
                  uint64_t *counts) {
    static struct answer answers[SHARDS];
    bool seen[ITEMS] = {false};
    uint32_t drawn = 0, share = (n + SHARDS - 1) / SHARDS;
    for (double from = 0; drawn < n; from += horizon) {
        uint32_t at[SHARDS] = {0};
        for (uint32_t s = 0; s < SHARDS; s++) {
            ask(tables[s], MOST, from, from + horizon, replace, &answers[s]);
            CHECK(answers[s].arrivals.until == from + horizon);
        }
        for (uint32_t next = 0; drawn < n && next < SHARDS;) {
            next = SHARDS;
            for (uint32_t s = 0; s < SHARDS; s++) {
                bool left = at[s] < answers[s].n && (!fixed_share || at[s] < share);
                if (left && (next == SHARDS || answers[s].times[at[s]] < answers[next].times[at[next]])) next = s;
            }
            if (next == SHARDS) break;
            uint32_t item = item_of(answers[next].ids[at[next]++]);
            if (!replace && seen[item]) continue;
            seen[item] = true;
            counts[item]++;
            drawn++;
        }
    }
}

static double chi_squared(const uint64_t *counts, const double *expected) {
    double sum = 0;
    for (uint32_t i = 0; i < ITEMS; i++) sum += pow((double)counts[i] - expected[i], 2) / expected[i];
    return sum / (ITEMS - 1);
}

/* The false alarm of 5 standard deviations of chi squared is below one in 100,000; the seed is fixed. */
static const double noise = 5;

static void the_merge_is_a_sample_of_the_whole_and_a_fixed_share_is_not(void) {
    struct table *tables[SHARDS];
    double expected[ITEMS], total = 0, bound = 1 + noise * sqrt(2.0 / (ITEMS - 1));
    enum { BATCHES = 2000, BATCH = 40 };
    make_shards(tables);
    for (uint32_t i = 0; i < ITEMS; i++) total += priority_of(i);
    for (uint32_t i = 0; i < ITEMS; i++) expected[i] = BATCHES * BATCH * priority_of(i) / total;
    const double wrong[] = {0.25, 1, 4}; /* how far the caller's sum is off */
    for (size_t w = 0; w < sizeof wrong / sizeof wrong[0]; w++) {
        uint64_t merged[ITEMS] = {0}, shared[ITEMS] = {0};
        for (int batch = 0; batch < BATCHES; batch++) {
            merge(tables, BATCH, wrong[w] * BATCH / total, true, false, merged);
            merge(tables, BATCH, wrong[w] * BATCH / total, true, true, shared);
        }
        CHECK(chi_squared(merged, expected) < bound);
        CHECK(wrong[w] < 1 || chi_squared(shared, expected) > 2 * bound);
    }
    for (uint32_t s = 0; s < SHARDS; s++) table_free(tables[s]);
}

/* How often the two first of successive sampling are each item: by weight, then by weight among the others. */
static void expect_two(double *expected, uint32_t batches, double (*weight)(uint32_t item)) {
    double total = 0;
    for (uint32_t i = 0; i < ITEMS; i++) total += weight(i);
    for (uint32_t i = 0; i < ITEMS; i++) {
        double p = weight(i) / total;
        for (uint32_t k = 0; k < ITEMS; k++)
            if (k != i) p += weight(k) / total * weight(i) / (total - weight(k));
        expected[i] = batches * p;
    }
}

static double even(uint32_t item) {
    (void)item;
    return 1;
}

static void without_replacement_the_merge_is_successive_sampling(void) {
    double expected[ITEMS];
    enum { BATCHES = 30000 };
    for (int uniform = 0; uniform < 2; uniform++) {
        struct table *tables[SHARDS];
        uint64_t counts[ITEMS] = {0};
        make_shards(tables);
        for (uint32_t s = 0; s < SHARDS && uniform; s++) {
            struct table_config config = small_config(1000, SELECTOR_UNIFORM);
            uint64_t ids[ITEMS];
            table_free(tables[s]);
            config.seed = 9 + s;
            tables[s] = make(&config);
            table_set_shard(tables[s], (uint8_t)s);
            CHECK(add(tables[s], first_of[s + 1] - first_of[s], 0, NULL, ids) == 0);
        }
        expect_two(expected, BATCHES, uniform ? even : priority_of);
        double total = 0;
        for (uint32_t i = 0; i < ITEMS; i++) total += uniform ? 1 : priority_of(i);
        for (int batch = 0; batch < BATCHES; batch++) merge(tables, 2, 1.5 / total, false, false, counts);
        CHECK(chi_squared(counts, expected) < 1 + noise * sqrt(2.0 / (ITEMS - 1)));
        for (uint32_t s = 0; s < SHARDS; s++) table_free(tables[s]);
    }
}

static void a_shard_gives_each_item_once_without_replacement_and_its_weights_stay(void) {
    struct answer answer;
    struct table *tables[SHARDS];
    make_shards(tables);
    for (int round = 0; round < 50; round++) {
        double total = info_of(tables[2]).total_priority;
        bool seen[ITEMS] = {false};
        ask(tables[2], MOST, 0, 1e6, false, &answer); /* for so long that all come */
        CHECK(answer.n == 36 && answer.arrivals.until == 1e6 && answer.arrivals.sum == total);
        for (uint32_t i = 0; i < answer.n; i++) {
            uint32_t item = item_of(answer.ids[i]);
            CHECK(!seen[item] && answer.powers[i] == priority_of(item));
            seen[item] = true;
        }
        CHECK(info_of(tables[2]).total_priority == total);
        ask(tables[2], 7, 0, 1e6, false, &answer);
        CHECK(answer.n == 7 && answer.arrivals.until == answer.times[6]);
    }
    for (uint32_t s = 0; s < SHARDS; s++) table_free(tables[s]);
}

int main(void) {
    RUN(ids_carry_the_shard_and_those_of_another_shard_have_left);
    RUN(an_answer_has_what_arrived_and_says_up_to_when_it_is_complete);
    RUN(as_many_arrive_as_the_rate_says_however_they_are_asked_for);
    RUN(nothing_arrives_where_there_is_nothing_to_draw);
    RUN(the_rate_limiter_lets_through_what_it_may_and_says_so);
    RUN(a_count_of_samples_below_0_outlives_other_settings);
    RUN(tables_whose_draws_do_not_merge_are_refused);
    RUN(the_merge_is_a_sample_of_the_whole_and_a_fixed_share_is_not);
    RUN(without_replacement_the_merge_is_successive_sampling);
    RUN(a_shard_gives_each_item_once_without_replacement_and_its_weights_stay);
    CHECK(memory_mapped_bytes() == 0);
    return 0;
}

/* Tests of the trees: exact descents, floating-point edges, repair against recomputation, and distribution by chi-square. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/random.h"
#include "check.h"
#include "replay/max_tree.h"
#include "replay/sum_tree.h"

static struct random_state randomness;

static enum cpu_simd path; /* all tests are run on each path that this processor has */

static int init(struct sum_tree *tree, uint32_t leaves) {
    int failed = sum_tree_init(tree, leaves);
    tree->kernels = sum_tree_kernels_for(path);
    return failed;
}

/* ---- plain references ---------------------------------------------------------------------------------------------- */

static double plain_sum(const struct sum_tree *tree, uint32_t leaves) {
    long double sum = 0;
    for (uint32_t i = 0; i < leaves; i++) sum += sum_tree_weight(tree, i);
    return (double)sum;
}

static void check_parents(const struct wide_tree *tree) {
    CHECK(tree->touched_count == 0);
    for (uint32_t level = 0; level + 1 < tree->depth; level++) {
        uint32_t nodes = tree->leaves;
        for (uint32_t i = 0; i <= level; i++) nodes = (nodes + 7) / 8;
        for (uint32_t node = 0; node < nodes; node++)
            CHECK(tree->level[level + 1][node] == sum_tree_node_sum(&tree->level[level][node * 8]));
    }
}

static void set_one(struct sum_tree *tree, uint32_t leaf, double weight) {
    sum_tree_set(tree, &leaf, &weight, 1);
}

/* ---- descents ------------------------------------------------------------------------------------------------------ */

static void finds_the_leaf_of_every_running_sum(void) {
    const uint32_t sizes[] = {1, 2, 7, 8, 9, 63, 64, 65, 511, 512, 513, 4097};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        struct sum_tree tree;
        CHECK(init(&tree, sizes[s]) == 0);
        for (uint32_t i = 0; i < sizes[s]; i++)
            set_one(&tree, i, i % 5); /* integers: sums are exact, every fifth weight is zero */
        uint32_t target = 0;
        for (uint32_t i = 0; i < sizes[s]; i++) {
            for (uint32_t k = 0; k < i % 5; k++, target++) {
                double targets[3] = {target, target + 0.5, nextafter(target + 1.0, 0)};
                uint32_t leaves[3];
                sum_tree_find(&tree, targets, 3, leaves);
                CHECK(leaves[0] == i && leaves[1] == i && leaves[2] == i);
            }
        }
        CHECK(sum_tree_total(&tree) == target);
        sum_tree_free(&tree);
    }
}

static void a_target_at_the_end_draws_the_last_positive_leaf(void) {
    struct sum_tree tree;
    CHECK(init(&tree, 1000) == 0);
    set_one(&tree, 17, 0.1);
    set_one(&tree, 700, 0.2);
    set_one(&tree, 701, 0.3);
    double targets[3] = {sum_tree_total(&tree), nextafter(sum_tree_total(&tree), 1), 0};
    uint32_t leaves[3];
    sum_tree_find(&tree, targets, 3, leaves);
    CHECK(leaves[0] == 701 && leaves[1] == 701 && leaves[2] == 17);
    sum_tree_free(&tree);
}

/* Weights over the whole range of doubles beside zeros: whatever rounds, no zero is drawn. */
static void zero_weights_are_never_drawn(void) {
    const double extremes[] = {DBL_TRUE_MIN, DBL_MIN, 1e-300, 1e-12, 1e-6,  0.1,
                               1.0 / 3,      1,       1e6,    1e12,  1e150, SUM_TREE_MAX_WEIGHT};
    const uint32_t count = 5000;
    for (int round = 0; round < 60; round++) {
        struct sum_tree tree;
        CHECK(init(&tree, count) == 0);
        uint64_t range = 1 + random_below(&randomness, 12);
        uint32_t positive = 0;
        for (uint32_t i = 0; i < count; i++) {
            if (random_below(&randomness, 40) == 0) {
                sum_tree_write(&tree, i,
                               extremes[random_below(&randomness, range)] * (round % 2 ? 1 : random_unit(&randomness)));
                positive += sum_tree_weight(&tree, i) > 0;
            }
        }
        sum_tree_repair(&tree);
        double total = sum_tree_total(&tree);
        CHECK(isfinite(total) && (positive == 0) == (total == 0));
        uint32_t leaves[512];
        for (int i = 0; positive && i < 20; i++) {
            sum_tree_sample(&tree, &randomness, 512, true, leaves);
            for (int j = 0; j < 512; j++) CHECK(sum_tree_weight(&tree, leaves[j]) > 0);
            double targets[4] = {total, nextafter(total, 0), total * (1 - DBL_EPSILON),
                                 total * random_unit(&randomness)};
            sum_tree_find(&tree, targets, 4, leaves);
            for (int j = 0; j < 4; j++) CHECK(sum_tree_weight(&tree, leaves[j]) > 0);
        }
        sum_tree_free(&tree);
    }
}

static void twelve_orders_of_magnitude_keep_their_shares(void) {
    struct sum_tree tree;
    CHECK(init(&tree, 100000) == 0);
    set_one(&tree, 5, 1e12);
    set_one(&tree, 99999, 1);
    /* The last leaf owns the last unit of the total: exactly there it must be found. */
    double targets[3] = {1e12, 1e12 + 0.5, nextafter(1e12, 0)};
    uint32_t leaves[3];
    sum_tree_find(&tree, targets, 3, leaves);
    CHECK(leaves[0] == 99999 && leaves[1] == 99999 && leaves[2] == 5);
    set_one(&tree, 5, 0); /* nothing of the large weight stays behind */
    CHECK(sum_tree_total(&tree) == 1);
    sum_tree_free(&tree);
}

static void stratified_draws_take_one_from_each_part(void) {
    struct sum_tree tree;
    CHECK(init(&tree, 1024) == 0);
    for (uint32_t i = 0; i < 1024; i++) set_one(&tree, i, 1);
    uint32_t leaves[256];
    sum_tree_sample(&tree, &randomness, 256, true, leaves);
    for (uint32_t i = 0; i < 256; i++) CHECK(leaves[i] / 4 == i);
    sum_tree_free(&tree);
}

/* Leaves far apart in weight, drawn until hardly any are left: each once, never a zero, and the tree as it was. */
static void distinct_draws_repeat_nothing_and_leave_the_tree_alone(void) {
    for (int round = 0; round < 40; round++) {
        struct sum_tree tree;
        const uint32_t count = 1000;
        CHECK(init(&tree, count) == 0);
        double before[1000], weights[1000];
        uint32_t positive = 0, leaves[1000];
        uint8_t seen[1000] = {0};
        for (uint32_t i = 0; i < count; i++) {
            double spread = round % 2 ? 600 * random_unit(&randomness) - 320 : 2 * random_unit(&randomness);
            before[i] = random_below(&randomness, 5) ? pow(10, spread) : 0;
            positive += before[i] > 0;
            sum_tree_write(&tree, i, before[i]);
        }
        sum_tree_repair(&tree);
        double total = sum_tree_total(&tree);
        uint32_t n = round % 4 < 2 ? positive : 1 + (uint32_t)random_below(&randomness, positive);
        sum_tree_sample_distinct(&tree, &randomness, n, round % 3 == 0, leaves, weights);
        for (uint32_t i = 0; i < n; i++) {
            CHECK(leaves[i] < count && !seen[leaves[i]]++ && before[leaves[i]] > 0);
            CHECK(weights[i] == before[leaves[i]]);
        }
        for (uint32_t i = 0; i < count; i++) CHECK(sum_tree_weight(&tree, i) == before[i]);
        CHECK(sum_tree_total(&tree) == total);
        check_parents(&tree.tree);
        sum_tree_free(&tree);
    }
}

/* Independent draws without replacement are successive sampling: P(i then j) = p_i p_j / (1 - p_i). */
static void distinct_draws_follow_successive_sampling(void) {
    struct sum_tree tree;
    const double p[4] = {0.6, 0.25, 0.1, 0.05};
    const int rounds = 200000;
    uint32_t seen[4][4] = {{0}}, leaves[2];
    double weights[2], statistic = 0;
    CHECK(init(&tree, 4) == 0);
    for (uint32_t i = 0; i < 4; i++) set_one(&tree, i, p[i]);
    for (int i = 0; i < rounds; i++) {
        sum_tree_sample_distinct(&tree, &randomness, 2, false, leaves, weights);
        seen[leaves[0]][leaves[1]]++;
    }
    for (int i = 0; i < 4; i++) {
        CHECK(seen[i][i] == 0);
        for (int j = 0; j < 4; j++) {
            double expected = rounds * p[i] * p[j] / (1 - p[i]);
            statistic += i == j ? 0 : (seen[i][j] - expected) * (seen[i][j] - expected) / expected;
        }
    }
    CHECK(statistic < 50.0); /* chi-square with 11 degrees of freedom: above with probability 6e-7 */
    sum_tree_free(&tree);
}

static void independent_draws_are_not_stratified(void) {
    struct sum_tree tree;
    CHECK(init(&tree, 1024) == 0);
    for (uint32_t i = 0; i < 1024; i++) set_one(&tree, i, 1);
    uint32_t leaves[1024], missed = 1024;
    uint8_t seen[1024] = {0};
    sum_tree_sample(&tree, &randomness, 1024, false, leaves);
    for (uint32_t i = 0; i < 1024; i++) missed -= !seen[leaves[i]]++;
    CHECK(missed > 310 && missed < 445); /* 1024 / e = 377 with a deviation of 10; stratified draws miss about 170 */
    sum_tree_free(&tree);
}

/* ---- updates ------------------------------------------------------------------------------------------------------- */

static void repair_equals_recomputation_after_a_million_updates(void) {
    const uint32_t sizes[] = {5, 64, 1000, 33000};
    for (size_t s = 0; s < 4; s++) {
        struct sum_tree tree;
        CHECK(init(&tree, sizes[s]) == 0);
        uint32_t leaves[512];
        double weights[512];
        for (int round = 0; round < 500; round++) {
            uint32_t n = 1 + (uint32_t)random_below(&randomness, 512);
            for (uint32_t i = 0; i < n; i++) {
                leaves[i] = (uint32_t)random_below(&randomness, sizes[s]);
                weights[i] = random_below(&randomness, 4) ? pow(10, 12 * random_unit(&randomness) - 6) : 0;
            }
            sum_tree_set(&tree, leaves, weights, n);
            CHECK(sum_tree_weight(&tree, leaves[n - 1]) == weights[n - 1]);
            if (round % 100 == 0) check_parents(&tree.tree);
        }
        check_parents(&tree.tree);
        double plain = plain_sum(&tree, sizes[s]);
        CHECK(fabs(sum_tree_total(&tree) - plain) <= 1e-12 * plain);
        sum_tree_free(&tree);
    }
}

static void maximum_follows_rises_and_falls(void) {
    struct max_tree tree;
    CHECK(max_tree_init(&tree, 777) == 0);
    double plain[777] = {0};
    for (int round = 0; round < 20000; round++) {
        uint32_t n = 1 + (uint32_t)random_below(&randomness, 5);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t leaf = (uint32_t)random_below(&randomness, 777);
            plain[leaf] = random_below(&randomness, 3) ? random_unit(&randomness) : 0;
            max_tree_write(&tree, leaf, plain[leaf]);
        }
        max_tree_repair(&tree);
        if (round % 50 == 0) {
            double maximum = 0;
            for (int i = 0; i < 777; i++) maximum = fmax(maximum, plain[i]);
            CHECK(max_tree_maximum(&tree) == maximum);
        }
    }
    max_tree_free(&tree);
}

/* ---- distribution -------------------------------------------------------------------------------------------------- */

/* The value that chi-square with k degrees of freedom exceeds with probability 1e-6 (z = 4.7534; Wilson and Hilferty, 1931).
 * Draws are independent and seeds fixed; with other seeds each comparison would raise a false alarm once in a million. */
static double chi_square_limit(double k) {
    double root = 1 - 2 / (9 * k) + 4.7534 * sqrt(2 / (9 * k));
    return k * root * root * root;
}

/* Bins of items by number (which = 0), by remainder (1), by weight (2). */
static uint32_t bin_of(int which, uint32_t item, uint32_t items, double weight, uint32_t bins) {
    switch (which) {
    case 0: return (uint32_t)((uint64_t)item * bins / items);
    case 1: return item % bins;
    default: return (uint32_t)fmin(bins - 1, weight * bins / 10);
    }
}

static void check_distribution(uint32_t items, uint32_t bins, uint32_t draws, uint64_t seed) {
    struct sum_tree tree;
    struct random_state random;
    random_seed(&random, seed);
    CHECK(init(&tree, items) == 0);
    uint32_t *leaves = malloc(draws * sizeof *leaves);
    double *targets = malloc(draws * sizeof *targets);
    for (uint32_t i = 0; i < items; i++) {
        double priority = random_below(&random, 10) ? 0.05 + 9.9 * random_unit(&random) : 0;
        sum_tree_write(&tree, i, priority > 0 ? pow(priority, 0.6) : 0); /* p^alpha */
    }
    sum_tree_repair(&tree);
    double total = plain_sum(&tree, items);
    for (uint32_t i = 0; i < draws; i++) targets[i] = sum_tree_total(&tree) * random_unit(&random);
    sum_tree_find(&tree, targets, draws, leaves);
    for (int which = 0; which < 3; which++) {
        uint32_t *seen = calloc(bins, sizeof *seen);
        double *expected = calloc(bins, sizeof *expected);
        for (uint32_t i = 0; i < items; i++) {
            double weight = sum_tree_weight(&tree, i);
            expected[bin_of(which, i, items, weight, bins)] += weight / total * draws;
        }
        for (uint32_t i = 0; i < draws; i++) {
            double weight = sum_tree_weight(&tree, leaves[i]);
            CHECK(weight > 0);
            seen[bin_of(which, leaves[i], items, weight, bins)]++;
        }
        double statistic = 0, used = 0;
        for (uint32_t bin = 0; bin < bins; bin++) {
            CHECK(expected[bin] > 0 || seen[bin] == 0);
            if (expected[bin] >= 5) {
                statistic += (seen[bin] - expected[bin]) * (seen[bin] - expected[bin]) / expected[bin];
                used++;
            }
        }
        CHECK(used > 100);
        CHECK(statistic < chi_square_limit(used - 1));
        free(seen);
        free(expected);
    }
    free(leaves);
    free(targets);
    sum_tree_free(&tree);
}

static void distribution_at_a_thousand_items(void) {
    check_distribution(1000, 1000, 1000000, 1);
    check_distribution(1000, 1000, 1000000, 2);
}

static void distribution_at_a_million_items(void) {
    check_distribution(1000000, 4096, 3000000, 3);
}

/* A wrong tree must be noticed: the same comparison against weights that are off by two percent on half of the items. */
static void chi_square_notices_two_percent(void) {
    struct random_state random;
    random_seed(&random, 4);
    const uint32_t bins = 1000, draws = 1000000;
    uint32_t seen[1000] = {0};
    for (uint32_t i = 0; i < draws; i++) {
        double u = random_unit(&random) * (bins / 2 * 1.02 + bins / 2 * 0.98);
        seen[(uint32_t)fmin(bins - 1, u < bins / 2 * 1.02 ? u / 1.02 : bins / 2 + (u - bins / 2 * 1.02) / 0.98)]++;
    }
    double statistic = 0;
    for (uint32_t bin = 0; bin < bins; bin++) statistic += (seen[bin] - 1000.0) * (seen[bin] - 1000.0) / 1000.0;
    CHECK(statistic > chi_square_limit(bins - 1));
}

/* Ten million leaves, weights spread evenly over twelve orders of magnitude: each decade has its share, and within the
 * heaviest ones, which hold nearly all, each stretch of leaves. Fails by chance once in 10^6 for each of the two. */
static void distribution_at_ten_million_items_over_twelve_decades(void) {
    enum { LEAVES = 10000000, DECADES = 12, STRETCHES = 1000, DRAWS = 2000000 };
    struct sum_tree tree;
    CHECK(init(&tree, LEAVES) == 0);
    double power[DECADES], share[DECADES] = {0}, *stretch = calloc(STRETCHES, sizeof *stretch);
    for (int decade = 0; decade < DECADES; decade++) power[decade] = pow(10, decade - 6);
    for (uint32_t i = 0; i < LEAVES; i++) {
        uint32_t decade = (uint32_t)random_below(&randomness, DECADES);
        double weight = power[decade] * (1 + 9 * random_unit(&randomness));
        sum_tree_write(&tree, i, weight);
        share[decade] += weight;
        stretch[i / (LEAVES / STRETCHES)] += weight;
    }
    sum_tree_repair(&tree);
    double total = plain_sum(&tree, LEAVES);
    CHECK(fabs(sum_tree_total(&tree) - total) <= 1e-12 * total);
    uint32_t leaves[512], decades[DECADES] = {0}, *stretches = calloc(STRETCHES, sizeof *stretches);
    for (uint32_t drawn = 0; drawn < DRAWS / 500 * 500; drawn += 500) {
        sum_tree_sample(&tree, &randomness, 500, drawn % 1000 == 0, leaves);
        for (uint32_t i = 0; i < 500; i++) {
            double weight = sum_tree_weight(&tree, leaves[i]);
            decades[(uint32_t)floor(log10(weight * (1 + 1e-15)) + 6)]++;
            stretches[leaves[i] / (LEAVES / STRETCHES)]++;
        }
    }
    double statistic = 0, used = 0;
    for (int i = 0; i < DECADES; i++) {
        double expected = share[i] / total * DRAWS;
        statistic += expected >= 5 ? (decades[i] - expected) * (decades[i] - expected) / expected : 0;
        used += expected >= 5;
    }
    CHECK(used >= 6 && statistic < chi_square_limit(used - 1));
    statistic = 0;
    for (int i = 0; i < STRETCHES; i++) {
        double expected = stretch[i] / total * DRAWS;
        statistic += (stretches[i] - expected) * (stretches[i] - expected) / expected;
    }
    CHECK(statistic < chi_square_limit(STRETCHES - 1));
    free(stretch);
    free(stretches);
    sum_tree_free(&tree);
}

/* ---- paths --------------------------------------------------------------------------------------------------------- */

/* Whatever the weights and the targets, also those at the very edge of an entry, where rounding decides. */
static void every_path_finds_the_same_leaves(void) {
    const uint32_t sizes[] = {1, 3, 8, 9, 64, 65, 1000, 4097, 40000};
    for (int round = 0; round < 180; round++) {
        struct sum_tree tree;
        uint32_t size = sizes[round % 9], n = 1 + (uint32_t)random_below(&randomness, 200);
        CHECK(init(&tree, size) == 0);
        double decades = round % 3 * 12;
        for (uint32_t i = 0; i < size; i++) {
            double weight = pow(10, decades * (random_unit(&randomness) - 0.5));
            sum_tree_write(&tree, i, random_below(&randomness, 3) ? weight : 0);
        }
        sum_tree_write(&tree, (uint32_t)random_below(&randomness, size), 1);
        sum_tree_repair(&tree);
        double targets[200], running = 0;
        uint32_t expected[200], leaves[200];
        for (uint32_t i = 0; i < n; i++) {
            if (i % 2) {
                targets[i] = sum_tree_total(&tree) * random_unit(&randomness);
            } else {
                running += sum_tree_weight(&tree, i % size);
                targets[i] = i % 4 ? nextafter(running, 0) : running;
            }
        }
        tree.kernels = sum_tree_kernels_for(CPU_SCALAR);
        sum_tree_find(&tree, targets, n, expected);
        for (int simd = 0; simd < CPU_SIMD_COUNT; simd++) {
            if (cpu_simd_supported((enum cpu_simd)simd)) {
                tree.kernels = sum_tree_kernels_for((enum cpu_simd)simd);
                memset(leaves, 0xff, sizeof leaves);
                sum_tree_find(&tree, targets, n, leaves);
                CHECK(memcmp(leaves, expected, n * sizeof *leaves) == 0);
            }
        }
        sum_tree_free(&tree);
    }
}

int main(void) {
    random_seed(&randomness, 20240601);
    for (int simd = 0; simd < CPU_SIMD_COUNT; simd++) {
        path = (enum cpu_simd)simd;
        if (!cpu_simd_supported(path)) continue;
        printf("%s:\n", cpu_simd_name(path));
        RUN(finds_the_leaf_of_every_running_sum);
        RUN(a_target_at_the_end_draws_the_last_positive_leaf);
        RUN(zero_weights_are_never_drawn);
        RUN(twelve_orders_of_magnitude_keep_their_shares);
        RUN(stratified_draws_take_one_from_each_part);
        RUN(distinct_draws_repeat_nothing_and_leave_the_tree_alone);
        RUN(repair_equals_recomputation_after_a_million_updates);
        RUN(distribution_at_a_million_items);
    }
    path = cpu_simd();
    RUN(every_path_finds_the_same_leaves);
    RUN(distinct_draws_follow_successive_sampling);
    RUN(independent_draws_are_not_stratified);
    RUN(maximum_follows_rises_and_falls);
    RUN(distribution_at_a_thousand_items);
    RUN(distribution_at_ten_million_items_over_twelve_decades);
    RUN(chi_square_notices_two_percent);
    return 0;
}

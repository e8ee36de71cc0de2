/* sum_tree: batched writes and interleaved descents over a wide_tree of sums. */
#include "replay/sum_tree.h"

#include <assert.h>

int sum_tree_init(struct sum_tree *sum_tree, uint32_t leaves) {
    sum_tree->kernels = sum_tree_kernels_for(cpu_simd());
    return wide_tree_init(&sum_tree->tree, leaves);
}

void sum_tree_free(struct sum_tree *sum_tree) {
    wide_tree_free(&sum_tree->tree);
}

void sum_tree_repair(struct sum_tree *sum_tree) {
    wide_tree_repair(&sum_tree->tree, sum_tree->kernels->sums);
}

void sum_tree_set(struct sum_tree *sum_tree, const uint32_t *leaves, const double *weights, uint32_t n) {
    struct wide_tree *tree = &sum_tree->tree;
    for (uint32_t i = 0; i < n; i++) {
        if (i + WIDE_TREE_AHEAD < n) wide_tree_prefetch_leaf(tree, leaves[i + WIDE_TREE_AHEAD]);
        assert(leaves[i] < tree->leaves && weights[i] >= 0 && weights[i] <= SUM_TREE_MAX_WEIGHT);
        wide_tree_write(tree, leaves[i], weights[i]);
    }
    sum_tree_repair(sum_tree);
}

double sum_tree_total(const struct sum_tree *sum_tree) {
    const struct wide_tree *tree = &sum_tree->tree;
    return sum_tree_node_sum(tree->level[tree->depth - 1]);
}

/* Descends as the steps do, but never to the right where the sum there is zero: only rounding could send it there.
 * So it ends at a positive leaf for every target >= 0, and at the last one for a target that is too large. */
static uint32_t __attribute__((noinline, cold)) find_carefully(const struct wide_tree *tree, double target) {
    uint32_t node = 0;
    for (uint32_t level = tree->depth; level-- > 0;) {
        const double *x = tree->level[level] + (size_t)node * WIDE_TREE_FANOUT;
        double left = (x[0] + x[1]) + (x[2] + x[3]);
        uint32_t child = target >= left && (x[4] + x[5]) + (x[6] + x[7]) > 0 ? 4 : 0;
        target -= child ? left : 0;
        left = x[child] + x[child + 1];
        bool right = target >= left && x[child + 2] + x[child + 3] > 0;
        target -= right ? left : 0;
        child += right ? 2 : 0;
        left = x[child];
        right = target >= left && x[child + 1] > 0;
        target -= right ? left : 0;
        node = node * WIDE_TREE_FANOUT + child + right;
    }
    assert(node < tree->leaves && wide_tree_leaf(tree, node) > 0);
    return node;
}

/* At most SUM_TREE_LANES descents, level by level. */
static void descend(const struct sum_tree *sum_tree, const double *wanted, uint32_t n, uint32_t *leaves) {
    const struct wide_tree *tree = &sum_tree->tree;
    double targets[SUM_TREE_LANES] __attribute__((aligned(64)));
    uint64_t nodes[SUM_TREE_LANES] __attribute__((aligned(64)));
    uint32_t count = (n + SUM_TREE_VECTOR - 1) / SUM_TREE_VECTOR * SUM_TREE_VECTOR;
    for (uint32_t i = 0; i < count; i++) {
        targets[i] = i < n ? wanted[i] : 0;
        nodes[i] = 0;
    }
    for (uint32_t level = tree->depth; level-- > 0;) {
        /* A descent that rounding sends too far to the right ends among zeros. */
        uint64_t zeros = level ? tree->nodes[level - 1] : (uint64_t)tree->nodes[0] * WIDE_TREE_FANOUT;
        sum_tree->kernels->step(tree->level[level], level ? tree->level[level - 1] : NULL, zeros, count, targets,
                                nodes);
    }
    for (uint32_t i = 0; i < n; i++) {
        bool positive = wide_tree_leaf(tree, (uint32_t)nodes[i]) > 0;
        leaves[i] = __builtin_expect(positive, 1) ? (uint32_t)nodes[i] : find_carefully(tree, wanted[i]);
    }
}

void sum_tree_find(const struct sum_tree *sum_tree, const double *targets, uint32_t n, uint32_t *leaves) {
    for (uint32_t i = 0; i < n; i += SUM_TREE_LANES)
        descend(sum_tree, targets + i, n - i < SUM_TREE_LANES ? n - i : SUM_TREE_LANES, leaves + i);
}

void sum_tree_sample_part(const struct sum_tree *sum_tree, struct random_state *random, double total, uint32_t n,
                          uint32_t first, uint32_t count, bool stratified, uint32_t *leaves) {
    assert(total > 0 && count <= SUM_TREE_LANES);
    double targets[SUM_TREE_LANES];
    for (uint32_t i = 0; i < count; i++) {
        double unit = random_unit(random);
        targets[i] = total * (stratified ? ((double)(first + i) + unit) / (double)n : unit);
    }
    sum_tree_find(sum_tree, targets, count, leaves);
}

void sum_tree_sample(const struct sum_tree *sum_tree, struct random_state *random, uint32_t n, bool stratified,
                     uint32_t *leaves) {
    double total = sum_tree_total(sum_tree);
    for (uint32_t i = 0; i < n; i += SUM_TREE_LANES) {
        uint32_t count = n - i < SUM_TREE_LANES ? n - i : SUM_TREE_LANES;
        sum_tree_sample_part(sum_tree, random, total, n, i, count, stratified, leaves + i);
    }
}

/* Takes drawn leaves out of the tree, in rounds. A round asks for at most twice what the one before it found, so
 * that a few heavy leaves, drawn again and again, cost little. */
void sum_tree_sample_distinct(struct sum_tree *sum_tree, struct random_state *random, uint32_t n, bool stratified,
                              uint32_t *leaves, double *weights) {
    uint32_t found = 0, asked = n;
    while (found < n) {
        uint32_t before = found;
        sum_tree_sample(sum_tree, random, asked, stratified, leaves + before);
        for (uint32_t i = before; i < before + asked; i++) {
            uint32_t leaf = leaves[i];
            double weight = sum_tree_weight(sum_tree, leaf);
            if (weight > 0) {
                leaves[found] = leaf;
                weights[found++] = weight;
                sum_tree_write(sum_tree, leaf, 0);
            }
        }
        sum_tree_repair(sum_tree);
        uint32_t twice = 2 * (found - before);
        asked = n - found < twice ? n - found : twice;
    }
    sum_tree_set(sum_tree, leaves, weights, n);
}

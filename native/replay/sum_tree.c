/* sum_tree: batched writes and interleaved descents over a wide_tree of sums. */
#include "replay/sum_tree.h"

#include <assert.h>

#define LANES 16u /* descents in flight: enough to hide a miss to memory behind the others' arithmetic */

/* Left to right, exactly as a descent adds up: a node's last running sum then equals its entry in the parent. */
static inline double node_sum(const double *node) {
    double sum = node[0];
    for (uint32_t i = 1; i < WIDE_TREE_FANOUT; i++) {
        sum += node[i];
    }
    return sum;
}

int sum_tree_init(struct sum_tree *sum_tree, uint32_t leaves) {
    return wide_tree_init(&sum_tree->tree, leaves);
}

void sum_tree_free(struct sum_tree *sum_tree) {
    wide_tree_free(&sum_tree->tree);
}

void sum_tree_repair(struct sum_tree *sum_tree) {
    wide_tree_repair(&sum_tree->tree, node_sum);
}

void sum_tree_set(struct sum_tree *sum_tree, const uint32_t *leaves, const double *weights, uint32_t n) {
    struct wide_tree *tree = &sum_tree->tree;
    for (uint32_t i = 0; i < n; i++) {
        if (i + LANES < n) {
            wide_tree_prefetch_leaf(tree, leaves[i + LANES]);
        }
        assert(leaves[i] < tree->leaves && weights[i] >= 0 && weights[i] <= SUM_TREE_MAX_WEIGHT);
        wide_tree_write(tree, leaves[i], weights[i]);
    }
    sum_tree_repair(sum_tree);
}

double sum_tree_total(const struct sum_tree *sum_tree) {
    const struct wide_tree *tree = &sum_tree->tree;
    return node_sum(tree->level[tree->depth - 1]);
}

/* The target lies at or past the end of the node, by rounding alone: its last positive child is meant, and of that child
 * again the end. */
static uint32_t __attribute__((noinline, cold)) last_positive(const double *node, double *target) {
    uint32_t child = WIDE_TREE_FANOUT - 1;
    while (child > 0 && !(node[child] > 0)) {
        child--;
    }
    assert(node[child] > 0);
    *target = node[child];
    return child;
}

/* Which child the target falls into, and the target within that child. Running sums of weights >= 0 never decrease, so
 * counting those at or below the target finds the child, and the chosen child's own running sum is larger: it is positive. */
static inline uint32_t node_select(const double *node, double *target) {
    double before[WIDE_TREE_FANOUT + 1];
    before[0] = 0;
    for (uint32_t i = 0; i < WIDE_TREE_FANOUT; i++) {
        before[i + 1] = before[i] + node[i];
    }
    uint32_t child = 0;
    for (uint32_t i = 1; i <= WIDE_TREE_FANOUT; i++) {
        child += *target >= before[i];
    }
    if (__builtin_expect(child == WIDE_TREE_FANOUT, 0)) {
        return last_positive(node, target);
    }
    *target -= before[child];
    return child;
}

static inline void descend(const struct wide_tree *tree, const double *targets, uint32_t lanes, uint32_t *leaves) {
    double target[LANES];
    uint32_t node[LANES];
    for (uint32_t i = 0; i < lanes; i++) {
        target[i] = targets[i];
        node[i] = 0;
    }
    for (uint32_t level = tree->depth; level-- > 0;) {
        const double *entries = tree->level[level];
        const double *below = level ? tree->level[level - 1] : entries;
        for (uint32_t i = 0; i < lanes; i++) {
            uint32_t child = node_select(entries + (size_t)node[i] * WIDE_TREE_FANOUT, &target[i]);
            node[i] = node[i] * WIDE_TREE_FANOUT + child;
            if (level) {
                __builtin_prefetch(below + (size_t)node[i] * WIDE_TREE_FANOUT);
            }
        }
    }
    for (uint32_t i = 0; i < lanes; i++) {
        assert(node[i] < tree->leaves);
        leaves[i] = node[i];
    }
}

void sum_tree_find(const struct sum_tree *sum_tree, const double *targets, uint32_t n, uint32_t *leaves) {
    const struct wide_tree *tree = &sum_tree->tree;
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        descend(tree, targets + i, LANES, leaves + i);
    }
    if (i < n) {
        descend(tree, targets + i, n - i, leaves + i);
    }
}

void sum_tree_sample(const struct sum_tree *sum_tree, struct random_state *random, uint32_t n, bool stratified,
                     uint32_t *leaves) {
    double total = sum_tree_total(sum_tree);
    assert(total > 0);
    double targets[LANES];
    for (uint32_t i = 0; i < n; i += LANES) {
        uint32_t lanes = n - i < LANES ? n - i : LANES;
        for (uint32_t lane = 0; lane < lanes; lane++) {
            double unit = random_unit(random);
            targets[lane] = total * (stratified ? ((double)(i + lane) + unit) / (double)n : unit);
        }
        sum_tree_find(sum_tree, targets, lanes, leaves + i);
    }
}

/* Takes drawn leaves out of the tree as it goes, in rounds. A round asks for at most twice what the one before it found, so
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

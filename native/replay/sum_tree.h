/* sum_tree: draws leaves with probability proportional to their weight; 64-bit sums, batched writes and batched descents.
 *
 * sum_tree_sample(n) and sum_tree_set(n) take O(n log8 leaves). A leaf of weight zero is never drawn: a descent can
 * end at one only by rounding, and then a slower one that avoids it takes its place. Results do not depend on the
 * processor. */
#ifndef REPLAY_REPLAY_SUM_TREE_H
#define REPLAY_REPLAY_SUM_TREE_H

#include "base/random.h"
#include "replay/sum_tree_kernels.h"
#include "replay/wide_tree.h"

/* No leaf may weigh more, so that the sum of 2^32 of them stays finite. */
#define SUM_TREE_MAX_WEIGHT 1e290

struct sum_tree {
    struct wide_tree tree;
    const struct sum_tree_kernels *kernels; /* chosen for this processor */
};

int sum_tree_init(struct sum_tree *sum_tree, uint32_t leaves); /* -1: memory is exhausted */
void sum_tree_free(struct sum_tree *sum_tree);

/* Writes weights (0 <= weight <= SUM_TREE_MAX_WEIGHT); of a leaf named twice the last counts. */
void sum_tree_set(struct sum_tree *sum_tree, const uint32_t *leaves, const double *weights, uint32_t n);
/* As sum_tree_set for one leaf, with the sums left wrong until sum_tree_repair. */
static inline void sum_tree_write(struct sum_tree *sum_tree, uint32_t leaf, double weight) {
    wide_tree_write(&sum_tree->tree, leaf, weight);
}
void sum_tree_repair(struct sum_tree *sum_tree);

static inline double sum_tree_weight(const struct sum_tree *sum_tree, uint32_t leaf) {
    return wide_tree_leaf(&sum_tree->tree, leaf);
}
double sum_tree_total(const struct sum_tree *sum_tree);

/* Finds the leaves at the given running sums, 0 <= target <= total; total > 0. */
void sum_tree_find(const struct sum_tree *sum_tree, const double *targets, uint32_t n, uint32_t *leaves);
/* Draws n leaves with replacement: independently, or one from each of n equal parts of the total (stratified, Schaul
 * et al. 2016, appendix B.2.1). total > 0. */
void sum_tree_sample(const struct sum_tree *sum_tree, struct random_state *random, uint32_t n, bool stratified,
                     uint32_t *leaves);
/* Makes draws first … first + count - 1 of those n; count <= SUM_TREE_LANES, `total` is the tree's. */
void sum_tree_sample_part(const struct sum_tree *sum_tree, struct random_state *random, double total, uint32_t n,
                          uint32_t first, uint32_t count, bool stratified, uint32_t *leaves);
/* Draws n different leaves: those of sum_tree_sample, and in place of each that is drawn again others of what is
 * left. Independent draws make it successive sampling: each leaf is drawn by weight among those not drawn yet.
 * `weights` receives theirs. The tree is as before; at least n leaves are positive. */
void sum_tree_sample_distinct(struct sum_tree *sum_tree, struct random_state *random, uint32_t n, bool stratified,
                              uint32_t *leaves, double *weights);

#endif

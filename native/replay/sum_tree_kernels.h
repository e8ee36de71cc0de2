/* sum_tree_kernels: the inner loops of a sum tree, in one version for each set of vector instructions.
 *
 * Within a node x0 … x7 a descent halves three times. It compares the target with the sum of the left half, (x0 + x1)
 * + (x2 + x3). If the target is not smaller, it subtracts that sum and goes right. Then it does the same with x0 + x1
 * or x4 + x5, and with the left one of the two entries that remain. sum_tree_node_sum adds in the same order. All
 * versions make the same additions, comparisons and subtractions, so they find the same leaves and the same sums, bit
 * for bit. */
#ifndef REPLAY_REPLAY_SUM_TREE_KERNELS_H
#define REPLAY_REPLAY_SUM_TREE_KERNELS_H

#include <stdint.h>

#include "base/cpu.h"
#include "replay/wide_tree.h"

#define SUM_TREE_LANES 64u /* descents in flight: enough that the arithmetic of the others hides a miss to memory */
#define SUM_TREE_VECTOR 8u /* the widest vector: descents are a multiple of it */

static inline double sum_tree_node_sum(const double *x) {
    return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

/* `entries` is a level, `below` the next one, which is prefetched (NULL at the leaves). nodes[i] becomes the node of `below`
 * that targets[i] falls into, at most `most`, and targets[i] the rest within it. `count` is a multiple of SUM_TREE_VECTOR. */
typedef void sum_tree_step(const double *entries, const double *below, uint64_t most, uint32_t count, double *targets,
                           uint64_t *nodes);

struct sum_tree_kernels {
    sum_tree_step *step;
    wide_tree_combine *sums;
};

const struct sum_tree_kernels *sum_tree_kernels_for(enum cpu_simd simd);

sum_tree_step sum_tree_step_scalar, sum_tree_step_neon, sum_tree_step_avx2, sum_tree_step_avx512;
wide_tree_combine sum_tree_sums_scalar, sum_tree_sums_avx2, sum_tree_sums_avx512;

static inline void sum_tree_prefetch(const double *below, const uint64_t *nodes, uint32_t count) {
    for (uint32_t i = 0; below && i < count; i++) __builtin_prefetch(below + nodes[i] * 8);
}

#endif

/* sum_tree_kernels: the versions without vector instructions, and the choice among all. */
#include "replay/sum_tree_kernels.h"

/* It has no branches: where a draw falls cannot be predicted. */
void sum_tree_step_scalar(const double *entries, const double *below, uint64_t most, uint32_t count, double *targets,
                          uint64_t *nodes) {
    for (uint32_t i = 0; i < count; i++) {
        const double *x = entries + nodes[i] * 8;
        double target = targets[i];
        const double pairs[2] = {x[0] + x[1], x[4] + x[5]};
        double half = pairs[0] + (x[2] + x[3]);
        uint32_t right = target >= half;
        target -= (double)right * half;
        double pair = pairs[right];
        uint32_t child = 4 * right;
        right = target >= pair;
        target -= (double)right * pair;
        child += 2 * right;
        double left = x[child];
        right = target >= left;
        targets[i] = target - (double)right * left;
        uint64_t node = nodes[i] * 8 + child + right;
        nodes[i] = node < most ? node : most;
        sum_tree_prefetch(below, &nodes[i], 1);
    }
}

uint32_t sum_tree_sums_scalar(const double *children, double *parents, uint32_t *touched, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t node = touched ? touched[i] : i;
        parents[node] = sum_tree_node_sum(children + (size_t)node * WIDE_TREE_FANOUT);
        if (touched) touched[i] = node / WIDE_TREE_FANOUT;
    }
    return count;
}

const struct sum_tree_kernels *sum_tree_kernels_for(enum cpu_simd simd) {
    static const struct sum_tree_kernels kernels[CPU_SIMD_COUNT] = {
        [CPU_SCALAR] = {sum_tree_step_scalar, sum_tree_sums_scalar},
#if CPU_ARM
        [CPU_NEON] = {sum_tree_step_neon, sum_tree_sums_scalar},
#endif
#if CPU_X86
        [CPU_AVX2] = {sum_tree_step_avx2, sum_tree_sums_avx2},
        [CPU_AVX512] = {sum_tree_step_avx512, sum_tree_sums_avx512},
#endif
    };
    return &kernels[simd];
}

/* sum_tree_neon: the step for 64-bit ARM: two descents side by side. */
#include "replay/sum_tree_kernels.h"

#if CPU_ARM
#include <arm_neon.h>

/* Entries k and k + 1 of two nodes: the first of each, and the sums of the two. */
static inline float64x2_t two_entries(const double *first, const double *second, uint32_t k, float64x2_t *sums) {
    float64x2_t x = vld1q_f64(first + k), y = vld1q_f64(second + k);
    float64x2_t even = vzip1q_f64(x, y);
    *sums = vaddq_f64(even, vzip2q_f64(x, y));
    return even;
}

static inline float64x2_t less(float64x2_t target, uint64x2_t where, float64x2_t amount) {
    return vsubq_f64(target, vreinterpretq_f64_u64(vandq_u64(where, vreinterpretq_u64_f64(amount))));
}

void sum_tree_step_neon(const double *entries, const double *below, uint64_t most, uint32_t count, double *targets,
                        uint64_t *nodes) {
    const uint64x2_t limit = vdupq_n_u64(most);
    for (uint32_t i = 0; i < count; i += 2) {
        const double *first = entries + nodes[i] * 8, *second = entries + nodes[i + 1] * 8;
        float64x2_t x01, x23, x45, x67;
        float64x2_t x0 = two_entries(first, second, 0, &x01), x2 = two_entries(first, second, 2, &x23);
        float64x2_t x4 = two_entries(first, second, 4, &x45), x6 = two_entries(first, second, 6, &x67);

        float64x2_t target = vld1q_f64(targets + i);
        float64x2_t half = vaddq_f64(x01, x23);
        uint64x2_t right4 = vcgeq_f64(target, half);
        target = less(target, right4, half);
        float64x2_t pair = vbslq_f64(right4, x45, x01);
        uint64x2_t right2 = vcgeq_f64(target, pair);
        target = less(target, right2, pair);
        float64x2_t left = vbslq_f64(right2, vbslq_f64(right4, x6, x2), vbslq_f64(right4, x4, x0));
        uint64x2_t right1 = vcgeq_f64(target, left);
        vst1q_f64(targets + i, less(target, right1, left));

        uint64x2_t node = vshlq_n_u64(vld1q_u64(nodes + i), 3);
        node = vaddq_u64(node, vandq_u64(right4, vdupq_n_u64(4)));
        node = vaddq_u64(node, vandq_u64(right2, vdupq_n_u64(2)));
        node = vaddq_u64(node, vandq_u64(right1, vdupq_n_u64(1)));
        vst1q_u64(nodes + i, vbslq_u64(vcltq_u64(node, limit), node, limit));
        sum_tree_prefetch(below, nodes + i, 2);
    }
}
#endif

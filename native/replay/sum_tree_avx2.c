/* sum_tree_avx2: the kernels for AVX2: four descents, or the sums of two nodes, side by side. */
#include "replay/sum_tree_kernels.h"

#if CPU_X86
#include <immintrin.h>

void sum_tree_step_avx2(const double *entries, const double *below, uint64_t most, uint32_t count, double *targets,
                        uint64_t *nodes) {
    const __m256i limit = _mm256_set1_epi64x((int64_t)most);
    for (uint32_t i = 0; i < count; i += 4) {
        const double *r0 = entries + nodes[i] * 8, *r1 = entries + nodes[i + 1] * 8;
        const double *r2 = entries + nodes[i + 2] * 8, *r3 = entries + nodes[i + 3] * 8;
        __m256d low0 = _mm256_load_pd(r0), low1 = _mm256_load_pd(r1), low2 = _mm256_load_pd(r2),
                low3 = _mm256_load_pd(r3);
        __m256d high0 = _mm256_load_pd(r0 + 4), high1 = _mm256_load_pd(r1 + 4), high2 = _mm256_load_pd(r2 + 4),
                high3 = _mm256_load_pd(r3 + 4);
        /* The even entries of two nodes, and the sums of their pairs, then of all four: a vector for each entry. */
        __m256d even01 = _mm256_unpacklo_pd(low0, low1), even23 = _mm256_unpacklo_pd(low2, low3);
        __m256d even45 = _mm256_unpacklo_pd(high0, high1), even67 = _mm256_unpacklo_pd(high2, high3);
        __m256d pair01 = _mm256_add_pd(even01, _mm256_unpackhi_pd(low0, low1));
        __m256d pair23 = _mm256_add_pd(even23, _mm256_unpackhi_pd(low2, low3));
        __m256d pair45 = _mm256_add_pd(even45, _mm256_unpackhi_pd(high0, high1));
        __m256d pair67 = _mm256_add_pd(even67, _mm256_unpackhi_pd(high2, high3));
        __m256d x0 = _mm256_permute2f128_pd(even01, even23, 0x20), x2 = _mm256_permute2f128_pd(even01, even23, 0x31);
        __m256d x4 = _mm256_permute2f128_pd(even45, even67, 0x20), x6 = _mm256_permute2f128_pd(even45, even67, 0x31);
        __m256d x01 = _mm256_permute2f128_pd(pair01, pair23, 0x20), x23 = _mm256_permute2f128_pd(pair01, pair23, 0x31);
        __m256d x45 = _mm256_permute2f128_pd(pair45, pair67, 0x20);

        __m256d target = _mm256_loadu_pd(targets + i);
        __m256d half = _mm256_add_pd(x01, x23);
        __m256d right4 = _mm256_cmp_pd(target, half, _CMP_GE_OQ);
        target = _mm256_sub_pd(target, _mm256_and_pd(right4, half));
        __m256d pair = _mm256_blendv_pd(x01, x45, right4);
        __m256d right2 = _mm256_cmp_pd(target, pair, _CMP_GE_OQ);
        target = _mm256_sub_pd(target, _mm256_and_pd(right2, pair));
        __m256d left = _mm256_blendv_pd(_mm256_blendv_pd(x0, x4, right4), _mm256_blendv_pd(x2, x6, right4), right2);
        __m256d right1 = _mm256_cmp_pd(target, left, _CMP_GE_OQ);
        _mm256_storeu_pd(targets + i, _mm256_sub_pd(target, _mm256_and_pd(right1, left)));

        /* A comparison that holds is -1. */
        __m256i minus = _mm256_add_epi64(_mm256_castpd_si256(right4), _mm256_castpd_si256(right4));
        minus = _mm256_add_epi64(minus, _mm256_castpd_si256(right2));
        minus = _mm256_add_epi64(_mm256_add_epi64(minus, minus), _mm256_castpd_si256(right1));
        __m256i node = _mm256_slli_epi64(_mm256_loadu_si256((const __m256i *)(const void *)(nodes + i)), 3);
        node = _mm256_min_epu32(_mm256_sub_epi64(node, minus), limit); /* both below 2^32 */
        _mm256_storeu_si256((__m256i *)(void *)(nodes + i), node);
        sum_tree_prefetch(below, nodes + i, 4);
    }
}

/* The sums of two nodes. */
static inline __m128d two_sums(const double *first, const double *second) {
    __m256d low0 = _mm256_load_pd(first), high0 = _mm256_load_pd(first + 4);
    __m256d low1 = _mm256_load_pd(second), high1 = _mm256_load_pd(second + 4);
    __m256d low = _mm256_add_pd(_mm256_unpacklo_pd(low0, low1), _mm256_unpackhi_pd(low0, low1));
    __m256d high = _mm256_add_pd(_mm256_unpacklo_pd(high0, high1), _mm256_unpackhi_pd(high0, high1));
    __m256d halves = _mm256_add_pd(_mm256_permute2f128_pd(low, high, 0x20), _mm256_permute2f128_pd(low, high, 0x31));
    return _mm_add_pd(_mm256_castpd256_pd128(halves), _mm256_extractf128_pd(halves, 1));
}

uint32_t sum_tree_sums_avx2(const double *children, double *parents, uint32_t *touched, uint32_t count) {
    uint32_t i = 0;
    if (!touched) {
        for (; i + 2 <= count; i += 2)
            _mm_storeu_pd(parents + i, two_sums(children + (size_t)i * 8, children + (size_t)i * 8 + 8));
        for (; i < count; i++) parents[i] = sum_tree_node_sum(children + (size_t)i * 8);
        return count;
    }
    for (; i + 2 <= count; i += 2) {
        uint32_t first = touched[i], second = touched[i + 1];
        __m128d sums = two_sums(children + (size_t)first * 8, children + (size_t)second * 8);
        _mm_storel_pd(&parents[first], sums);
        _mm_storeh_pd(&parents[second], sums);
        touched[i] = first / 8;
        touched[i + 1] = second / 8;
    }
    if (i < count) {
        parents[touched[i]] = sum_tree_node_sum(children + (size_t)touched[i] * 8);
        touched[i] /= 8;
    }
    return count;
}
#endif

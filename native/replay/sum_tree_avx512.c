/* sum_tree_avx512: the kernels for AVX-512: eight descents, or the sums of eight nodes, side by side. */
#include "replay/sum_tree_kernels.h"

#if CPU_X86
#include <immintrin.h>

/* The even entries of two nodes and the sums of their pairs. */
static inline void two_nodes(const double *first, const double *second, __m512d *even, __m512d *pairs) {
    __m512d x = _mm512_load_pd(first), y = _mm512_load_pd(second);
    *even = _mm512_unpacklo_pd(x, y);
    *pairs = _mm512_add_pd(*even, _mm512_unpackhi_pd(x, y));
}

/* Of four vectors of two nodes each: the quarters 0 and 2, or 1 and 3, of eight nodes. */
#define LOWER(first, second) _mm512_shuffle_f64x2(first, second, 0x44)
#define UPPER(first, second) _mm512_shuffle_f64x2(first, second, 0xee)
#define EVEN(first, second) _mm512_shuffle_f64x2(first, second, 0x88)
#define ODD(first, second) _mm512_shuffle_f64x2(first, second, 0xdd)

void sum_tree_step_avx512(const double *entries, const double *below, uint64_t most, uint32_t count, double *targets,
                          uint64_t *nodes) {
    const __m512i limit = _mm512_set1_epi64((int64_t)most);
    for (uint32_t i = 0; i < count; i += 8) {
        __m512d even[4], pairs[4];
        for (uint32_t k = 0; k < 4; k++)
            two_nodes(entries + nodes[i + 2 * k] * 8, entries + nodes[i + 2 * k + 1] * 8, &even[k], &pairs[k]);
        __m512d low0 = LOWER(even[0], even[1]), low1 = LOWER(even[2], even[3]);
        __m512d high0 = UPPER(even[0], even[1]), high1 = UPPER(even[2], even[3]);
        __m512d x0 = EVEN(low0, low1), x2 = ODD(low0, low1), x4 = EVEN(high0, high1), x6 = ODD(high0, high1);
        __m512d pair_low0 = LOWER(pairs[0], pairs[1]), pair_low1 = LOWER(pairs[2], pairs[3]);
        __m512d x01 = EVEN(pair_low0, pair_low1), x23 = ODD(pair_low0, pair_low1);
        __m512d x45 = EVEN(UPPER(pairs[0], pairs[1]), UPPER(pairs[2], pairs[3]));

        __m512d target = _mm512_loadu_pd(targets + i);
        __m512d half = _mm512_add_pd(x01, x23);
        __mmask8 right4 = _mm512_cmp_pd_mask(target, half, _CMP_GE_OQ);
        target = _mm512_mask_sub_pd(target, right4, target, half);
        __m512d pair = _mm512_mask_blend_pd(right4, x01, x45);
        __mmask8 right2 = _mm512_cmp_pd_mask(target, pair, _CMP_GE_OQ);
        target = _mm512_mask_sub_pd(target, right2, target, pair);
        __m512d left =
            _mm512_mask_blend_pd(right2, _mm512_mask_blend_pd(right4, x0, x4), _mm512_mask_blend_pd(right4, x2, x6));
        __mmask8 right1 = _mm512_cmp_pd_mask(target, left, _CMP_GE_OQ);
        _mm512_storeu_pd(targets + i, _mm512_mask_sub_pd(target, right1, target, left));

        __m512i node = _mm512_slli_epi64(_mm512_loadu_si512(nodes + i), 3);
        node = _mm512_mask_add_epi64(node, right4, node, _mm512_set1_epi64(4));
        node = _mm512_mask_add_epi64(node, right2, node, _mm512_set1_epi64(2));
        node = _mm512_mask_add_epi64(node, right1, node, _mm512_set1_epi64(1));
        _mm512_storeu_si512(nodes + i, _mm512_min_epu64(node, limit));
        sum_tree_prefetch(below, nodes + i, 8);
    }
}

/* Entries 2k and 2k + 1 of two nodes added: of the first and of the second in turn. */
static inline __m512d two_pairs(const double *first, const double *second) {
    __m512d x = _mm512_load_pd(first), y = _mm512_load_pd(second);
    return _mm512_add_pd(_mm512_unpacklo_pd(x, y), _mm512_unpackhi_pd(x, y));
}

static inline __m512d add_neighbours(__m512d first, __m512d second) {
    return _mm512_add_pd(EVEN(first, second), ODD(first, second));
}

uint32_t sum_tree_sums_avx512(const double *children, double *parents, uint32_t *touched, uint32_t count) {
    double sums[8] __attribute__((aligned(64)));
    uint32_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m512d pairs[4];
        for (uint32_t k = 0; k < 4; k++) {
            uint32_t first = touched ? touched[i + 2 * k] : i + 2 * k;
            uint32_t second = touched ? touched[i + 2 * k + 1] : first + 1;
            pairs[k] = two_pairs(children + (size_t)first * 8, children + (size_t)second * 8);
        }
        __m512d eight = add_neighbours(add_neighbours(pairs[0], pairs[1]), add_neighbours(pairs[2], pairs[3]));
        if (!touched) {
            _mm512_storeu_pd(parents + i, eight);
            continue;
        }
        _mm512_store_pd(sums, eight);
        for (uint32_t k = 0; k < 8; k++) parents[touched[i + k]] = sums[k];
        __m256i nodes = _mm256_loadu_si256((const __m256i *)(const void *)(touched + i));
        _mm256_storeu_si256((__m256i *)(void *)(touched + i), _mm256_srli_epi32(nodes, 3));
    }
    for (; i < count; i++) {
        uint32_t node = touched ? touched[i] : i;
        parents[node] = sum_tree_node_sum(children + (size_t)node * 8);
        if (touched) touched[i] = node / 8;
    }
    return count;
}
#endif

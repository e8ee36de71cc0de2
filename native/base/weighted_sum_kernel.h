/* weighted_sum_kernel: the loops of weighted_sum. One file for each set of vector instructions compiles them. They
 * have no branch, so that compilers vectorize them. */
#ifndef REPLAY_BASE_WEIGHTED_SUM_KERNEL_H
#define REPLAY_BASE_WEIGHTED_SUM_KERNEL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/weighted_sum.h"

#define WEIGHTED_SUM_BLOCK 512u /* elements whose sums stay in the nearest cache while the vectors are passed over */

typedef void weighted_sum_kernel(enum vector_type type, const void *const *vectors, const double *weights,
                                 uint32_t count, size_t first, size_t n, void *out);

weighted_sum_kernel weighted_sum_scalar, weighted_sum_avx2, weighted_sum_avx512;

static inline float weighted_sum_widen(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* To nearest, ties to even; what is not a number stays so. */
static inline uint16_t weighted_sum_narrow(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16, quiet = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

static inline void weighted_sum_add_float32(double *sums, const float *x, double weight, size_t n) {
    for (size_t i = 0; i < n; i++) sums[i] += weight * (double)x[i];
}

static inline void weighted_sum_add_bfloat16(double *sums, const uint16_t *x, double weight, size_t n) {
    for (size_t i = 0; i < n; i++) sums[i] += weight * (double)weighted_sum_widen(x[i]);
}

static inline void weighted_sum_block(enum vector_type type, const void *const *vectors, const double *weights,
                                      uint32_t count, size_t first, size_t n, void *out) {
    double sums[WEIGHTED_SUM_BLOCK];
    for (size_t i = 0; i < n; i++) sums[i] = -0.0; /* to which a zero of either sign adds as itself */
    if (type == VECTOR_FLOAT32) {
        for (uint32_t k = 0; k < count; k++)
            weighted_sum_add_float32(sums, (const float *)vectors[k] + first, weights[k], n);
        for (size_t i = 0; i < n; i++) ((float *)out)[first + i] = (float)sums[i];
    } else {
        for (uint32_t k = 0; k < count; k++)
            weighted_sum_add_bfloat16(sums, (const uint16_t *)vectors[k] + first, weights[k], n);
        for (size_t i = 0; i < n; i++) ((uint16_t *)out)[first + i] = weighted_sum_narrow((float)sums[i]);
    }
}

static inline void weighted_sum_loop(enum vector_type type, const void *const *vectors, const double *weights,
                                     uint32_t count, size_t first, size_t n, void *out) {
    for (size_t at = 0; at < n; at += WEIGHTED_SUM_BLOCK) {
        size_t block = n - at < WEIGHTED_SUM_BLOCK ? n - at : WEIGHTED_SUM_BLOCK;
        weighted_sum_block(type, vectors, weights, count, first + at, block, out);
    }
}

#endif

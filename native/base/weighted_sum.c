/* weighted_sum: the choice among the versions, and the one for any processor. */
#include "base/weighted_sum.h"

#include "base/cpu.h"
#include "base/weighted_sum_kernel.h"

const char *vector_type_name(enum vector_type type) {
    return type == VECTOR_BFLOAT16 ? "bfloat16" : "float32";
}

size_t vector_type_bytes(enum vector_type type) {
    return type == VECTOR_BFLOAT16 ? sizeof(uint16_t) : sizeof(float);
}

void weighted_sum_scalar(enum vector_type type, const void *const *vectors, const double *weights, uint32_t count,
                         size_t first, size_t n, void *out) {
    weighted_sum_loop(type, vectors, weights, count, first, n, out);
}

void weighted_sum(enum vector_type type, const void *const *vectors, const double *weights, uint32_t count,
                  size_t first, size_t n, void *out) {
    switch (cpu_simd()) {
#if CPU_X86
    case CPU_AVX2: weighted_sum_avx2(type, vectors, weights, count, first, n, out); return;
    case CPU_AVX512: weighted_sum_avx512(type, vectors, weights, count, first, n, out); return;
#endif
    default: weighted_sum_scalar(type, vectors, weights, count, first, n, out); return;
    }
}

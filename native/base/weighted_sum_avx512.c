/* weighted_sum_avx512: weighted_sum as the compiler makes it for AVX-512. */
#include "base/cpu.h"
#include "base/weighted_sum_kernel.h"

#if CPU_X86
void weighted_sum_avx512(enum vector_type type, const void *const *vectors, const double *weights, uint32_t count,
                         size_t first, size_t n, void *out) {
    weighted_sum_loop(type, vectors, weights, count, first, n, out);
}
#endif

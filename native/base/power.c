/* power: the choice among the versions, and the one for any processor. */
#include "base/power.h"

#include "base/cpu.h"
#include "base/power_kernel.h"

void power_many_scalar(const double *x, double exponent, uint32_t n, double *out) {
    power_loop(x, exponent, n, out);
}

void power_many(const double *x, double exponent, uint32_t n, double *out) {
    switch (cpu_simd()) {
#if CPU_X86
    case CPU_AVX2: power_many_avx2(x, exponent, n, out); return;
    case CPU_AVX512: power_many_avx512(x, exponent, n, out); return;
#endif
    default: power_many_scalar(x, exponent, n, out); return;
    }
}

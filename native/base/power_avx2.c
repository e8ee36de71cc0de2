/* power_avx2: power_many as the compiler makes it for AVX2. */
#include "base/cpu.h"
#include "base/power_kernel.h"

#if CPU_X86
void power_many_avx2(const double *x, double exponent, uint32_t n, double *out) {
    power_loop(x, exponent, n, out);
}
#endif

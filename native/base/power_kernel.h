/* power_kernel: the loop of power_many. One file for each set of vector instructions compiles it. It has no branch,
 * no conversion between integers and doubles, and no table, so that compilers vectorize it. */
#ifndef REPLAY_BASE_POWER_KERNEL_H
#define REPLAY_BASE_POWER_KERNEL_H

#include <stdint.h>
#include <string.h>

typedef void power_kernel(const double *x, double exponent, uint32_t n, double *out);

power_kernel power_many_scalar, power_many_avx2, power_many_avx512;

static inline uint64_t power_bits(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline double power_double(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#define POWER_SQRT_HALF 0x3fe6a09e667f3bcdu /* bits of the square root of 1/2 */
#define POWER_EXPONENT_BIAS (1024ull << 52) /* keeps the exponent positive while it is an integer */
#define POWER_2_TO_52 0x1p52 /* added to a small integer in the low bits, it is that integer as double */
#define POWER_ROUND 0x1.8p52 /* added and taken away, it rounds to an integer */

/* log2 of a normal x: x = 2^k m with m in [sqrt 1/2, sqrt 2); ln m = 2 atanh s, s = (m - 1) / (m + 1), |s| < 0.172. */
static inline double power_log2(double x) {
    uint64_t bits = power_bits(x);
    uint64_t k = (bits - POWER_SQRT_HALF + POWER_EXPONENT_BIAS) >> 52;
    double m = power_double(bits - (k << 52) + POWER_EXPONENT_BIAS);
    double whole = power_double(k | power_bits(POWER_2_TO_52)) - (POWER_2_TO_52 + 1024);
    double s = (m - 1) / (m + 1), z = s * s;
    double series = 1.0 / 21;
    series = series * z + 1.0 / 19;
    series = series * z + 1.0 / 17;
    series = series * z + 1.0 / 15;
    series = series * z + 1.0 / 13;
    series = series * z + 1.0 / 11;
    series = series * z + 1.0 / 9;
    series = series * z + 1.0 / 7;
    series = series * z + 1.0 / 5;
    series = series * z + 1.0 / 3;
    return whole + (s + s * (z * series)) * 0x1.71547652b82fep+1; /* 2 / ln 2 */
}

/* 2^y for y in [-1022, 1023]: the whole part goes into the exponent, the rest, at most 1/2, through exp's series. */
static inline double power_exp2(double y) {
    double shifted = y + POWER_ROUND, whole = shifted - POWER_ROUND;
    double t = (y - whole) * 0x1.62e42fefa39efp-1; /* ln 2 */
    double series = 1.0 / 6227020800;
    series = series * t + 1.0 / 479001600;
    series = series * t + 1.0 / 39916800;
    series = series * t + 1.0 / 3628800;
    series = series * t + 1.0 / 362880;
    series = series * t + 1.0 / 40320;
    series = series * t + 1.0 / 5040;
    series = series * t + 1.0 / 720;
    series = series * t + 1.0 / 120;
    series = series * t + 1.0 / 24;
    series = series * t + 1.0 / 6;
    series = series * t + 1.0 / 2;
    series = series * t + 1;
    series = series * t + 1;
    return series * power_double((power_bits(shifted) << 52) + (1023ull << 52));
}

static inline void power_loop(const double *x, double exponent, uint32_t n, double *out) {
    for (uint32_t i = 0; i < n; i++) {
        double base = x[i];
        double lift = base < 0x1p-1022 ? 0x1p54 : 1.0; /* of numbers below the normal ones */
        double lifted = base < 0x1p-1022 ? 54.0 : 0.0;
        double y = exponent * (power_log2(base * lift) - lifted);
        y = y < -1022 ? -1022 : y;
        y = y > 1023 ? 1023 : y;
        double power = power_exp2(y);
        out[i] = base > 0 ? power : 0;
    }
}

#endif

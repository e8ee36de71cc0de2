/* cpu: which vector instructions this processor has, found once, so that one build is fast on every processor.
 * REPLAY_SIMD=scalar|neon|avx2|avx512 chooses others, for tests: every choice computes the same bits. */
#ifndef REPLAY_BASE_CPU_H
#define REPLAY_BASE_CPU_H

#include <stdbool.h>

enum cpu_simd { CPU_SCALAR, CPU_NEON, CPU_AVX2, CPU_AVX512, CPU_SIMD_COUNT };

#if defined(__x86_64__)
#define CPU_X86 1
#else
#define CPU_X86 0
#endif
#if defined(__aarch64__)
#define CPU_ARM 1
#else
#define CPU_ARM 0
#endif

const char *cpu_simd_name(enum cpu_simd simd);
bool cpu_simd_supported(enum cpu_simd simd);
enum cpu_simd cpu_simd(void); /* the best there is, or REPLAY_SIMD where that is supported */

#endif

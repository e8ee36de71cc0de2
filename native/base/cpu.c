#include "base/cpu.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[CPU_SIMD_COUNT] = {"scalar", "neon", "avx2", "avx512"};

const char *cpu_simd_name(enum cpu_simd simd) {
    return names[simd];
}

/* The compiler's runtime asks the processor, and the system whether it saves the registers. */
bool cpu_simd_supported(enum cpu_simd simd) {
    switch (simd) {
    case CPU_SCALAR: return true;
    case CPU_NEON: return CPU_ARM;
#if CPU_X86
    case CPU_AVX2: return __builtin_cpu_supports("avx2");
    case CPU_AVX512:
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl");
#endif
    default: return false;
    }
}

static enum cpu_simd best(void) {
    enum cpu_simd simd = CPU_SCALAR;
    for (int candidate = CPU_SCALAR; candidate < CPU_SIMD_COUNT; candidate++)
        if (cpu_simd_supported((enum cpu_simd)candidate)) simd = (enum cpu_simd)candidate;
    return simd;
}

static enum cpu_simd choose(void) {
    const char *wanted = getenv("REPLAY_SIMD");
    enum cpu_simd simd = best();
    if (!wanted || !wanted[0]) return simd;
    for (int candidate = CPU_SCALAR; candidate < CPU_SIMD_COUNT; candidate++)
        if (strcmp(wanted, names[candidate]) == 0 && cpu_simd_supported((enum cpu_simd)candidate))
            return (enum cpu_simd)candidate;
    fprintf(stderr, "REPLAY_SIMD: expected scalar, neon, avx2 or avx512, supported here, got '%s'; using %s\n", wanted,
            names[simd]);
    return simd;
}

enum cpu_simd cpu_simd(void) {
    static atomic_int chosen = -1; /* threads that come first together choose the same */
    int simd = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (simd < 0) {
        simd = (int)choose();
        atomic_store_explicit(&chosen, simd, memory_order_relaxed);
    }
    return (enum cpu_simd)simd;
}

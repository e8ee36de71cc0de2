/* arithmetic: integer operations for which C has no operator. */
#ifndef REPLAY_BASE_ARITHMETIC_H
#define REPLAY_BASE_ARITHMETIC_H

#include <stddef.h>
#include <stdint.h>

static inline size_t round_up(size_t value, size_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

static inline uint64_t at_most(uint64_t value, uint64_t limit) {
    return value < limit ? value : limit;
}

#endif

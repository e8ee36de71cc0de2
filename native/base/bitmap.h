/* bitmap: one bit for each of many things, in an array of words that the caller owns. */
#ifndef REPLAY_BASE_BITMAP_H
#define REPLAY_BASE_BITMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline size_t bitmap_bytes(uint32_t bits) {
    return ((size_t)bits + 63) / 64 * 8;
}

static inline bool bitmap_has(const uint64_t *words, uint32_t bit) {
    return words[bit / 64] >> (bit % 64) & 1;
}

static inline void bitmap_set(uint64_t *words, uint32_t bit) {
    words[bit / 64] |= 1ull << (bit % 64);
}

#endif

/* words: loads whole words from bytes that need not be aligned, in the machine's byte order, and rotates their
 * bits. */
#ifndef REPLAY_BASE_WORDS_H
#define REPLAY_BASE_WORDS_H

#include <stdint.h>
#include <string.h>

static inline uint32_t load_u32(const uint8_t *bytes) {
    uint32_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

static inline uint64_t load_u64(const uint8_t *bytes) {
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

static inline uint64_t rotate_left(uint64_t word, int bits) {
    return word << bits | word >> (64 - bits);
}

#endif

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

/* Of an array of them. */
static inline uint32_t u32_at(const uint8_t *array, uint32_t index) {
    return load_u32(array + index * sizeof(uint32_t));
}

static inline uint64_t u64_at(const uint8_t *array, uint32_t index) {
    return load_u64(array + index * sizeof(uint64_t));
}

/* A number of `count` bytes, the lowest first. */
static inline uint64_t load_little_endian(const uint8_t *bytes, unsigned count) {
    uint64_t value = 0;
    for (unsigned i = 0; i < count; i++) value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

static inline uint64_t rotate_left(uint64_t word, int bits) {
    return word << bits | word >> (64 - bits);
}

#endif

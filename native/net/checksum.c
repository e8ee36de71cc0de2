/* checksum: 64-bit words added up with carry; with AVX2, four at a time. */
#include "net/checksum.h"

#include <arpa/inet.h>
#include <string.h>

#include "base/cpu.h"
#include "base/words.h"

static uint16_t fold(uint64_t sum) {
    sum = (sum & 0xffffffffu) + (sum >> 32);
    sum = (sum & 0xffffffffu) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)((sum & 0xffff) + (sum >> 16));
}

/* 2^64 − 1 is a multiple of 2^16 − 1, so a carry out of the top counts as one at the bottom. */
static uint64_t add(uint64_t sum, uint64_t word) {
    sum += word;
    return sum + (sum < word);
}

/* The last bytes, fewer than eight: four, two and one, which at even places are words like all others. */
static uint64_t rest_at(const uint8_t *data, size_t length) {
    uint32_t four = 0;
    uint16_t two = 0, one = 0;
    if (length & 4) {
        memcpy(&four, data, 4);
        data += 4;
    }
    if (length & 2) {
        memcpy(&two, data, 2);
        data += 2;
    }
    if (length & 1) memcpy(&one, data, 1); /* the byte that comes first in memory, whatever the byte order */
    return (uint64_t)four + two + one;
}

static uint64_t sum_words(uint64_t sum, const uint8_t *data, size_t length) {
    uint64_t second = 0; /* two chains of carries at once */
    for (; length >= 16; data += 16, length -= 16) {
        sum = add(sum, load_u64(data));
        second = add(second, load_u64(data + 8));
    }
    if (length >= 8) {
        sum = add(sum, load_u64(data));
        data += 8;
        length -= 8;
    }
    return add(add(sum, second), rest_at(data, length));
}

static uint64_t copy_words(uint64_t sum, uint8_t *restrict to, const uint8_t *restrict from, size_t length) {
    for (; length >= 8; to += 8, from += 8, length -= 8) {
        uint64_t word = load_u64(from);
        memcpy(to, &word, 8);
        sum = add(sum, word);
    }
    memcpy(to, from, length);
    return add(sum, rest_at(from, length));
}

uint16_t checksum_sum_portable(const void *data, size_t length_bytes) {
    return fold(sum_words(0, data, length_bytes));
}

uint16_t checksum_copy_portable(void *restrict to, const void *restrict from, size_t length_bytes) {
    return fold(copy_words(0, to, from, length_bytes));
}

#if CPU_X86

#include <immintrin.h>

#define VECTOR_BYTES 128u /* shorter pieces are not worth the set-up */
#define STEP_BYTES 64u
/* Asked for before it is copied. What is sent lies in slots far apart, and what the processor fetches by itself ends with a
 * page. A frame's end asks for the next one's beginning. Asking for what is not there does no harm. */
#define AHEAD_BYTES 2048u

/* Adds four 64-bit words to four lanes, which overflow, and their upper halves to four others, which do not: what the
 * lower halves came to is then the difference. */
#define ADD_VECTOR(whole, upper, vector)                                      \
    do {                                                                      \
        (whole) = _mm256_add_epi64((whole), (vector));                        \
        (upper) = _mm256_add_epi64((upper), _mm256_srli_epi64((vector), 32)); \
    } while (0)

__attribute__((target("avx2"))) static inline __m256i load(const uint8_t *data) {
    __m256i vector = _mm256_loadu_si256((const __m256i *)data);
    __asm__("" : "+x"(vector)); /* or compilers load it once for each use */
    return vector;
}

__attribute__((target("avx2"))) static uint64_t lanes(__m256i whole, __m256i upper) {
    uint64_t uppers[4], lowers[4], sum = 0;
    _mm256_storeu_si256((__m256i *)uppers, upper);
    _mm256_storeu_si256((__m256i *)lowers, _mm256_sub_epi64(whole, _mm256_slli_epi64(upper, 32)));
    for (int lane = 0; lane < 4; lane++) sum = add(add(sum, uppers[lane]), lowers[lane]);
    return sum;
}

__attribute__((target("avx2"))) static uint16_t sum_avx2(const uint8_t *data, size_t length) {
    __m256i whole = _mm256_setzero_si256(), upper = whole, whole_second = whole, upper_second = whole;
    for (; length >= STEP_BYTES; data += STEP_BYTES, length -= STEP_BYTES) {
        __m256i first = load(data);
        __m256i second = load(data + 32);
        ADD_VECTOR(whole, upper, first);
        ADD_VECTOR(whole_second, upper_second, second);
    }
    uint64_t sum = add(lanes(whole, upper), lanes(whole_second, upper_second));
    return fold(sum_words(sum, data, length));
}

__attribute__((target("avx2"))) static uint16_t copy_avx2(uint8_t *restrict to, const uint8_t *restrict from,
                                                          size_t length) {
    __m256i whole = _mm256_setzero_si256(), upper = whole, whole_second = whole, upper_second = whole;
    for (; length >= STEP_BYTES; to += STEP_BYTES, from += STEP_BYTES, length -= STEP_BYTES) {
        _mm_prefetch((const char *)((uintptr_t)from + AHEAD_BYTES), _MM_HINT_T0);
        __m256i first = load(from);
        __m256i second = load(from + 32);
        _mm256_storeu_si256((__m256i *)to, first);
        _mm256_storeu_si256((__m256i *)(to + 32), second);
        ADD_VECTOR(whole, upper, first);
        ADD_VECTOR(whole_second, upper_second, second);
    }
    uint64_t sum = add(lanes(whole, upper), lanes(whole_second, upper_second));
    return fold(copy_words(sum, to, from, length));
}

static bool by_vectors(size_t length) {
    return length >= VECTOR_BYTES && cpu_simd() >= CPU_AVX2;
}

uint16_t checksum_sum(const void *data, size_t length_bytes) {
    return by_vectors(length_bytes) ? sum_avx2(data, length_bytes) : checksum_sum_portable(data, length_bytes);
}

uint16_t checksum_copy(void *restrict to, const void *restrict from, size_t length_bytes) {
    return by_vectors(length_bytes) ? copy_avx2(to, from, length_bytes)
                                    : checksum_copy_portable(to, from, length_bytes);
}

#else

uint16_t checksum_sum(const void *data, size_t length_bytes) {
    return checksum_sum_portable(data, length_bytes);
}

uint16_t checksum_copy(void *restrict to, const void *restrict from, size_t length_bytes) {
    return checksum_copy_portable(to, from, length_bytes);
}

#endif

void checksum_add_sum(struct checksum *checksum, uint16_t sum, size_t length_bytes) {
    /* Inside a word each byte of the piece stands in the other half: the sum with its bytes swapped (RFC 1071, 2B). */
    checksum->sum += checksum->odd ? (uint16_t)(sum << 8 | sum >> 8) : sum;
    checksum->odd ^= length_bytes & 1;
}

void checksum_add(struct checksum *checksum, const void *data, size_t length_bytes) {
    checksum_add_sum(checksum, checksum_sum(data, length_bytes), length_bytes);
}

void checksum_add_copy(struct checksum *checksum, void *restrict to, const void *restrict from, size_t length_bytes) {
    checksum_add_sum(checksum, checksum_copy(to, from, length_bytes), length_bytes);
}

uint16_t checksum_total(const struct checksum *checksum) {
    return fold(checksum->sum);
}

uint16_t checksum_pseudo_ipv4(uint32_t source, uint32_t destination, uint8_t protocol, uint16_t length_bytes) {
    return fold((uint64_t)source + destination + htons(protocol) + htons(length_bytes));
}

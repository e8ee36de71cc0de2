#include "base/siphash.h"

#include "base/words.h"

#define SIP_ROUND()                    \
    do {                               \
        v0 += v1, v2 += v3;            \
        v1 = rotate_left(v1, 13) ^ v0; \
        v3 = rotate_left(v3, 16) ^ v2; \
        v0 = rotate_left(v0, 32);      \
        v2 += v1, v0 += v3;            \
        v1 = rotate_left(v1, 17) ^ v2; \
        v3 = rotate_left(v3, 21) ^ v0; \
        v2 = rotate_left(v2, 32);      \
    } while (0)

/* The last bytes, fewer than eight, without reading beyond them. */
static inline uint64_t tail_word(const uint8_t *bytes, size_t left) {
    if (left >= 4) return load_u32(bytes) | (uint64_t)load_u32(bytes + left - 4) << 8 * (left - 4);
    if (left == 0) return 0;
    return bytes[0] | (uint64_t)bytes[left / 2] << 8 * (left / 2) | (uint64_t)bytes[left - 1] << 8 * (left - 1);
}

uint64_t siphash(const void *data, size_t length, const uint64_t key[2]) {
    uint64_t v0 = key[0] ^ 0x736f6d6570736575u, v1 = key[1] ^ 0x646f72616e646f6du;
    uint64_t v2 = key[0] ^ 0x6c7967656e657261u, v3 = key[1] ^ 0x7465646279746573u;
    const uint8_t *bytes = data;
    size_t left = length;
    uint64_t word;
    /* Words are read in the machine's order: the hash never leaves the process. */
    for (; left >= 8; left -= 8, bytes += 8) {
        word = load_u64(bytes);
        v3 ^= word;
        SIP_ROUND();
        v0 ^= word;
    }
    word = tail_word(bytes, left) | (uint64_t)length << 56;
    v3 ^= word;
    SIP_ROUND();
    v0 ^= word;
    v2 ^= 0xff;
    SIP_ROUND();
    SIP_ROUND();
    SIP_ROUND();
    return v0 ^ v1 ^ v2 ^ v3;
}

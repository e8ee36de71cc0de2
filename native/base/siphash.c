/* siphash: SipHash-1-3, a keyed hash for tables whose keys come from clients. */
#include "base/siphash.h"

#include <string.h>

static inline uint64_t rotate_left(uint64_t word, int bits) {
    return word << bits | word >> (64 - bits);
}

static inline void sip_round(uint64_t v[4]) {
    v[0] += v[1];
    v[1] = rotate_left(v[1], 13) ^ v[0];
    v[0] = rotate_left(v[0], 32);
    v[2] += v[3];
    v[3] = rotate_left(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotate_left(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotate_left(v[1], 17) ^ v[2];
    v[2] = rotate_left(v[2], 32);
}

uint64_t siphash(const void *data, size_t length, const uint64_t key[2]) {
    uint64_t v[4] = {key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du, key[0] ^ 0x6c7967656e657261u,
                     key[1] ^ 0x7465646279746573u};
    const uint8_t *bytes = data;
    size_t left = length;
    uint64_t word;
    /* Words are read in the machine's order: the hash never leaves the process. */
    for (; left >= 8; left -= 8, bytes += 8) {
        memcpy(&word, bytes, 8);
        v[3] ^= word;
        sip_round(v);
        v[0] ^= word;
    }
    word = 0;
    memcpy(&word, bytes, left);
    word ^= (uint64_t)length << 56;
    v[3] ^= word;
    sip_round(v);
    v[0] ^= word;
    v[2] ^= 0xff;
    sip_round(v);
    sip_round(v);
    sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

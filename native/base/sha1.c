/* sha1: FIPS 180-4, section 6.1. */
#include "base/sha1.h"

#include "base/sha_end.h"

static uint32_t rotate(uint32_t value, int by) {
    return (value << by) | (value >> (32 - by));
}

static void add_block(uint32_t state[5], const uint8_t *block) {
    uint32_t w[80];
    for (int t = 0; t < 16; t++)
        w[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 | (uint32_t)block[4 * t + 2] << 8 |
               block[4 * t + 3];
    for (int t = 16; t < 80; t++) w[t] = rotate(w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16], 1);
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
    for (int t = 0; t < 80; t++) {
        uint32_t f, k;
        if (t < 20)
            f = (b & c) | (~b & d), k = 0x5a827999u;
        else if (t < 40)
            f = b ^ c ^ d, k = 0x6ed9eba1u;
        else if (t < 60)
            f = (b & c) | (b & d) | (c & d), k = 0x8f1bbcdcu;
        else
            f = b ^ c ^ d, k = 0xca62c1d6u;
        uint32_t next = rotate(a, 5) + f + e + k + w[t];
        e = d;
        d = c;
        c = rotate(b, 30);
        b = a;
        a = next;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
}

void sha1(const void *data, size_t length, uint8_t digest[SHA1_BYTES]) {
    uint32_t state[5] = {0x67452301u, 0xefcdab89u, 0x98badcfeu, 0x10325476u, 0xc3d2e1f0u};
    const uint8_t *bytes = data;
    size_t whole = length / SHA_BLOCK_BYTES * SHA_BLOCK_BYTES;
    for (size_t at = 0; at < whole; at += SHA_BLOCK_BYTES) add_block(state, bytes + at);
    uint8_t end[2 * SHA_BLOCK_BYTES];
    size_t end_bytes = sha_end(data, length, end);
    for (size_t at = 0; at < end_bytes; at += SHA_BLOCK_BYTES) add_block(state, end + at);
    for (int i = 0; i < SHA1_BYTES; i++) digest[i] = (uint8_t)(state[i / 4] >> (24 - 8 * (i % 4)));
}

void sha1_show(const uint8_t digest[SHA1_BYTES], char hex[SHA1_HEX_BYTES]) {
    for (int i = 0; i < 2 * SHA1_BYTES; i++) hex[i] = "0123456789abcdef"[digest[i / 2] >> (i % 2 ? 0 : 4) & 15];
    hex[2 * SHA1_BYTES] = '\0';
}

void sha1_hex(const void *data, size_t length, char hex[SHA1_HEX_BYTES]) {
    uint8_t digest[SHA1_BYTES];
    sha1(data, length, digest);
    sha1_show(digest, hex);
}

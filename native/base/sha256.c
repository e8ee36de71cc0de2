/* sha256: the hash of FIPS 180-4; section numbers are its own. */
#include "base/sha256.h"

#include "base/sha_end.h"

/* The fractional parts of the cube roots of the first 64 primes (4.2.2). */
static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate(uint32_t word, unsigned bits) {
    return (word >> bits) | (word << (32 - bits));
}

/* One block into the state (6.2.2). */
static void compress(uint32_t state[8], const uint8_t block[SHA_BLOCK_BYTES]) {
    uint32_t schedule[64];
    for (unsigned i = 0; i < 16; i++)
        schedule[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
                      (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (unsigned i = 16; i < 64; i++) {
        uint32_t early = schedule[i - 15], late = schedule[i - 2];
        uint32_t first = rotate(early, 7) ^ rotate(early, 18) ^ (early >> 3);
        uint32_t second = rotate(late, 17) ^ rotate(late, 19) ^ (late >> 10);
        schedule[i] = second + schedule[i - 7] + first + schedule[i - 16];
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (unsigned i = 0; i < 64; i++) {
        uint32_t mixed =
            h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + constants[i] + schedule[i];
        uint32_t majority = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g;
        g = f;
        f = e;
        e = d + mixed;
        d = c;
        c = b;
        b = a;
        a = mixed + majority;
    }
    const uint32_t after[8] = {a, b, c, d, e, f, g, h};
    for (unsigned i = 0; i < 8; i++) state[i] += after[i];
}

void sha256(const void *data, size_t length, uint8_t digest[SHA256_BYTES]) {
    /* The fractional parts of the square roots of the first 8 primes (5.3.3). */
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const uint8_t *bytes = data;
    size_t whole = length / SHA_BLOCK_BYTES * SHA_BLOCK_BYTES;
    for (size_t at = 0; at < whole; at += SHA_BLOCK_BYTES) compress(state, bytes + at);
    uint8_t end[2 * SHA_BLOCK_BYTES];
    size_t end_bytes = sha_end(data, length, end);
    for (size_t at = 0; at < end_bytes; at += SHA_BLOCK_BYTES) compress(state, end + at);
    for (unsigned i = 0; i < SHA256_BYTES; i++) digest[i] = (uint8_t)(state[i / 4] >> (24 - 8 * (i % 4)));
}

void sha256_hex(const void *data, size_t length, char hex[SHA256_HEX_BYTES + 1]) {
    uint8_t digest[SHA256_BYTES];
    sha256(data, length, digest);
    for (unsigned i = 0; i < SHA256_BYTES; i++) {
        hex[2 * i] = "0123456789abcdef"[digest[i] >> 4];
        hex[2 * i + 1] = "0123456789abcdef"[digest[i] & 15];
    }
    hex[SHA256_HEX_BYTES] = '\0';
}

/* random: xoshiro256++ (Blackman and Vigna, 2019), seeded through splitmix64; secrets and seeds come from getrandom. */
#include "base/random.h"

#include <assert.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/words.h"

/* splitmix64 (Steele, Lea and Flood, 2014): spreads any seed, zero included, over the whole state. */
static uint64_t splitmix(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void random_seed(struct random_state *state, uint64_t seed) {
    for (int i = 0; i < 4; i++) state->words[i] = splitmix(&seed);
}

bool random_secret(void *bytes, size_t length) {
    assert(length <= 256); /* given whole, without interruption */
    return getrandom(bytes, length, GRND_NONBLOCK) == (ssize_t)length;
}

uint64_t random_entropy(void) {
    uint64_t value;
    if (random_secret(&value, sizeof value)) return value;
    /* Early in boot the pool may not be ready; clocks differ enough between runs for sampling. */
    value = clock_monotonic_ns() ^ ((uint64_t)clock_unix_ms() << 20);
    return splitmix(&value);
}

uint64_t random_next(struct random_state *state) {
    uint64_t *s = state->words;
    uint64_t result = rotate_left(s[0] + s[3], 23) + s[0];
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate_left(s[3], 45);
    return result;
}

double random_unit(struct random_state *state) {
    return (double)(random_next(state) >> 11) * 0x1.0p-53;
}

/* Lemire's multiplication method (2019): a division only in the rare case that may be biased. */
uint64_t random_below(struct random_state *state, uint64_t bound) {
    assert(bound > 0);
    unsigned __int128 product = (unsigned __int128)random_next(state) * bound;
    uint64_t low = (uint64_t)product;
    if (low < bound) {
        uint64_t threshold = -bound % bound;
        while (low < threshold) {
            product = (unsigned __int128)random_next(state) * bound;
            low = (uint64_t)product;
        }
    }
    return (uint64_t)(product >> 64);
}

/* random: xoshiro256++ (Blackman and Vigna, 2019), seeded through splitmix64. Only random_secret is fit for
 * secrets. */
#ifndef REPLAY_BASE_RANDOM_H
#define REPLAY_BASE_RANDOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct random_state {
    uint64_t words[4];
};

void random_seed(struct random_state *state, uint64_t seed);
uint64_t random_entropy(void); /* 64 bits from the operating system, to seed with */
/* Writes bytes that nobody can foretell, at most 256. False: the system has none yet, early in its boot. */
bool random_secret(void *bytes, size_t length);
uint64_t random_next(struct random_state *state);
double random_unit(struct random_state *state);                        /* uniform in [0, 1), 53 bits */
uint64_t random_below(struct random_state *state, uint64_t bound); /* uniform in [0, bound), unbiased; bound > 0 */

#endif

/* access: when a key was last used, or how often it is used: 24 bits in each value, by which eviction chooses.
 *
 * For LRU policies the bits are the second of the last use. For LFU policies they are the minute of the last use (16
 * bits) and a counter of 8 bits that grows with the logarithm of the uses and falls with time: the counter of Redis,
 * by Salvatore Sanfilippo. The store's owner sets the time, so that a use of a key reads no clock. */
#ifndef REPLAY_STORE_ACCESS_H
#define REPLAY_STORE_ACCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/random.h"
#include "store/value.h"

#define ACCESS_COUNTER_MAX 255u
#define ACCESS_COUNTER_FIRST 5u /* of a new key, so that it is not the first to go */
#define ACCESS_BITS 0xffffffu

struct access_clock {
    bool by_frequency;
    uint32_t seconds;       /* modulo 2^24 */
    uint32_t minutes;       /* modulo 2^16 */
    uint32_t log_factor;    /* how slowly counters grow */
    uint32_t decay_minutes; /* a counter falls by one in so many; 0: never */
};

void access_tell_time(struct access_clock *clock, uint64_t now_us);
/* One more use, by frequency. */
void access_count(const struct access_clock *clock, struct value *value, struct random_state *random);
/* How often the value is used, 0 to 255; what was not used for a while counts less. */
uint32_t access_frequency(const struct access_clock *clock, const struct value *value);
uint32_t access_idle_s(const struct access_clock *clock, const struct value *value);
/* As if it had not been used for so long, or so often lately; without effect where the other is counted. */
void access_set_idle(const struct access_clock *clock, struct value *value, int64_t idle_s);
void access_set_frequency(const struct access_clock *clock, struct value *value, uint32_t frequency);

/* Of a value that is new. */
static inline uint32_t access_fresh(const struct access_clock *clock) {
    return clock->by_frequency ? clock->minutes << 8 | ACCESS_COUNTER_FIRST : clock->seconds;
}

static inline void access_touch(const struct access_clock *clock, struct value *value, struct random_state *random) {
    if (clock->by_frequency)
        access_count(clock, value, random);
    else
        value->access = clock->seconds & ACCESS_BITS;
}

#endif

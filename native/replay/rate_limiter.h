/* rate_limiter: when adding or sampling must wait, and why (Reverb's limiters; Cassirer et al. 2021, section 3.4).
 *
 * min_size lets samples through once the table holds min_size_to_sample items. queue never holds more than queue_size
 * items, and a sample takes items that are there. sample_to_insert_ratio looks at the lead, inserts *
 * samples_per_insert - samples. It keeps the lead within error_buffer of its target, samples_per_insert *
 * min_size_to_sample: an add may not raise the lead above this band, and a sample may not lower it below.
 *
 * Why neither side of a ratio waits for ever:
 *   - The band is at least one insert and one sample wide; the spec is checked for that. So below the band's middle
 *     an add of one item passes, and above it a sample of one.
 *   - If a batch is wider than the whole band and does not pass now, it never will. It is refused at once, with
 *     ERROR_LIMIT, instead of waiting.
 *   - If items are deleted, the table holds fewer items than it counted inserts. Below min_size_to_sample no sample
 *     passes, so there adds are judged by size: those that bring the table back to min_size_to_sample pass, whatever
 *     the lead is.
 * Counts change for a whole batch, by rate_limiter_added and rate_limiter_sampled, right after the check and on the
 * same thread. This would break if anything ran between check and count, or if only a part of a batch were counted. A
 * large batch is counted when it begins, although it enters or is drawn in parts. The items that have still to enter
 * are part of the size that checks of adds get (table_add.c).
 *
 * A shard of many may be told of more samples that do not count here than it has counted: a client moves them to another
 * shard, which counts them instead. So the count may be below 0. If it stopped at 0, the shards together would count
 * samples that nobody drew, and let in adds for them. */
#ifndef REPLAY_REPLAY_RATE_LIMITER_H
#define REPLAY_REPLAY_RATE_LIMITER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "replay/table.h"

struct rate_limiter {
    enum limiter_kind kind;
    uint64_t min_size_to_sample;
    double samples_per_insert, error_buffer;
    uint64_t queue_size;
    uint64_t inserts; /* items, since creation or reset; see rate_limiter_configure */
    uint64_t samples; /* the same; below 0 in two's complement: see rate_limiter_samples */
};

#define RATE_LIMITER_LEAST_SAMPLES (-(INT64_C(1) << 62))

static inline int64_t rate_limiter_samples(const struct rate_limiter *limiter) {
    return (int64_t)limiter->samples;
}

void rate_limiter_init(struct rate_limiter *limiter, const struct table_config *config);
/* Takes the limits of `config` from here on. If the ratio changes, the samples are converted to it: they stay as far ahead
 * or behind as they were, so that neither side has to make up for the past. */
void rate_limiter_configure(struct rate_limiter *limiter, const struct table_config *config);
void rate_limiter_reset(struct rate_limiter *limiter);

/* Whether n more items may enter, or be drawn, at once, from a table that holds `size`. Otherwise the message is the
 * reason, with ERROR_TIMEOUT where a wait may help, and ERROR_LIMIT where this batch can never pass. */
bool rate_limiter_can_add(const struct rate_limiter *limiter, uint64_t size, uint64_t n, struct error *error);
bool rate_limiter_can_sample(const struct rate_limiter *limiter, uint64_t size, uint64_t n, struct error *error);
/* How many of n items may be drawn now, where the whole that this table is a shard of has min_size_to_sample items: one
 * shard is not asked for them. */
uint64_t rate_limiter_admits_samples(const struct rate_limiter *limiter, uint64_t size, uint64_t n);
/* How many of n items may enter now, at once: the first of them. 0: not one may. */
uint64_t rate_limiter_admits(const struct rate_limiter *limiter, uint64_t size, uint64_t n);

static inline void rate_limiter_added(struct rate_limiter *limiter, uint64_t n) {
    limiter->inserts += n;
}

/* So many that were counted will not come after all. */
static inline void rate_limiter_not_added(struct rate_limiter *limiter, uint64_t n) {
    limiter->inserts -= n < limiter->inserts ? n : limiter->inserts;
}

static inline void rate_limiter_not_sampled(struct rate_limiter *limiter, uint64_t n) {
    int64_t samples = rate_limiter_samples(limiter);
    if (samples <= RATE_LIMITER_LEAST_SAMPLES) return;
    uint64_t most = (uint64_t)samples - (uint64_t)RATE_LIMITER_LEAST_SAMPLES;
    limiter->samples -= n < most ? n : most;
}

static inline void rate_limiter_sampled(struct rate_limiter *limiter, uint64_t n) {
    limiter->samples += n;
}

#endif

/* rate_limiter: when adding or sampling must wait, and why (Reverb's limiters; Cassirer et al. 2021, section 3.4). */
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
    uint64_t inserts, samples; /* items, since creation or reset */
};

void rate_limiter_init(struct rate_limiter *limiter, const struct table_config *config);
/* Takes the limits of `config` and keeps the counts. */
void rate_limiter_configure(struct rate_limiter *limiter, const struct table_config *config);
void rate_limiter_reset(struct rate_limiter *limiter);

/* Whether n more items may enter, or be drawn, at once, from a table that holds `size`. Otherwise ERROR_TIMEOUT: a wait may
 * help; or ERROR_LIMIT: this batch can never pass. The message is the reason. */
bool rate_limiter_can_add(const struct rate_limiter *limiter, uint64_t size, uint64_t n, struct error *error);
bool rate_limiter_can_sample(const struct rate_limiter *limiter, uint64_t size, uint64_t n, struct error *error);
/* How many of n items may enter now, at once: all, or the first of them; 0 where not one may. */
uint64_t rate_limiter_admits(const struct rate_limiter *limiter, uint64_t size, uint64_t n);

static inline void rate_limiter_added(struct rate_limiter *limiter, uint64_t n) {
    limiter->inserts += n;
}

static inline void rate_limiter_sampled(struct rate_limiter *limiter, uint64_t n) {
    limiter->samples += n;
}

#endif

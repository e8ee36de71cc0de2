/* rate_limiter: min_size, sample_to_insert_ratio and queue, applied to whole batches. */
#include "replay/rate_limiter.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

void rate_limiter_init(struct rate_limiter *limiter, const struct table_config *config) {
    memset(limiter, 0, sizeof *limiter);
    rate_limiter_configure(limiter, config);
}

/* The samples that the inserts are worth since there have been `min_size` of them. */
static double worth(const struct rate_limiter *limiter, uint64_t min_size, double samples_per_insert) {
    return limiter->inserts > min_size ? (double)(limiter->inserts - min_size) * samples_per_insert : 0;
}

void rate_limiter_configure(struct rate_limiter *limiter, const struct table_config *config) {
    if (config->limiter == LIMITER_SAMPLE_TO_INSERT_RATIO) {
        double beyond = limiter->kind == LIMITER_SAMPLE_TO_INSERT_RATIO
                            ? (double)rate_limiter_samples(limiter) -
                                  worth(limiter, limiter->min_size_to_sample, limiter->samples_per_insert)
                            : 0;
        double samples = beyond + worth(limiter, config->min_size_to_sample, config->samples_per_insert);
        double least = fmin((double)rate_limiter_samples(limiter), 0);
        limiter->samples = (uint64_t)(int64_t)fmax(least, fmin(round(samples), 0x1p62));
    }
    limiter->kind = config->limiter;
    limiter->min_size_to_sample = config->min_size_to_sample;
    limiter->samples_per_insert = config->samples_per_insert;
    limiter->error_buffer = config->error_buffer;
    limiter->queue_size = config->queue_size;
}

void rate_limiter_reset(struct rate_limiter *limiter) {
    limiter->inserts = limiter->samples = 0;
}

/* How far inserts are ahead of samples, in samples. */
static double lead(const struct rate_limiter *limiter) {
    return (double)limiter->inserts * limiter->samples_per_insert - (double)rate_limiter_samples(limiter);
}

static double lead_target(const struct rate_limiter *limiter) {
    return limiter->samples_per_insert * (double)limiter->min_size_to_sample;
}

/* Counts by size, not by inserts, below min_size_to_sample: see the header. An add that begins below it and ends
 * above it may pass the band by its own width, for its caller may be the one that samples next. */
static bool ratio_allows_add(const struct rate_limiter *limiter, uint64_t size, uint64_t n) {
    double samples = (double)n * limiter->samples_per_insert;
    return size + n <= limiter->min_size_to_sample ||
           lead(limiter) + samples <= lead_target(limiter) + limiter->error_buffer ||
           (size < limiter->min_size_to_sample && samples <= 2 * limiter->error_buffer);
}

static bool ratio_can_add(const struct rate_limiter *limiter, uint64_t size, uint64_t n, struct error *error) {
    double samples = (double)n * limiter->samples_per_insert;
    if (ratio_allows_add(limiter, size, n)) return true;
    if (samples > 2 * limiter->error_buffer) {
        return error_because(error, ERROR_LIMIT,
                             "rate limiter: adding %" PRIu64 " items at once is worth %g samples, more than twice "
                             "error_buffer = %g, and can never pass; add fewer at once or enlarge error_buffer",
                             n, samples, limiter->error_buffer);
    }
    return error_because(error, ERROR_TIMEOUT,
                         "rate limiter: adding %" PRIu64 " items waits for samples: %" PRIu64 " added, %" PRId64
                         " sampled, samples_per_insert = %g, error_buffer = %g",
                         n, limiter->inserts, rate_limiter_samples(limiter), limiter->samples_per_insert,
                         limiter->error_buffer);
}

static bool ratio_allows_sample(const struct rate_limiter *limiter, uint64_t n) {
    return lead(limiter) - (double)n >= lead_target(limiter) - limiter->error_buffer;
}

bool rate_limiter_can_add(const struct rate_limiter *limiter, uint64_t size, uint64_t n, struct error *error) {
    switch (limiter->kind) {
    case LIMITER_MIN_SIZE: return true;
    case LIMITER_SAMPLE_TO_INSERT_RATIO: return ratio_can_add(limiter, size, n, error);
    case LIMITER_QUEUE:
        if (n > limiter->queue_size) {
            return error_because(error, ERROR_LIMIT,
                                 "rate limiter: %" PRIu64 " items at once never fit a queue of %" PRIu64
                                 "; add fewer at once",
                                 n, limiter->queue_size);
        }
        if (size + n > limiter->queue_size) {
            return error_because(error, ERROR_TIMEOUT,
                                 "rate limiter: adding %" PRIu64 " items waits for room: the queue holds %" PRIu64
                                 " of %" PRIu64,
                                 n, size, limiter->queue_size);
        }
        return true;
    }
    return true;
}

uint64_t rate_limiter_admits(const struct rate_limiter *limiter, uint64_t size, uint64_t n) {
    if (limiter->kind == LIMITER_QUEUE) {
        uint64_t room = size < limiter->queue_size ? limiter->queue_size - size : 0;
        return n < room ? n : room;
    }
    if (limiter->kind == LIMITER_MIN_SIZE || ratio_allows_add(limiter, size, n)) return n;
    uint64_t admitted = 0, refused = n; /* fewer never fare worse */
    while (refused - admitted > 1) {
        uint64_t middle = admitted + (refused - admitted) / 2;
        if (ratio_allows_add(limiter, size, middle))
            admitted = middle;
        else
            refused = middle;
    }
    return admitted;
}

uint64_t rate_limiter_admits_samples(const struct rate_limiter *limiter, uint64_t size, uint64_t n) {
    if (limiter->kind == LIMITER_MIN_SIZE) return n;
    if (limiter->kind == LIMITER_QUEUE) return n < size ? n : size;
    double most = lead(limiter) - (lead_target(limiter) - limiter->error_buffer);
    if (!(most >= 1)) return 0;
    return most < (double)n ? (uint64_t)most : n;
}

/* Whether the batch can pass at some time: some cannot, whatever is added meanwhile. */
static bool sample_is_possible(const struct rate_limiter *limiter, uint64_t n, struct error *error) {
    if (limiter->kind == LIMITER_QUEUE && n > limiter->queue_size) {
        return error_because(error, ERROR_LIMIT,
                             "rate limiter: a sample of %" PRIu64 " is more than a queue of %" PRIu64
                             " can hold; sample fewer at once",
                             n, limiter->queue_size);
    }
    if (limiter->kind == LIMITER_SAMPLE_TO_INSERT_RATIO && (double)n > 2 * limiter->error_buffer &&
        !ratio_allows_sample(limiter, n)) {
        return error_because(error, ERROR_LIMIT,
                             "rate limiter: a sample of %" PRIu64 " is more than twice error_buffer = %g and can "
                             "never pass; sample fewer at once or enlarge error_buffer",
                             n, limiter->error_buffer);
    }
    return true;
}

bool rate_limiter_can_sample(const struct rate_limiter *limiter, uint64_t size, uint64_t n, struct error *error) {
    if (!sample_is_possible(limiter, n, error)) return false;
    if (limiter->kind == LIMITER_QUEUE) {
        return n <= size ||
               error_because(error, ERROR_TIMEOUT,
                             "too few items: a sample of %" PRIu64 " waits, the queue holds %" PRIu64, n, size);
    }
    if (size < limiter->min_size_to_sample) {
        return error_because(error, ERROR_TIMEOUT,
                             "too few items: the table holds %" PRIu64
                             ", sampling waits for min_size_to_sample = %" PRIu64,
                             size, limiter->min_size_to_sample);
    }
    if (limiter->kind == LIMITER_SAMPLE_TO_INSERT_RATIO && !ratio_allows_sample(limiter, n)) {
        return error_because(error, ERROR_TIMEOUT,
                             "rate limiter: a sample of %" PRIu64 " waits for inserts: %" PRIu64 " added, %" PRId64
                             " sampled, samples_per_insert = %g, error_buffer = %g",
                             n, limiter->inserts, rate_limiter_samples(limiter), limiter->samples_per_insert,
                             limiter->error_buffer);
    }
    return true;
}

/* latency: durations in fixed memory, fine enough to compare (256 buckets per power of two, error below 0.4 %). */
#ifndef REPLAY_TOOLS_LATENCY_H
#define REPLAY_TOOLS_LATENCY_H

#include <stdint.h>

#include "base/text.h"

#define LATENCY_FINE 256u                          /* buckets of a power of two; below it a value has its own */
#define LATENCY_POWERS 34u                         /* up to 2^41 ns, half an hour */
#define LATENCY_BUCKETS (LATENCY_FINE * LATENCY_POWERS)

struct latency {
    uint64_t count;
    uint64_t sum_ns;
    uint64_t min_ns, max_ns;
    uint64_t buckets[LATENCY_BUCKETS];
};

void latency_record(struct latency *latency, uint64_t ns);
/* The middle of the bucket that holds the quantile, within the lowest and the highest seen; 0 when empty. */
uint64_t latency_quantile(const struct latency *latency, double quantile);
/* Appends members of a JSON object: "PREFIX_p50":…, in microseconds, to p99.9, "_max", "_mean", "_min". */
void latency_append(const struct latency *latency, const char *prefix, struct text *out);

#endif

/* histogram: latencies in fixed memory, log-linear buckets (16 per power of two, error below 6.25 %). */
#ifndef REPLAY_BASE_HISTOGRAM_H
#define REPLAY_BASE_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_BUCKETS 640

struct histogram {
    uint64_t count;
    uint64_t sum;
    uint64_t max;
    uint64_t buckets[HISTOGRAM_BUCKETS];
};

void histogram_record(struct histogram *histogram, uint64_t value);
uint64_t histogram_quantile(const struct histogram *histogram, double quantile); /* 0 when empty */
/* How many values were at most so large, as far as the buckets tell. */
uint64_t histogram_count_to(const struct histogram *histogram, uint64_t value);
void histogram_reset(struct histogram *histogram);

#endif

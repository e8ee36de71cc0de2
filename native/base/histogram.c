#include "base/histogram.h"

#include <string.h>

/* Values below 16 have a bucket each; above, four bits after the leading one choose among 16. */
static uint32_t bucket_of(uint64_t value) {
    if (value < 16) return (uint32_t)value;
    uint32_t exponent = 63u - (uint32_t)__builtin_clzll(value);
    uint32_t bucket = 16u * (exponent - 3u) + (uint32_t)((value >> (exponent - 4u)) & 15u);
    return bucket < HISTOGRAM_BUCKETS ? bucket : HISTOGRAM_BUCKETS - 1;
}

static uint64_t bucket_upper_bound(uint32_t bucket) {
    if (bucket < 16) return bucket;
    uint32_t exponent = bucket / 16 + 3;
    uint64_t base = (uint64_t)1 << exponent;
    uint64_t width = base >> 4;
    return base + (bucket % 16 + 1) * width - 1;
}

void histogram_record(struct histogram *histogram, uint64_t value) {
    histogram->count++;
    histogram->sum += value;
    if (value > histogram->max) histogram->max = value;
    histogram->buckets[bucket_of(value)]++;
}

/* The upper bound of the bucket that holds the quantile, but never more than the largest value seen. */
uint64_t histogram_quantile(const struct histogram *histogram, double quantile) {
    if (histogram->count == 0) return 0;
    if (quantile < 0) quantile = 0;
    if (quantile > 1) quantile = 1;
    uint64_t rank = (uint64_t)(quantile * (double)histogram->count + 0.5);
    if (rank == 0) rank = 1;
    if (rank > histogram->count) rank = histogram->count;
    uint64_t seen = 0;
    for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
        seen += histogram->buckets[i];
        if (seen >= rank) {
            uint64_t bound = bucket_upper_bound(i);
            return bound < histogram->max && i < HISTOGRAM_BUCKETS - 1 ? bound : histogram->max;
        }
    }
    return histogram->max;
}

uint64_t histogram_count_to(const struct histogram *histogram, uint64_t value) {
    if (value >= histogram->max) return histogram->count;
    uint64_t seen = 0;
    for (uint32_t i = 0; i < HISTOGRAM_BUCKETS && bucket_upper_bound(i) <= value; i++) seen += histogram->buckets[i];
    return seen;
}

void histogram_reset(struct histogram *histogram) {
    memset(histogram, 0, sizeof *histogram);
}

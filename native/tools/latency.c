#include "tools/latency.h"

#define FINE_BITS 8u /* of LATENCY_FINE */

static uint32_t bucket_of(uint64_t ns) {
    if (ns < LATENCY_FINE) return (uint32_t)ns;
    uint32_t exponent = 63u - (uint32_t)__builtin_clzll(ns);
    uint32_t bucket =
        LATENCY_FINE * (exponent - FINE_BITS + 1) + (uint32_t)((ns >> (exponent - FINE_BITS)) & (LATENCY_FINE - 1));
    return bucket < LATENCY_BUCKETS ? bucket : LATENCY_BUCKETS - 1;
}

static uint64_t bucket_middle(uint32_t bucket) {
    if (bucket < LATENCY_FINE) return bucket;
    uint32_t exponent = bucket / LATENCY_FINE + FINE_BITS - 1;
    uint64_t width = (uint64_t)1 << (exponent - FINE_BITS);
    return ((uint64_t)1 << exponent) + (bucket % LATENCY_FINE) * width + width / 2;
}

void latency_record(struct latency *latency, uint64_t ns) {
    if (latency->count == 0 || ns < latency->min_ns) latency->min_ns = ns;
    if (ns > latency->max_ns) latency->max_ns = ns;
    latency->count++;
    latency->sum_ns += ns;
    latency->buckets[bucket_of(ns)]++;
}

uint64_t latency_quantile(const struct latency *latency, double quantile) {
    if (latency->count == 0) return 0;
    uint64_t rank = (uint64_t)(quantile * (double)latency->count + 0.5);
    if (rank == 0) rank = 1;
    if (rank > latency->count) rank = latency->count;
    uint64_t seen = 0;
    uint32_t bucket = 0;
    while (bucket < LATENCY_BUCKETS - 1 && (seen += latency->buckets[bucket]) < rank) bucket++;
    uint64_t value = bucket_middle(bucket);
    if (value < latency->min_ns) return latency->min_ns;
    return value < latency->max_ns ? value : latency->max_ns;
}

void latency_append(const struct latency *latency, const char *prefix, struct text *out) {
    static const struct {
        const char *name;
        double quantile;
    } quantiles[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p99.9", 0.999}};
    for (unsigned i = 0; i < sizeof quantiles / sizeof *quantiles; i++) {
        text_append(out, "\"%s_%s\":%.3f,", prefix, quantiles[i].name,
                    (double)latency_quantile(latency, quantiles[i].quantile) / 1e3);
    }
    double mean_ns = latency->count ? (double)latency->sum_ns / (double)latency->count : 0;
    text_append(out, "\"%s_max\":%.3f,\"%s_mean\":%.3f,\"%s_min\":%.3f", prefix, (double)latency->max_ns / 1e3, prefix,
                mean_ns / 1e3, prefix, (double)latency->min_ns / 1e3);
}

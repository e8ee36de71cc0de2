/* recent_histogram: latencies of the last ten to twenty seconds, in two histograms. A new one begins every ten
 * seconds, and the previous one is kept. */
#ifndef REPLAY_BASE_RECENT_HISTOGRAM_H
#define REPLAY_BASE_RECENT_HISTOGRAM_H

#include "base/histogram.h"

#define RECENT_WINDOW_US 10000000u

struct recent_histogram {
    struct histogram windows[2];
    uint64_t began_us[2]; /* 0: never; the one that began later is written to */
    uint32_t now;
};

void recent_histogram_turn(struct recent_histogram *recent, uint64_t now_us);

static inline void recent_histogram_record(struct recent_histogram *recent, uint64_t value, uint64_t now_us) {
    if (now_us - recent->began_us[recent->now] >= RECENT_WINDOW_US) recent_histogram_turn(recent, now_us);
    histogram_record(&recent->windows[recent->now], value);
}
/* What was recorded in the last ten to twenty seconds, or since it began; returns how many microseconds those are, 0 when
 * there is nothing. */
uint64_t recent_histogram_read(struct recent_histogram *recent, uint64_t now_us, struct histogram *sum);

#endif

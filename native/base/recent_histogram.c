/* recent_histogram: turning of its two windows, and their sum. */
#include "base/recent_histogram.h"

void recent_histogram_turn(struct recent_histogram *recent, uint64_t now_us) {
    uint64_t age_us = now_us - recent->began_us[recent->now];
    if (age_us < RECENT_WINDOW_US) return;
    if (age_us >= 2 * (uint64_t)RECENT_WINDOW_US) { /* what it holds is too old as well */
        histogram_reset(&recent->windows[recent->now]);
        recent->began_us[recent->now] = 0;
    }
    recent->now ^= 1u;
    histogram_reset(&recent->windows[recent->now]);
    recent->began_us[recent->now] = now_us;
}

uint64_t recent_histogram_read(struct recent_histogram *recent, uint64_t now_us, struct histogram *sum) {
    recent_histogram_turn(recent, now_us);
    const struct histogram *now = &recent->windows[recent->now], *before = &recent->windows[recent->now ^ 1u];
    *sum = *now;
    if (before->count == 0) return sum->count ? now_us - recent->began_us[recent->now] : 0;
    sum->count += before->count;
    sum->sum += before->sum;
    if (before->max > sum->max) sum->max = before->max;
    for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++) sum->buckets[i] += before->buckets[i];
    return now_us - recent->began_us[recent->now ^ 1u];
}

/* timeline: a ring of marks. */
#include "net/lwip/timeline.h"

#include <stddef.h>

#define FINENESS 16u /* marks in a round trip, at least */

static bool is_before(uint32_t left, uint32_t right) {
    return (int32_t)(left - right) < 0;
}

void timeline_clear(struct timeline *timeline) {
    timeline->count = 0;
}

void timeline_sent(struct timeline *timeline, uint32_t end, uint32_t round_trip_us, uint64_t now_us) {
    uint32_t last = (timeline->oldest + timeline->count + TIMELINE_MARKS - 1) % TIMELINE_MARKS;
    if (timeline->count > 0 && !is_before(timeline->ends[last], end)) return;
    bool is_new = timeline->count == 0 || now_us - timeline->began_us > round_trip_us / FINENESS;
    if (is_new && timeline->count < TIMELINE_MARKS) {
        last = (timeline->oldest + timeline->count++) % TIMELINE_MARKS;
        timeline->began_us = now_us;
    }
    timeline->ends[last] = end;
    timeline->sent_us[last] = now_us;
}

void timeline_advance(struct timeline *timeline, uint32_t acknowledged) {
    while (timeline->count > 0 && !is_before(acknowledged, timeline->ends[timeline->oldest])) {
        timeline->oldest = (timeline->oldest + 1) % TIMELINE_MARKS;
        timeline->count--;
    }
}

uint64_t timeline_at(const struct timeline *timeline, uint32_t sequence) {
    for (uint32_t i = 0; i < timeline->count; i++) {
        uint32_t at = (timeline->oldest + i) % TIMELINE_MARKS;
        if (is_before(sequence, timeline->ends[at])) return timeline->sent_us[at];
    }
    return 0;
}

uint32_t timeline_reach(const struct timeline *timeline, uint32_t from, uint64_t until_us) {
    for (uint32_t i = 0; i < timeline->count; i++) {
        uint32_t at = (timeline->oldest + i) % TIMELINE_MARKS;
        if (timeline->sent_us[at] > until_us) break;
        if (is_before(from, timeline->ends[at])) from = timeline->ends[at];
    }
    return from;
}

/* rack: by RFC 8985, section 6.2. */
#include "net/lwip/rack.h"

#define QUARTER 4u
#define RECOVERIES 16u /* for which a wider window is kept */

static bool is_before(uint32_t left, uint32_t right) {
    return (int32_t)(left - right) < 0;
}

void rack_open(struct rack *rack, uint32_t next) {
    *rack =
        (struct rack){.quarters = 1, .furthest = next, .round_end = next, .resent_from = next, .resent_until = next};
}

static void take(struct rack *rack, uint64_t sent_us, uint32_t least_us, uint64_t now_us) {
    if (sent_us == 0 || sent_us > now_us || sent_us < rack->sent_us) return;
    uint32_t round_trip_us = (uint32_t)(now_us - sent_us);
    if (round_trip_us < least_us) return;
    rack->sent_us = sent_us;
    rack->round_trip_us = round_trip_us;
}

void rack_take(struct rack *rack, uint32_t left, uint32_t right, uint32_t resent_until, uint32_t least_us,
               uint64_t now_us) {
    if (is_before(left, resent_until)) {
        uint32_t until = is_before(resent_until, right) ? resent_until : right;
        /* If it came sooner than it can have, it was the one that was sent first. */
        take(rack, timeline_at(&rack->again, until - 1), least_us, now_us);
        left = until;
    }
    if (is_before(left, right)) {
        if (is_before(left, rack->furthest)) rack->reordering = true;
        take(rack, timeline_at(&rack->first, right - 1), 0, now_us);
    }
    if (is_before(rack->furthest, right)) rack->furthest = right;
}

void rack_take_twice(struct rack *rack, uint32_t acknowledged, uint32_t end, uint32_t next) {
    /* The network doubles frames, too. */
    if (!is_before(rack->resent_from, end) || is_before(rack->resent_until, end)) return;
    rack->reordering = true;
    if (is_before(acknowledged, rack->round_end)) return;
    rack->round_end = next;
    rack->quarters++;
    rack->recoveries_left = RECOVERIES;
}

void rack_end_recovery(struct rack *rack) {
    timeline_clear(&rack->again);
    if (rack->recoveries_left > 0 && --rack->recoveries_left == 0) rack->quarters = 1;
}

uint32_t rack_window_us(const struct rack *rack, uint32_t least_us, uint32_t smoothed_us, bool certain) {
    if (certain && !rack->reordering) return 0;
    uint64_t window_us = (uint64_t)rack->quarters * least_us / QUARTER;
    return window_us < smoothed_us ? (uint32_t)window_us : smoothed_us;
}

/* What left together with what has come was sent before it only as far as that reaches. */
uint32_t rack_lost_until(const struct rack *rack, uint32_t acknowledged, uint32_t window_us, uint64_t now_us) {
    uint64_t late_us = (uint64_t)rack->round_trip_us + window_us;
    if (rack->sent_us == 0 || now_us < late_us) return acknowledged;
    uint64_t until_us = now_us - late_us;
    if (until_us >= rack->sent_us) until_us = rack->sent_us;
    uint32_t together = timeline_reach(&rack->first, acknowledged, until_us);
    if (is_before(rack->furthest, together)) together = rack->furthest;
    uint64_t before_us = until_us < rack->sent_us ? until_us : rack->sent_us - 1;
    uint32_t before = timeline_reach(&rack->first, acknowledged, before_us);
    return is_before(together, before) ? before : together;
}

bool rack_is_lost(const struct rack *rack, uint64_t resent_us, uint32_t window_us, uint64_t now_us) {
    return resent_us > 0 && resent_us < rack->sent_us && resent_us + rack->round_trip_us + window_us <= now_us;
}

uint64_t rack_due_us(const struct rack *rack, uint32_t window_us) {
    return rack->sent_us + rack->round_trip_us + window_us;
}

/* round_trips: a ring of marks, in the order of their sequence numbers. */
#include "net/lwip/round_trips.h"

#define SPACING 8u /* marks in what is under way, about */
#define WEIGHT 8u /* RFC 6298: a sample's part is an eighth, */
#define VARIATION_WEIGHT 4u /* and of the variation a fourth */
#define VARIATIONS 4u /* that a round trip may be longer */
#define LEAST_VARIATIONS_US 200000u
#define FIRST_TIMEOUT_US 1000000u
#define TIMEOUT_MOST_US 10000000u /* before it is doubled */
#define DOUBLED_MOST 7u

static bool is_before(uint32_t left, uint32_t right) {
    return (int32_t)(left - right) < 0;
}

static uint32_t weigh(uint32_t before, uint32_t sample, uint32_t weight) {
    return (uint32_t)(((uint64_t)before * (weight - 1) + sample) / weight);
}

/* As Linux does it: more variation counts at once, less only when the round trip is over. */
static void vary(struct round_trips *trips, uint32_t off_us, bool ends_round) {
    if (trips->off_us < off_us) trips->off_us = off_us;
    if (off_us > trips->variation_us)
        trips->variation_us = weigh(trips->variation_us, off_us, VARIATION_WEIGHT);
    else if (ends_round && trips->off_us < trips->variation_us)
        trips->variation_us = weigh(trips->variation_us, trips->off_us, VARIATION_WEIGHT);
    if (ends_round) trips->off_us = 0;
}

static void add(struct round_trips *trips, uint32_t sample_us, bool ends_round) {
    if (sample_us == 0) sample_us = 1;
    trips->doubled = 0;
    uint32_t smoothed_us = trips->smoothed_us;
    if (smoothed_us == 0) {
        trips->smoothed_us = trips->least_us = sample_us;
        trips->variation_us = sample_us / 2;
        return;
    }
    vary(trips, sample_us > smoothed_us ? sample_us - smoothed_us : smoothed_us - sample_us, ends_round);
    trips->smoothed_us = weigh(smoothed_us, sample_us, WEIGHT);
    if (sample_us < trips->least_us) trips->least_us = sample_us;
}

void round_trips_add(struct round_trips *trips, uint32_t sample_us) {
    add(trips, sample_us, true);
}

void round_trips_sent(struct round_trips *trips, uint32_t first, uint32_t end, uint32_t under_way, uint64_t now_us) {
    if (trips->count == ROUND_TRIPS_MARKS) return;
    if (trips->count > 0) {
        uint32_t last = (trips->oldest + trips->count - 1) % ROUND_TRIPS_MARKS;
        if (first - trips->marks[last].first < under_way / SPACING) return;
    }
    uint32_t at = (trips->oldest + trips->count++) % ROUND_TRIPS_MARKS;
    trips->marks[at].first = first;
    trips->marks[at].end = end;
    trips->marks[at].sent_us = (uint32_t)now_us;
}

uint32_t round_trips_acknowledged(struct round_trips *trips, uint32_t acknowledged, uint64_t now_us) {
    uint32_t sample_us = 0;
    while (trips->count > 0 && is_before(trips->marks[trips->oldest].first, acknowledged)) {
        uint32_t end = trips->marks[trips->oldest].end;
        if (!is_before(end, acknowledged)) {
            sample_us = (uint32_t)now_us - trips->marks[trips->oldest].sent_us;
            if (sample_us == 0) sample_us = 1;
        }
        if (is_before(acknowledged, end)) break;
        trips->oldest = (trips->oldest + 1) % ROUND_TRIPS_MARKS;
        trips->count--;
    }
    if (sample_us == 0) return 0;
    bool ends_round = !trips->in_round || is_before(trips->round_end, acknowledged);
    add(trips, sample_us, ends_round);
    if (!ends_round) return sample_us;
    trips->in_round = true;
    trips->round_end = acknowledged;
    if (trips->count > 0) trips->round_end = trips->marks[(trips->oldest + trips->count - 1) % ROUND_TRIPS_MARKS].end;
    return sample_us;
}

uint64_t round_trips_timeout_us(const struct round_trips *trips) {
    uint64_t more_us = (uint64_t)trips->variation_us * VARIATIONS;
    uint64_t timeout_us = trips->smoothed_us + (more_us > LEAST_VARIATIONS_US ? more_us : LEAST_VARIATIONS_US);
    if (trips->smoothed_us == 0) timeout_us = FIRST_TIMEOUT_US;
    if (timeout_us > TIMEOUT_MOST_US) timeout_us = TIMEOUT_MOST_US;
    timeout_us <<= trips->doubled;
    return timeout_us < ROUND_TRIPS_TIMEOUT_MOST_US ? timeout_us : ROUND_TRIPS_TIMEOUT_MOST_US;
}

void round_trips_double(struct round_trips *trips) {
    if (trips->doubled < DOUBLED_MOST) trips->doubled++;
}

void round_trips_forget(struct round_trips *trips) {
    trips->count = 0;
}

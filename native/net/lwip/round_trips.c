/* round_trips: a ring of marks, in the order of their sequence numbers. */
#include "net/lwip/round_trips.h"

#include <stdbool.h>

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

void round_trips_add(struct round_trips *trips, uint32_t sample_us) {
    if (sample_us == 0) sample_us = 1;
    trips->doubled = 0;
    uint64_t smoothed_us = trips->smoothed_us;
    if (smoothed_us == 0) {
        trips->smoothed_us = trips->least_us = sample_us;
        trips->variation_us = sample_us / 2;
        return;
    }
    uint64_t off_us = sample_us > smoothed_us ? sample_us - smoothed_us : smoothed_us - sample_us;
    trips->variation_us =
        (uint32_t)(((uint64_t)trips->variation_us * (VARIATION_WEIGHT - 1) + off_us) / VARIATION_WEIGHT);
    trips->smoothed_us = (uint32_t)((smoothed_us * (WEIGHT - 1) + sample_us) / WEIGHT);
    if (sample_us < trips->least_us) trips->least_us = sample_us;
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
    if (sample_us > 0) round_trips_add(trips, sample_us);
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

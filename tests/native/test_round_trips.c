/* test_round_trips: what is measured, and how long to wait before data is sent again (RFC 6298). */
#include <stdbool.h>
#include <stdint.h>

#include "check.h"
#include "net/lwip/round_trips.h"

#define ROUND_TRIP_US 50000u
#define LEAST_US 200000u /* Linux's tcp_rto_min */

static struct round_trips steady(uint32_t round_trip_us) {
    struct round_trips trips = {0};
    for (int i = 0; i < 100; i++) round_trips_add(&trips, round_trip_us);
    return trips;
}

static void test_a_first_sample_counts_three_times(void) {
    struct round_trips trips = {0};
    round_trips_add(&trips, 1000000);
    CHECK(trips.smoothed_us == 1000000 && trips.least_us == 1000000);
    CHECK(round_trips_timeout_us(&trips) == 3000000);
}

/* A timeout that was 200 ms in all ran out under the third of these. */
static void test_a_round_trip_may_become_longer_by_the_least_at_once(void) {
    static const uint32_t round_trips_us[] = {100, ROUND_TRIP_US, 150000, 400000};
    for (int i = 0; i < 4; i++) {
        struct round_trips trips = steady(round_trips_us[i]);
        uint64_t timeout_us = round_trips_timeout_us(&trips);
        CHECK(timeout_us >= round_trips_us[i] + LEAST_US && timeout_us < round_trips_us[i] + LEAST_US + 1000);
    }
}

/* On a line of 50 ms whose queue adds up to 400 ms in jumps that half of all samples see. */
static void test_large_variation_is_waited_for(void) {
    struct round_trips trips = steady(ROUND_TRIP_US);
    uint32_t longest_us = ROUND_TRIP_US + 400000;
    for (int i = 0; i < 50; i++) {
        round_trips_add(&trips, ROUND_TRIP_US);
        round_trips_add(&trips, longest_us);
        if (i >= 5) CHECK(round_trips_timeout_us(&trips) > longest_us);
    }
    CHECK(trips.least_us == ROUND_TRIP_US);
    for (int i = 0; i < 100; i++) round_trips_add(&trips, ROUND_TRIP_US);
    CHECK(round_trips_timeout_us(&trips) < ROUND_TRIP_US + LEAST_US + 1000);
}

/* Round trips grow from 50 to 400 ms: every acknowledgement comes after a timeout, and none of them is a sample. */
static void test_timeouts_double_it_until_there_is_a_sample(void) {
    struct round_trips trips = steady(ROUND_TRIP_US);
    uint64_t timeout_us = round_trips_timeout_us(&trips);
    int timeouts = 0;
    for (; timeouts < 7 && round_trips_timeout_us(&trips) <= 400000; timeouts++) round_trips_double(&trips);
    CHECK(timeouts == 1 && round_trips_timeout_us(&trips) == 2 * timeout_us);
    round_trips_sent(&trips, 0, 1000, 0, 1000000);
    CHECK(round_trips_acknowledged(&trips, 1000, 1400000) == 400000);
    CHECK(trips.doubled == 0 && round_trips_timeout_us(&trips) > 400000);
}

static void test_a_timeout_is_bounded_however_often_it_doubles(void) {
    struct round_trips trips = {0};
    CHECK(round_trips_timeout_us(&trips) == 1000000); /* nothing was measured */
    for (int i = 0; i < 6; i++) round_trips_double(&trips);
    CHECK(round_trips_timeout_us(&trips) == 64000000);
    for (int i = 0; i < 300; i++) round_trips_double(&trips);
    CHECK(round_trips_timeout_us(&trips) == ROUND_TRIPS_TIMEOUT_MOST_US);
    trips = steady(UINT32_MAX / 2);
    CHECK(round_trips_timeout_us(&trips) == 10000000);
}

/* Eight acknowledgements in each round trip of 50 ms; the first one of them takes 200 ms more. */
static void test_a_round_trip_with_many_samples_does_not_forget_the_last_one(void) {
    struct round_trips trips = steady(ROUND_TRIP_US);
    uint64_t now_us = 1000000;
    for (uint32_t i = 0; i < 400; i++) {
        uint32_t first = i * 1000;
        if (i % 8 == 0)
            for (uint32_t j = 0; j < 8; j++)
                round_trips_sent(&trips, first + j * 1000, first + j * 1000 + 1000, 0, now_us);
        uint64_t came_us = now_us + ROUND_TRIP_US + (i % 8 == 0 ? 200000 : 0);
        CHECK(round_trips_acknowledged(&trips, first + 1000, came_us) == came_us - now_us);
        if (i % 8 == 7) now_us += 1000000;
        if (i > 80) CHECK(round_trips_timeout_us(&trips) > ROUND_TRIP_US + 450000);
    }
}

static void test_a_sample_is_of_the_mark_in_which_an_acknowledgement_ends(void) {
    struct round_trips trips = {0};
    for (uint32_t i = 0; i < 4; i++) round_trips_sent(&trips, i * 1000, i * 1000 + 1000, 4000, 1000000 + i * 10000);
    CHECK(round_trips_acknowledged(&trips, 500, 1050000) == 50000);
    CHECK(round_trips_acknowledged(&trips, 3000, 1080000) == 60000); /* its third */
    CHECK(round_trips_acknowledged(&trips, 9000, 1090000) == 0); /* of what was sent later nothing is kept */
    round_trips_sent(&trips, 9000, 10000, 1000, 2000000);
    round_trips_forget(&trips);
    CHECK(round_trips_acknowledged(&trips, 10000, 2050000) == 0);
}

int main(void) {
    RUN(test_a_first_sample_counts_three_times);
    RUN(test_a_round_trip_may_become_longer_by_the_least_at_once);
    RUN(test_large_variation_is_waited_for);
    RUN(test_timeouts_double_it_until_there_is_a_sample);
    RUN(test_a_timeout_is_bounded_however_often_it_doubles);
    RUN(test_a_round_trip_with_many_samples_does_not_forget_the_last_one);
    RUN(test_a_sample_is_of_the_mark_in_which_an_acknowledgement_ends);
    return 0;
}

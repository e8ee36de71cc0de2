/* test_cubic: the window against the equations of RFC 9438, the end of slow start against RFC 9406. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "check.h"
#include "net/lwip/cubic.h"

#define SEGMENT 1448u
#define MOST (64u << 20)
#define RATE 0.4
#define KEPT 0.7
#define RENO (3.0 * (1.0 - KEPT) / (1.0 + KEPT))
#define SECOND_US 1000000u

static uint32_t bytes_of(double segments) {
    return (uint32_t)(segments * SEGMENT);
}

static bool is_near(double value, double expected, double part) {
    return fabs(value - expected) <= part * expected;
}

/* A connection whose acknowledgements come one for each segment, evenly over each round trip. */
struct line {
    struct cubic cubic;
    uint64_t now_us;
    uint32_t round_trip_us;
    uint32_t acknowledged; /* a sequence number */
};

static struct line open_line(double segments, uint32_t round_trip_us) {
    struct line line = {.now_us = 10 * (uint64_t)SECOND_US, .round_trip_us = round_trip_us};
    cubic_open(&line.cubic, SEGMENT, bytes_of(segments), MOST);
    return line;
}

static void acknowledge(struct line *line, uint32_t bytes, bool limited) {
    uint32_t window = cubic_window_bytes(&line->cubic);
    line->acknowledged += bytes;
    const struct cubic_acknowledgement told = {.now_us = line->now_us,
                                               .bytes = bytes,
                                               .acknowledged = line->acknowledged,
                                               .next = line->acknowledged + window,
                                               .sample_us = line->round_trip_us,
                                               .round_trip_us = line->round_trip_us,
                                               .limited = limited};
    cubic_acknowledge(&line->cubic, &told);
}

/* A round trip: the window is acknowledged segment by segment. */
static void go_round(struct line *line) {
    uint32_t segments = cubic_window_bytes(&line->cubic) / SEGMENT;
    for (uint32_t i = 0; i < segments; i++) {
        line->now_us += line->round_trip_us / segments;
        acknowledge(line, SEGMENT, true);
    }
}

/* Past the slow start, with a window of so many segments when a segment is lost. */
static struct line lose_at(double segments, uint32_t round_trip_us) {
    struct line line = open_line(segments, round_trip_us);
    cubic_lose(&line.cubic);
    return line;
}

static void test_a_loss_leaves_seven_tenths_of_the_window(void) {
    struct line line = lose_at(1000, 100000);
    CHECK(is_near(line.cubic.window, KEPT * 1000, 1e-6));
    CHECK(is_near(line.cubic.threshold, KEPT * 1000, 1e-6));
    CHECK(!cubic_in_slow_start(&line.cubic));
    for (int i = 0; i < 50; i++) cubic_lose(&line.cubic);
    CHECK(cubic_window_bytes(&line.cubic) == 2 * SEGMENT); /* the least threshold */
}

static void test_the_window_follows_the_cube_around_where_the_loss_was(void) {
    struct line line = lose_at(4000, 50000);
    double rise_s = cbrt((4000 - KEPT * 4000) / RATE); /* equation 2 */
    acknowledge(&line, SEGMENT, true);
    CHECK(is_near(line.cubic.rise_s, rise_s, 1e-6));
    uint64_t began_us = line.now_us;
    bool concave = false, convex = false;
    while (!convex || !concave) {
        go_round(&line);
        double time_s = (double)(line.now_us - began_us) / SECOND_US;
        double at = RATE * pow(time_s - rise_s, 3) + 4000; /* equation 1 */
        /* An acknowledgement aims at where the cube is a round trip later, and goes a window's part of the way. */
        CHECK(is_near(line.cubic.window, at, 0.01));
        if (time_s > 0.5 * rise_s && time_s < rise_s) concave = line.cubic.window < 4000;
        if (time_s > 1.5 * rise_s) convex = line.cubic.window > 4000;
        CHECK(time_s < 2 * rise_s);
    }
}

static void test_the_window_grows_by_no_more_than_half_in_a_round_trip(void) {
    struct line line = lose_at(20, 2000000); /* the cube would pass that: a round trip of two seconds */
    for (int i = 0; i < 20; i++) {
        double before = line.cubic.window;
        go_round(&line);
        CHECK(line.cubic.window <= 1.5 * before + 1.0);
    }
}

static void test_on_short_lines_it_is_as_reno_would_be(void) {
    struct line line = lose_at(40, 1000);
    acknowledge(&line, SEGMENT, true);
    double before = line.cubic.window;
    for (int i = 0; i < 10; i++) go_round(&line);
    /* Equation 4: ALPHA of a segment a round trip, until it has the window that there was before. */
    CHECK(is_near(line.cubic.window - before, 10 * RENO, 0.06));
    while (line.cubic.friendly < 40) go_round(&line);
    before = line.cubic.window;
    for (int i = 0; i < 10; i++) go_round(&line);
    CHECK(is_near(line.cubic.window - before, 10, 0.06));
}

static void test_a_window_that_did_not_come_back_makes_room(void) {
    struct line line = lose_at(1000, 50000);
    CHECK(is_near(line.cubic.most, 1000, 1e-6));
    for (int i = 0; i < 3; i++) go_round(&line);
    double window = line.cubic.window;
    CHECK(window < 1000);
    cubic_lose(&line.cubic);
    CHECK(is_near(line.cubic.most, window * (1 + KEPT) / 2, 1e-6));
    CHECK(is_near(line.cubic.window, window * KEPT, 1e-6));
}

static void test_after_a_timeout_one_segment_goes_and_slow_start_leads_to_the_threshold(void) {
    struct line line = open_line(1000, 50000);
    cubic_time_out(&line.cubic, false);
    cubic_time_out(&line.cubic, true);
    CHECK(cubic_window_bytes(&line.cubic) == SEGMENT);
    CHECK(is_near(line.cubic.threshold, KEPT * 1000, 1e-6));
    acknowledge(&line, 40 * SEGMENT, true);
    CHECK(cubic_window_bytes(&line.cubic) == 2 * SEGMENT); /* L = 1 */
    while (cubic_in_slow_start(&line.cubic)) go_round(&line);
    CHECK(is_near(line.cubic.window, KEPT * 1000, 0.02));
    acknowledge(&line, SEGMENT, true);
    CHECK(line.cubic.rise_s == 0.0);
    CHECK(is_near(line.cubic.most, KEPT * 1000, 0.02));
}

static void test_stretched_acknowledgements_count_up_to_a_bound_in_slow_start(void) {
    struct line line = open_line(10, 50000);
    acknowledge(&line, 5 * SEGMENT, true);
    CHECK(cubic_window_bytes(&line.cubic) == 15 * SEGMENT);
    acknowledge(&line, 40 * SEGMENT, true);
    CHECK(cubic_window_bytes(&line.cubic) == 23 * SEGMENT); /* L = 8 */
}

static void test_a_window_that_is_not_used_up_does_not_grow(void) {
    struct line line = open_line(10, 50000);
    acknowledge(&line, SEGMENT, false);
    CHECK(cubic_window_bytes(&line.cubic) == 10 * SEGMENT);
    line = lose_at(1000, 50000);
    for (int i = 0; i < 4; i++) go_round(&line);
    double window = line.cubic.window;
    for (int i = 0; i < 600; i++) { /* a minute of little to say: the cube would be far off */
        line.now_us += 100000;
        acknowledge(&line, SEGMENT, false);
    }
    CHECK(line.cubic.window == window);
    go_round(&line);
    CHECK(line.cubic.window < window * 1.1);
}

static void test_the_window_stops_at_its_bound(void) {
    struct line line = {.now_us = SECOND_US, .round_trip_us = 1000};
    cubic_open(&line.cubic, SEGMENT, 10 * SEGMENT, 100 * SEGMENT);
    for (int i = 0; i < 20; i++) go_round(&line);
    CHECK(cubic_window_bytes(&line.cubic) == 100 * SEGMENT);
}

/* ---- HyStart++ --------------------------------------------------------------------------------------------------- */

static void test_slow_start_doubles_as_long_as_round_trips_stay(void) {
    struct line line = open_line(10, 50000);
    for (int i = 0; i < 6; i++) {
        double before = line.cubic.window;
        go_round(&line);
        CHECK(is_near(line.cubic.window, 2 * before, 0.01));
    }
    CHECK(isinf(line.cubic.threshold) && !line.cubic.conservative);
}

static void test_longer_round_trips_slow_the_start_and_then_end_it(void) {
    struct line line = open_line(10, 50000);
    for (int i = 0; i < 4; i++) go_round(&line);
    line.round_trip_us = 50000 + 6000; /* less than an eighth more */
    go_round(&line);
    go_round(&line);
    CHECK(!line.cubic.conservative);
    line.round_trip_us += 7500; /* an eighth more than before */
    int rounds = 0;
    while (!line.cubic.conservative) {
        go_round(&line);
        CHECK(++rounds <= 2);
    }
    double before = line.cubic.window;
    go_round(&line);
    CHECK(is_near(line.cubic.window, 1.25 * before, 0.02));
    for (rounds = 1; isinf(line.cubic.threshold); rounds++) {
        go_round(&line);
        CHECK(rounds <= 5);
    }
    CHECK(rounds >= 4);
    CHECK(!cubic_in_slow_start(&line.cubic) || line.cubic.window > before);
    before = line.cubic.window;
    go_round(&line);
    CHECK(line.cubic.window < 1.1 * before);
}

static void test_a_delay_that_passes_lets_slow_start_go_on(void) {
    struct line line = open_line(10, 50000);
    for (int i = 0; i < 4; i++) go_round(&line);
    line.round_trip_us = 70000;
    while (!line.cubic.conservative) go_round(&line);
    line.round_trip_us = 51000;
    for (int i = 0; i < 2; i++) go_round(&line);
    CHECK(!line.cubic.conservative && isinf(line.cubic.threshold));
    double before = line.cubic.window;
    go_round(&line);
    CHECK(is_near(line.cubic.window, 2 * before, 0.01));
}

static void test_on_a_fast_network_four_milliseconds_are_a_queue(void) {
    struct line line = open_line(100, 200);
    for (int i = 0; i < 2; i++) go_round(&line);
    line.round_trip_us = 200 + 3900;
    for (int i = 0; i < 3; i++) go_round(&line);
    CHECK(!line.cubic.conservative);
    line.round_trip_us += 4000;
    for (int i = 0; i < 2; i++) go_round(&line);
    CHECK(line.cubic.conservative);
}

int main(void) {
    RUN(test_a_loss_leaves_seven_tenths_of_the_window);
    RUN(test_the_window_follows_the_cube_around_where_the_loss_was);
    RUN(test_the_window_grows_by_no_more_than_half_in_a_round_trip);
    RUN(test_on_short_lines_it_is_as_reno_would_be);
    RUN(test_a_window_that_did_not_come_back_makes_room);
    RUN(test_after_a_timeout_one_segment_goes_and_slow_start_leads_to_the_threshold);
    RUN(test_stretched_acknowledgements_count_up_to_a_bound_in_slow_start);
    RUN(test_a_window_that_is_not_used_up_does_not_grow);
    RUN(test_the_window_stops_at_its_bound);
    RUN(test_slow_start_doubles_as_long_as_round_trips_stay);
    RUN(test_longer_round_trips_slow_the_start_and_then_end_it);
    RUN(test_a_delay_that_passes_lets_slow_start_go_on);
    RUN(test_on_a_fast_network_four_milliseconds_are_a_queue);
    return 0;
}

/* test_rack: when data was sent, and what follows from what has come of it (RFC 8985, section 6). */
#include <stdbool.h>
#include <stdint.h>

#include "check.h"
#include "net/lwip/rack.h"

#define BEGIN 0xfffffc00u /* sequence numbers go round */
#define FRAME 100u
#define LEAST_US 40000u
#define SMOOTHED_US 50000u

static uint32_t frame(uint32_t number) {
    return BEGIN + number * FRAME;
}

/* ---- the timeline ------------------------------------------------------------------------------------------------ */

static void test_a_byte_is_found_with_the_time_of_its_frame(void) {
    struct timeline timeline = {0};
    for (uint32_t i = 0; i < 10; i++) timeline_sent(&timeline, frame(i + 1), SMOOTHED_US, 1000000 + i * 10000);
    CHECK(timeline_at(&timeline, frame(0)) == 1000000);
    CHECK(timeline_at(&timeline, frame(5) - 1) == 1040000 && timeline_at(&timeline, frame(5)) == 1050000);
    CHECK(timeline_at(&timeline, frame(10)) == 0);
    CHECK(timeline_reach(&timeline, frame(0), 999999) == frame(0));
    CHECK(timeline_reach(&timeline, frame(0), 1020000) == frame(3));
    CHECK(timeline_reach(&timeline, frame(5), 1020000) == frame(5));
    timeline_advance(&timeline, frame(5) + 1);
    CHECK(timeline.count == 5 && timeline_at(&timeline, frame(5)) == 1050000);
    timeline_sent(&timeline, frame(7), SMOOTHED_US, 2000000); /* it is known when that was sent for the first time */
    CHECK(timeline_at(&timeline, frame(6)) == 1060000);
}

static void test_frames_that_leave_together_share_a_mark_and_its_latest_time(void) {
    struct timeline timeline = {0};
    for (uint32_t i = 0; i < 40; i++) timeline_sent(&timeline, frame(i + 1), SMOOTHED_US, 1000000 + i * 10);
    CHECK(timeline.count == 1 && timeline_at(&timeline, frame(0)) == 1000390);
    timeline_sent(&timeline, frame(41), SMOOTHED_US, 1000000 + SMOOTHED_US / 8);
    CHECK(timeline.count == 2);
}

static void test_a_timeline_that_is_full_is_late_but_forgets_nothing(void) {
    struct timeline timeline = {0};
    const uint32_t all = TIMELINE_MARKS + 20;
    for (uint32_t i = 0; i < all; i++) timeline_sent(&timeline, frame(i + 1), SMOOTHED_US, 1000000 + i * SMOOTHED_US);
    CHECK(timeline.count == TIMELINE_MARKS);
    CHECK(timeline_at(&timeline, frame(TIMELINE_MARKS)) == 1000000 + (all - 1) * SMOOTHED_US);
    timeline_advance(&timeline, frame(all));
    CHECK(timeline.count == 0);
}

/* ---- loss -------------------------------------------------------------------------------------------------------- */

/* Ten frames, a millisecond after each other. */
static struct rack open_sent(void) {
    struct rack rack;
    rack_open(&rack, frame(0));
    for (uint32_t i = 0; i < 10; i++) timeline_sent(&rack.first, frame(i + 1), 0, 1000000 + i * 1000);
    return rack;
}

static void come(struct rack *rack, uint32_t number, uint64_t now_us) {
    rack_take(rack, frame(number), frame(number + 1), frame(0), LEAST_US, now_us);
}

static void test_a_gap_is_lost_when_later_data_has_come_and_its_time_is_over(void) {
    struct rack rack = open_sent();
    const uint32_t window_us = rack_window_us(&rack, LEAST_US, SMOOTHED_US, false);
    CHECK(window_us == LEAST_US / 4);
    CHECK(rack_lost_until(&rack, frame(0), window_us, 9000000) == frame(0)); /* nothing has come */
    come(&rack, 3, 1053000);
    CHECK(rack.round_trip_us == 50000);
    CHECK(rack_lost_until(&rack, frame(0), window_us, 1053000) == frame(0));
    CHECK(rack_lost_until(&rack, frame(0), window_us, 1060000) == frame(1)); /* that was sent first */
    CHECK(rack_due_us(&rack, window_us) == 1063000);
    CHECK(rack_lost_until(&rack, frame(0), window_us, 1063000) == frame(4));
    CHECK(rack_lost_until(&rack, frame(0), window_us, 9000000) == frame(4)); /* of the others nothing is known */
}

static void test_what_left_together_is_lost_only_before_what_came(void) {
    struct rack rack;
    rack_open(&rack, frame(0));
    timeline_sent(&rack.first, frame(5), SMOOTHED_US, 1000000);
    timeline_sent(&rack.first, frame(10), SMOOTHED_US, 1000000);
    come(&rack, 4, 1050000);
    CHECK(rack_lost_until(&rack, frame(0), 0, 1050000) == frame(5));
}

static void test_without_reordering_other_evidence_needs_no_waiting(void) {
    struct rack rack = open_sent();
    come(&rack, 5, 1055000);
    come(&rack, 6, 1056000);
    CHECK(!rack.reordering && rack_window_us(&rack, LEAST_US, SMOOTHED_US, true) == 0);
    CHECK(rack_lost_until(&rack, frame(0), 0, 1056000) == frame(7));
}

static void test_a_frame_that_was_overtaken_shows_reordering(void) {
    struct rack rack = open_sent();
    come(&rack, 5, 1055000);
    come(&rack, 4, 1055100);
    CHECK(rack.reordering && rack.sent_us == 1005000);
    CHECK(rack_window_us(&rack, LEAST_US, SMOOTHED_US, true) == LEAST_US / 4);
    struct rack other = open_sent();
    come(&other, 5, 1055000);
    rack_take(&other, frame(4), frame(5), frame(5), LEAST_US, 1055100); /* it was sent again */
    CHECK(!other.reordering);
}

static void test_what_comes_twice_widens_the_window_once_a_round_trip(void) {
    struct rack rack = open_sent();
    rack_take_twice(&rack, frame(3), frame(3), frame(10));
    CHECK(!rack.reordering && rack.quarters == 1); /* the network doubled it: it was not sent again */
    rack.resent_until = frame(5);
    rack_take_twice(&rack, frame(3), frame(3), frame(10));
    rack_take_twice(&rack, frame(4), frame(4), frame(10));
    CHECK(rack.reordering && rack.quarters == 2);
    rack_take_twice(&rack, frame(10), frame(5), frame(20));
    CHECK(rack.quarters == 3 && rack_window_us(&rack, LEAST_US, SMOOTHED_US, true) == 3 * LEAST_US / 4);
    rack.quarters = 100;
    CHECK(rack_window_us(&rack, LEAST_US, SMOOTHED_US, true) == SMOOTHED_US);
    for (int i = 0; i < 15; i++) rack_end_recovery(&rack);
    CHECK(rack.quarters == 100);
    rack_end_recovery(&rack);
    CHECK(rack.quarters == 1);
}

/* ---- what was sent again ------------------------------------------------------------------------------------------- */

static void test_what_was_sent_again_is_lost_when_what_was_sent_later_has_come(void) {
    struct rack rack = open_sent();
    come(&rack, 9, 1059000);
    timeline_sent(&rack.again, frame(1), 0, 1060000);
    timeline_sent(&rack.again, frame(3), 0, 1070000);
    CHECK(!rack_is_lost(&rack, 1060000, 0, 2000000)); /* nothing later has come */
    rack_take(&rack, frame(2), frame(3), frame(3), LEAST_US, 1120000);
    CHECK(rack.sent_us == 1070000 && rack.round_trip_us == 50000);
    CHECK(rack_is_lost(&rack, 1060000, 0, 1120000) && !rack_is_lost(&rack, 1070000, 0, 2000000));
    CHECK(!rack_is_lost(&rack, 1060000, 10001, 1120000) && rack_is_lost(&rack, 1060000, 10000, 1120000));
    CHECK(!rack_is_lost(&rack, 0, 0, 2000000)); /* it is not known when */
}

static void test_what_comes_too_soon_was_sent_before(void) {
    struct rack rack = open_sent();
    timeline_sent(&rack.again, frame(1), 0, 1060000);
    rack_take(&rack, frame(0), frame(1), frame(1), LEAST_US, 1060000 + LEAST_US - 1);
    CHECK(rack.sent_us == 0);
    rack_take(&rack, frame(0), frame(2), frame(1), LEAST_US, 1060000 + LEAST_US); /* and more, for the first time */
    CHECK(rack.sent_us == 1060000 && rack.round_trip_us == LEAST_US && rack.furthest == frame(2));
    rack_end_recovery(&rack);
    CHECK(timeline_at(&rack.again, frame(0)) == 0);
}

int main(void) {
    RUN(test_a_byte_is_found_with_the_time_of_its_frame);
    RUN(test_frames_that_leave_together_share_a_mark_and_its_latest_time);
    RUN(test_a_timeline_that_is_full_is_late_but_forgets_nothing);
    RUN(test_a_gap_is_lost_when_later_data_has_come_and_its_time_is_over);
    RUN(test_what_left_together_is_lost_only_before_what_came);
    RUN(test_without_reordering_other_evidence_needs_no_waiting);
    RUN(test_a_frame_that_was_overtaken_shows_reordering);
    RUN(test_what_comes_twice_widens_the_window_once_a_round_trip);
    RUN(test_what_was_sent_again_is_lost_when_what_was_sent_later_has_come);
    RUN(test_what_comes_too_soon_was_sent_before);
    return 0;
}

/* test_undo: when a recovery or a timeout was needless, and what the window is then (RFC 9438, section 4.9). */
#include <stdbool.h>
#include <stdint.h>

#include "check.h"
#include "net/lwip/undo.h"

#define BEGIN 0xfffffc00u /* sequence numbers go round */
#define FRAME 1000u

static uint32_t frame(uint32_t number) {
    return BEGIN + number * FRAME;
}

static struct scoreboard_range frames(uint32_t from, uint32_t until) {
    return (struct scoreboard_range){frame(from), frame(until)};
}

static struct cubic open_window(void) {
    struct cubic cubic;
    cubic_open(&cubic, FRAME, 100 * FRAME, 1000 * FRAME);
    return cubic;
}

/* Frames 2 and 3 were sent again, of ten under way. */
static struct undo in_recovery(void) {
    struct cubic cubic = open_window();
    struct undo undo;
    undo_begin(&undo, &cubic, frame(0), frame(0), frame(0), 0);
    undo_sent_again(&undo, frame(2), frame(3));
    undo_sent_again(&undo, frame(3), frame(4));
    return undo;
}

/* All ten were sent once when the timer ran out; frames 0 to 3 were sent again since. */
static struct undo timed_out(void) {
    struct cubic cubic = open_window();
    struct undo undo;
    undo_begin(&undo, &cubic, frame(0), frame(0), frame(10), 0);
    undo_sent_again(&undo, frame(0), frame(4));
    return undo;
}

static void test_everything_that_was_sent_again_has_to_come_twice(void) {
    struct undo undo = in_recovery();
    CHECK(!undo_take_twice(&undo, frames(2, 3)));
    CHECK(undo_take_twice(&undo, frames(3, 4)));
    CHECK(!undo_take_twice(&undo, frames(3, 4))); /* it is told once */
    undo = in_recovery();
    CHECK(undo_take_twice(&undo, frames(2, 4))); /* in one block */
    undo = in_recovery();
    CHECK(!undo_take_twice(&undo, frames(2, 3)) && !undo_take_twice(&undo, (struct scoreboard_range){0}));
}

static void test_a_frame_that_was_sent_again_twice_has_to_come_three_times(void) {
    struct undo undo = in_recovery();
    undo_sent_again(&undo, frame(2), frame(3));
    CHECK(!undo_take_twice(&undo, frames(2, 4)));
    CHECK(undo_take_twice(&undo, frames(2, 3)));
}

static void test_what_was_not_sent_again_was_doubled_by_the_network(void) {
    struct undo undo = in_recovery();
    CHECK(!undo_take_twice(&undo, frames(5, 7)) && undo.again_bytes == 2 * FRAME);
}

static void test_what_was_sent_once_comes_after_a_timeout_if_it_was_late(void) {
    struct undo undo = timed_out();
    CHECK(!undo_take(&undo, frames(0, 4))); /* the first or the second time? */
    CHECK(undo_take(&undo, frames(0, 5)) && undo_take(&undo, frames(9, 10)));
    CHECK(!undo_take(&undo, frames(10, 12))); /* it was sent after the timeout */
    undo_sent_again(&undo, frame(4), frame(10));
    CHECK(!undo_take(&undo, frames(9, 10)));
    undo = in_recovery(); /* there, what comes beyond a gap is no news */
    CHECK(!undo_take(&undo, frames(5, 6)));
}

static void test_after_a_timeout_too_all_may_come_twice(void) {
    struct undo undo = timed_out();
    CHECK(!undo_take_twice(&undo, frames(0, 1)) && undo_take_twice(&undo, frames(1, 4)));
}

/* Frames 2 and 3 were sent again before the timer ran out: reports of these say nothing of what is sent again after it. */
static void test_what_was_sent_again_before_a_timeout_has_to_come_twice_as_well(void) {
    struct cubic cubic = open_window();
    struct undo undo = in_recovery();
    undo_begin(&undo, &cubic, frame(0), frame(4), frame(10), undo.again_bytes);
    undo_sent_again(&undo, frame(0), frame(2));
    CHECK(!undo_take_twice(&undo, frames(2, 4)));
    CHECK(undo_take_twice(&undo, frames(0, 2)));
}

static void test_reports_are_counted_although_nothing_can_be_undone(void) {
    struct undo undo = in_recovery();
    undo_forget(&undo);
    CHECK(!undo_take_twice(&undo, frames(2, 3)) && undo.again_bytes == FRAME);
    CHECK(!undo_take_twice(&undo, frames(3, 4)) && undo.again_bytes == 0);
}

static void test_what_is_forgotten_is_not_undone(void) {
    struct undo undo = timed_out();
    undo_forget(&undo);
    CHECK(!undo_take(&undo, frames(5, 6)) && !undo_take_twice(&undo, frames(0, 4)));
}

/* In congestion avoidance, some way up from a loss. */
static struct cubic grown(uint64_t *now_us) {
    struct cubic cubic = open_window();
    cubic_lose(&cubic);
    for (int i = 0; i < 1000; i++) {
        *now_us += 1000;
        const struct cubic_acknowledgement told = {
            .now_us = *now_us, .bytes = FRAME, .round_trip_us = 50000, .limited = true};
        cubic_acknowledge(&cubic, &told);
    }
    return cubic;
}

static void test_the_window_is_what_it_was_and_grows_as_if_no_time_had_passed(void) {
    uint64_t now_us = 1000000;
    struct cubic cubic = grown(&now_us), before = cubic, same = cubic;
    cubic_lose(&cubic);
    CHECK(cubic.window < before.window && cubic.most < before.window);
    cubic_undo(&cubic, &before, now_us + 5000000);
    CHECK(cubic_window_bytes(&cubic) == cubic_window_bytes(&before) && cubic.threshold == before.threshold);
    struct cubic_acknowledgement told = {
        .now_us = now_us + 1000, .bytes = FRAME, .round_trip_us = 50000, .limited = true};
    cubic_acknowledge(&same, &told);
    told.now_us += 5000000;
    cubic_acknowledge(&cubic, &told);
    CHECK(cubic.window == same.window && cubic.most == same.most && cubic.friendly == same.friendly);
}

static void test_a_timeout_is_undone_too_but_not_what_has_grown_since(void) {
    uint64_t now_us = 1000000;
    struct cubic cubic = grown(&now_us), before = cubic;
    cubic_time_out(&cubic, false);
    cubic_undo(&cubic, &before, now_us);
    CHECK(cubic.window == before.window && !cubic_in_slow_start(&cubic));
    struct cubic larger = before;
    larger.window += 1.0;
    cubic_undo(&larger, &before, now_us);
    CHECK(larger.window == before.window + 1.0);
}

int main(void) {
    RUN(test_everything_that_was_sent_again_has_to_come_twice);
    RUN(test_a_frame_that_was_sent_again_twice_has_to_come_three_times);
    RUN(test_what_was_not_sent_again_was_doubled_by_the_network);
    RUN(test_what_was_sent_once_comes_after_a_timeout_if_it_was_late);
    RUN(test_after_a_timeout_too_all_may_come_twice);
    RUN(test_what_was_sent_again_before_a_timeout_has_to_come_twice_as_well);
    RUN(test_reports_are_counted_although_nothing_can_be_undone);
    RUN(test_what_is_forgotten_is_not_undone);
    RUN(test_the_window_is_what_it_was_and_grows_as_if_no_time_had_passed);
    RUN(test_a_timeout_is_undone_too_but_not_what_has_grown_since);
    return 0;
}

/* test_scoreboard: ranges against a map of every byte, and what RFC 6675 concludes from them. */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/random.h"
#include "check.h"
#include "net/lwip/scoreboard.h"

#define SEGMENT 10u
#define SPACE 4000u

static struct scoreboard board;

static uint32_t add(uint32_t left, uint32_t right) {
    return scoreboard_add(&board, (struct scoreboard_range){left, right});
}

static void test_ranges_that_touch_become_one(void) {
    scoreboard_clear(&board);
    CHECK(add(100, 110) == 10 && add(120, 130) == 10);
    CHECK(board.count == 2);
    CHECK(add(110, 120) == 10);
    CHECK(board.count == 1 && board.ranges[0].left == 100 && board.ranges[0].right == 130);
    CHECK(add(105, 125) == 0 && add(90, 140) == 20 && board.bytes == 50);
    CHECK(add(140, 140) == 0 && add(150, 145) == 0 && board.count == 1);
    CHECK(scoreboard_advance(&board, 110) == 20 && board.ranges[0].left == 110);
    CHECK(scoreboard_advance(&board, 140) == 30 && board.count == 0 && board.bytes == 0);
}

static void test_three_ranges_or_bytes_of_two_segments_above_tell_of_a_loss(void) {
    scoreboard_clear(&board);
    CHECK(scoreboard_lost_until(&board, 50, SEGMENT) == 50);
    add(100, 120); /* two segments: it may be late */
    CHECK(scoreboard_lost_until(&board, 50, SEGMENT) == 50);
    add(120, 121);
    CHECK(scoreboard_lost_until(&board, 50, SEGMENT) == 100);
    scoreboard_clear(&board);
    add(100, 101);
    add(110, 111);
    CHECK(scoreboard_lost_until(&board, 50, SEGMENT) == 50);
    add(120, 121);
    CHECK(scoreboard_lost_until(&board, 50, SEGMENT) == 100);
}

static void test_gaps_are_found_in_order(void) {
    scoreboard_clear(&board);
    add(100, 110);
    add(120, 130);
    struct scoreboard_range gap;
    CHECK(scoreboard_gap(&board, 90, 200, &gap) && gap.left == 90 && gap.right == 100);
    CHECK(scoreboard_gap(&board, 100, 200, &gap) && gap.left == 110 && gap.right == 120);
    CHECK(scoreboard_gap(&board, 115, 118, &gap) && gap.left == 115 && gap.right == 118);
    CHECK(scoreboard_gap(&board, 125, 200, &gap) && gap.left == 130 && gap.right == 200);
    CHECK(!scoreboard_gap(&board, 100, 110, &gap) && !scoreboard_gap(&board, 125, 130, &gap));
    CHECK(scoreboard_missing(&board, 90, 200) == 90 && scoreboard_missing(&board, 105, 125) == 10);
    CHECK(scoreboard_missing(&board, 105, 105) == 0 && scoreboard_missing(&board, 125, 105) == 0);
    CHECK(scoreboard_reach(&board, 90, 10) == 100 && scoreboard_reach(&board, 90, 11) == 111);
    CHECK(scoreboard_reach(&board, 90, 25) == 135 && scoreboard_reach(&board, 105, 5) == 115);
}

static void test_without_a_place_a_range_is_passed_over(void) {
    scoreboard_clear(&board);
    for (uint32_t i = 0; i < SCOREBOARD_RANGES; i++) CHECK(add(100 + 20 * i, 110 + 20 * i) == 10);
    CHECK(add(50, 60) == 0 && board.count == SCOREBOARD_RANGES);
    CHECK(add(110, 120) == 10 && board.count == SCOREBOARD_RANGES - 1); /* it closes a gap */
    CHECK(add(50, 60) == 10);
}

/* Against one flag a byte, from a sequence number that soon goes through zero. */
static void test_random_reports_agree_with_a_map_of_bytes(void) {
    struct random_state random;
    random_seed(&random, 6675);
    for (int round = 0; round < 200; round++) {
        static bool has[SPACE];
        memset(has, 0, sizeof has);
        scoreboard_clear(&board);
        uint32_t base = (uint32_t)0 - SPACE / 2, acknowledged = 0;
        for (int step = 0; step < 60; step++) {
            uint32_t left = acknowledged + (uint32_t)random_below(&random, SPACE - acknowledged);
            uint32_t length = (uint32_t)random_below(&random, 80), right = left + length;
            if (right > SPACE) right = SPACE;
            uint32_t expected = 0;
            for (uint32_t i = left; i < right; i++) {
                expected += !has[i];
                has[i] = true;
            }
            CHECK(add(base + left, base + right) == expected);
            if (random_below(&random, 8) == 0) {
                acknowledged += (uint32_t)random_below(&random, 100);
                scoreboard_advance(&board, base + acknowledged);
            }
            uint32_t bytes = 0, missing = 0;
            for (uint32_t i = acknowledged; i < SPACE; i++) {
                bytes += has[i];
                missing += !has[i];
            }
            CHECK(board.bytes == bytes);
            CHECK(scoreboard_missing(&board, base + acknowledged, base + SPACE) == missing);
            uint32_t total = 0, from = base + acknowledged;
            struct scoreboard_range gap;
            while (scoreboard_gap(&board, from, base + SPACE, &gap)) {
                for (uint32_t i = gap.left - base; i < gap.right - base; i++) CHECK(!has[i]);
                total += gap.right - gap.left;
                from = gap.right;
            }
            CHECK(total == missing);
        }
    }
}

int main(void) {
    RUN(test_ranges_that_touch_become_one);
    RUN(test_three_ranges_or_bytes_of_two_segments_above_tell_of_a_loss);
    RUN(test_gaps_are_found_in_order);
    RUN(test_without_a_place_a_range_is_passed_over);
    RUN(test_random_reports_agree_with_a_map_of_bytes);
    return 0;
}

/* test_tail_probe: when a probe is sent, and what its answer says (RFC 8985, section 7). */
#include <stdbool.h>
#include <stdint.h>

#include "check.h"
#include "net/lwip/tail_probe.h"

#define TIMEOUT_US 200000u
#define FIRST 0xffffff00u /* sequence numbers go round */
#define END 0x00000100u

static void test_two_round_trips_are_waited_for(void) {
    CHECK(tail_probe_wait_us(20000, false, TIMEOUT_US) == 40000);
    CHECK(tail_probe_wait_us(100000, false, 1000000) == 200000);
}

static void test_a_lone_frame_may_be_acknowledged_late(void) {
    uint64_t more = tail_probe_wait_us(20000, true, TIMEOUT_US) - tail_probe_wait_us(20000, false, TIMEOUT_US);
    CHECK(more > 40000 && more < TIMEOUT_US / 2); /* Linux waits for 40 ms */
}

static void test_hosts_are_not_as_fast_as_their_wire(void) {
    CHECK(tail_probe_wait_us(20, false, TIMEOUT_US) >= 2000);
    CHECK(tail_probe_wait_us(20, false, TIMEOUT_US) <= 10000);
}

static void test_a_probe_comes_before_the_timeout_but_not_before_the_answer(void) {
    CHECK(tail_probe_wait_us(150000, false, TIMEOUT_US) == TIMEOUT_US);
    CHECK(tail_probe_wait_us(90000, true, TIMEOUT_US) == TIMEOUT_US);
    CHECK(tail_probe_wait_us(190000, false, TIMEOUT_US) > TIMEOUT_US);
    CHECK(tail_probe_wait_us(UINT32_MAX, true, 0) > UINT32_MAX);
}

static struct tail_probe sent(void) {
    struct tail_probe probe = {.measured = true};
    tail_probe_sent(&probe, FIRST, END);
    CHECK(probe.out && !probe.measured);
    return probe;
}

static void test_an_acknowledgement_beyond_a_probe_tells_of_a_loss(void) {
    struct tail_probe probe = sent();
    CHECK(!tail_probe_answered(&probe, &(struct tail_probe_answer){.acknowledged = FIRST}) && probe.out);
    CHECK(!tail_probe_answered(&probe, &(struct tail_probe_answer){.acknowledged = END}) && probe.out);
    CHECK(tail_probe_answered(&probe, &(struct tail_probe_answer){.acknowledged = END + 1}) && !probe.out);
    CHECK(!tail_probe_answered(&probe, &(struct tail_probe_answer){.acknowledged = END + 2}));
}

static void test_what_came_twice_was_not_lost(void) {
    struct tail_probe probe = sent();
    struct tail_probe_answer answer = {.acknowledged = END, .came_twice = true, .twice_until = FIRST};
    CHECK(!tail_probe_answered(&probe, &answer) && probe.out); /* something else did */
    answer.twice_until = END;
    answer.acknowledged = END + 500; /* beside the answer to newer data */
    CHECK(!tail_probe_answered(&probe, &answer) && !probe.out);
}

static void test_a_peer_that_repeats_itself_has_it_twice(void) {
    struct tail_probe probe = sent();
    struct tail_probe_answer answer = {.acknowledged = END - 1, .repeats = true};
    CHECK(!tail_probe_answered(&probe, &answer) && probe.out);
    answer.acknowledged = END;
    CHECK(!tail_probe_answered(&probe, &answer) && !probe.out);
    answer.acknowledged = END + 1;
    CHECK(!tail_probe_answered(&probe, &answer));
}

static void test_a_probe_that_is_forgotten_tells_nothing(void) {
    struct tail_probe probe = sent();
    tail_probe_forget(&probe);
    CHECK(!tail_probe_answered(&probe, &(struct tail_probe_answer){.acknowledged = END + 1}));
}

int main(void) {
    RUN(test_two_round_trips_are_waited_for);
    RUN(test_a_lone_frame_may_be_acknowledged_late);
    RUN(test_hosts_are_not_as_fast_as_their_wire);
    RUN(test_a_probe_comes_before_the_timeout_but_not_before_the_answer);
    RUN(test_an_acknowledgement_beyond_a_probe_tells_of_a_loss);
    RUN(test_what_came_twice_was_not_lost);
    RUN(test_a_peer_that_repeats_itself_has_it_twice);
    RUN(test_a_probe_that_is_forgotten_tells_nothing);
    return 0;
}

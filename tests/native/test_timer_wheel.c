/* test_timer_wheel: timers run out in time, however they were started, stopped and moved before. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/random.h"
#include "check.h"
#include "net/lwip/timer_wheel.h"

#define LATE_US (2 * TIMER_WHEEL_SLOT_US)
#define MANY 200u

static struct timer_wheel wheel;

static void test_a_timer_runs_out_once_and_not_before_its_time(void) {
    struct timer timer = {0};
    timer_wheel_open(&wheel, 1234567);
    timer_wheel_start(&wheel, &timer, 1240000);
    CHECK(!timer_wheel_expire(&wheel, 1239999));
    CHECK(timer_wheel_expire(&wheel, 1240000 + LATE_US) == &timer);
    CHECK(timer.due_us == 0 && !timer_wheel_expire(&wheel, 1240000 + LATE_US));
}

static void test_a_stopped_timer_does_not_run_out(void) {
    struct timer timer = {0}, other = {0};
    timer_wheel_open(&wheel, 0);
    timer_wheel_start(&wheel, &timer, 5000);
    timer_wheel_start(&wheel, &other, 5000);
    timer_stop(&timer);
    CHECK(timer_wheel_expire(&wheel, 100000) == &other && !timer_wheel_expire(&wheel, 100000));
}

static void test_a_timer_that_leaves_may_be_freed(void) {
    struct timer timers[3] = {{0}, {0}, {0}};
    timer_wheel_open(&wheel, 0);
    for (int i = 0; i < 3; i++) timer_wheel_start(&wheel, &timers[i], 5000);
    timer_leave(&timers[1]);
    timer_leave(&timers[1]);
    timers[1].due_us = 1;
    CHECK(timer_wheel_expire(&wheel, 100000) && timer_wheel_expire(&wheel, 100000));
    CHECK(!timer_wheel_expire(&wheel, 100000));
}

static void test_a_time_beyond_the_wheel_is_kept(void) {
    struct timer timer = {0};
    timer_wheel_open(&wheel, 0);
    const uint64_t due_us = 10 * TIMER_WHEEL_SLOTS * TIMER_WHEEL_SLOT_US + 300;
    timer_wheel_start(&wheel, &timer, due_us);
    for (uint64_t now_us = 0; now_us < due_us; now_us += 777) CHECK(!timer_wheel_expire(&wheel, now_us));
    CHECK(timer_wheel_expire(&wheel, due_us + LATE_US) == &timer);
}

/* One that is started in the past, from inside, runs out in a later turn: the loop that asks comes to an end. */
static void test_a_timer_in_the_past_runs_out_soon_but_not_for_ever(void) {
    struct timer timer = {0};
    timer_wheel_open(&wheel, 50000);
    uint32_t times = 0;
    for (uint64_t now_us = 50000; now_us < 60000; now_us += 1000) {
        if (times == 0) timer_wheel_start(&wheel, &timer, 1);
        while (timer_wheel_expire(&wheel, now_us)) {
            times++;
            timer_wheel_start(&wheel, &timer, 1);
        }
    }
    CHECK(times >= 5 && times <= 10);
}

static void test_many_timers_against_a_list(void) {
    struct random_state random;
    random_seed(&random, 3);
    static struct timer timers[MANY];
    static uint64_t due_us[MANY]; /* 0: it does not run */
    uint64_t now_us = 7000000;
    timer_wheel_open(&wheel, now_us);
    uint32_t ran = 0;
    for (int step = 0; step < 50000; step++) {
        uint32_t i = (uint32_t)random_below(&random, MANY);
        switch (random_below(&random, 4)) {
        case 0:
            timer_stop(&timers[i]);
            due_us[i] = 0;
            break;
        case 1:
            timer_leave(&timers[i]);
            due_us[i] = 0;
            break;
        default:
            due_us[i] = now_us + 1 + random_below(&random, 600000);
            timer_wheel_start(&wheel, &timers[i], due_us[i]);
        }
        now_us += random_below(&random, 3000);
        const struct timer *timer;
        while ((timer = timer_wheel_expire(&wheel, now_us))) {
            size_t which = (size_t)(timer - timers);
            CHECK(due_us[which] != 0 && due_us[which] <= now_us);
            due_us[which] = 0;
            ran++;
        }
        for (uint32_t j = 0; j < MANY; j++) CHECK(due_us[j] == 0 || due_us[j] + LATE_US > now_us);
    }
    CHECK(ran > 10000);
}

int main(void) {
    RUN(test_a_timer_runs_out_once_and_not_before_its_time);
    RUN(test_a_stopped_timer_does_not_run_out);
    RUN(test_a_timer_that_leaves_may_be_freed);
    RUN(test_a_time_beyond_the_wheel_is_kept);
    RUN(test_a_timer_in_the_past_runs_out_soon_but_not_for_ever);
    RUN(test_many_timers_against_a_list);
    return 0;
}

/* timer_wheel: many timers that are started anew all the time and hardly ever run out (Varghese and Lauck, SOSP 1987).
 *
 * A timer stands in the slot of the millisecond after the one in which it runs out. It is moved only to an earlier slot:
 * one that was stopped, or that runs out later than its slot says, is found out when the slot's turn comes. So to start
 * a timer again, or to stop it, is to write one number. It may run out up to two milliseconds late, never early. */
#ifndef REPLAY_NET_LWIP_TIMER_WHEEL_H
#define REPLAY_NET_LWIP_TIMER_WHEEL_H

#include <stdint.h>

#define TIMER_WHEEL_SLOTS 256u
#define TIMER_WHEEL_SLOT_US 1000u

struct timer {
    uint64_t due_us; /* 0: it does not run */
    uint64_t slot; /* where it stands; not modulo their number */
    struct timer *next, **link; /* what points at it; NULL: it stands nowhere */
};

struct timer_wheel {
    uint64_t turn; /* the slot that is looked at next */
    struct timer *slots[TIMER_WHEEL_SLOTS];
};

void timer_wheel_open(struct timer_wheel *wheel, uint64_t now_us);
void timer_wheel_start(struct timer_wheel *wheel, struct timer *timer, uint64_t due_us);
static inline void timer_stop(struct timer *timer) {
    timer->due_us = 0;
}
/* Before a timer's memory is used for something else. */
void timer_leave(struct timer *timer);
/* The next timer that has run out, which is stopped. NULL: there is none. */
struct timer *timer_wheel_expire(struct timer_wheel *wheel, uint64_t now_us);

#endif

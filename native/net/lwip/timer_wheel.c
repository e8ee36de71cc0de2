/* timer_wheel: lists of timers by the millisecond. */
#include "net/lwip/timer_wheel.h"

#include <assert.h>
#include <stddef.h>

void timer_wheel_open(struct timer_wheel *wheel, uint64_t now_us) {
    *wheel = (struct timer_wheel){.turn = now_us / TIMER_WHEEL_SLOT_US};
}

void timer_leave(struct timer *timer) {
    if (timer->link) {
        *timer->link = timer->next;
        if (timer->next) timer->next->link = timer->link;
    }
    *timer = (struct timer){0};
}

/* Where a timer stands that runs out so far ahead that its turn would come more than once before, it is looked at on the
 * way. */
static uint64_t slot_of(const struct timer_wheel *wheel, uint64_t due_us) {
    uint64_t slot = due_us / TIMER_WHEEL_SLOT_US + 1;
    if (slot <= wheel->turn) return wheel->turn + 1;
    return slot < wheel->turn + TIMER_WHEEL_SLOTS ? slot : wheel->turn + TIMER_WHEEL_SLOTS - 1;
}

static void stand(struct timer_wheel *wheel, struct timer *timer, uint64_t slot, uint64_t due_us) {
    struct timer **head = &wheel->slots[slot % TIMER_WHEEL_SLOTS];
    timer_leave(timer);
    *timer = (struct timer){.due_us = due_us, .slot = slot, .next = *head, .link = head};
    if (*head) (*head)->link = &timer->next;
    *head = timer;
}

void timer_wheel_start(struct timer_wheel *wheel, struct timer *timer, uint64_t due_us) {
    assert(due_us > 0);
    uint64_t slot = slot_of(wheel, due_us);
    timer->due_us = due_us;
    if (!timer->link || slot < timer->slot) stand(wheel, timer, slot, due_us);
}

struct timer *timer_wheel_expire(struct timer_wheel *wheel, uint64_t now_us) {
    for (; wheel->turn <= now_us / TIMER_WHEEL_SLOT_US; wheel->turn++) {
        struct timer *timer;
        while ((timer = wheel->slots[wheel->turn % TIMER_WHEEL_SLOTS])) {
            uint64_t due_us = timer->due_us;
            timer_leave(timer);
            if (due_us == 0) continue;
            if (due_us <= now_us) return timer;
            stand(wheel, timer, slot_of(wheel, due_us), due_us);
        }
    }
    return NULL;
}

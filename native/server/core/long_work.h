/* long_work: one queue of tasks that take many turns of the loop. All tasks share one part of each turn, which ends a
 * millisecond after the turn began. So clients are served in between, however much work there is. */
#ifndef REPLAY_SERVER_LONG_WORK_H
#define REPLAY_SERVER_LONG_WORK_H

#include <stdbool.h>
#include <stdint.h>

struct server;

struct long_task {
    /* Works until long_work_until, and a piece at least. Where there is nothing to do, it must not ask for that time, since
     * the clock is read for it. Returns when it wants to run again: a time in microseconds, 0 for at once, CLOCK_NEVER when
     * there is no need. */
    uint64_t (*run)(struct server *server);
    bool waits_for_exclusive; /* not between the slices of a script or a transaction */
};

/* When this turn's work has to end. */
uint64_t long_work_until(struct server *server);
/* Whether this turn has done any. */
bool long_work_was_done(const struct server *server);
/* Runs the core's tasks and those of all subsystems. Those that a turn does not come to are the first of the next. Returns the
 * earliest time at which one of them wants to run again, 0 for at once. */
uint64_t long_work_step(struct server *server);

#endif

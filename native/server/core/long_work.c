/* long_work: the queue of tasks, and the core's own.
 *
 * Why a turn is bounded: a task that goes on reads the clock after each piece, of some ten microseconds, and ends at the
 * time that all tasks of the turn share. Why no task starves: each does a piece when its turn comes, and the queue goes on
 * where the turn before left it. */
#include "server/core/long_work.h"

#include "base/clock.h"
#include "server/core/make_room.h"
#include "server/core/server.h"
#include "server/core/slices.h"
#include "server/core/subsystem.h"
#include "store/store.h"

uint64_t long_work_until(struct server *server) {
    if (server->turn.work_until_us == 0) {
        uint64_t now_us = clock_monotonic_us(), until_us = server->turn.began_us + LIMIT_TURN_US;
        if (until_us > now_us + LIMIT_TURN_WORK_US) until_us = now_us + LIMIT_TURN_WORK_US;
        if (until_us < now_us + LIMIT_TURN_WORK_LEAST_US) until_us = now_us + LIMIT_TURN_WORK_LEAST_US;
        server->turn.work_until_us = until_us;
    }
    return server->turn.work_until_us;
}

bool long_work_was_done(const struct server *server) {
    return server->turn.work_until_us != 0;
}

/* ---- the core's own ------------------------------------------------------------------------------------------------- */

static uint64_t expire_and_free(struct server *server) {
    return store_free_some(server->store) ? CLOCK_NEVER : store_step(server->store, long_work_until(server));
}

static uint64_t make_more_room(struct server *server) {
    return make_room_step(server) ? 0 : CLOCK_NEVER;
}

/* Keys whose time is over go before room is made, so that fewer others have to. */
static const struct long_task core_tasks[] = {
    {expire_and_free},
    {make_more_room, .waits_for_exclusive = true},
    {slices_step, .waits_for_exclusive = true},
    {.run = NULL},
};

/* ---- the queue ------------------------------------------------------------------------------------------------------ */

struct walk {
    uint32_t at, from, to; /* places of tasks */
    uint64_t next_us;
};

/* Runs those of the tasks whose places are wanted. False: the turn's time is over. */
static bool run_some(struct server *server, const struct long_task *task, struct walk *walk) {
    for (; task && task->run; task++, walk->at++) {
        if (walk->at < walk->from || walk->at >= walk->to) continue;
        if (task->waits_for_exclusive && server->exclusive.on) continue;
        uint64_t at_us = task->run(server);
        if (at_us < walk->next_us) walk->next_us = at_us;
        if (server->turn.work_until_us != 0 && clock_monotonic_us() >= server->turn.work_until_us) {
            server->turn.first_task = walk->at + 1;
            return false;
        }
    }
    return true;
}

static bool run_all(struct server *server, struct walk *walk) {
    walk->at = 0;
    if (!run_some(server, core_tasks, walk)) return false;
    for (const struct subsystem *const *each = server_subsystems; *each; each++)
        if (!run_some(server, (*each)->tasks, walk)) return false;
    return true;
}

uint64_t long_work_step(struct server *server) {
    uint32_t first = server->turn.first_task;
    server->turn.first_task = 0;
    struct walk walk = {.from = first, .to = UINT32_MAX, .next_us = CLOCK_NEVER};
    if (!run_all(server, &walk)) return 0;
    if (first == 0) return walk.next_us;
    walk.from = 0;
    walk.to = first;
    return run_all(server, &walk) ? walk.next_us : 0;
}

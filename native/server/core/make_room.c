#include "server/core/make_room.h"

#include <math.h>

#include "base/clock.h"
#include "base/memory.h"
#include "server/core/long_work.h"
#include "server/core/server.h"
#include "store/store.h"

#define KEYS_PER_LOOK 16 /* removed between two looks at the clock */

/* In Redis's steps: up to 10 half a millisecond at most, then 15 % more each, at 100 without end; but nothing here holds
 * the loop for longer than a turn's part. */
static uint64_t most_us(const struct server *server) {
    int64_t tenacity = server->config.maxmemory_eviction_tenacity;
    uint64_t us = tenacity <= 10 ? (uint64_t)tenacity * 50 : (uint64_t)(500.0 * pow(1.15, (double)tenacity - 10));
    return us < LIMIT_MAKE_ROOM_US ? us : LIMIT_MAKE_ROOM_US;
}

static bool is_short(const struct server *server, size_t more_bytes) {
    return memory_live_bytes() + more_bytes > (size_t)server->config.maxmemory;
}

static enum room remove_keys(struct server *server, size_t more_bytes) {
    if (more_bytes > (size_t)server->config.maxmemory) return ROOM_NONE; /* all keys would go, and it would not help */
    uint64_t deadline_us = clock_monotonic_us() + most_us(server);
    for (unsigned removed = 1; is_short(server, more_bytes); removed++) {
        /* What was unlinked before is freed first, lest more keys go than need to. */
        if (!store_free_discarded(server->store, deadline_us)) return ROOM_LATER;
        if (!is_short(server, more_bytes)) break;
        if (removed % KEYS_PER_LOOK == 0 && clock_monotonic_us() >= deadline_us) return ROOM_LATER;
        if (!store_evict(server->store)) return ROOM_NONE;
    }
    return ROOM_ENOUGH;
}

enum room make_room(struct server *server, size_t more_bytes) {
    if (server->exclusive.on)
        return server->room.last; /* between two slices of a script all keys stay as it left them */
    if (server->pause.kind != PAUSE_NOTHING) return ROOM_ENOUGH;
    if (server->place.is_replica && server->config.replication.ignores_maxmemory)
        return ROOM_ENOUGH; /* the primary decides */
    if (server->config.maxmemory == 0 || !is_short(server, more_bytes))
        server->room.last = ROOM_ENOUGH;
    else
        server->room.last = remove_keys(server, more_bytes);
    return server->room.last;
}

void make_room_soon(struct server *server) {
    server->room.is_asked_for = true;
}

bool make_room_step(struct server *server) {
    if (server->pause.kind != PAUSE_NOTHING) return false; /* its end wakes the loop */
    if (!server->room.is_asked_for && server->room.last != ROOM_LATER) return false;
    server->room.is_asked_for = false;
    (void)long_work_until(server); /* what this takes is of the turn's time */
    return make_room(server, 0) == ROOM_LATER;
}

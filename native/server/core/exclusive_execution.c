/* exclusive_execution: each script or transaction runs on a stack of its own, which a slice leaves and the next one enters. */
#include "server/core/exclusive_execution.h"

#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "base/fiber.h"
#include "base/memory.h"
#include "server/core/client.h"
#include "server/core/propagate.h"
#include "server/core/server.h"
#include "server/core/upcalls.h"
#include "store/store.h"

#define LOOK_AGAIN_US 1000u /* whether others have waited for long by now */

static void run_body(void *context) {
    struct exclusive *exclusive = context;
    exclusive->body(exclusive->client);
}

static void run_slice(struct server *server, bool first) {
    struct exclusive *exclusive = &server->exclusive;
    exclusive->until_us = clock_monotonic_us() + LIMIT_TURN_EXCLUSIVE_US;
    exclusive->inside = true;
    const struct client *acting = server->acting.client;
    server->acting.client = exclusive->client;
    uint64_t changes = server->store->changes;
    bool ended = first ? fiber_start(exclusive->fiber, run_body, exclusive) : fiber_resume(exclusive->fiber);
    server->acting.client = acting;
    exclusive->inside = false;
    exclusive->on = !ended;
    /* It is recorded by its last slice, as one: what an earlier one had changed would be in no file. */
    assert(ended || !exclusive->plain || server->store->changes == changes);
    if (!ended && !exclusive->plain) upcalls.append_log_rests(exclusive->client);
}

/* Ends the waiting that append_log_rests began: the next step of the file lets the client go, unless it is told of more. */
static void wait_no_longer(struct client *client) {
    if (!client->server->exclusive.plain) client->held_until = 0;
}

/* What a script or a transaction has changed is recorded by what it runs, never as the command itself. Said only where
 * propagate_call follows at once: it must not be heard by what the next slice runs. */
static void record_nothing(struct client *client) {
    if (!client->server->exclusive.plain) propagate_nothing(client);
}

static bool next_slice(struct client *client) {
    run_slice(client->server, false);
    if (client->server->exclusive.on) return false;
    wait_no_longer(client);
    record_nothing(client);
    return true;
}

static void abandon(struct client *client) {
    client->server->exclusive.abandoned = true;
    wait_no_longer(client);
    reply_error(client, "ERR the server stops");
}

static void wake_waiting(struct server *server) {
    for (struct client *client = server->clients.head; client; client = client->next)
        if (client->pending_length > 0 && !client->blocked) client_make_ready(client);
}

static void free_orphan(struct exclusive *exclusive) {
    if (!exclusive->orphaned) return;
    memory_free(exclusive->client->name);
    memory_free(exclusive->client);
    exclusive->client = NULL;
    exclusive->orphaned = false;
}

static void run(struct client *client, void (*body)(struct client *client), bool plain) {
    struct server *server = client->server;
    struct exclusive *exclusive = &server->exclusive;
    assert(!exclusive->on || exclusive->inside);
    /* Within another one, for the server's own clients, and without memory for a stack: at once. */
    if (!exclusive->inside && client->connection && !exclusive->fiber) exclusive->fiber = fiber_new();
    if (exclusive->inside || !client->connection || !exclusive->fiber) {
        body(client);
        if (!plain) propagate_nothing(client);
        return;
    }
    exclusive->client = client;
    exclusive->plain = plain;
    exclusive->ended_by = "SCRIPT KILL";
    exclusive->body = body;
    exclusive->began_us = clock_monotonic_us();
    /* No key's time is over in its midst. Its command may have looked keys up already, at this time. */
    server->store->frozen_ms = server->store->told_ms;
    run_slice(server, true);
    record_nothing(client);
    if (!exclusive->on) {
        server->store->frozen_ms = 0;
        return;
    }
    bool denied = client->deny_blocking;
    client->deny_blocking = false;
    client_block(client, &server->exclusive.waiting, CLOCK_NEVER, next_slice, abandon);
    client->deny_blocking = denied;
}

void exclusive_run(struct client *client, void (*body)(struct client *client)) {
    run(client, body, false);
}

void exclusive_run_command(struct client *client, void (*body)(struct client *client)) {
    run(client, body, true);
}

bool exclusive_run_with(struct client *client, const void *state, size_t size_bytes,
                        void (*body)(struct client *client)) {
    void *kept = client->server->exclusive.inside ? NULL : memory_alloc(size_bytes);
    if (!kept) return false;
    memcpy(kept, state, size_bytes);
    client_set_state(client, kept, client_free_state);
    exclusive_run_command(client, body);
    return true;
}

bool exclusive_is_lost(const struct client *client) {
    const struct exclusive *exclusive = &client->server->exclusive;
    return exclusive->inside && exclusive->plain && exclusive->client == client &&
           (exclusive->orphaned || client->closing);
}

void exclusive_rest(struct server *server) {
    struct exclusive *exclusive = &server->exclusive;
    if (server->loading) return; /* DEBUG LOADAOF: commands of a file are run as one */
    if (exclusive->inside && clock_monotonic_us() >= exclusive->until_us) fiber_yield(exclusive->fiber);
}

bool exclusive_goes_on(struct client *client) {
    exclusive_rest(client->server);
    return !exclusive_is_lost(client);
}

bool exclusive_awaits(struct client *client, uint64_t until_us) {
    struct exclusive *exclusive = &client->server->exclusive;
    if (!exclusive->inside || !exclusive->plain || exclusive->client != client) return false;
    exclusive->rests_until_us = until_us;
    fiber_yield(exclusive->fiber);
    return !exclusive_is_lost(client);
}

void exclusive_sleep(struct server *server, uint64_t until_us) {
    struct exclusive *exclusive = &server->exclusive;
    for (uint64_t now_us; exclusive->inside && (now_us = clock_monotonic_us()) < until_us;) {
        exclusive->rests_until_us = until_us < now_us + LOOK_AGAIN_US ? until_us : now_us + LOOK_AGAIN_US;
        fiber_yield(exclusive->fiber);
    }
}

/* A command that was begun in this turn has had its slice. */
static bool had_slice(const struct server *server) {
    return server->exclusive.until_us >= server->turn.began_us + LIMIT_TURN_EXCLUSIVE_US;
}

uint64_t exclusive_step(struct server *server) {
    struct exclusive *exclusive = &server->exclusive;
    if (!exclusive->on || exclusive->abandoned) return CLOCK_NEVER;
    uint64_t limit_us = (uint64_t)server->config.busy_reply_threshold_ms * 1000;
    if (!exclusive->busy && !exclusive->plain && limit_us > 0 && server->now_us >= exclusive->began_us + limit_us) {
        exclusive->busy = true;
        wake_waiting(server);
    }
    if (had_slice(server)) return 0;
    bool is_left = !exclusive->client->blocked; /* its client has closed, or is about to */
    if (!is_left && server->now_us < exclusive->rests_until_us) return exclusive->rests_until_us;
    exclusive->rests_until_us = 0;
    if (is_left)
        run_slice(server, false);
    else
        client_retry(exclusive->client);
    if (exclusive->on) return exclusive->rests_until_us;
    exclusive->busy = false;
    server->store->frozen_ms = 0;
    free_orphan(exclusive);
    wake_waiting(server);
    return 0;
}

bool exclusive_makes_wait(const struct server *server) {
    return server->exclusive.on && !server->exclusive.busy;
}

bool exclusive_is_busy(const struct server *server) {
    return server->exclusive.busy && !server->exclusive.inside;
}

bool exclusive_is_run_for(const struct client *client) {
    const struct exclusive *exclusive = &client->server->exclusive;
    return (exclusive->on || exclusive->inside) && exclusive->client == client;
}

bool exclusive_goes_on_without(const struct client *client) {
    return exclusive_is_run_for(client) && !client->server->exclusive.plain;
}

bool exclusive_adopt(struct client *client) {
    struct exclusive *exclusive = &client->server->exclusive;
    if (!exclusive->on || exclusive->client != client) return false;
    client->connection = NULL;
    exclusive->orphaned = true;
    return true;
}

void exclusive_free(struct server *server) {
    struct exclusive *exclusive = &server->exclusive;
    if (exclusive->owned) exclusive->release(exclusive->owned);
    exclusive->owned = NULL;
    free_orphan(exclusive);
    fiber_free(exclusive->fiber);
    exclusive->fiber = NULL;
}

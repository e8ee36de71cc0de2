/* exclusive_execution: what runs in slices has a stack of its own, which a slice leaves and the next one enters. */
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

/* A key whose time is over may go at any time, and is recorded by itself. */
static uint64_t commands_changes(const struct store *store) {
    return store->changes - store->expired_keys;
}

static void run_slice(struct server *server, bool first) {
    struct exclusive *exclusive = &server->exclusive;
    exclusive->until_us = clock_monotonic_us() + LIMIT_TURN_EXCLUSIVE_US;
    exclusive->inside = true;
    const struct client *acting = server->acting.client;
    server->acting.client = exclusive->client;
    uint64_t changes = commands_changes(server->store);
    bool ended = first ? fiber_start(exclusive->fiber, run_body, exclusive) : fiber_resume(exclusive->fiber);
    server->acting.client = acting;
    exclusive->inside = false;
    exclusive->on = !ended;
    /* It is recorded by its last slice, as one: what an earlier one had changed would be in no file. */
    assert(ended || exclusive->kind != EXCLUSIVE_READS || commands_changes(server->store) == changes);
    if (ended || exclusive->kind == EXCLUSIVE_READS) return;
    /* What a command does to a value counts as a change at its end. */
    bool writes = exclusive->client->command->flags & COMMAND_WRITE;
    upcalls.append_log_rests(exclusive->client, writes || server->store->changes != exclusive->changes);
    if (exclusive->kind == EXCLUSIVE_CHANGES) upcalls.notify_command(exclusive->client);
}

/* Ends the waiting that append_log_rests began: the next step of the file lets the client go, unless it is told of more. */
static void wait_no_longer(struct client *client) {
    if (client->server->exclusive.kind != EXCLUSIVE_READS) client->held_until = 0;
}

/* What a script or a transaction has changed is recorded by what it runs, never as the command itself; and a command that only
 * reads is not recorded because a key's time was over. Said only where propagate_call follows at once: it must not be heard by
 * what the next slice runs. */
static void record_nothing(struct client *client) {
    bool writes = client->command->flags & COMMAND_WRITE;
    if (client->server->exclusive.kind == EXCLUSIVE_CALLS || !writes) propagate_nothing(client);
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
    client_command_done(exclusive->client);
    resp_parser_free(&exclusive->client->parser);
    memory_free(exclusive->client->name);
    memory_free(exclusive->client);
    exclusive->client = NULL;
    exclusive->orphaned = false;
}

static void run(struct client *client, void (*body)(struct client *client), enum exclusive_kind kind) {
    struct server *server = client->server;
    struct exclusive *exclusive = &server->exclusive;
    assert(!exclusive->on || exclusive->inside);
    /* Within another one, for the server's own clients, and without memory for a stack: at once. */
    if (!exclusive->inside && client->connection && !exclusive->fiber) exclusive->fiber = fiber_new();
    if (exclusive->inside || !client->connection || !exclusive->fiber) {
        body(client);
        if (kind == EXCLUSIVE_CALLS) propagate_nothing(client);
        return;
    }
    exclusive->client = client;
    exclusive->kind = kind;
    exclusive->changes = server->store->changes;
    exclusive->ended_by = "SCRIPT KILL";
    exclusive->body = body;
    exclusive->began_us = clock_monotonic_us();
    /* No key's time is over in its midst. Its command may have looked keys up already, at this time. */
    server->store->frozen_ms = server->store->told_ms;
    run_slice(server, true);
    if (!exclusive->on) {
        record_nothing(client);
        server->store->frozen_ms = 0;
        return;
    }
    bool denied = client->deny_blocking;
    client->deny_blocking = false;
    client_block(client, &server->exclusive.waiting, CLOCK_NEVER, next_slice, abandon);
    client->deny_blocking = denied;
}

void exclusive_run(struct client *client, void (*body)(struct client *client)) {
    run(client, body, EXCLUSIVE_CALLS);
}

void exclusive_run_command(struct client *client, void (*body)(struct client *client)) {
    run(client, body, EXCLUSIVE_READS);
}

void exclusive_run_change(struct client *client, void (*body)(struct client *client)) {
    run(client, body, EXCLUSIVE_CHANGES);
}

uint64_t exclusive_changes_before(const struct client *client) {
    const struct exclusive *exclusive = &client->server->exclusive;
    bool has_begun = exclusive_is_resting(client->server) && exclusive->client == client;
    return has_begun && exclusive->kind == EXCLUSIVE_CHANGES ? exclusive->changes : client->server->store->changes;
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
    return exclusive->inside && exclusive->kind == EXCLUSIVE_READS && exclusive->client == client &&
           (exclusive->orphaned || client->closing);
}

void exclusive_rest(struct server *server) {
    struct exclusive *exclusive = &server->exclusive;
    if (server->loading || exclusive->hurried) return; /* DEBUG LOADAOF: commands of a file are run as one */
    if (exclusive->inside && clock_monotonic_us() >= exclusive->until_us) fiber_yield(exclusive->fiber);
}

bool exclusive_goes_on(struct client *client) {
    exclusive_rest(client->server);
    return !exclusive_is_lost(client);
}

bool exclusive_awaits(struct client *client, uint64_t until_us) {
    struct exclusive *exclusive = &client->server->exclusive;
    if (!exclusive->inside || exclusive->kind != EXCLUSIVE_READS || exclusive->client != client) return false;
    exclusive->rests_until_us = until_us > 0 ? until_us : 1; /* not 0: it waits, if only for the next turn */
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

/* The last slice of a command whose client is lost: nobody else looks at what it has changed. */
static void run_slice_of_lost(struct server *server) {
    struct client *client = server->exclusive.client;
    uint64_t changes = exclusive_changes_before(client);
    run_slice(server, false);
    if (!server->exclusive.on && server->exclusive.kind == EXCLUSIVE_CHANGES)
        command_replied(client, server->store->changes != changes);
}

static void go_on(struct server *server) {
    struct exclusive *exclusive = &server->exclusive;
    if (exclusive->client->blocked)
        client_retry(exclusive->client);
    else
        run_slice_of_lost(server); /* its client has closed, or is about to */
    if (exclusive->on) return;
    exclusive->busy = false;
    server->store->frozen_ms = 0;
    free_orphan(exclusive);
    wake_waiting(server);
}

uint64_t exclusive_step(struct server *server) {
    struct exclusive *exclusive = &server->exclusive;
    if (!exclusive->on || exclusive->abandoned) return CLOCK_NEVER;
    uint64_t limit_us = (uint64_t)server->config.busy_reply_threshold_ms * 1000;
    if (!exclusive->busy && exclusive->kind == EXCLUSIVE_CALLS && limit_us > 0 &&
        server->now_us >= exclusive->began_us + limit_us) {
        exclusive->busy = true;
        wake_waiting(server);
    }
    if (had_slice(server)) return 0;
    if (exclusive->client->blocked && server->now_us < exclusive->rests_until_us) return exclusive->rests_until_us;
    exclusive->rests_until_us = 0;
    go_on(server);
    if (exclusive->on) return exclusive->rests_until_us;
    if (!server->woken && !server->retry_subsystems) return 0;
    /* Whoever waits for what it has changed was here before the requests that come next. */
    server_tick(server);
    server_run_woken(server);
    return 0;
}

void exclusive_end_change(struct server *server) {
    struct exclusive *exclusive = &server->exclusive;
    if (!exclusive->on || exclusive->kind != EXCLUSIVE_CHANGES) return;
    exclusive->hurried = true;
    go_on(server);
    exclusive->hurried = false;
}

bool exclusive_makes_wait(const struct server *server) {
    return server->exclusive.on && !server->exclusive.busy;
}

bool exclusive_is_resting(const struct server *server) {
    return server->exclusive.on && !server->exclusive.inside;
}

bool exclusive_is_busy(const struct server *server) {
    return server->exclusive.busy && !server->exclusive.inside;
}

bool exclusive_is_run_for(const struct client *client) {
    const struct exclusive *exclusive = &client->server->exclusive;
    return (exclusive->on || exclusive->inside) && exclusive->client == client;
}

bool exclusive_goes_on_without(const struct client *client) {
    return exclusive_is_run_for(client) && client->server->exclusive.kind != EXCLUSIVE_READS;
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

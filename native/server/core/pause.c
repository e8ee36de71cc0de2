/* pause: CLIENT PAUSE: commands that wait until the pause is over, or a stop that saves first is given up, or a failover
 * has ended. */
#include "server/core/pause.h"

#include "base/clock.h"
#include "server/core/client.h"
#include "server/core/server.h"
#include "server/core/upcalls.h"
#include "store/store.h"

void pause_hold_expiry(struct server *server) {
    const struct pause *pause = &server->pause;
    server->store->follows = server->place.is_replica || pause->kind != PAUSE_NOTHING || pause->for_failover;
}

bool pause_holds_writes(const struct server *server) {
    const struct pause *pause = &server->pause;
    return pause->kind != PAUSE_NOTHING || pause->for_stop || pause->for_failover;
}

void pause_begin(struct server *server, enum pause_kind kind, uint64_t until_us) {
    struct pause *pause = &server->pause;
    if (kind > pause->kind) pause->kind = kind;
    if (until_us > pause->until_us) pause->until_us = until_us;
    pause_hold_expiry(server);
}

void pause_end(struct server *server) {
    server->pause.kind = PAUSE_NOTHING;
    server->pause.until_us = 0;
    pause_hold_expiry(server);
}

uint64_t pause_step(struct server *server) {
    if (server->pause.kind != PAUSE_NOTHING && server->now_us >= server->pause.until_us) pause_end(server);
    /* One of them may begin another pause, which holds back the rest again. */
    if (!pause_holds_writes(server)) wait_queue_run_held(server, &server->pause.waiting, NULL);
    return server->pause.kind == PAUSE_NOTHING ? CLOCK_NEVER : server->pause.until_us;
}

static void give_up(struct client *client) {
    reply_error(client, "ERR the server is stopping; the command was waiting and was not run");
}

bool pause_is_waiting(const struct client *client) {
    return client->blocked && client->queue == &client->server->pause.waiting;
}

bool pause_holds(struct client *client, const struct command *command) {
    struct server *server = client->server;
    bool holds = server->pause.kind == PAUSE_ALL;
    if (pause_holds_writes(server))
        holds |= (upcalls.transaction_flags(client, command) & (COMMAND_WRITE | COMMAND_MAY_REPLICATE)) != 0;
    if (!holds || client->deny_blocking) return false;
    client_block(client, &server->pause.waiting, CLOCK_NEVER, NULL, give_up);
    return true;
}

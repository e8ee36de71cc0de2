/* stop: who waits for the last snapshot, and what becomes of the server when it is there, or failed. */
#include "server/durability/stop.h"

#include "base/clock.h"
#include "base/log.h"
#include "server/core/client.h"
#include "server/core/server.h"
#include "server/durability/durability_subsystem.h"

static void wake(struct server *server) {
    for (struct client *client = server->durability->stop.waiting.head; client;) {
        struct client *next = client->wait_next;
        client_retry(client);
        client = next;
    }
}

static void go_on(struct server *server) {
    server->durability->stop.saving = server->durability->stop.forced = server->pause.for_stop = false;
    server->durability->stop.number = 0;
    wake(server); /* the writes that were held back are run by the next step */
}

void stop_after_saving(struct server *server, bool forced) {
    server->durability->stop.saving = server->pause.for_stop = true;
    server->durability->stop.forced |= forced;
}

void stop_by_rules(struct server *server, bool forced) {
    if (server->config.save[0] != '\0')
        stop_after_saving(server, forced);
    else
        server_ask_stop(server);
}

bool stop_abort(struct server *server) {
    if (!server->durability->stop.saving || server->ending.asked) return false;
    go_on(server);
    return true;
}

/* ---- clients ------------------------------------------------------------------------------------------------------- */

/* The only reply to a stop that succeeds is that the connection ends. */
static bool attempt(struct client *client) {
    const struct server *server = client->server;
    if (server->durability->stop.saving && !server->ending.asked) return false;
    if (server->ending.asked)
        client->close_after_reply = true;
    else
        reply_error(client, "ERR Errors trying to SHUTDOWN. Check logs.");
    return true;
}

static void expired(struct client *client) {
    if (client->server->ending.begun)
        client->close_after_reply = true;
    else
        reply_error(client, "ERR the wait was ended; the server stops once it has saved");
}

void stop_for_client(struct client *client, bool forced) {
    stop_after_saving(client->server, forced);
    client->has_begun = true;
    client_block(client, &client->server->durability->stop.waiting, CLOCK_NEVER, attempt, expired);
}

/* ---- the snapshot -------------------------------------------------------------------------------------------------- */

bool stop_wants_snapshot(const struct server *server) {
    return server->durability->stop.saving && server->durability->stop.number == 0;
}

void stop_snapshot_begins(struct server *server, uint64_t number) {
    if (stop_wants_snapshot(server)) server->durability->stop.number = number;
}

void stop_snapshot_ended(struct server *server, uint64_t number, bool saved) {
    if (!server->durability->stop.saving || server->durability->stop.number != number) return;
    if (saved || server->durability->stop.forced) {
        server_ask_stop(server);
        wake(server);
    } else {
        log_event(LOG_WARNING, "stop_refused", NULL,
                  "asked to stop, but the data could not be saved: the server keeps running");
        go_on(server);
    }
}

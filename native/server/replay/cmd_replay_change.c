/* cmd_replay_change: REPLAY.RESET and REPLAY.CONFIG, whose work on a large table is done in slices between other work. */
#include "base/clock.h"
#include "server/core/client.h"
#include "server/core/long_work.h"
#include "server/core/server.h"
#include "server/replay/cmd_replay.h"
#include "server/replay/replay_arguments.h"
#include "server/replay/replay_subsystem.h"

#define FIRST_SLICE_US 200u /* within the command itself: enough for small tables */

static void wake_all(struct server *server, struct replay_entry *entry) {
    wait_queue_wake(server, &entry->changers);
    wait_queue_wake(server, &entry->adders);
    wait_queue_wake(server, &entry->samplers);
}

bool replay_change_step(struct server *server) {
    struct replay_registry *registry = server->replay->tables;
    bool left = false, goes_on = registry->held_back && !pause_holds_writes(server);
    if (goes_on) registry->held_back = false;
    for (struct replay_entry *entry = registry->entries; entry; entry = entry->next) {
        if (goes_on) wake_all(server, entry);
        if (!table_has_work(entry->table)) continue;
        uint64_t until_us = long_work_until(server);
        if (clock_monotonic_us() >= until_us || table_step(entry->table, until_us))
            left = true;
        else
            wake_all(server, entry);
    }
    return left;
}

/* Begins the change unless an earlier one is at work, and replies when it is done; false until then. */
static bool change_attempt(struct client *client) {
    struct replay_request *request = client_state(client);
    struct replay_entry *entry = request->entry;
    struct error error = {.code = ERROR_NONE};
    if (replay_entry_missing(entry, &error)) {
        reply_failure(client, &error);
        return true;
    }
    if (!request->begun) {
        if (entry->amid > 0) return false; /* who ends a batch wakes us */
        if (replay_request_is_held_back(client)) return false;
        if (request->kind == REPLAY_REQUEST_RESET) {
            table_begin_reset(entry->table);
        } else if (table_begin_configure(entry->table, client->argv[2].data, client->argv[2].length, &error)) {
            if (error.code == ERROR_TIMEOUT) return false;
            reply_failure(client, &error);
            return true;
        }
        request->begun = client->has_begun = true;
        table_step(entry->table, clock_monotonic_us() + FIRST_SLICE_US);
    }
    if (table_has_work(entry->table)) return false;
    wake_all(client->server, entry);
    reply_status(client, "OK");
    return true;
}

static void change_expired(struct client *client) {
    const struct replay_request *request = client_state(client);
    struct error error;
    if (!replay_entry_missing(request->entry, &error)) {
        error_set(&error, ERROR_TIMEOUT,
                  request->begun ? "the change of table '%s' continues; REPLAY.INFO shows what is left"
                                 : "waits behind another change of table '%s'; nothing was changed",
                  table_config(request->entry->table)->name);
    }
    reply_failure(client, &error);
}

static void change(struct client *client, enum replay_request_kind kind) {
    struct replay_request *request = replay_request_or_reply(client, kind);
    if (!request) return;
    struct wait_queue *queue = &request->entry->changers;
    if (queue->length || !change_attempt(client))
        client_block(client, queue, CLOCK_NEVER, change_attempt, change_expired);
}

void replay_reset_command(struct client *client) {
    change(client, REPLAY_REQUEST_RESET);
}

void replay_config_command(struct client *client) {
    change(client, REPLAY_REQUEST_CONFIG);
}

/* dispatch: from a parsed request to its handler: look-up, what is refused before a handler runs, what is counted. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/memory.h"
#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/core/exclusive_execution.h"
#include "server/core/make_room.h"
#include "server/core/propagate.h"
#include "server/core/server.h"
#include "server/core/upcalls.h"
#include "store/store.h"

#define MULTI_REFUSAL "ERR Command not allowed inside a transaction"
#define LOST_REFUSAL "NOPERM the request was not kept, since this user had no permission when it began: send it again"
#define REPLICAS_REFUSAL "NOREPLICAS Not enough good replicas to write."
#define READONLY_REFUSAL "READONLY You can't write against a read only replica."
#define STALE_REFUSAL "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."
#define OOM_REFUSAL "OOM command not allowed when used memory > 'maxmemory'."

/* Who has not logged in, or not shown what the abstract socket asks for, gets few commands. NULL: it may have this one. */
static const char *refuse_stranger(const struct client *client, const struct command_entry *entry) {
    if (entry->command->flags & COMMAND_NOAUTH) return NULL;
    if (!client->authenticated) return "NOAUTH Authentication required.";
    if (client->unproven)
        return "NOAUTH this socket is for clients that were told of it by REPLAY.SHARE: send REPLAY.PROVE with the "
               "nonce first";
    return NULL;
}

/* May this client have its bytes kept at all? Asked before a large argument arrives, so that a refused one costs
 * nothing. */
static const char *refuse_landing(struct client *client, const struct command_entry *entry, uint32_t argc,
                                  const struct resp_argument *argv, size_t length) {
    if (!entry) return ""; /* an unknown command: the name is complained of when the request is complete */
    const char *stranger = refuse_stranger(client, entry);
    if (stranger) return stranger;
    if (client->transaction && (entry->command->flags & COMMAND_NO_MULTI)) return MULTI_REFUSAL;
    if (!upcalls.acl_may_become_allowed(client, entry, argc, argv)) return ""; /* told when the request is complete */
    if ((entry->command->flags & COMMAND_DENYOOM) && make_room(client->server, length) == ROOM_NONE) return OOM_REFUSAL;
    return NULL;
}

void client_land(void *context, const struct resp_argument *arguments, uint32_t index, uint32_t count, size_t length,
                 struct resp_landing *landing) {
    struct client *client = context;
    struct command_entry *entry = NULL;
    if (index > 0) entry = command_table_find(client->server->commands, arguments[0].data, arguments[0].length);
    if (!client->refusal) client->refusal = refuse_landing(client, entry, index, arguments, length);
    if (client->refusal)
        landing->kind = RESP_LAND_DISCARD;
    else if (entry->command->land)
        entry->command->land(client, arguments, index, count, length, landing);
}

static void reply_unknown_command(struct client *client) {
    char given[160];
    size_t used = 0;
    given[0] = '\0';
    for (uint32_t i = 1; i < client->argc && used < 128; i++) {
        const struct resp_argument *argument = &client->argv[i];
        int most = (int)(128 - used);
        int length = argument->data ? (argument->length < (size_t)most ? (int)argument->length : most) : 0;
        int printed = snprintf(given + used, sizeof given - used, "'%.*s' ", length, (const char *)argument->data);
        used += printed > 0 ? (size_t)printed : 0;
        if (used >= sizeof given) used = sizeof given - 1;
    }
    int name_length = client->argv[0].length < 128 ? (int)client->argv[0].length : 128;
    const char *name = client->argv[0].data ? (const char *)client->argv[0].data : "";
    reply_error(client, "ERR unknown command '%.*s', with args beginning with: %s",
                client->argv[0].data ? name_length : 0, name, given);
}

/* A browser made to speak to this port would send these: whoever does is cut off, as Redis does. */
static bool is_http(const struct resp_argument *name) {
    return argument_is(name, "post") || argument_is(name, "host:");
}

/* Replies with an error and returns false where the request must not reach its handler. */
static bool admit(struct client *client, struct command_entry *entry) {
    if (client->parser.refusal == RESP_REQUEST_TOO_LARGE) {
        reply_error(
            client,
            "LIMIT the request's arguments are %zu bytes together, more than max-request-bytes (%lld): send fewer "
            "items in one request",
            client->parser.request_bytes, (long long)client->server->config.max_request_bytes);
        return false;
    }
    if (client->parser.refusal == RESP_OUT_OF_MEMORY) {
        reply_error(client, "OOM no memory for a request of %zu bytes", client->parser.request_bytes);
        return false;
    }
    if (!entry) {
        reply_unknown_command(client);
        return false;
    }
    return command_admit(client, entry);
}

/* A request that must not reach its handler: the error ("CODE text"), and what follows for a transaction. */
__attribute__((format(printf, 2, 3))) static bool refuse(struct client *client, const char *format, ...) {
    char message[1000];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    const char *prefix = client->command ? upcalls.transaction_refusal_prefix(client, client->command) : NULL;
    const char *reason = prefix && strncmp(message, "ERR ", 4) == 0 ? message + 4 : message;
    reply_error(client, "%s%s", prefix ? prefix : "", reason);
    return false;
}

/* The keys are not here, or not together: told in these words, also of a transaction, which ends. */
static bool redirect(struct client *client, const char *message) {
    upcalls.transaction_refusal_prefix(client, client->command);
    reply_error(client, "%s", message);
    return false;
}

static bool lacks_replicas(const struct server *server) {
    const struct replication_settings *settings = &server->config.replication;
    return settings->min_replicas_to_write > 0 && settings->min_replicas_max_lag_s > 0 &&
           server->place.good_replicas < settings->min_replicas_to_write;
}

/* Why nothing may be written to the store, or to tables, now; NULL: it may. */
static const char *refuse_writes(const struct server *server, bool of_tables, char *text, size_t size) {
    const char *unkept = upcalls.durability_refuses_writes(server, of_tables, text, size);
    return unkept ? unkept : !of_tables && lacks_replicas(server) ? REPLICAS_REFUSAL : NULL;
}

static bool shows_data(const struct client *client, const struct command *command, uint32_t argc,
                       const struct resp_argument *argv, void *context) {
    (void)client, (void)argc, (void)argv, (void)context;
    return !(command->flags & COMMAND_STALE);
}

static bool changes_tables(const struct client *client, const struct command *command, uint32_t argc,
                           const struct resp_argument *argv, void *context) {
    (void)client, (void)argc, (void)argv, (void)context;
    enum command_data data = command->group->data;
    return (command->flags & COMMAND_WRITE) && (data == DATA_TABLES || data == DATA_BESIDE_KEYS);
}

/* A replica shows what its primary has, as far as it knows of it. NULL: it may run the request. */
static const char *refuse_as_replica(const struct client *client) {
    const struct server *server = client->server;
    const struct command *command = client->command;
    if (server->config.replication.is_read_only && (upcalls.transaction_flags(client, command) & COMMAND_WRITE))
        return READONLY_REFUSAL;
    /* The primary's records fit the tables only as they are there. */
    if (server->place.follows_tables && (changes_tables(client, command, 0, NULL, NULL) ||
                                         upcalls.transaction_has(client, command, changes_tables, NULL)))
        return READONLY_REFUSAL;
    bool is_stale = !server->config.replication.serves_stale_data && !upcalls.replication_is_up(server);
    if (!is_stale) return NULL;
    bool shows =
        shows_data(client, command, 0, NULL, NULL) || upcalls.transaction_has(client, command, shows_data, NULL);
    return shows ? STALE_REFUSAL : NULL;
}

bool command_admit(struct client *client, struct command_entry *entry) {
    struct server *server = client->server;
    const struct command *command = entry->command;
    if (!command_arity_holds(command, client->argc))
        return refuse(client, "ERR wrong number of arguments for '%s' command", command->name);
    const char *stranger = refuse_stranger(client, entry);
    if (stranger) return refuse(client, "%s", stranger);
    if (client->transaction && (command->flags & COMMAND_NO_MULTI)) return refuse(client, MULTI_REFUSAL);
    char message[320];
    const char *forbidden = upcalls.acl_refusal(client, entry, message, sizeof message);
    if (forbidden) return refuse(client, "%s", forbidden);
    const char *elsewhere =
        server->config.cluster_enabled ? upcalls.cluster_refusal(client, command, message, sizeof message) : NULL;
    if (elsewhere) return redirect(client, elsewhere);
    /* Whose right was granted while the arguments came may run it, but there is nothing to run. */
    if (client->refusal) return refuse(client, "%s", *client->refusal ? client->refusal : LOST_REFUSAL);
    /* No key goes in the midst of a transaction or a script: what there was of room when it began counts. */
    if (server->config.maxmemory > 0 &&
        (client->deny_blocking ? server->room.last : make_room(server, 0)) == ROOM_NONE &&
        !client->goes_on_over_memory && (upcalls.transaction_flags(client, command) & COMMAND_DENYOOM))
        return refuse(client, OOM_REFUSAL);
    if (!client->goes_on_unwritten && (upcalls.transaction_flags(client, command) & COMMAND_WRITE)) {
        char text[640];
        const char *unwritten = refuse_writes(server, command->group->data == DATA_TABLES, text, sizeof text);
        if (unwritten) return refuse(client, "%s", unwritten);
    }
    const char *unfit = server->place.is_replica && !client->is_primary ? refuse_as_replica(client) : NULL;
    if (unfit) return refuse(client, "%s", unfit);
    if (server_is_fenced(server) && !client->goes_on_unwritten &&
        (upcalls.transaction_flags(client, command) & COMMAND_WRITE))
        return server->place.is_copy
                   ? refuse(client, SERVER_COPY_REFUSAL)
                   : refuse(client, SERVER_FENCED_REFUSAL, server->place.epoch, server->place.newest_epoch);
    if (exclusive_is_busy(server) && !(command_request_flags(client, command) & COMMAND_ALLOW_BUSY))
        return refuse(client, EXCLUSIVE_BUSY_REFUSAL, server->exclusive.ended_by);
    if (client->resp == 2 && !(command->flags & COMMAND_SUBSCRIBER) && upcalls.pubsub_is_subscriber(client)) {
        return refuse(
            client,
            "ERR Can't execute '%s': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in "
            "this context",
            command->name);
    }
    return true;
}

static void count_call(struct client *client, struct command_entry *entry, uint64_t began_ns) {
    struct server *server = client->server;
    server_tick(server);
    uint64_t took_ns = server->now_ns > began_ns ? server->now_ns - began_ns : 0;
    if (server->loading) return; /* nobody has called it */
    entry->stats.calls++;
    entry->stats.total_ns += took_ns;
    if (server->config.latency_tracking) histogram_record(&entry->stats.latency_ns, took_ns);
    if (entry->times) recent_histogram_record(&entry->times->handlers, took_ns, server->now_us);
    upcalls.admin_command_took(client, entry, took_ns);
    if (client->error_replied) entry->stats.failed++;
    client->active_us = server->now_us;
    client->commands++;
    server->stats.commands++;
}

void command_replied(struct client *client, bool changed) {
    /* What changes there are while something rests are those of a command in its midst. */
    if (!exclusive_is_resting(client->server)) upcalls.notify_command(client);
    propagate_call(client, changed);
}

/* What may run while a script is busy cannot rest. */
static void call_handler(struct client *client, const struct command *command) {
    bool is_long = (command->flags & COMMAND_RESTS) && client->argc > EXCLUSIVE_PARTS_AT_ONCE;
    if (!is_long || exclusive_is_busy(client->server))
        command->handler(client);
    else if (command->flags & COMMAND_WRITE)
        exclusive_run_change(client, command->handler);
    else
        exclusive_run_command(client, command->handler);
}

void command_call(struct client *client, struct command_entry *entry) {
    struct server *server = client->server;
    if (server->acting.tracking_is_due && !server->acting.client) upcalls.tracking_tell_readers(server);
    uint64_t began_ns = server->now_ns, changes = server->store->changes;
    if (server->place.is_replica && !server->loading)
        server->store->keeps_expired = client->is_primary; /* it tells when they go */
    client->error_replied = false;
    const struct client *acting = server->acting.client;
    if (!acting) server->acting.client = client;
    call_handler(client, entry->command);
    bool reads = (entry->command->flags & COMMAND_READONLY) && entry->command->group->data == DATA_KEYS;
    if (reads && server->acting.client->tracker) upcalls.tracking_read(server->acting.client);
    server->acting.client = acting;
    bool changed = (entry->command->flags & COMMAND_WRITE) && server->store->changes != changes;
    command_replied(client, changed);
    count_call(client, entry, began_ns);
}

/* A request that was admitted: it waits for the end of a pause, for a snapshot, or for EXEC, or runs. */
static void execute(struct client *client, struct command_entry *entry) {
    if (entry->times) request_timed_begin(client, entry);
    if (pause_holds(client, entry->command)) return;
    if (client->transaction && upcalls.transaction_queue(client, entry)) return;
    if (client->server->config.cluster_enabled && upcalls.cluster_holds(client)) return;
    if (client->server->copying && upcalls.durability_holds(client)) return;
    command_call(client, entry);
}

static void count_rejected(struct client *client, struct command_entry *entry) {
    upcalls.transaction_refused(client);
    if (entry) entry->stats.rejected++;
    if (entry) server_tick(client->server);
}

void client_run_request(struct client *client) {
    struct server *server = client->server;
    client->argc = client->parser.count;
    client->argv = client->parser.arguments;
    client->error_replied = false;
    struct command_entry *entry = client->entry; /* of the request before: many are followed by their like */
    if (!entry || !command_table_is_plainly(entry, client->argc, client->argv))
        entry = command_table_find_request(server->commands, client->argc, client->argv);
    client->entry = entry;
    client->command = entry ? entry->command : NULL;
    if (!entry && client->argc > 0 && is_http(&client->argv[0])) {
        client_close(client);
        return;
    }
    if (admit(client, entry))
        execute(client, entry);
    else
        count_rejected(client, entry);
    if (!client->blocked && !client->closing) client_request_done(client);
    if (server->woken || server->retry_subsystems) server_run_woken(server);
}

/* Rights and limits may have changed since it was admitted. */
void client_resume_request(struct client *client) {
    struct server *server = client->server;
    if (command_admit(client, client->entry))
        execute(client, client->entry);
    else
        count_rejected(client, client->entry);
    if (client->blocked || client->closing) return;
    client_request_done(client);
    if (client->pending_length > 0) client_make_ready(client);
    client_update_reading(client);
    if (server->woken || server->retry_subsystems) server_run_woken(server);
}

void client_command_done(struct client *client) {
    if (!client->drop) return;
    void (*drop)(struct client *, void *) = client->drop;
    client->drop = NULL;
    drop(client, client->state);
    client->state = NULL;
}

void client_request_done(struct client *client) {
    /* A transaction goes on when its client is lost: what runs in it needs its arguments and its state. */
    if (client->closing && exclusive_goes_on_without(client)) return;
    if (client->is_primary && !client->closing) upcalls.replication_applied(client);
    client_command_done(client);
    client->has_begun = false;
    client->refusal = NULL;
    client->argc = 0;
    client->argv = NULL;
    if (client->closing) return;
    if (client->timed) request_timed_answered(client);
    if (client->tracker) upcalls.tracking_request_done(client);
    if (client->asking > 0 && !client->transaction) client->asking--;
    resp_parser_next(&client->parser);
    client->request_bytes = 0;
    if (client->reply_mode == CLIENT_REPLY_SKIP_NEXT)
        client->reply_mode = CLIENT_REPLY_SKIP;
    else if (client->reply_mode == CLIENT_REPLY_SKIP)
        client->reply_mode = CLIENT_REPLY_ON;
}

void client_free_state(struct client *client, void *state) {
    (void)client;
    memory_free(state);
}

void client_set_state(struct client *client, void *state, void (*drop)(struct client *client, void *state)) {
    client->state = state;
    client->drop = drop;
}

void *client_state(struct client *client) {
    return client->state;
}

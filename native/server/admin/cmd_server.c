/* cmd_server: INFO, TIME, SHUTDOWN, and what asks about replication, of which there is none. */
#include <time.h>

#include "server/admin/admin_part.h"
#include "server/admin/info_more.h"
#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/core/server.h"
#include "server/durability/stop.h"
#include "server/redis/keys/keyspace.h"
#include "server/redis/redis_rows.h"

static void info_command(struct client *client) {
    struct text text = {0};
    server_info_text(client, client->argv + 1, client->argc - 1, &text);
    if (text.failed)
        reply_error(client, "OOM no memory for the reply");
    else
        reply_verbatim(client, text.data ? text.data : "", text.length);
    text_free(&text);
}

static void time_command(struct client *client) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    reply_array(client, 2);
    reply_bulk_format(client, "%lld", (long long)now.tv_sec);
    reply_bulk_format(client, "%ld", now.tv_nsec / 1000);
}

/* SHUTDOWN [NOSAVE|SAVE] [NOW] [FORCE] [ABORT] */
static void shutdown_command(struct client *client) {
    bool save = false, no_save = false, abort_it = false, now = false, force = false;
    for (uint32_t i = 1; i < client->argc; i++) {
        const struct resp_argument *word = &client->argv[i];
        bool *said = argument_is(word, "save")     ? &save
                     : argument_is(word, "nosave") ? &no_save
                     : argument_is(word, "abort")  ? &abort_it
                     : argument_is(word, "now")    ? &now
                     : argument_is(word, "force")  ? &force
                                                   : NULL;
        if (!said) {
            reply_syntax_error(client);
            return;
        }
        *said = true;
    }
    if ((save && no_save) || (abort_it && (save || no_save || now || force))) {
        reply_syntax_error(client);
    } else if (abort_it && stop_abort(client->server)) {
        reply_status(client, "OK");
    } else if (abort_it) {
        reply_error(client, "ERR No shutdown in progress.");
    } else if (save || (!no_save && client->server->config.save[0] != '\0')) {
        stop_for_client(client, force);
    } else {
        client->close_after_reply = true; /* the reply is that the connection ends */
        server_ask_stop(client->server);
    }
}

/* While a script holds the server, only a stop that saves nothing is possible. */
static uint32_t shutdown_flags(const struct client *client) {
    for (uint32_t i = 1; i < client->argc; i++)
        if (argument_is(&client->argv[i], "nosave")) return client->command->flags;
    return client->command->flags & ~(uint32_t)COMMAND_ALLOW_BUSY;
}

/* ROLE: there is no replication. */
static void role_command(struct client *client) {
    reply_array(client, 3);
    reply_bulk_string(client, "master");
    reply_integer(client, 0);
    reply_array(client, 0);
}

/* WAIT replicas milliseconds: none will ever have it. */
static void reply_no_replicas(struct client *client) {
    reply_integer(client, 0);
}

static bool never_sooner(struct client *client) {
    (void)client;
    return false;
}

static void wait_command(struct client *client) {
    int64_t replicas, timeout_ms;
    if (!integer_argument(client, 1, &replicas)) return;
    if (!argument_int64(&client->argv[2], &timeout_ms)) {
        reply_error(client, "ERR timeout is not an integer or out of range");
    } else if (timeout_ms < 0) {
        reply_error(client, "ERR timeout is negative");
    } else if (replicas <= 0 || client->deny_blocking) {
        reply_integer(client, 0);
    } else {
        uint64_t wait_us = timeout_ms < INT64_MAX / 1000 ? (uint64_t)timeout_ms * 1000 : INT64_MAX;
        uint64_t until_us = timeout_ms == 0 ? UINT64_MAX - 1 : client->server->now_us + wait_us;
        client_block(client, NULL, until_us, never_sooner, reply_no_replicas);
    }
}

static void lolwut_command(struct client *client) {
    static const char picture[] = "\n"
                                  "   .-.   .-.   .-.   .-.   .-.\n"
                                  "  ( o ) ( o ) ( o ) ( o ) ( o )   frames, once stored, often seen\n"
                                  "   `-'   `-'   `-'   `-'   `-'\n\n"
                                  "Redis ver. " SERVER_REDIS_VERSION ", replay-server " SERVER_VERSION "\n";
    int64_t version;
    if (client->argc >= 3 && argument_is(&client->argv[1], "version") && !integer_argument(client, 2, &version)) return;
    reply_verbatim(client, picture, sizeof picture - 1);
}

/* REPLICAOF NO ONE is what it is already; to follow another server is refused. */
static void replicaof_command(struct client *client) {
    if (argument_is(&client->argv[1], "no") && argument_is(&client->argv[2], "one"))
        reply_status(client, "OK");
    else
        reply_error(client, "ERR this server does not follow others: it has no replication");
}

#define ADMIN (COMMAND_ADMIN | COMMAND_NOSCRIPT | COMMAND_LOADING | COMMAND_STALE)
#define ASK (COMMAND_LOADING | COMMAND_STALE)
#define FOLLOW (COMMAND_ADMIN | COMMAND_NOSCRIPT | COMMAND_STALE | COMMAND_NO_ASYNC_LOADING)

const struct command commands_server[] = {
    {"info", info_command, -1, ASK, &group_server, "Returns what the server holds and has done.", "1.0.0",
     .tips = "nondeterministic_output\nrequest_policy:all_shards\nresponse_policy:special",
     .categories = ACL_SLOW | ACL_DANGEROUS},
    {"lolwut", lolwut_command, -1, COMMAND_READONLY | COMMAND_FAST, &group_server, "Draws something.", "5.0.0"},
    {"replicaof", replicaof_command, 3, FOLLOW, &group_server, "Accepts NO ONE: the server follows no other.", "5.0.0"},
    {"role", role_command, 1, COMMAND_NOSCRIPT | ASK | COMMAND_FAST, &group_server,
     "Returns the part in replication: a master without replicas.", "2.8.12",
     .categories = ACL_ADMIN | ACL_FAST | ACL_DANGEROUS},
    {"shutdown", shutdown_command, -1, ADMIN | COMMAND_NO_MULTI | COMMAND_ALLOW_BUSY, &group_server,
     "Stops the server.", "1.0.0", .flags_of = shutdown_flags},
    {"slaveof", replicaof_command, 3, FOLLOW, &group_server, "REPLICAOF by its former name.", "1.0.0"},
    {"time", time_command, 1, ASK | COMMAND_FAST, &group_server, "Returns the server's time.", "2.6.0",
     .tips = "nondeterministic_output"},
    {"wait", wait_command, 3, COMMAND_NOSCRIPT, &group_generic, "Waits for replicas, of which there are none.", "3.0.0",
     .tips = "request_policy:all_shards\nresponse_policy:agg_min", .categories = ACL_SLOW | ACL_CONNECTION},
    {0},
};

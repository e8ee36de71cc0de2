/* cmd_server: INFO, TIME, SHUTDOWN. */
#include <time.h>

#include "server/admin/admin_subsystem.h"
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
    reply_verbatim_text(client, &text);
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

#define ADMIN (COMMAND_ADMIN | COMMAND_NOSCRIPT | COMMAND_LOADING | COMMAND_STALE)
#define ASK (COMMAND_LOADING | COMMAND_STALE)

const struct command commands_server[] = {
    {"info", info_command, -1, ASK, &group_server, "Returns what the server holds and has done.", "1.0.0",
     .tips = "nondeterministic_output\nrequest_policy:all_shards\nresponse_policy:special",
     .categories = ACL_SLOW | ACL_DANGEROUS},
    {"lolwut", lolwut_command, -1, COMMAND_READONLY | COMMAND_FAST, &group_server, "Draws something.", "5.0.0"},
    {"shutdown", shutdown_command, -1, ADMIN | COMMAND_NO_MULTI | COMMAND_ALLOW_BUSY, &group_server,
     "Stops the server.", "1.0.0", .flags_of = shutdown_flags},
    {"time", time_command, 1, ASK | COMMAND_FAST, &group_server, "Returns the server's time.", "2.6.0",
     .tips = "nondeterministic_output"},
    {0},
};

/* cmd_server: CONFIG, INFO, TIME, SHUTDOWN, DEBUG. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "server/client.h"
#include "server/command_table.h"
#include "server/config.h"
#include "server/keyspace.h"
#include "server/server.h"
#include "store/glob.h"

/* ---- CONFIG ------------------------------------------------------------------------------------------ */

static void lower_case(const struct resp_argument *argument, char *out, size_t size) {
    size_t length = argument->data ? argument->length : 0;
    if (length >= size) length = size - 1;
    for (size_t i = 0; i < length; i++)
        out[i] = argument->data[i] >= 'A' && argument->data[i] <= 'Z' ? (char)(argument->data[i] + 32)
                                                                      : (char)argument->data[i];
    out[length] = '\0';
}

static bool matches_any(struct client *client, const char *name) {
    for (uint32_t i = 2; i < client->argc; i++) {
        char pattern[256];
        lower_case(&client->argv[i], pattern, sizeof pattern);
        if (glob_match((const uint8_t *)pattern, strlen(pattern), (const uint8_t *)name, strlen(name))) return true;
    }
    return false;
}

/* CONFIG GET pattern … */
static void config_get(struct client *client) {
    size_t matching = 0;
    for (size_t i = 0; i < config_count(); i++) matching += matches_any(client, config_name(i));
    reply_map(client, matching);
    for (size_t i = 0; i < config_count(); i++) {
        if (!matches_any(client, config_name(i))) continue;
        char value[CONFIG_VALUE_BYTES];
        config_value(&client->server->config, i, value);
        reply_bulk_string(client, config_name(i));
        reply_bulk_string(client, value);
    }
}

static bool copy_argument(const struct resp_argument *argument, char *out, size_t size) {
    if (!argument->data || argument->length >= size || memchr(argument->data, '\0', argument->length)) return false;
    memcpy(out, argument->data, argument->length);
    out[argument->length] = '\0';
    return true;
}

/* CONFIG SET name value …: all of them or none. */
static void config_set(struct client *client) {
    struct server *server = client->server;
    if (client->argc % 2 != 0) {
        reply_subcommand_arity_error(client);
        return;
    }
    struct server_config changed = server->config;
    for (uint32_t i = 2; i < client->argc; i += 2) {
        char name[64], value[CONFIG_VALUE_BYTES];
        struct error error = {0};
        int result = -1;
        if (!copy_argument(&client->argv[i], name, sizeof name))
            error_set(&error, ERROR_NOTABLE, "unknown");
        else if (!copy_argument(&client->argv[i + 1], value, sizeof value))
            error_set(&error, ERROR_GENERIC, "the value is too long, or holds a zero byte");
        else
            result = config_assign(&changed, name, value, true, &error);
        if (result == 0) continue;
        int shown = client->argv[i].data && client->argv[i].length < 64 ? (int)client->argv[i].length : 0;
        if (error.code == ERROR_NOTABLE)
            reply_error(client, "ERR Unknown option or number of arguments for CONFIG SET - '%.*s'", shown,
                        (const char *)client->argv[i].data);
        else
            reply_error(client, "ERR CONFIG SET failed (possibly related to argument '%s') - %s", name, error.message);
        return;
    }
    server->config = changed;
    config_apply(server);
    reply_status(client, "OK");
}

static void reset_stats(struct server *server) {
    struct stats *stats = &server->stats;
    *stats = (struct stats){.started_us = stats->started_us, .sample_us = server->now_us};
    for (size_t i = 0; i < command_table_count(server->commands); i++) {
        struct command_entry *entry = command_table_at(server->commands, i);
        memset(&entry->stats, 0, sizeof entry->stats);
    }
}

static void config_help(struct client *client) {
    static const char *const lines[] = {
        "CONFIG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "GET <pattern>",
        "    Return parameters matching the glob-like <pattern> and their values.",
        "SET <directive> <value>",
        "    Set the configuration <directive> to <value>.",
        "RESETSTAT",
        "    Reset statistics reported by the INFO command.",
        "HELP",
        "    Print this help.",
        NULL,
    };
    reply_help(client, lines);
}

static void config_command(struct client *client) {
    const struct resp_argument *word = &client->argv[1];
    if (argument_is(word, "get") && client->argc >= 3) {
        config_get(client);
    } else if (argument_is(word, "set") && client->argc >= 4) {
        config_set(client);
    } else if (argument_is(word, "resetstat") && client->argc == 2) {
        reset_stats(client->server);
        reply_status(client, "OK");
    } else if (argument_is(word, "help") && client->argc == 2) {
        config_help(client);
    } else if (argument_is(word, "get") || argument_is(word, "set") || argument_is(word, "resetstat") ||
               argument_is(word, "help")) {
        reply_subcommand_arity_error(client);
    } else {
        reply_unknown_subcommand(client);
    }
}

/* ---- INFO and the rest ------------------------------------------------------------------------------- */

static void info_command(struct client *client) {
    struct text text = {0};
    server_info_text(client->server, client->argv + 1, client->argc - 1, &text);
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
    for (uint32_t i = 1; i < client->argc; i++) {
        const struct resp_argument *word = &client->argv[i];
        if (argument_is(word, "save")) {
            reply_error(client, "ERR SHUTDOWN saves nothing: REPLAY.SAVE first, then SHUTDOWN NOSAVE");
            return;
        }
        if (argument_is(word, "abort")) {
            reply_error(client, "ERR No shutdown in progress.");
            return;
        }
        if (!argument_is(word, "nosave") && !argument_is(word, "now") && !argument_is(word, "force")) {
            reply_syntax_error(client);
            return;
        }
    }
    client->close_after_reply = true; /* the reply is that the connection ends */
    server_ask_stop(client->server);
}

static bool never_sooner(struct client *client) {
    (void)client;
    return false;
}

static void wake_up(struct client *client) {
    reply_status(client, "OK");
}

/* DEBUG SLEEP seconds: delays this client only; nothing may hold the loop. */
static void debug_command(struct client *client) {
    double seconds;
    if (argument_is(&client->argv[1], "sleep") && client->argc == 3) {
        if (!argument_double(&client->argv[2], &seconds) || seconds < 0 || seconds > 3600)
            reply_error(client, "ERR DEBUG SLEEP takes seconds, from 0 to 3600");
        else
            client_block(client, NULL, client->server->now_us + (uint64_t)(seconds * 1e6), never_sooner, wake_up);
        return;
    }
    reply_unknown_subcommand(client);
}

const struct command commands_server[] = {
    {"config", config_command, -2, COMMAND_ADMIN | COMMAND_LOADING, 0, 0, 0, "server", "Reads and changes settings.",
     NULL},
    {"debug", debug_command, -2, COMMAND_ADMIN | COMMAND_NOSCRIPT | COMMAND_LOADING | COMMAND_STALE, 0, 0, 0, "server",
     "Delays the client, for tests.", NULL},
    {"info", info_command, -1, COMMAND_LOADING | COMMAND_STALE, 0, 0, 0, "server",
     "Returns what the server holds and has done.", NULL},
    {"shutdown", shutdown_command, -1,
     COMMAND_ADMIN | COMMAND_NOSCRIPT | COMMAND_LOADING | COMMAND_STALE | COMMAND_NO_MULTI | COMMAND_ALLOW_BUSY, 0, 0,
     0, "server", "Stops the server.", NULL},
    {"time", time_command, 1, COMMAND_LOADING | COMMAND_STALE | COMMAND_FAST, 0, 0, 0, "server",
     "Returns the server's time.", NULL},
    {0},
};

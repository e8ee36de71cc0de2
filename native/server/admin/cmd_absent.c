/* cmd_absent: commands about what is not here (functions, modules), answered as by a Redis that has none. */
#include "server/admin/admin_part.h"
#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/redis/keys/keyspace.h"
#include "server/redis/redis_rows.h"

/* ---- functions ------------------------------------------------------------------------------------------------------- */

/* FUNCTION LIST [LIBRARYNAME pattern] [WITHCODE] */
static void function_list(struct client *client) {
    bool named = false, with_code = false;
    for (uint32_t i = 2; i < client->argc; i++) {
        const struct resp_argument *word = &client->argv[i];
        bool names = argument_is(word, "libraryname");
        bool *said = names ? &named : argument_is(word, "withcode") ? &with_code : NULL;
        if (!said || *said) {
            reply_error(client, "ERR Unknown argument %.*s", word->length < 128 ? (int)word->length : 128,
                        (const char *)word->data);
            return;
        }
        if (names && ++i == client->argc) {
            reply_error(client, "ERR library name argument was not given");
            return;
        }
        *said = true;
    }
    reply_array(client, 0);
}

static void function_stats(struct client *client) {
    reply_map(client, 2);
    reply_bulk_string(client, "running_script");
    reply_null(client);
    reply_bulk_string(client, "engines");
    reply_map(client, 1);
    reply_bulk_string(client, "LUA");
    reply_map(client, 2);
    reply_bulk_string(client, "libraries_count");
    reply_integer(client, 0);
    reply_bulk_string(client, "functions_count");
    reply_integer(client, 0);
}

/* FUNCTION FLUSH [ASYNC|SYNC] */
static void function_flush(struct client *client) {
    const struct resp_argument *word = &client->argv[2];
    if (client->argc > 3)
        reply_subcommand_syntax_error(client);
    else if (client->argc == 3 && !argument_is(word, "sync") && !argument_is(word, "async"))
        reply_error(client, "ERR FUNCTION FLUSH only supports SYNC|ASYNC option");
    else
        reply_status(client, "OK");
}

static void function_help(struct client *client) {
    static const char *const lines[] = {
        "FUNCTION <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "FLUSH [ASYNC|SYNC]",
        "    Accepted: there are no functions.",
        "LIST [LIBRARYNAME <pattern>] [WITHCODE]",
        "    An empty list.",
        "STATS",
        "    No libraries, no functions, and none that runs.",
        "HELP",
        "    Print this help.",
        NULL,
    };
    reply_help(client, lines);
}

/* ---- modules --------------------------------------------------------------------------------------------------------- */

static void module_list(struct client *client) {
    reply_array(client, 0);
}

static void module_help(struct client *client) {
    static const char *const lines[] = {
        "MODULE <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "LIST",
        "    An empty list: no module can be loaded.",
        "HELP",
        "    Print this help.",
        NULL,
    };
    reply_help(client, lines);
}

#define ANY_TIME (COMMAND_LOADING | COMMAND_STALE)

static const struct command function_subcommands[] = {
    {"function|flush", function_flush, -2, COMMAND_WRITE | COMMAND_NOSCRIPT, &group_scripting, "Accepted.", "7.0.0",
     .tips = "request_policy:all_shards\nresponse_policy:all_succeeded"},
    {"function|help", function_help, 2, ANY_TIME, &group_scripting, "Lists the subcommands.", "7.0.0"},
    {"function|list", function_list, -2, COMMAND_NOSCRIPT, &group_scripting, "Returns an empty list.", "7.0.0",
     .tips = "nondeterministic_output_order"},
    {"function|stats", function_stats, 2, COMMAND_NOSCRIPT | COMMAND_ALLOW_BUSY, &group_scripting,
     "Tells that there are no functions.", "7.0.0",
     .tips = "nondeterministic_output\nrequest_policy:all_shards\nresponse_policy:special"},
    {0},
};

static const struct command module_subcommands[] = {
    {"module|help", module_help, 2, ANY_TIME, &group_server, "Lists the subcommands.", "5.0.0"},
    {"module|list", module_list, 2, COMMAND_ADMIN | COMMAND_NOSCRIPT, &group_server, "Returns an empty list.", "4.0.0",
     .tips = "nondeterministic_output_order"},
    {0},
};

const struct command commands_absent[] = {
    {"function", command_container, -2, 0, &group_scripting, "Tells that there are no functions.", "7.0.0",
     .subcommands = function_subcommands},
    {"module", command_container, -2, 0, &group_server, "Tells that there are no modules.", "4.0.0",
     .subcommands = module_subcommands},
    {0},
};

/* cmd_absent: commands about what is not here (a cluster, functions, modules), answered as by a Redis that has none. */
#include "server/client.h"
#include "server/command/command_table.h"
#include "server/store/keyspace.h"

/* ---- cluster --------------------------------------------------------------------------------------------------------- */

static void refuse_cluster(struct client *client) {
    reply_error(client, "ERR This instance has cluster support disabled");
}

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
#define ASK COMMAND_STALE
#define LOOK (COMMAND_ADMIN | COMMAND_STALE)
#define RULE (LOOK | COMMAND_NO_ASYNC_LOADING)
#define CLUSTER(word, arity, flags) \
    {"cluster|" word, refuse_cluster, arity, flags, .group = "cluster", .summary = "Refused: there is no cluster."}
#define PART(container, word, handler, arity, flags, group, summary) \
    {container "|" word, handler, arity, flags, 0, 0, 0, group, summary}

static const struct command cluster_subcommands[] = {
    CLUSTER("addslots", -3, RULE),
    CLUSTER("addslotsrange", -4, RULE),
    CLUSTER("bumpepoch", 2, RULE),
    CLUSTER("count-failure-reports", 3, LOOK),
    CLUSTER("countkeysinslot", 3, ASK),
    CLUSTER("delslots", -3, RULE),
    CLUSTER("delslotsrange", -4, RULE),
    CLUSTER("failover", -2, RULE),
    CLUSTER("flushslots", 2, RULE),
    CLUSTER("forget", 3, RULE),
    CLUSTER("getkeysinslot", 4, ASK),
    CLUSTER("help", 2, ASK | COMMAND_LOADING),
    CLUSTER("info", 2, ASK),
    CLUSTER("keyslot", 3, ASK),
    CLUSTER("links", 2, ASK),
    CLUSTER("meet", -4, RULE),
    CLUSTER("myid", 2, ASK),
    CLUSTER("nodes", 2, ASK),
    CLUSTER("replicas", 3, LOOK),
    CLUSTER("replicate", 3, RULE),
    CLUSTER("reset", -2, LOOK | COMMAND_NOSCRIPT),
    CLUSTER("saveconfig", 2, RULE),
    CLUSTER("set-config-epoch", 3, RULE),
    CLUSTER("setslot", -4, RULE),
    CLUSTER("shards", 2, ASK),
    CLUSTER("slaves", 3, LOOK),
    CLUSTER("slots", 2, ASK),
    {0},
};

static const struct command function_subcommands[] = {
    PART("function", "flush", function_flush, -2, COMMAND_WRITE | COMMAND_NOSCRIPT, "scripting", "Accepted."),
    PART("function", "help", function_help, 2, ANY_TIME, "scripting", "Lists the subcommands."),
    PART("function", "list", function_list, -2, COMMAND_NOSCRIPT, "scripting", "Returns an empty list."),
    PART("function", "stats", function_stats, 2, COMMAND_NOSCRIPT | COMMAND_ALLOW_BUSY, "scripting",
         "Tells that there are no functions."),
    {0},
};

static const struct command module_subcommands[] = {
    PART("module", "help", module_help, 2, ANY_TIME, "server", "Lists the subcommands."),
    PART("module", "list", module_list, 2, COMMAND_ADMIN | COMMAND_NOSCRIPT, "server", "Returns an empty list."),
    {0},
};

#define REFUSED(name) \
    {name, refuse_cluster, 1, COMMAND_FAST | ANY_TIME, .group = "cluster", .summary = "Refused: there is no cluster."}

const struct command commands_absent[] = {
    {"asking", refuse_cluster, 1, COMMAND_FAST, .group = "cluster", .summary = "Refused: there is no cluster."},
    {"cluster", command_container, -2, 0, .group = "cluster", .summary = "Refused: there is no cluster.",
     .subcommands = cluster_subcommands},
    {"function", command_container, -2, 0, .group = "scripting", .summary = "Tells that there are no functions.",
     .subcommands = function_subcommands},
    {"module", command_container, -2, 0, .group = "server", .summary = "Tells that there are no modules.",
     .subcommands = module_subcommands},
    REFUSED("readonly"),
    REFUSED("readwrite"),
    {0},
};

/* cmd_config: CONFIG GET, SET and RESETSTAT. */
#include <string.h>

#include "server/admin/admin_subsystem.h"
#include "server/admin/rewrite.h"
#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/core/config.h"
#include "server/core/descriptors.h"
#include "server/core/secret_arguments.h"
#include "server/core/server.h"
#include "server/durability/append_log.h"
#include "server/durability/durability_subsystem.h"
#include "server/redis/keys/keyspace.h"
#include "store/glob.h"
#include "store/store.h"

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

/* The name as it is replied: as it was asked for, where that was by name. */
static void reply_name(struct client *client, const char *name) {
    for (uint32_t i = 2; i < client->argc; i++) {
        if (!argument_is(&client->argv[i], name)) continue;
        reply_bulk(client, client->argv[i].data, client->argv[i].length);
        return;
    }
    reply_bulk_string(client, name);
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
        reply_name(client, config_name(i));
        reply_bulk_string(client, value);
    }
}

static bool copy_argument(const struct resp_argument *argument, char *out, size_t size) {
    if (!argument->data || argument->length >= size || memchr(argument->data, '\0', argument->length)) return false;
    memcpy(out, argument->data, argument->length);
    out[argument->length] = '\0';
    return true;
}

/* What argument `index` and the one behind it are to set. False: the error is replied. */
static bool take_pair(struct client *client, uint32_t index, char name[64], char value[CONFIG_VALUE_BYTES]) {
    const struct resp_argument *word = &client->argv[index];
    if (!copy_argument(word, name, 64) || config_find(name) < 0) {
        reply_error(client, "ERR Unknown option or number of arguments for CONFIG SET - '%.*s'",
                    word->length < 128 ? (int)word->length : 128, (const char *)word->data);
        return false;
    }
    const char *wrong = NULL;
    for (uint32_t i = 2; i < index; i += 2)
        if (argument_is(&client->argv[i], name)) wrong = "duplicate parameter";
    if (!copy_argument(word + 1, value, CONFIG_VALUE_BYTES)) wrong = "the value is too long, or holds a zero byte";
    if (wrong)
        reply_error(client, "ERR CONFIG SET failed (possibly related to argument '%.*s') - %s", (int)word->length,
                    (const char *)word->data, wrong);
    return !wrong;
}

/* CONFIG SET name value …: all of them or none. */
static void config_set(struct client *client) {
    struct server *server = client->server;
    char name[64], value[CONFIG_VALUE_BYTES];
    if (client->argc % 2 != 0) {
        reply_syntax_error(client);
        return;
    }
    for (uint32_t i = 2; i < client->argc; i += 2)
        if (!take_pair(client, i, name, value)) return;
    struct server_config changed = server->config;
    for (uint32_t i = 2; i < client->argc; i += 2) {
        struct error error = {0};
        copy_argument(&client->argv[i], name, sizeof name);
        copy_argument(&client->argv[i + 1], value, sizeof value);
        if (config_assign(&changed, name, value, true, &error) == 0) continue;
        reply_error(client, "ERR CONFIG SET failed (possibly related to argument '%s') - %s", name, error.message);
        return;
    }
    if (changed.maxclients > server->config.maxclients) {
        int64_t wanted = changed.maxclients;
        struct error too_few;
        if (descriptors_raise(&changed, &too_few) < 0) changed.maxclients = server->config.maxclients;
        if (changed.maxclients < wanted) {
            reply_error(
                client,
                "ERR CONFIG SET failed (possibly related to argument 'maxclients') - The operating system is not "
                "able to handle the specified number of clients, try with %lld",
                (long long)changed.maxclients);
            return;
        }
    }
    struct error why;
    if (append_log_configure(server->durability->append_log, changed.appendonly, &why) < 0) {
        reply_error(client, "ERR CONFIG SET failed (possibly related to argument 'appendonly') - %s", why.message);
        return;
    }
    server->config = changed;
    config_apply(server);
    reply_status(client, "OK");
}

static void reset_stats(struct server *server) {
    server->error_stats = (struct error_stats){0};
    struct stats *stats = &server->stats;
    *stats = (struct stats){.started_us = stats->started_us, .sample_us = server->now_us};
    struct store *store = server->store;
    store->expired_keys = store->evicted_keys = store->keyspace_hits = store->keyspace_misses = 0;
    store->freed_in_slices = 0;
    server->durability->append_log->delayed_fsyncs = 0;
    for (size_t i = 0; i < command_table_count(server->commands); i++) {
        struct command_entry *entry = command_table_at(server->commands, i);
        memset(&entry->stats, 0, sizeof entry->stats);
        if (entry->times) request_times_reset(entry->times);
        for (size_t part = 0; part < entry->subcommand_count; part++)
            memset(&entry->subcommands[part].stats, 0, sizeof entry->subcommands[part].stats);
    }
}

static void config_resetstat(struct client *client) {
    reset_stats(client->server);
    reply_status(client, "OK");
}

static bool config_set_is_secret(uint32_t argc, const struct resp_argument *argv, uint32_t index) {
    (void)argc;
    return index >= 3 && index % 2 == 1 && config_is_secret(argv[index - 1].data, argv[index - 1].length);
}

#define RULE (COMMAND_ADMIN | COMMAND_NOSCRIPT | COMMAND_LOADING | COMMAND_STALE)

static const struct command subcommands[] = {
    {"config|get", config_get, -3, RULE, &group_server, "Returns settings.", "2.0.0",
     .usage = "<pattern> [<pattern> ...]"},
    {"config|help", reply_help, 2, COMMAND_LOADING | COMMAND_STALE, &group_server, "Lists the subcommands.", "5.0.0"},
    {"config|resetstat", config_resetstat, 2, RULE, &group_server, "Counts from zero again what INFO tells.", "2.0.0"},
    {"config|rewrite", rewrite_for_client, 2, RULE, &group_server,
     "Writes what CONFIG SET has changed into the configuration file.", "2.8.0"},
    {"config|set", config_set, -4, RULE, &group_server, "Changes settings, all of those given or none.", "2.0.0",
     .tips = "request_policy:all_nodes\nresponse_policy:all_succeeded", .is_secret = config_set_is_secret,
     .usage = "<directive> <value> [<directive> <value> ...]"},
    {0},
};

const struct command commands_config[] = {
    {"config", command_container, -2, 0, &group_server, "Reads and changes settings.", "2.0.0",
     .subcommands = subcommands},
    {0},
};

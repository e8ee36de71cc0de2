/* cmd_introspection: COMMAND and its subcommands, from which clients learn names, arities and keys. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "server/admin/admin_subsystem.h"
#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/core/server.h"
#include "server/redis/acl/acl_commands.h"
#include "server/redis/keys/keyspace.h"
#include "store/glob.h"

/* ---- INFO -------------------------------------------------------------------------------------------- */

static const struct {
    uint32_t flag;
    const char *name;
} flag_names[] = {
    {COMMAND_WRITE, "write"},
    {COMMAND_READONLY, "readonly"},
    {COMMAND_DENYOOM, "denyoom"},
    {COMMAND_ADMIN, "admin"},
    {COMMAND_PUBSUB, "pubsub"},
    {COMMAND_NOSCRIPT, "noscript"},
    {COMMAND_BLOCKING, "blocking"},
    {COMMAND_LOADING, "loading"},
    {COMMAND_STALE, "stale"},
    {COMMAND_SKIP_MONITOR, "skip_monitor"},
    {COMMAND_SKIP_SLOWLOG, "skip_slowlog"},
    {COMMAND_FAST, "fast"},
    {COMMAND_NOAUTH, "no_auth"},
    {COMMAND_NO_MANDATORY_KEYS, "no_mandatory_keys"},
    {COMMAND_NO_ASYNC_LOADING, "no_async_loading"},
    {COMMAND_NO_MULTI, "no_multi"},
    {COMMAND_MOVABLEKEYS, "movablekeys"},
    {COMMAND_ALLOW_BUSY, "allow_busy"},
};

static void reply_flags(struct client *client, uint32_t flags) {
    size_t count = 0;
    for (size_t i = 0; i < sizeof flag_names / sizeof *flag_names; i++) count += (flags & flag_names[i].flag) != 0;
    reply_set(client, count);
    for (size_t i = 0; i < sizeof flag_names / sizeof *flag_names; i++)
        if (flags & flag_names[i].flag) reply_status(client, flag_names[i].name);
}

/* A set of the pieces of a text between separators, each as a status (or as a bulk string). */
static void reply_pieces(struct client *client, const char *text, char separator, bool as_bulk) {
    size_t count = *text != '\0';
    for (const char *at = text; *at; at++) count += *at == separator;
    reply_set(client, count);
    while (*text) {
        const char *end = strchr(text, separator);
        size_t length = end ? (size_t)(end - text) : strlen(text);
        char piece[128];
        snprintf(piece, sizeof piece, "%.*s", (int)length, text);
        if (as_bulk)
            reply_bulk_string(client, piece);
        else
            reply_status(client, piece);
        text += length + (end != NULL);
    }
}

static void reply_categories(struct client *client, const struct command *command) {
    uint32_t categories = acl_categories(command);
    size_t count = 0;
    for (size_t i = 0; i < ACL_CATEGORIES; i++) count += categories >> i & 1;
    reply_set(client, count);
    for (size_t i = 0; i < ACL_CATEGORIES; i++) {
        char name[32];
        if (!(categories >> i & 1)) continue;
        snprintf(name, sizeof name, "@%s", acl_category_name(i));
        reply_status(client, name);
    }
}

static void reply_begin(struct client *client, const struct key_specification *specification) {
    bool is_known = specification->find != KEY_UNKNOWN, has_word = specification->find == KEY_AFTER_WORD;
    reply_bulk_string(client, "begin_search");
    reply_map(client, 2);
    reply_bulk_string(client, "type");
    reply_bulk_string(client, has_word ? "keyword" : is_known ? "index" : "unknown");
    reply_bulk_string(client, "spec");
    reply_map(client, (size_t)is_known + has_word);
    if (!is_known) return;
    if (has_word) {
        reply_bulk_string(client, "keyword");
        reply_bulk_string(client, specification->word);
    }
    reply_bulk_string(client, has_word ? "startfrom" : "index");
    reply_integer(client, specification->index);
}

static void reply_find(struct client *client, const struct key_specification *specification) {
    static const char *const words[][3] = {
        {"lastkey", "keystep", "limit"}, {"keynumidx", "firstkey", "keystep"}, {"lastkey", "keystep", "limit"}};
    static const char *const types[] = {"range", "keynum", "range", "unknown"};
    reply_bulk_string(client, "find_keys");
    reply_map(client, 2);
    reply_bulk_string(client, "type");
    reply_bulk_string(client, types[specification->find]);
    reply_bulk_string(client, "spec");
    reply_map(client, specification->find == KEY_UNKNOWN ? 0 : 3);
    for (int i = 0; i < 3 && specification->find != KEY_UNKNOWN; i++) {
        reply_bulk_string(client, words[specification->find][i]);
        reply_integer(client, specification->numbers[i]);
    }
}

/* Clients know those of Redis; of our own commands the first, the last and the step tell all. */
static void reply_key_specifications(struct client *client, const struct command *command) {
    size_t count = 0;
    while (command->since && command->keys && command->keys[count].flags) count++;
    reply_set(client, count);
    for (size_t i = 0; i < count; i++) {
        reply_map(client, 3);
        reply_bulk_string(client, "flags");
        reply_pieces(client, command->keys[i].flags, ' ', false);
        reply_begin(client, &command->keys[i]);
        reply_find(client, &command->keys[i]);
    }
}

/* The ten elements of Redis 7. */
static void reply_command_info(struct client *client, const struct command_entry *entry) {
    const struct command *command = entry->command;
    struct key_range range = command_key_range(command);
    reply_array(client, 10);
    reply_bulk_string(client, command->name);
    reply_integer(client, command->arity);
    reply_flags(client, command->flags);
    reply_integer(client, range.first);
    reply_integer(client, range.last);
    reply_integer(client, range.step);
    reply_categories(client, command);
    reply_pieces(client, command->tips ? command->tips : "", '\n', true);
    reply_key_specifications(client, command);
    reply_set(client, entry->subcommand_count);
    for (size_t i = 0; i < entry->subcommand_count; i++) reply_command_info(client, &entry->subcommands[i]);
}

static struct command_entry *entry_named(struct client *client, uint32_t index) {
    const struct resp_argument *name = &client->argv[index];
    return command_table_find(client->server->commands, name->data, name->length);
}

static void reply_all_info(struct client *client) {
    struct command_table *table = client->server->commands;
    reply_array(client, command_table_count(table));
    for (size_t i = 0; i < command_table_count(table); i++) reply_command_info(client, command_table_at(table, i));
}

/* COMMAND INFO [name …] */
static void command_info(struct client *client) {
    if (client->argc == 2) {
        reply_all_info(client);
        return;
    }
    reply_array(client, client->argc - 2);
    for (uint32_t i = 2; i < client->argc; i++) {
        const struct command_entry *entry = entry_named(client, i);
        if (entry)
            reply_command_info(client, entry);
        else
            reply_null(client);
    }
}

/* ---- DOCS, LIST, COUNT ------------------------------------------------------------------------------- */

static void reply_command_docs(struct client *client, const struct command_entry *entry) {
    const struct command *command = entry->command;
    reply_bulk_string(client, command->name);
    reply_map(client, entry->subcommand_count > 0 ? 4 : 3);
    reply_bulk_string(client, "summary");
    reply_bulk_string(client, command->summary);
    reply_bulk_string(client, "since");
    reply_bulk_string(client, command->since ? command->since : SERVER_VERSION);
    reply_bulk_string(client, "group");
    reply_bulk_string(client, command->group->name);
    if (entry->subcommand_count == 0) return;
    reply_bulk_string(client, "subcommands");
    reply_map(client, entry->subcommand_count);
    for (size_t i = 0; i < entry->subcommand_count; i++) reply_command_docs(client, &entry->subcommands[i]);
}

/* COMMAND DOCS [name …]: unknown names are left out. */
static void command_docs(struct client *client) {
    struct command_table *table = client->server->commands;
    if (client->argc == 2) {
        reply_map(client, command_table_count(table));
        for (size_t i = 0; i < command_table_count(table); i++) reply_command_docs(client, command_table_at(table, i));
        return;
    }
    size_t known = 0;
    for (uint32_t i = 2; i < client->argc; i++) known += entry_named(client, i) != NULL;
    reply_map(client, known);
    for (uint32_t i = 2; i < client->argc; i++) {
        const struct command_entry *entry = entry_named(client, i);
        if (entry) reply_command_docs(client, entry);
    }
}

enum list_filter { LIST_ALL, LIST_PATTERN, LIST_CATEGORY, LIST_MODULE };

static bool has_category(const struct command *command, const struct resp_argument *category) {
    return acl_categories(command) & acl_category_named((const char *)category->data, category->length);
}

static bool is_listed(const struct command *command, enum list_filter filter, const struct resp_argument *value) {
    if (filter == LIST_PATTERN) {
        char pattern[256];
        size_t length = value->length < sizeof pattern ? value->length : sizeof pattern;
        for (size_t i = 0; i < length; i++)
            pattern[i] =
                value->data[i] >= 'A' && value->data[i] <= 'Z' ? (char)(value->data[i] + 32) : (char)value->data[i];
        return glob_match((const uint8_t *)pattern, length, (const uint8_t *)command->name, strlen(command->name));
    }
    if (filter == LIST_CATEGORY) return has_category(command, value);
    return filter == LIST_ALL;
}

/* COMMAND LIST [FILTERBY MODULE|ACLCAT|PATTERN value] */
static void command_list(struct client *client) {
    struct command_table *table = client->server->commands;
    enum list_filter filter = LIST_ALL;
    const struct resp_argument *kind = &client->argv[3], *value = &client->argv[4];
    if (client->argc == 5 && argument_is(&client->argv[2], "filterby"))
        filter = argument_is(kind, "pattern")  ? LIST_PATTERN
                 : argument_is(kind, "aclcat") ? LIST_CATEGORY
                 : argument_is(kind, "module") ? LIST_MODULE
                                               : LIST_ALL;
    if (client->argc != 2 && filter == LIST_ALL) {
        reply_syntax_error(client);
        return;
    }
    size_t count = 0;
    size_t mark = reply_array_deferred(client);
    for (size_t i = 0; i < command_table_count(table); i++) {
        const struct command_entry *entry = command_table_at(table, i);
        for (size_t part = 0; part <= entry->subcommand_count; part++) {
            const struct command *command = part == 0 ? entry->command : entry->subcommands[part - 1].command;
            if (!is_listed(command, filter, value)) continue;
            reply_bulk_string(client, command->name);
            count++;
        }
    }
    reply_set_array_length(client, mark, count);
}

static void command_count(struct client *client) {
    reply_integer(client, (int64_t)command_table_count(client->server->commands));
}

/* ---- GETKEYS ----------------------------------------------------------------------------------------- */

/* Where keys would stand, only the names of shard channels do. */
static bool takes_keys(const struct command *command) {
    return command->keys && !(command->flags & COMMAND_PUBSUB);
}

/* Replies with the error and returns NULL where the command cannot have keys. */
static const struct command *command_with_keys(struct client *client) {
    uint32_t given = client->argc - 2;
    const struct command_entry *entry = command_table_find_request(client->server->commands, given, client->argv + 2);
    if (!entry || (entry->subcommand_count > 0 && entry->command->handler == command_container && given > 1)) {
        reply_error(client, "ERR Invalid command specified");
        return NULL;
    }
    if (!takes_keys(entry->command)) {
        reply_error(client, "ERR The command has no key arguments");
        return NULL;
    }
    if (!command_arity_holds(entry->command, given)) {
        reply_error(client, "ERR Invalid number of arguments specified for command");
        return NULL;
    }
    return entry->command;
}

static void getkeys(struct client *client, bool with_flags) {
    const struct command *command = command_with_keys(client);
    if (!command) return;
    uint32_t argc = client->argc - 2;
    struct resp_argument *argv = client->argv + 2;
    struct key_place *keys = memory_calloc(argc, sizeof *keys);
    if (!keys) {
        reply_out_of_memory(client);
        return;
    }
    int count = command_keys(command, argc, argv, keys, (int)argc);
    if (count <= 0 && !(command->flags & COMMAND_NO_MANDATORY_KEYS))
        reply_error(client, "ERR Invalid arguments specified for command");
    else
        reply_array(client, count > 0 ? (size_t)count : 0);
    for (int i = 0; i < count; i++) {
        const struct resp_argument *key = &argv[keys[i].index];
        if (with_flags) reply_array(client, 2);
        reply_bulk(client, key->data, key->length);
        if (!with_flags) continue;
        reply_pieces(client, key_place_flags(&keys[i]), ' ', false);
    }
    memory_free(keys);
}

/* COMMAND GETKEYS name argument … */
static void command_getkeys(struct client *client) {
    getkeys(client, false);
}

static void command_getkeysandflags(struct client *client) {
    getkeys(client, true);
}

static void command_command(struct client *client) {
    if (client->argc == 1)
        reply_all_info(client);
    else
        command_container(client);
}

#define ASK (COMMAND_LOADING | COMMAND_STALE)

static const struct command subcommands[] = {
    {"command|count", command_count, 2, ASK, &group_server, "Counts the commands.", "2.8.13",
     .categories = ACL_SLOW | ACL_CONNECTION},
    {"command|docs", command_docs, -2, ASK, &group_server, "Tells what commands are for.", "7.0.0",
     .tips = "nondeterministic_output_order", .categories = ACL_SLOW | ACL_CONNECTION, .usage = "[<command-name> ...]"},
    {"command|getkeys", command_getkeys, -4, ASK, &group_server, "Finds the keys of a command.", "2.8.13",
     .categories = ACL_SLOW | ACL_CONNECTION, .usage = "<full-command>"},
    {"command|getkeysandflags", command_getkeysandflags, -4, ASK, &group_server,
     "Finds the keys of a command and what it does to them.", "7.0.0", .categories = ACL_SLOW | ACL_CONNECTION,
     .usage = "<full-command>"},
    {"command|help", reply_help, 2, ASK, &group_server, "Lists the subcommands.", "5.0.0",
     .categories = ACL_SLOW | ACL_CONNECTION},
    {"command|info", command_info, -2, ASK, &group_server, "Tells of commands: arity, flags, keys, categories.",
     "2.8.13", .tips = "nondeterministic_output_order", .categories = ACL_SLOW | ACL_CONNECTION,
     .usage = "[<command-name> ...]"},
    {"command|list", command_list, -2, ASK, &group_server, "Lists the names of commands.", "7.0.0",
     .tips = "nondeterministic_output_order", .categories = ACL_SLOW | ACL_CONNECTION,
     .usage = "[FILTERBY MODULE|ACLCAT|PATTERN <value>]"},
    {0},
};

const struct command commands_introspection[] = {
    {"command", command_command, -1, ASK, &group_server, "Lists the commands and what they take.", "2.8.13",
     .tips = "nondeterministic_output_order", .categories = ACL_SLOW | ACL_CONNECTION, .subcommands = subcommands},
    {0},
};

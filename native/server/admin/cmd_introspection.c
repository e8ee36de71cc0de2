/* cmd_introspection: COMMAND and its subcommands, from which clients learn names, arities and keys. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "server/acl/acl_commands.h"
#include "server/admin/command_facts.h"
#include "server/client.h"
#include "server/command/command_table.h"
#include "server/server.h"
#include "server/store/keyspace.h"
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
    for (size_t i = 0; i < sizeof flag_names / sizeof *flag_names; i++) {
        if (flags & flag_names[i].flag) reply_status(client, flag_names[i].name);
    }
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

/* Categories of a command that Redis does not have. */
static void own_categories(const struct command *command, char *out, size_t size) {
    uint32_t categories = acl_categories(command);
    size_t length = 0;
    for (size_t i = 0; i < ACL_CATEGORIES; i++) {
        if (!(categories & 1u << i)) continue;
        int more = snprintf(out + length, size - length, "%s@%s", length ? " " : "", acl_category_name(i));
        if (more < 0 || (size_t)more >= size - length) break;
        length += (size_t)more;
    }
    out[length] = '\0';
}

static void reply_begin(struct client *client, const struct key_specification *specification) {
    reply_bulk_string(client, "begin_search");
    reply_map(client, 2);
    reply_bulk_string(client, "type");
    reply_bulk_string(client, specification->begin == KEY_BEGIN_INDEX     ? "index"
                              : specification->begin == KEY_BEGIN_KEYWORD ? "keyword"
                                                                          : "unknown");
    reply_bulk_string(client, "spec");
    reply_map(client, specification->begin == KEY_BEGIN_INDEX ? 1 : specification->begin == KEY_BEGIN_KEYWORD ? 2 : 0);
    if (specification->begin == KEY_BEGIN_INDEX) {
        reply_bulk_string(client, "index");
        reply_integer(client, specification->index);
    } else if (specification->begin == KEY_BEGIN_KEYWORD) {
        reply_bulk_string(client, "keyword");
        reply_bulk_string(client, specification->keyword);
        reply_bulk_string(client, "startfrom");
        reply_integer(client, specification->index);
    }
}

static void reply_find(struct client *client, const struct key_specification *specification) {
    static const char *const words[2][3] = {{"lastkey", "keystep", "limit"}, {"keynumidx", "firstkey", "keystep"}};
    static const char *const types[] = {"range", "keynum", "unknown"};
    reply_bulk_string(client, "find_keys");
    reply_map(client, 2);
    reply_bulk_string(client, "type");
    reply_bulk_string(client, types[specification->find]);
    reply_bulk_string(client, "spec");
    reply_map(client, specification->find == KEY_FIND_UNKNOWN ? 0 : 3);
    for (int i = 0; i < 3 && specification->find != KEY_FIND_UNKNOWN; i++) {
        reply_bulk_string(client, words[specification->find][i]);
        reply_integer(client, specification->numbers[i]);
    }
}

static void reply_key_specifications(struct client *client, const struct command_facts *facts) {
    struct key_specification specification;
    size_t count = 0;
    for (const char *line = facts ? facts->keys : ""; key_specification_next(&line, &specification);) count++;
    reply_set(client, count);
    for (const char *line = facts ? facts->keys : ""; key_specification_next(&line, &specification);) {
        reply_map(client, 3);
        reply_bulk_string(client, "flags");
        reply_pieces(client, specification.flags, ' ', false);
        reply_begin(client, &specification);
        reply_find(client, &specification);
    }
}

/* The ten elements of Redis 7. */
static void reply_command_info(struct client *client, const struct command_entry *entry) {
    const struct command *command = entry->command;
    const struct command_facts *facts = command_facts_find(command->name);
    char categories[128];
    if (!facts) own_categories(command, categories, sizeof categories);
    reply_array(client, 10);
    reply_bulk_string(client, command->name);
    reply_integer(client, command->arity);
    reply_flags(client, command->flags);
    reply_integer(client, command->first_key);
    reply_integer(client, command->last_key);
    reply_integer(client, command->key_step);
    reply_pieces(client, facts ? facts->categories : categories, ' ', false);
    reply_pieces(client, facts ? facts->tips : "", '\n', true);
    reply_key_specifications(client, facts);
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
    const struct command_facts *facts = command_facts_find(command->name);
    reply_bulk_string(client, command->name);
    reply_map(client, entry->subcommand_count > 0 ? 4 : 3);
    reply_bulk_string(client, "summary");
    reply_bulk_string(client, command->summary ? command->summary : "");
    reply_bulk_string(client, "since");
    reply_bulk_string(client, facts ? facts->since : SERVER_VERSION);
    reply_bulk_string(client, "group");
    reply_bulk_string(client, command->group);
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
    const struct command_facts *facts = command_facts_find(command->name);
    char own[128], wanted[64];
    if (!facts) own_categories(command, own, sizeof own);
    int length = snprintf(wanted, sizeof wanted, "@%.*s",
                          category->length < sizeof wanted - 2 ? (int)category->length : (int)sizeof wanted - 2,
                          (const char *)category->data);
    const char *categories = facts ? facts->categories : own;
    for (const char *at = strcasestr(categories, wanted); at; at = strcasestr(at + 1, wanted)) {
        if (at[length] == '\0' || at[length] == ' ') return true;
    }
    return false;
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

static bool has_word(uint32_t argc, const struct resp_argument *argv, uint32_t from, const char *word) {
    for (uint32_t i = from; i < argc; i++) {
        if (argument_is(&argv[i], word)) return true;
    }
    return false;
}

/* What some commands do to their key depends on the other arguments. */
static void settle_flags(const struct command *command, uint32_t argc, const struct resp_argument *argv,
                         struct flagged_key *key) {
    if (!strstr(key->flags, "variable_flags")) return;
    const char *flags = "RW access update";
    if (strcmp(command->name, "set") == 0 && !has_word(argc, argv, 3, "get")) flags = "OW update";
    if (strcmp(command->name, "bitfield") == 0 && !has_word(argc, argv, 2, "set") && !has_word(argc, argv, 2, "incrby"))
        flags = "RO access";
    snprintf(key->flags, sizeof key->flags, "%s", flags);
}

/* As command_facts_keys, for commands whose keys only their own function finds too. */
static int find_keys(const struct command *command, uint32_t argc, const struct resp_argument *argv,
                     struct flagged_key *keys, int max) {
    const struct command_facts *facts = command_facts_find(command->name);
    int count = facts ? command_facts_keys(facts, argc, argv, keys, max) : -1;
    if (count >= 0 || (facts && !command->keys)) return count;
    struct key_place *places = memory_calloc((size_t)max, sizeof *places);
    if (!places) return -1;
    count = command_keys(command, argc, argv, places, max);
    for (int i = 0; i < count && i < max; i++) {
        keys[i].index = places[i].index;
        const char *flags = places[i].access == KEY_READ    ? "RO access"
                            : places[i].access == KEY_WRITE ? "OW update"
                                                            : "RW access update";
        snprintf(keys[i].flags, sizeof keys[i].flags, "%s", flags);
    }
    memory_free(places);
    return count;
}

static bool takes_keys(const struct command *command) {
    const struct command_facts *facts = command_facts_find(command->name);
    if (facts && strstr(facts->keys, "not_key")) return false; /* shard channels only stand where keys would */
    return command->first_key != 0 || command->keys || (facts && facts->keys[0]);
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
    struct flagged_key *keys = memory_calloc(argc, sizeof *keys);
    if (!keys) {
        reply_out_of_memory(client);
        return;
    }
    int count = find_keys(command, argc, argv, keys, (int)argc);
    if (count <= 0 && !(command->flags & COMMAND_NO_MANDATORY_KEYS))
        reply_error(client, "ERR Invalid arguments specified for command");
    else
        reply_array(client, count > 0 ? (size_t)count : 0);
    for (int i = 0; i < count; i++) {
        const struct resp_argument *key = &argv[keys[i].index];
        if (with_flags) reply_array(client, 2);
        reply_bulk(client, key->data, key->length);
        if (!with_flags) continue;
        settle_flags(command, argc, argv, &keys[i]);
        reply_pieces(client, keys[i].flags, ' ', false);
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

static void command_help(struct client *client) {
    static const char *const lines[] = {
        "COMMAND <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "(no subcommand)",
        "    Tell of all commands, as INFO does.",
        "COUNT",
        "    How many commands there are.",
        "DOCS [<command-name> ...]",
        "    What commands are for.",
        "GETKEYS <full-command>",
        "    The keys among the words of a command.",
        "GETKEYSANDFLAGS <full-command>",
        "    The keys, and what the command does to each.",
        "INFO [<command-name> ...]",
        "    Arity, flags, keys and categories of commands.",
        "LIST [FILTERBY MODULE|ACLCAT|PATTERN <value>]",
        "    The names of all commands.",
        "HELP",
        "    Print this help.",
        NULL,
    };
    reply_help(client, lines);
}

static void command_command(struct client *client) {
    if (client->argc == 1)
        reply_all_info(client);
    else
        command_container(client);
}

#define ASK (COMMAND_LOADING | COMMAND_STALE)
#define PART(word, handler, arity, summary) {"command|" word, handler, arity, ASK, 0, 0, 0, "server", summary}

static const struct command subcommands[] = {
    PART("count", command_count, 2, "Counts the commands."),
    PART("docs", command_docs, -2, "Tells what commands are for."),
    PART("getkeys", command_getkeys, -4, "Finds the keys of a command."),
    PART("getkeysandflags", command_getkeysandflags, -4, "Finds the keys of a command and what it does to them."),
    PART("help", command_help, 2, "Lists the subcommands."),
    PART("info", command_info, -2, "Tells of commands: arity, flags, keys, categories."),
    PART("list", command_list, -2, "Lists the names of commands."),
    {0},
};

const struct command commands_introspection[] = {
    {"command", command_command, -1, ASK, .group = "server", .summary = "Lists the commands and what they take.",
     .subcommands = subcommands},
    {0},
};

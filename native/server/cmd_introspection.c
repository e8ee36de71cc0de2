/* cmd_introspection: COMMAND and its subcommands, from which clients learn names, arities and keys. */
#include <string.h>

#include "server/client.h"
#include "server/command_table.h"
#include "server/keyspace.h"
#include "server/server.h"
#include "store/glob.h"

static const struct {
    uint32_t flag;
    const char *name;
} flag_names[] = {
    {COMMAND_WRITE, "write"},       {COMMAND_READONLY, "readonly"}, {COMMAND_DENYOOM, "denyoom"},
    {COMMAND_ADMIN, "admin"},       {COMMAND_FAST, "fast"},         {COMMAND_NOAUTH, "no_auth"},
    {COMMAND_BLOCKING, "blocking"}, {COMMAND_LOADING, "loading"},
};

static void reply_flags(struct client *client, const struct command *command) {
    size_t count = 0;
    for (size_t i = 0; i < sizeof flag_names / sizeof *flag_names; i++)
        count += (command->flags & flag_names[i].flag) != 0;
    reply_set(client, count);
    for (size_t i = 0; i < sizeof flag_names / sizeof *flag_names; i++) {
        if (command->flags & flag_names[i].flag) reply_status(client, flag_names[i].name);
    }
}

/* The ten elements of Redis 7; categories, tips, key specifications and subcommands are empty. */
static void reply_command_info(struct client *client, const struct command *command) {
    reply_array(client, 10);
    reply_bulk_string(client, command->name);
    reply_integer(client, command->arity);
    reply_flags(client, command);
    reply_integer(client, command->first_key);
    reply_integer(client, command->last_key);
    reply_integer(client, command->key_step);
    reply_set(client, 0);
    reply_array(client, 0);
    reply_array(client, 0);
    reply_array(client, 0);
}

static const struct command *command_named(struct client *client, const struct resp_argument *name) {
    struct command_entry *entry = command_table_find(client->server->commands, name->data, name->length);
    return entry ? entry->command : NULL;
}

static void command_all(struct client *client) {
    struct command_table *table = client->server->commands;
    reply_array(client, command_table_count(table));
    for (size_t i = 0; i < command_table_count(table); i++)
        reply_command_info(client, command_table_at(table, i)->command);
}

/* COMMAND INFO [name …] */
static void command_info(struct client *client) {
    if (client->argc == 2) {
        command_all(client);
        return;
    }
    reply_array(client, client->argc - 2);
    for (uint32_t i = 2; i < client->argc; i++) {
        const struct command *command = command_named(client, &client->argv[i]);
        if (command)
            reply_command_info(client, command);
        else
            reply_null_array(client);
    }
}

static void reply_command_docs(struct client *client, const struct command *command) {
    bool own = strchr(command->name, '.') != NULL;
    reply_bulk_string(client, command->name);
    reply_map(client, 3);
    reply_bulk_string(client, "summary");
    reply_bulk_string(client, command->summary);
    reply_bulk_string(client, "since");
    reply_bulk_string(client, own ? SERVER_VERSION : "1.0.0");
    reply_bulk_string(client, "group");
    reply_bulk_string(client, command->group);
}

/* COMMAND DOCS [name …]: unknown names are left out. */
static void command_docs(struct client *client) {
    struct command_table *table = client->server->commands;
    if (client->argc == 2) {
        reply_map(client, command_table_count(table));
        for (size_t i = 0; i < command_table_count(table); i++)
            reply_command_docs(client, command_table_at(table, i)->command);
        return;
    }
    size_t known = 0;
    for (uint32_t i = 2; i < client->argc; i++) known += command_named(client, &client->argv[i]) != NULL;
    reply_map(client, known);
    for (uint32_t i = 2; i < client->argc; i++) {
        const struct command *command = command_named(client, &client->argv[i]);
        if (command) reply_command_docs(client, command);
    }
}

/* COMMAND LIST [FILTERBY PATTERN glob] */
static void command_list(struct client *client) {
    struct command_table *table = client->server->commands;
    const struct resp_argument *pattern = NULL;
    if (client->argc == 5 && argument_is(&client->argv[2], "filterby") && argument_is(&client->argv[3], "pattern")) {
        pattern = &client->argv[4];
    } else if (client->argc != 2) {
        reply_syntax_error(client);
        return;
    }
    size_t count = 0;
    size_t mark = reply_array_deferred(client);
    for (size_t i = 0; i < command_table_count(table); i++) {
        const char *name = command_table_at(table, i)->command->name;
        if (pattern && !glob_match(pattern->data, pattern->length, (const uint8_t *)name, strlen(name))) continue;
        reply_bulk_string(client, name);
        count++;
    }
    reply_set_array_length(client, mark, count);
}

/* COMMAND GETKEYS name argument … */
static void command_getkeys(struct client *client) {
    uint32_t given = client->argc - 2;
    const struct command *command = command_named(client, &client->argv[2]);
    if (!command) {
        reply_error(client, "ERR Invalid command specified");
        return;
    }
    if (command->first_key == 0) {
        reply_error(client, "ERR The command has no key arguments");
        return;
    }
    if ((command->arity > 0 && (int64_t)given != command->arity) || (int64_t)given < -(int64_t)command->arity) {
        reply_error(client, "ERR Invalid number of arguments specified for command");
        return;
    }
    int64_t last = command->last_key >= 0 ? command->last_key : (int64_t)given + command->last_key;
    size_t count = 0;
    size_t mark = reply_array_deferred(client);
    for (int64_t i = command->first_key; i <= last && i < (int64_t)given; i += command->key_step) {
        const struct resp_argument *key = &client->argv[2 + i];
        reply_bulk(client, key->data, key->length);
        count++;
    }
    reply_set_array_length(client, mark, count);
}

static void command_command(struct client *client) {
    if (client->argc == 1)
        command_all(client);
    else if (argument_is(&client->argv[1], "count") && client->argc == 2)
        reply_integer(client, (int64_t)command_table_count(client->server->commands));
    else if (argument_is(&client->argv[1], "info"))
        command_info(client);
    else if (argument_is(&client->argv[1], "docs"))
        command_docs(client);
    else if (argument_is(&client->argv[1], "list"))
        command_list(client);
    else if (argument_is(&client->argv[1], "getkeys") && client->argc >= 3)
        command_getkeys(client);
    else if (argument_is(&client->argv[1], "count") || argument_is(&client->argv[1], "getkeys"))
        reply_subcommand_arity_error(client);
    else
        reply_unknown_subcommand(client);
}

const struct command commands_introspection[] = {
    {"command", command_command, -1, COMMAND_LOADING, 0, 0, 0, "server", "Lists the commands and what they take.",
     NULL},
    {0},
};

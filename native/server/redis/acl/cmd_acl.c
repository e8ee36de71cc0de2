/* cmd_acl: ACL and its subcommands. */
#include <string.h>

#include "base/random.h"
#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/core/server.h"
#include "server/redis/acl/acl.h"
#include "server/redis/keys/keyspace.h"
#include "server/redis/redis_rows.h"
#include "server/redis/redis_subsystem.h"

#define GENPASS_MOST_BITS 4096
#define NAME_SHOWN 128

static int shown(const struct resp_argument *argument) {
    return !argument->data ? 0 : argument->length < NAME_SHOWN ? (int)argument->length : NAME_SHOWN;
}

/* More arguments than any form of the subcommand has. */
static void reply_wrong_use(struct client *client) {
    reply_error(client, "ERR unknown subcommand or wrong number of arguments for '%.*s'. Try ACL HELP.",
                shown(&client->argv[1]), (const char *)client->argv[1].data);
}

/* ---- users ------------------------------------------------------------------------------------------- */

static void acl_users(struct client *client) {
    const struct acl *acl = client->server->redis->acl;
    reply_array(client, acl->count);
    for (uint32_t i = 0; i < acl->count; i++) reply_bulk(client, acl->users[i]->name, acl->users[i]->name_length);
}

static void acl_list(struct client *client) {
    const struct acl *acl = client->server->redis->acl;
    reply_array(client, acl->count);
    for (uint32_t i = 0; i < acl->count; i++) {
        struct text text = {0};
        text_append(&text, "user %s ", acl->users[i]->name);
        acl_describe_user(acl->commands, acl->users[i], &text);
        reply_bulk_text(client, &text);
    }
}

static void acl_whoami(struct client *client) {
    if (client->user)
        reply_bulk(client, client->user->name, client->user->name_length);
    else
        reply_null(client);
}

static void acl_setuser(struct client *client) {
    const struct resp_argument *name = &client->argv[2];
    if (!name->data || !acl_name_is_fine((const char *)name->data, name->length)) {
        reply_error(client, "ERR Usernames can't contain spaces or null characters");
        return;
    }
    struct text why = {0};
    if (acl_set_user(client->server->redis->acl, (const char *)name->data, name->length, client->argv + 3,
                     client->argc - 3, &why)) {
        struct acl *acl = client->server->redis->acl;
        acl_close_subscribers(acl, acl_find(acl, name->data, name->length), client);
        reply_status(client, "OK");
    } else {
        reply_error(client, "ERR %s", why.data ? why.data : "no memory");
    }
    text_free(&why);
}

static void acl_deluser(struct client *client) {
    for (uint32_t i = 2; i < client->argc; i++) {
        const struct resp_argument *name = &client->argv[i];
        if (name->length == 7 && name->data && memcmp(name->data, "default", 7) == 0) {
            reply_error(client, "ERR The 'default' user cannot be removed");
            return;
        }
    }
    int64_t removed = 0;
    for (uint32_t i = 2; i < client->argc; i++)
        removed += acl_remove_user(client->server->redis->acl, client->argv[i].data, client->argv[i].length, client);
    reply_integer(client, removed);
}

/* ---- GETUSER ----------------------------------------------------------------------------------------- */

static void reply_flags(struct client *client, const struct acl_user *user) {
    static const struct {
        uint32_t flag;
        const char *name;
    } names[] = {{ACL_USER_ON, "on"},
                 {ACL_USER_OFF, "off"},
                 {ACL_USER_NO_PASSWORD, "nopass"},
                 {ACL_USER_SKIP_SANITIZE, "skip-sanitize-payload"},
                 {ACL_USER_SANITIZE, "sanitize-payload"}};
    size_t count = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) count += (user->flags & names[i].flag) != 0;
    reply_set(client, count);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (user->flags & names[i].flag) reply_bulk_string(client, names[i].name);
}

/* Three fields of a map. */
static void reply_selector(struct client *client, const struct acl_selector *selector) {
    struct text commands = {0}, keys = {0}, channels = {0};
    acl_describe_commands(client->server->redis->acl->commands, selector, &commands);
    acl_describe_keys(selector, &keys);
    acl_describe_channels(selector, &channels);
    reply_bulk_string(client, "commands");
    reply_bulk_text(client, &commands);
    reply_bulk_string(client, "keys");
    reply_bulk_text(client, &keys);
    reply_bulk_string(client, "channels");
    reply_bulk_text(client, &channels);
}

static void acl_getuser(struct client *client) {
    const struct acl_user *user = acl_find(client->server->redis->acl, client->argv[2].data, client->argv[2].length);
    if (!user) {
        reply_null(client);
        return;
    }
    reply_map(client, 6);
    reply_bulk_string(client, "flags");
    reply_flags(client, user);
    reply_bulk_string(client, "passwords");
    reply_array(client, user->hash_count);
    for (uint32_t i = 0; i < user->hash_count; i++) reply_bulk_string(client, user->hashes[i]);
    reply_selector(client, user->selectors[0]);
    reply_bulk_string(client, "selectors");
    reply_array(client, user->selector_count - 1);
    for (uint32_t i = 1; i < user->selector_count; i++) {
        reply_map(client, 3);
        reply_selector(client, user->selectors[i]);
    }
}

/* ---- what there is, and what would be allowed -------------------------------------------------------- */

static void acl_cat(struct client *client) {
    const struct acl_commands *commands = client->server->redis->acl->commands;
    if (client->argc == 2) {
        reply_array(client, ACL_CATEGORIES);
        for (size_t i = 0; i < ACL_CATEGORIES; i++) reply_bulk_string(client, acl_category_name(i));
        return;
    }
    const struct resp_argument *name = &client->argv[2];
    uint32_t category = name->data ? acl_category_named((const char *)name->data, name->length) : 0;
    if (client->argc > 3) {
        reply_wrong_use(client);
        return;
    }
    if (category == 0) {
        reply_error(client, "ERR Unknown category '%.*s'", shown(name), (const char *)name->data);
        return;
    }
    size_t count = 0, mark = reply_array_deferred(client);
    for (uint32_t i = 0; i < commands->count; i++) {
        const struct acl_item *item = &commands->items[i];
        if (item->is_absent || !(item->categories & category)) continue;
        reply_bulk_string(client, item->name);
        count++;
    }
    reply_set_array_length(client, mark, count);
}

static void reply_verdict(struct client *client, enum acl_verdict verdict, const struct acl_item *item,
                          const struct resp_argument *argument) {
    if (verdict == ACL_ALLOWED)
        reply_status(client, "OK");
    else if (verdict == ACL_DENIED_COMMAND)
        reply_bulk_format(client, "This user has no permissions to run the '%s' command", item->name);
    else
        reply_bulk_format(client, "This user has no permissions to access the '%.*s' %s", (int)argument->length,
                          (const char *)argument->data, verdict == ACL_DENIED_KEY ? "key" : "channel");
}

/* ACL DRYRUN user command [argument …] */
static void acl_dryrun(struct client *client) {
    const struct acl *acl = client->server->redis->acl;
    const struct resp_argument *name = &client->argv[2], *argv = client->argv + 3;
    uint32_t argc = client->argc - 3, at;
    const struct acl_user *user = acl_find(acl, name->data, name->length);
    if (!user) {
        reply_error(client, "ERR User '%.*s' not found", shown(name), (const char *)name->data);
        return;
    }
    const struct command_entry *entry = command_table_find_request(client->server->commands, argc, argv);
    const struct acl_item *item = entry ? acl_commands_of_request(acl->commands, entry, argc, argv) : NULL;
    if (!item || item->is_absent || (item->subcommands > 0 && argc > 1)) { /* a container whose part is not known */
        reply_error(client, "ERR Command '%.*s' not found", shown(&argv[0]), (const char *)argv[0].data);
        return;
    }
    if ((item->arity > 0 && (int64_t)argc != item->arity) || (int64_t)argc < -(int64_t)item->arity) {
        reply_error(client, "ERR wrong number of arguments for '%s' command", item->name);
        return;
    }
    enum acl_verdict verdict = acl_check(acl, user, item, argc, argv, &at);
    reply_verdict(client, verdict, item, &argv[at]);
}

/* ---- the rest ---------------------------------------------------------------------------------------- */

static void acl_genpass(struct client *client) {
    int64_t bits = 256;
    if (client->argc > 3) {
        reply_wrong_use(client);
        return;
    }
    if (client->argc == 3 && !integer_argument(client, 2, &bits)) return;
    if (bits <= 0 || bits > GENPASS_MOST_BITS) {
        reply_error(client,
                    "ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up "
                    "to %d",
                    GENPASS_MOST_BITS);
        return;
    }
    char password[GENPASS_MOST_BITS / 4];
    size_t length = (size_t)(bits + 3) / 4;
    uint8_t random[16];
    for (size_t i = 0; i < length; i++) {
        if (i % sizeof random == 0 && !random_secret(random, sizeof random)) {
            reply_error(client, "ERR the system has no random numbers for secrets yet; try again later");
            return;
        }
        password[i] = "0123456789abcdef"[random[i % sizeof random] & 15];
    }
    reply_bulk(client, password, length);
}

static void acl_log(struct client *client) {
    int64_t count = 10;
    if (client->argc > 3) {
        reply_wrong_use(client);
    } else if (client->argc == 3 && argument_is(&client->argv[2], "reset")) {
        acl_log_clear(&client->server->redis->acl->log);
        reply_status(client, "OK");
    } else if (client->argc == 2 || integer_argument(client, 2, &count)) {
        acl_log_reply(client, count > 0 ? (uint64_t)count : 0);
    }
}

static bool has_file(struct client *client) {
    if (client->server->config.aclfile[0] != '\0') return true;
    reply_error(
        client,
        "ERR This Redis instance is not configured to use an ACL file. You may want to specify users via the ACL "
        "SETUSER command and then issue a CONFIG REWRITE (assuming you have a Redis configuration file set) in "
        "order to store users in the Redis configuration.");
    return false;
}

static void acl_file_command(struct client *client, bool save) {
    struct acl *acl = client->server->redis->acl;
    struct text why = {0};
    if (!has_file(client)) return;
    const char *path = client->server->config.aclfile;
    if (save ? acl_save(acl, path, &why) : acl_load(acl, path, client, &why))
        reply_status(client, "OK");
    else
        reply_error(client, "ERR %s", why.data ? why.data : "no memory");
    text_free(&why);
}

static void acl_load_command(struct client *client) {
    acl_file_command(client, false);
}

static void acl_save_command(struct client *client) {
    acl_file_command(client, true);
}

static bool setuser_is_secret(uint32_t argc, const struct resp_argument *argv, uint32_t index) {
    (void)argc;
    (void)argv;
    return index >= 2;
}

#define READS COMMAND_NOSCRIPT | COMMAND_LOADING | COMMAND_STALE
#define CHANGES COMMAND_ADMIN | COMMAND_NOSCRIPT | COMMAND_LOADING | COMMAND_STALE

static const struct command parts[] = {
    {"acl|cat", acl_cat, -2, READS, &group_server, "Returns the categories of commands, or the commands of one.",
     "6.0.0", .usage = "[<category>]"},
    {"acl|deluser", acl_deluser, -3, CHANGES, &group_server, "Removes users and closes their connections.", "6.0.0",
     .usage = "<username> [<username> ...]"},
    {"acl|dryrun", acl_dryrun, -4, CHANGES, &group_server, "Tells whether a user might run a command.", "7.0.0",
     .usage = "<username> <command> [<arg> ...]"},
    {"acl|genpass", acl_genpass, -2, READS, &group_server, "Returns a random password.", "6.0.0", .usage = "[<bits>]"},
    {"acl|getuser", acl_getuser, 3, CHANGES, &group_server, "Returns what a user has and may do.", "6.0.0",
     .usage = "<username>"},
    {"acl|help", reply_help, 2, COMMAND_LOADING | COMMAND_STALE, &group_server, "Tells the subcommands.", "6.0.0"},
    {"acl|list", acl_list, 2, CHANGES, &group_server, "Returns all users as lines of the ACL file.", "6.0.0"},
    {"acl|load", acl_load_command, 2, CHANGES, &group_server, "Takes the users from the ACL file.", "6.0.0"},
    {"acl|log", acl_log, -2, CHANGES, &group_server, "Returns what was refused lately, or forgets it.", "6.0.0",
     .usage = "[<count> | RESET]"},
    {"acl|save", acl_save_command, 2, CHANGES, &group_server, "Writes the users to the ACL file.", "6.0.0"},
    {"acl|setuser", acl_setuser, -3, CHANGES, &group_server, "Makes or changes a user.", "6.0.0",
     .is_secret = setuser_is_secret, .usage = "<username> <attribute> [<attribute> ...]"},
    {"acl|users", acl_users, 2, CHANGES, &group_server, "Returns the names of all users.", "6.0.0"},
    {"acl|whoami", acl_whoami, 2, READS, &group_server, "Returns the user of this connection.", "6.0.0"},
    {0},
};

const struct command commands_acl[] = {
    {"acl", command_container, -2, 0, &group_server, "Shows and changes users and what they may do.", "6.0.0",
     .subcommands = parts},
    {0},
};

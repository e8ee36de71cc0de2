/* cmd_database: commands that bring keys from one database to another. Order of checks and error texts follow Redis
 * 7.0's db.c. */
#include <string.h>

#include "server/core/command_table.h"
#include "server/redis/keys/cmd_keys.h"
#include "server/redis/keys/key_wait.h"
#include "server/redis/keys/keyspace.h"
#include "server/redis/pubsub/notify.h"
#include "server/redis/redis_rows.h"
#include "server/redis/transaction/watch.h"

static bool is_database(int64_t number) {
    return number >= 0 && number < STORE_DATABASES;
}

static void reply_no_such_database(struct client *client) {
    reply_error(client, "ERR DB index is out of range");
}

static void reply_same_objects(struct client *client) {
    reply_error(client, "ERR source and destination objects are the same");
}

/* The number of a database; false: the error is replied. */
static bool database_argument(struct client *client, uint32_t index, unsigned *database) {
    int64_t number;
    if (!integer_argument(client, index, &number)) return false;
    if (number < INT32_MIN || number > INT32_MAX) {
        reply_error(client, "ERR value is out of range, value must between -2147483648 and 2147483647");
        return false;
    }
    if (!is_database(number)) {
        reply_no_such_database(client);
        return false;
    }
    *database = (unsigned)number;
    return true;
}

/* ---- COPY -------------------------------------------------------------------------------------------------------- */

struct copy_options {
    unsigned database; /* of the copy */
    bool replaces;
};

static bool copy_options_parse(struct client *client, struct copy_options *options) {
    *options = (struct copy_options){.database = (unsigned)client->database};
    for (uint32_t i = 3; i < client->argc; i++) {
        if (argument_is(&client->argv[i], "replace")) {
            options->replaces = true;
        } else if (argument_is(&client->argv[i], "db") && i + 1 < client->argc) {
            if (!database_argument(client, ++i, &options->database)) return false;
        } else {
            reply_syntax_error(client);
            return false;
        }
    }
    return true;
}

/* The copy in its place, with the source's expiry. False: memory is exhausted, and there is no copy. */
static bool copy_key(struct client *client, const struct dict_entry *source, const struct copy_options *options) {
    struct store *store = client->server->store;
    const struct resp_argument *key = &client->argv[2];
    int64_t at_ms;
    bool ends = store_expiry(store, (unsigned)client->database, source, &at_ms);
    struct value *value = value_copy(store_value(source));
    if (!value) return false;
    struct dict_entry *copy = store_put(store, options->database, key->data, key->length, value, false);
    if (!copy) {
        value_free(value);
        return false;
    }
    if (!ends || store_expire_at(store, options->database, copy, at_ms)) return true;
    store_remove(store, options->database, copy);
    return false;
}

static void copy_command(struct client *client) {
    struct copy_options options;
    if (!copy_options_parse(client, &options)) return;
    if (client->server->config.cluster_enabled && options.database != 0) {
        reply_error(client, "ERR Copying to another database is not allowed in cluster mode");
        return;
    }
    const struct resp_argument *key = &client->argv[2];
    if (options.database == (unsigned)client->database && key->length == client->argv[1].length &&
        (key->length == 0 || memcmp(key->data, client->argv[1].data, key->length) == 0)) {
        reply_same_objects(client);
        return;
    }
    const struct dict_entry *source = keyspace_find_read(client, 1);
    if (!source) {
        reply_integer(client, 0);
        return;
    }
    bool there = store_find(client->server->store, options.database, key->data, key->length);
    if (there && !options.replaces)
        reply_integer(client, 0);
    else if (copy_key(client, source, &options))
        reply_integer(client, 1);
    else
        reply_out_of_memory(client);
}

/* ---- MOVE and SWAPDB --------------------------------------------------------------------------------------------- */

static void move_command(struct client *client) {
    unsigned target, database = (unsigned)client->database;
    if (client->server->config.cluster_enabled) {
        reply_error(client, "ERR MOVE is not allowed in cluster mode");
        return;
    }
    struct store *store = client->server->store;
    const struct resp_argument *key = &client->argv[1];
    if (!database_argument(client, 2, &target)) return;
    if (target == database) {
        reply_same_objects(client);
        return;
    }
    struct dict_entry *entry = keyspace_find(client, 1);
    if (!entry || store_find(store, target, key->data, key->length))
        reply_integer(client, 0);
    else if (store_move(store, database, entry, target))
        reply_integer(client, 1);
    else
        reply_out_of_memory(client);
}

static bool exchanged_argument(struct client *client, uint32_t index, const char *which, int64_t *number) {
    const struct resp_argument *argument = &client->argv[index];
    bool valid = number_parse_int64(argument->data, argument->length, number);
    if (valid && *number >= INT32_MIN && *number <= INT32_MAX) return true;
    reply_error(client, "ERR invalid %s DB index", which);
    return false;
}

/* Watches see both the keys that go and those that come. */
static void break_watches(struct server *server, unsigned first, unsigned second) {
    watch_will_flush(server, first);
    watch_will_flush(server, second);
}

static void exchange(struct server *server, unsigned first, unsigned second) {
    if (first == second) return;
    break_watches(server, first, second);
    store_exchange(server->store, first, second);
    keys_exchanged(server, first, second);
    break_watches(server, first, second);
    key_wait_exchanged(server, first);
    key_wait_exchanged(server, second);
}

static void swapdb_command(struct client *client) {
    int64_t first, second;
    if (client->server->config.cluster_enabled) {
        reply_error(client, "ERR SWAPDB is not allowed in cluster mode");
        return;
    }
    if (!exchanged_argument(client, 1, "first", &first) || !exchanged_argument(client, 2, "second", &second)) return;
    if (!is_database(first) || !is_database(second)) {
        reply_no_such_database(client);
        return;
    }
    exchange(client->server, (unsigned)first, (unsigned)second);
    reply_status(client, "OK");
}

const struct command commands_database[] = {
    {"copy", copy_command, -3, COMMAND_WRITE | COMMAND_DENYOOM, &group_generic,
     "Copies the value of a key to a new key.", "6.2.0", .keys = key_copied,
     .event = KEY_EVENT(GENERIC, "copy_to", COPIES)},
    {"move", move_command, 3, COMMAND_WRITE | COMMAND_FAST, &group_generic, "Moves a key to another database.", "1.0.0",
     .keys = key_changed, .event = KEY_EVENT(GENERIC, "", MOVES)},
    {"swapdb", swapdb_command, 3, COMMAND_WRITE | COMMAND_FAST | COMMAND_DANGEROUS, &group_server,
     "Exchanges two databases.", "4.0.0", .categories = ACL_KEYSPACE | ACL_WRITE | ACL_FAST | ACL_DANGEROUS},
    {0},
};

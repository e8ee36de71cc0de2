/* cmd_generic: commands on keys of any type. Order of checks and error texts follow Redis 7.0's db.c, expire.c. */
#include <string.h>

#include "base/clock.h"
#include "server/core/command_table.h"
#include "server/core/exclusive_execution.h"
#include "server/core/propagate.h"
#include "server/redis/keys/keyspace.h"
#include "server/redis/pubsub/notify.h"
#include "server/redis/redis_rows.h"

static unsigned database_of(const struct client *client) {
    return (unsigned)client->database;
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

static void del_command(struct client *client) {
    int64_t deleted = 0;
    for (uint32_t i = 1; i < client->argc && exclusive_goes_on_at(client, i); i++) {
        struct dict_entry *entry = keyspace_find(client, i);
        if (!entry) continue;
        keyspace_remove(client, entry);
        deleted++;
    }
    reply_integer(client, deleted);
}

/* Looks the key up without using it. */
static struct dict_entry *look(struct client *client, uint32_t index) {
    struct dict_entry *entry = keyspace_find(client, index);
    struct store *store = client->server->store;
    *(entry ? &store->keyspace_hits : &store->keyspace_misses) += 1;
    return entry;
}

static void exists_command(struct client *client) {
    int64_t count = 0;
    for (uint32_t i = 1; i < client->argc; i++) {
        if (!exclusive_goes_on_at(client, i)) return;
        count += look(client, i) != NULL;
    }
    reply_integer(client, count);
}

static void touch_command(struct client *client) {
    int64_t count = 0;
    for (uint32_t i = 1; i < client->argc; i++) {
        if (!exclusive_goes_on_at(client, i)) return;
        count += keyspace_find_read(client, i) != NULL;
    }
    reply_integer(client, count);
}

static void type_command(struct client *client) {
    struct dict_entry *entry = look(client, 1);
    reply_status(client, entry ? value_type_name(store_value(entry)) : "none");
}

static void rename_generic(struct client *client, bool only_new) {
    struct dict_entry *entry = keyspace_find(client, 1);
    keyspace_use(client, entry);
    if (!entry) {
        reply_no_such_key(client);
        return;
    }
    const struct resp_argument *name = &client->argv[2];
    /* A key is looked up once: the second time it could have run out. */
    bool same = name->length == client->argv[1].length &&
                (name->length == 0 || memcmp(name->data, client->argv[1].data, name->length) == 0);
    struct dict_entry *target = same ? entry : keyspace_find(client, 2);
    if (only_new && target) {
        reply_integer(client, 0);
        return;
    }
    if (target != entry && !store_rename(client->server->store, database_of(client), entry, name->data, name->length)) {
        reply_out_of_memory(client);
        return;
    }
    if (only_new)
        reply_integer(client, 1);
    else
        reply_status(client, "OK");
}

static void rename_command(struct client *client) {
    rename_generic(client, false);
}

static void renamenx_command(struct client *client) {
    rename_generic(client, true);
}

static void randomkey_command(struct client *client) {
    const struct dict_entry *entry = store_random(client->server->store, database_of(client));
    if (!entry)
        reply_null(client);
    else
        reply_bulk(client, entry->key, entry->key_length);
}

static void dbsize_command(struct client *client) {
    reply_integer(client, (int64_t)dict_count(&client->server->store->databases[client->database].keys));
}

static void scan_command(struct client *client) {
    struct store *store = client->server->store;
    uint64_t cursor;
    struct scan_options options;
    struct scan_found found;
    if (!scan_cursor_argument(client, 1, &cursor) || !scan_options_parse(client, 2, true, &options)) return;
    if (!scan_dict(client, &store->databases[client->database].keys, &options, &cursor, &found)) return;
    int64_t now_ms = clock_unix_ms();
    size_t kept = 0;
    for (size_t i = 0; i < found.count; i++) {
        const struct dict_entry *entry = found.entries[i];
        bool right_type = !options.type || argument_is(options.type, value_type_name(store_value(entry)));
        if (right_type && !store_has_expired(store, database_of(client), entry, now_ms)) found.entries[kept++] = entry;
    }
    reply_scan_cursor(client, cursor);
    reply_array(client, kept);
    for (size_t i = 0; i < kept; i++) reply_bulk(client, found.entries[i]->key, found.entries[i]->key_length);
    scan_found_free(&found);
}

/* Databases are emptied at once and freed in slices, with ASYNC and SYNC alike. */
static void flush(struct client *client, unsigned first, unsigned last) {
    bool known = client->argc == 1 || argument_is(&client->argv[1], "async") || argument_is(&client->argv[1], "sync");
    if (client->argc > 2 || !known) {
        reply_syntax_error(client);
        return;
    }
    for (unsigned database = first; database <= last; database++) store_flush(client->server->store, database);
    reply_status(client, "OK");
}

static void flushdb_command(struct client *client) {
    flush(client, database_of(client), database_of(client));
}

static void flushall_command(struct client *client) {
    flush(client, 0, STORE_DATABASES - 1);
}

/* ---- expiry ------------------------------------------------------------------------------------------------------ */

enum expire_flags {
    EXPIRE_NX = 1 << 0,
    EXPIRE_XX = 1 << 1,
    EXPIRE_GT = 1 << 2,
    EXPIRE_LT = 1 << 3,
};

static bool expire_flags_parse(struct client *client, uint32_t *flags) {
    static const char *const words[] = {"nx", "xx", "gt", "lt"};
    *flags = 0;
    for (uint32_t i = 3; i < client->argc; i++) {
        unsigned word = 0;
        while (word < 4 && !argument_is(&client->argv[i], words[word])) word++;
        if (word == 4) {
            int shown = client->argv[i].length < 900 ? (int)client->argv[i].length : 900;
            reply_error(client, "ERR Unsupported option %.*s", shown, (const char *)client->argv[i].data);
            return false;
        }
        *flags |= 1u << word;
    }
    if (*flags & EXPIRE_NX && *flags & ~(uint32_t)EXPIRE_NX) {
        reply_error(client, "ERR NX and XX, GT or LT options at the same time are not compatible");
        return false;
    }
    if (*flags & EXPIRE_GT && *flags & EXPIRE_LT) {
        reply_error(client, "ERR GT and LT options at the same time are not compatible");
        return false;
    }
    return true;
}

/* A key that does not end counts as ending after all others, but GT never applies to it. */
static bool expiry_allowed(uint32_t flags, bool ends, int64_t current_ms, int64_t at_ms) {
    if (flags & EXPIRE_NX && ends) return false;
    if (flags & EXPIRE_XX && !ends) return false;
    if (flags & EXPIRE_GT && (!ends || at_ms <= current_ms)) return false;
    return !(flags & EXPIRE_LT && ends && at_ms >= current_ms);
}

static void expire_generic(struct client *client, bool seconds, bool relative) {
    uint32_t flags;
    int64_t at_ms, current_ms = 0, now_ms = clock_unix_ms();
    if (!expire_flags_parse(client, &flags) || !integer_argument(client, 2, &at_ms)) return;
    bool overflow = seconds && (at_ms > INT64_MAX / 1000 || at_ms < INT64_MIN / 1000);
    if (!overflow) {
        at_ms *= seconds ? 1000 : 1;
        overflow = relative && __builtin_add_overflow(at_ms, now_ms, &at_ms);
    }
    if (overflow) {
        reply_error(client, "ERR invalid expire time in '%s' command", client->command->name);
        return;
    }
    struct store *store = client->server->store;
    struct dict_entry *entry = keyspace_find(client, 1);
    keyspace_use(client, entry);
    bool ends = entry && store_expiry(store, database_of(client), entry, &current_ms);
    if (!entry || !expiry_allowed(flags, ends, current_ms, at_ms)) {
        reply_integer(client, 0);
        return;
    }
    if (at_ms <= now_ms && !client->server->loading && !store->keeps_expired) {
        propagate_key_words(client, "DEL", 1, NULL);
        keyspace_remove(client, entry);
    } else if (store_expire_at(store, database_of(client), entry, at_ms)) {
        keyspace_propagate_expiry(client, 1, at_ms);
    } else {
        reply_out_of_memory(client);
        return;
    }
    reply_integer(client, 1);
}

static void expire_command(struct client *client) {
    expire_generic(client, true, true);
}

static void pexpire_command(struct client *client) {
    expire_generic(client, false, true);
}

static void expireat_command(struct client *client) {
    expire_generic(client, true, false);
}

static void pexpireat_command(struct client *client) {
    expire_generic(client, false, false);
}

static void reply_expiry(struct client *client, bool seconds, bool relative) {
    struct dict_entry *entry = look(client, 1);
    int64_t at_ms;
    if (!entry) {
        reply_integer(client, -2);
        return;
    }
    if (!store_expiry(client->server->store, database_of(client), entry, &at_ms)) {
        reply_integer(client, -1);
        return;
    }
    int64_t value = at_ms;
    if (relative) {
        value -= clock_unix_ms();
        value = value < 0 ? 0 : value;
    }
    if (seconds) value = value / 1000 + (value % 1000 >= 500);
    reply_integer(client, value);
}

static void ttl_command(struct client *client) {
    reply_expiry(client, true, true);
}

static void pttl_command(struct client *client) {
    reply_expiry(client, false, true);
}

static void expiretime_command(struct client *client) {
    reply_expiry(client, true, false);
}

static void pexpiretime_command(struct client *client) {
    reply_expiry(client, false, false);
}

static void persist_command(struct client *client) {
    struct dict_entry *entry = keyspace_find(client, 1);
    keyspace_use(client, entry);
    bool ends = entry && store_value(entry)->expiry != 0;
    if (ends) store_persist(client->server->store, database_of(client), entry);
    reply_integer(client, ends);
}

#define READ COMMAND_READONLY
#define WRITE COMMAND_WRITE
#define FAST COMMAND_FAST
#define RESTS COMMAND_RESTS

const struct command commands_generic[] = {
    {"dbsize", dbsize_command, 1, READ | FAST, &group_server, "Returns the number of keys in the database.", "1.0.0",
     .tips = "request_policy:all_shards\nresponse_policy:agg_sum", .categories = ACL_KEYSPACE | ACL_READ | ACL_FAST},
    {"del", del_command, -2, WRITE | RESTS, &group_generic, "Deletes one or more keys.", "1.0.0",
     .tips = "request_policy:multi_shard\nresponse_policy:agg_sum", .keys = keys_removed,
     .event = KEY_EVENT(GENERIC, "del", REMOVES)},
    {"exists", exists_command, -2, READ | FAST | RESTS, &group_generic, "Determines whether one or more keys exist.",
     "1.0.0", .tips = "request_policy:multi_shard\nresponse_policy:agg_sum", .keys = keys_known},
    {"expire", expire_command, -3, WRITE | FAST, &group_generic, "Sets the expiration time of a key in seconds.",
     "1.0.0", .keys = key_updated, .event = KEY_EVENT(GENERIC, "expire", EXPIRES)},
    {"expireat", expireat_command, -3, WRITE | FAST, &group_generic,
     "Sets the expiration time of a key to a Unix timestamp.", "1.2.0", .keys = key_updated,
     .event = KEY_EVENT(GENERIC, "expire", EXPIRES)},
    {"expiretime", expiretime_command, 2, READ | FAST, &group_generic,
     "Returns the expiration time of a key as a Unix timestamp.", "7.0.0", .keys = key_read},
    {"flushall", flushall_command, -1, WRITE, &group_server, "Removes all keys from all databases.", "1.0.0",
     .tips = "request_policy:all_shards\nresponse_policy:all_succeeded",
     .categories = ACL_KEYSPACE | ACL_WRITE | ACL_SLOW | ACL_DANGEROUS},
    {"flushdb", flushdb_command, -1, WRITE, &group_server, "Removes all keys from the current database.", "1.0.0",
     .tips = "request_policy:all_shards\nresponse_policy:all_succeeded",
     .categories = ACL_KEYSPACE | ACL_WRITE | ACL_SLOW | ACL_DANGEROUS},
    {"persist", persist_command, 2, WRITE | FAST, &group_generic, "Removes the expiration time of a key.", "2.2.0",
     .keys = key_updated, .event = KEY_EVENT(GENERIC, "persist", IN_PLACE)},
    {"pexpire", pexpire_command, -3, WRITE | FAST, &group_generic, "Sets the expiration time of a key in milliseconds.",
     "2.6.0", .keys = key_updated, .event = KEY_EVENT(GENERIC, "expire", EXPIRES)},
    {"pexpireat", pexpireat_command, -3, WRITE | FAST, &group_generic,
     "Sets the expiration time of a key to a Unix milliseconds timestamp.", "2.6.0", .keys = key_updated,
     .event = KEY_EVENT(GENERIC, "expire", EXPIRES)},
    {"pexpiretime", pexpiretime_command, 2, READ | FAST, &group_generic,
     "Returns the expiration time of a key as a Unix milliseconds timestamp.", "7.0.0", .keys = key_read},
    {"pttl", pttl_command, 2, READ | FAST, &group_generic, "Returns the expiration time in milliseconds of a key.",
     "2.6.0", .tips = "nondeterministic_output", .keys = key_read},
    {"randomkey", randomkey_command, 1, READ, &group_generic, "Returns a random key name from the database.", "1.0.0",
     .tips = "request_policy:all_shards\nnondeterministic_output"},
    {"rename", rename_command, 3, WRITE, &group_generic, "Renames a key and overwrites the destination.", "1.0.0",
     .keys = key_renamed, .event = KEY_EVENT(GENERIC, "", RENAMES)},
    {"renamenx", renamenx_command, 3, WRITE | FAST, &group_generic,
     "Renames a key only when the target key name doesn't exist.", "1.0.0", .keys = key_renamed_to_new,
     .event = KEY_EVENT(GENERIC, "", RENAMES)},
    {"scan", scan_command, -2, READ, &group_generic, "Iterates over the key names in the database.", "2.8.0",
     .tips = "nondeterministic_output\nrequest_policy:special"},
    {"touch", touch_command, -2, READ | FAST | RESTS, &group_generic,
     "Returns how many of the keys exist, after counting as a use of each.", "3.2.1",
     .tips = "request_policy:multi_shard\nresponse_policy:agg_sum", .keys = keys_known},
    {"ttl", ttl_command, 2, READ | FAST, &group_generic, "Returns the expiration time in seconds of a key.", "1.0.0",
     .tips = "nondeterministic_output", .keys = key_read},
    {"type", type_command, 2, READ | FAST, &group_generic, "Determines the type of value stored at a key.", "1.0.0",
     .keys = key_known},
    {"unlink", del_command, -2, WRITE | FAST | RESTS, &group_generic, "Deletes keys; large values are freed later.",
     "4.0.0", .tips = "request_policy:multi_shard\nresponse_policy:agg_sum", .keys = keys_removed,
     .event = KEY_EVENT(GENERIC, "del", REMOVES)},
    {0},
};

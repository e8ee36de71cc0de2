/* cmd_object: OBJECT: how the value of a key is stored and used. */
#include "server/core/command_table.h"
#include "server/redis/keys/keyspace.h"
#include "server/redis/redis_rows.h"

#define SHARED_INTEGERS 10000 /* integers that Redis keeps one copy of, and so reports as shared */
#define SHARED_REFERENCES 2147483647
#define TAKES_TIME \
    "Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust."

static int64_t reference_count(const struct value *value) {
    int64_t integer;
    bool shared = value->encoding == ENCODING_INTEGER && string_to_int64(value, &integer) && integer >= 0 &&
                  integer < SHARED_INTEGERS;
    return shared ? SHARED_REFERENCES : 1;
}

/* The value of the key, which is not used by this; NULL: there is none, and null is replied. */
static const struct value *find_value(struct client *client) {
    const struct dict_entry *entry = keyspace_find(client, 2);
    if (entry) return store_value(entry);
    reply_null(client);
    return NULL;
}

static void object_encoding(struct client *client) {
    const struct value *value = find_value(client);
    if (value) reply_bulk_string(client, value_encoding_name(value));
}

static void object_refcount(struct client *client) {
    const struct value *value = find_value(client);
    if (value) reply_integer(client, reference_count(value));
}

static void object_freq(struct client *client) {
    const struct value *value = find_value(client);
    if (!value) return;
    const struct access_clock *clock = &client->server->store->access;
    if (clock->by_frequency)
        reply_integer(client, access_frequency(clock, value));
    else
        reply_error(client, "ERR An LFU maxmemory policy is not selected, access frequency not tracked. " TAKES_TIME);
}

static void object_idletime(struct client *client) {
    const struct value *value = find_value(client);
    if (!value) return;
    const struct access_clock *clock = &client->server->store->access;
    if (!clock->by_frequency)
        reply_integer(client, access_idle_s(clock, value));
    else
        reply_error(client, "ERR An LFU maxmemory policy is selected, idle time not tracked. " TAKES_TIME);
}

static const struct command subcommands[] = {
    {"object|encoding", object_encoding, 3, COMMAND_READONLY, &group_generic,
     "Tells in which form the value of a key is stored.", "2.2.3", .tips = "nondeterministic_output",
     .keys = second_key_known, .usage = "<key>"},
    {"object|freq", object_freq, 3, COMMAND_READONLY, &group_generic, "Tells how often a key is used.", "4.0.0",
     .tips = "nondeterministic_output", .keys = second_key_known, .usage = "<key>"},
    {"object|help", reply_help, 2, COMMAND_LOADING | COMMAND_STALE, &group_generic, "Lists the subcommands.", "6.2.0"},
    {"object|idletime", object_idletime, 3, COMMAND_READONLY, &group_generic, "Tells for how long a key was not used.",
     "2.2.3", .tips = "nondeterministic_output", .keys = second_key_known, .usage = "<key>"},
    {"object|refcount", object_refcount, 3, COMMAND_READONLY, &group_generic,
     "Tells how many references there are to the value of a key.", "2.2.3", .tips = "nondeterministic_output",
     .keys = second_key_known, .usage = "<key>"},
    {0},
};

const struct command commands_object[] = {
    {"object", command_container, -2, 0, &group_generic, "Tells how values are stored and used.", "2.2.3",
     .subcommands = subcommands},
    {0},
};

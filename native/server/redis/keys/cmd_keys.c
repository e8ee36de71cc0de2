/* cmd_keys: KEYS: all keys of a database that match a pattern; of a large one, in slices between which other clients are
 * served. Its reply is put together apart, and joins what the client is sent when it is whole. */
#include "server/redis/keys/cmd_keys.h"

#include "base/clock.h"
#include "base/memory.h"
#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/core/output.h"
#include "server/core/slices.h"
#include "server/redis/keys/keyspace.h"
#include "server/redis/redis_rows.h"
#include "server/redis/redis_subsystem.h"
#include "store/dict_walk.h"
#include "store/glob.h"

#define AT_ONCE 2000 /* keys that are looked at in one go: some tenths of a millisecond */
#define STEPS_PER_CLOCK 64

struct key_search {
    struct client *client;
    unsigned database;
    struct dict_walk walk;
    int64_t now_ms;
    size_t found;
    struct output output; /* the keys' part of the reply */
};

static bool matches(const struct client *client, unsigned database, const struct dict_entry *entry, int64_t now_ms) {
    const struct resp_argument *pattern = &client->argv[1];
    bool all = pattern->length == 1 && pattern->data[0] == '*';
    if (!all && !glob_match(pattern->data, pattern->length, entry->key, entry->key_length)) return false;
    return !store_has_expired(client->server->store, database, entry, now_ms);
}

static void reply_at_once(struct client *client, struct dict *keys) {
    int64_t now_ms = clock_unix_ms();
    size_t mark = reply_array_deferred(client), found = 0;
    struct dict_position position = {0};
    const struct dict_entry *entry;
    while ((entry = dict_next(keys, &position))) {
        if (!matches(client, (unsigned)client->database, entry, now_ms)) continue;
        reply_bulk(client, entry->key, entry->key_length);
        found++;
    }
    reply_set_array_length(client, mark, found);
}

/* ---- in slices --------------------------------------------------------------------------------------------------- */

static void visit(void *context, struct dict_entry *entry) {
    struct key_search *search = context;
    if (!matches(search->client, search->database, entry, search->now_ms)) return;
    reply_bulk(search->client, entry->key, entry->key_length);
    search->found++;
}

static void exchange_output(struct key_search *search) {
    struct output output = search->client->output;
    search->client->output = search->output;
    search->output = output;
}

/* Looks at keys until the time is over, or at all of them; true when all were seen. */
static bool search_slice(struct key_search *search, bool all) {
    struct client *client = search->client;
    struct dict *keys = &client->server->store->databases[search->database].keys;
    bool more = true;
    search->now_ms = clock_unix_ms();
    exchange_output(search);
    do {
        for (int i = 0; i < STEPS_PER_CLOCK && more; i++) more = dict_walk_step(&search->walk, keys, visit, search);
    } while (more && (all || slices_have_time(client)));
    exchange_output(search);
    return !more;
}

static void reply_found(struct key_search *search) {
    struct client *client = search->client;
    reply_array(client, search->found);
    if (reply_is_wanted(client)) output_append_output(&client->output, &search->output);
}

static bool go_on(struct client *client) {
    struct key_search *search = client_state(client);
    if (reply_is_wanted(client) && !search_slice(search, false)) return false;
    reply_found(search);
    return true;
}

/* Not to wait any longer: the rest in one go. */
static void expired(struct client *client) {
    struct key_search *search = client_state(client);
    search_slice(search, true);
    reply_found(search);
}

static void drop(struct client *client, void *state) {
    struct key_search *search = state;
    output_clear(&search->output, &client->server->output_pool);
    memory_free(search);
}

static void keys_command(struct client *client) {
    struct dict *keys = &client->server->store->databases[client->database].keys;
    if (dict_count(keys) <= AT_ONCE || !client_may_block(client)) {
        reply_at_once(client, keys);
        return;
    }
    struct key_search *search = memory_calloc(1, sizeof *search);
    if (!search) {
        reply_out_of_memory(client);
        return;
    }
    search->client = client;
    search->database = (unsigned)client->database;
    client_set_state(client, search, drop);
    slices_begin(client, go_on, expired);
}

void keys_exchanged(struct server *server, unsigned first, unsigned second) {
    for (struct client *client = server->slices.working.head; client; client = client->wait_next) {
        struct key_search *search = client->retry == go_on ? client_state(client) : NULL;
        if (search && search->database == first)
            search->database = second;
        else if (search && search->database == second)
            search->database = first;
    }
}

const struct command commands_keys[] = {
    {"keys", keys_command, 2, COMMAND_READONLY | COMMAND_DANGEROUS, &group_generic,
     "Returns all key names that match a pattern.", "1.0.0",
     .tips = "request_policy:all_shards\nnondeterministic_output_order"},
    {0},
};

/* debug_data: DEBUG RELOAD, LOADAOF, DIGEST and DIGEST-VALUE. No other client's command comes in between. */
#include "server/admin/debug_data.h"

#include "server/core/client.h"
#include "server/core/exclusive_execution.h"
#include "server/core/propagate.h"
#include "server/core/server.h"
#include "server/durability/append_log.h"
#include "server/durability/durability_subsystem.h"
#include "server/durability/restore.h"
#include "server/durability/snapshots.h"
#include "server/redis/keys/keyspace.h"
#include "store/dict_walk.h"
#include "store/digest.h"

/* ---- from files ------------------------------------------------------------------------------------------------------ */

/* Nothing of other clients is run meanwhile, so that what is loaded is what there was. */
static void run_alone(struct client *client, void (*body)(struct client *client)) {
    if (client->deny_blocking)
        reply_error(client, "ERR DEBUG %.*s waits for files: send it outside transactions and scripts",
                    (int)client->argv[1].length, (const char *)client->argv[1].data);
    else
        exclusive_run_command(client, body);
}

/* False: the client is lost, which needs no reply, or there is no memory to wait, which is replied. */
static bool await_turn(struct client *client) {
    if (exclusive_awaits(client, 0)) return true;
    if (!exclusive_is_lost(client)) reply_out_of_memory(client);
    return false;
}

static void reload(struct client *client) {
    struct snapshots *snapshots = client->server->durability->snapshots;
    uint64_t number = snapshots->number + 1;
    snapshots->wanted = true;
    while (snapshots->done_number < number) {
        snapshots_step(snapshots); /* the loop makes none while a client has the server to itself */
        if (!await_turn(client)) return;
    }
    struct error error = snapshots->outcome;
    if (error.code == ERROR_NONE) restore_again(snapshots, snapshots->path, &error);
    propagate_nothing(client); /* all is as it was */
    if (error.code == ERROR_NONE)
        reply_status(client, "OK");
    else
        reply_error(client, "ERR Error trying to load the RDB dump: %s", error.message);
}

/* DEBUG RELOAD: saves as SAVE does, and loads that file in place of all keys and tables. */
void debug_reload(struct client *client) {
    if (client->argc > 2)
        reply_error(client, "ERR DEBUG RELOAD takes no options here: it saves, and loads what it has saved");
    else
        run_alone(client, reload);
}

static void loadaof(struct client *client) {
    struct server *server = client->server;
    struct append_log *log = server->durability->append_log;
    char refusal[512];
    while (append_log_is_on(log) && !append_log_write_all(log)) {
        if (append_log_refuses(log, refusal, sizeof refusal)) {
            reply_error(client, "%s", refusal);
            return;
        }
        snapshots_step(server->durability->snapshots); /* a base may be on its way */
        if (!await_turn(client)) return;
    }
    if (!append_log_is_on(log)) {
        reply_error(client, "ERR there is no append-only file: CONFIG SET appendonly yes begins one");
        return;
    }
    struct error error = {.code = ERROR_NONE};
    int loaded = append_log_load_again(log, &error);
    propagate_nothing(client); /* it was there before */
    if (loaded < 0)
        reply_error(client, "ERR Error trying to load the AOF files, check server logs: %s", error.message);
    else
        reply_status(client, "OK");
}

/* DEBUG LOADAOF: loads the append-only file, once all is in it, in place of all keys. */
void debug_loadaof(struct client *client) {
    run_alone(client, loadaof);
}

/* ---- digests --------------------------------------------------------------------------------------------------------- */

struct digest_walk {
    const struct store *store;
    unsigned database;
    int64_t now_ms;
    struct digest sum;
};

static void add_key(void *context, struct dict_entry *entry) {
    struct digest_walk *walk = context;
    if (!store_has_expired(walk->store, walk->database, entry, walk->now_ms))
        digest_add_key(walk->store, walk->database, entry, &walk->sum);
}

static void reply_digest(struct client *client, const struct digest *digest) {
    char hex[SHA1_HEX_BYTES];
    sha1_show(digest->bytes, hex);
    reply_status(client, hex);
}

static void digest(struct client *client) {
    struct store *store = client->server->store;
    struct digest_walk walk = {.store = store, .now_ms = clock_unix_ms()};
    for (; walk.database < STORE_DATABASES; walk.database++) {
        struct dict_walk keys = {0};
        while (dict_walk_step(&keys, &store->databases[walk.database].keys, add_key, &walk))
            if (!exclusive_goes_on(client)) return;
    }
    reply_digest(client, &walk.sum);
}

/* DEBUG DIGEST: of all keys of all databases; zeros if there are none. */
void debug_digest(struct client *client) {
    exclusive_run_command(client, digest);
}

/* DEBUG DIGEST-VALUE key …: zeros for a key that is not there. */
void debug_digest_value(struct client *client) {
    reply_array(client, client->argc - 2);
    for (uint32_t i = 2; i < client->argc; i++) {
        struct digest value = {0};
        const struct dict_entry *entry = keyspace_find(client, i);
        if (entry) digest_entry(client->server->store, (unsigned)client->database, entry, &value);
        reply_digest(client, &value);
    }
}

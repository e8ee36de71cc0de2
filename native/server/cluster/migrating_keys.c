/* migrating_keys: CLUSTER HOLD and RELEASE, and the clients that wait in between.
 *
 * A key is carried in three steps: it is read here, stored at the target, and removed here. While they last no client
 * reads or changes it on either side. Here its request waits, and is looked at anew when the key has gone. The target has
 * not been named to anybody for this key, since it was here. All is done over the connection that holds the key: if the hold ends,
 * so has the connection, and no removal comes any more. */
#include "server/cluster/migrating_keys.h"

#include <inttypes.h>

#include "base/clock.h"
#include "base/limits.h"
#include "server/cluster/cluster_subsystem.h"
#include "server/cluster/cmd_cluster.h"
#include "server/cluster/redirect.h"
#include "server/core/server.h"

bool migrating_keys_has(const struct migrating_keys *migrating, const struct resp_argument *key) {
    return migrating->holder && dict_peek(&migrating->keys, dict_hash(key->data, key->length), key->data, key->length);
}

void migrating_keys_release(struct migrating_keys *migrating) {
    dict_clear(&migrating->keys, NULL, NULL);
    migrating->holder = NULL;
}

static void give_up(struct client *client) {
    reply_error(client,
                "ERR the server stops; the command waited for a key that moves to another shard, and was not run");
}

bool cluster_holds(struct client *client) {
    struct migrating_keys *migrating = &client->server->cluster->migrating;
    if (!migrating->holder || migrating->holder == client || client->deny_blocking || !client->connection) return false;
    if (!redirect_names_held_key(client)) return false;
    client_block(client, &migrating->waiting, CLOCK_NEVER, NULL, give_up);
    return true;
}

uint64_t migrating_keys_step(struct server *server) {
    struct migrating_keys *migrating = &server->cluster->migrating;
    if (migrating->holder && server->now_us < migrating->until_us) return migrating->until_us;
    if (migrating->holder) client_close(migrating->holder);
    wait_queue_run_held(server, &migrating->waiting, NULL);
    return CLOCK_NEVER;
}

/* CLUSTER HOLD key [key …]: these, and no others that it held. */
void cluster_hold(struct client *client) {
    struct migrating_keys *migrating = &client->server->cluster->migrating;
    uint32_t count = client->argc - 2;
    if (!cluster_is_on(client)) return;
    if (migrating->holder && migrating->holder != client) {
        reply_error(client, "ERR client %" PRIu64 " holds keys: one connection can at a time", migrating->holder->id);
        return;
    }
    if (count > LIMIT_HELD_KEYS) {
        reply_error(client, "LIMIT %" PRIu32 " keys are more than can be held at a time (%u)", count, LIMIT_HELD_KEYS);
        return;
    }
    migrating_keys_release(migrating);
    for (uint32_t i = 2; i < client->argc; i++) {
        const struct resp_argument *key = &client->argv[i];
        uint32_t hash = dict_hash(key->data, key->length);
        if (dict_peek(&migrating->keys, hash, key->data, key->length) ||
            dict_add(&migrating->keys, hash, key->data, key->length))
            continue;
        migrating_keys_release(migrating);
        reply_error(client, "OOM no memory to hold %" PRIu32 " keys", count);
        return;
    }
    migrating->holder = client;
    migrating->until_us = client->server->now_us + LIMIT_HOLD_US;
    reply_integer(client, (int64_t)dict_count(&migrating->keys));
}

/* CLUSTER RELEASE: 1 if the connection held keys until now. */
void cluster_release(struct client *client) {
    struct migrating_keys *migrating = &client->server->cluster->migrating;
    if (!cluster_is_on(client)) return;
    bool held = migrating->holder == client;
    if (held) migrating_keys_release(migrating);
    reply_integer(client, held);
}

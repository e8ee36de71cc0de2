/* redirect: whether a request's keys are this shard's, and where they are if not. As in Redis 7.0: all keys of a request,
 * and of a transaction, are in one slot. Tables of experience have no slot, since every shard holds its part of each.
 *
 * A replica of a shard has the shard's number and its topology, and sends requests for keys and tables to the primary that
 * it follows, whatever the topology says of its shard: a primary that has given its part away knows the new one by then, and
 * the topology follows. */
#include "server/cluster/redirect.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "server/cluster/cluster_subsystem.h"
#include "server/cluster/topology.h"
#include "server/core/command_table.h"
#include "server/core/config.h"
#include "server/core/upcalls.h"
#include "store/store.h"

#define PLACES 32

enum outcome { HERE, CROSSED, UNSERVED, MOVED, ASKED, FOLLOWED, TRY_AGAIN, NO_MEMORY };

/* What is found of the keys of one request, or of all in a transaction. */
struct keys_seen {
    const struct server *server;
    const struct topology *topology;
    int slot; /* CLUSTER_SLOT_NONE: no key was seen */
    const struct resp_argument *first;
    bool several, crossed, exhausted;
    bool missing; /* one is not here, while its slot moves */
    bool held;
    bool writes;
    const struct resp_argument *table; /* of those that a replica is asked for, the last; NULL: none */
};

static bool is_here(const struct server *server, const struct resp_argument *key) {
    struct store *store = server->store;
    const struct dict_entry *entry =
        dict_peek(&store->databases[0].keys, dict_hash(key->data, key->length), key->data, key->length);
    return entry && !store_has_expired(store, 0, entry, clock_unix_ms());
}

static bool are_equal(const struct resp_argument *one, const struct resp_argument *other) {
    return one->length == other->length && (one->length == 0 || memcmp(one->data, other->data, one->length) == 0);
}

static bool is_moving(const struct topology *topology, int slot) {
    return topology && topology->target[slot] != topology->owner[slot];
}

static void see_key(struct keys_seen *seen, const struct command *command, const struct resp_argument *key) {
    int slot = slot_of_key(key->data, key->length);
    if (seen->slot == CLUSTER_SLOT_NONE) {
        seen->slot = slot;
        seen->first = key;
    }
    seen->crossed |= slot != seen->slot;
    seen->several |= !are_equal(key, seen->first);
    /* Channels are nowhere, weights and gradients move at the end, all at once. */
    bool moves_by_itself = command->group->data != DATA_BESIDE_KEYS && command->channels == CHANNEL_NONE;
    bool held = migrating_keys_has(&seen->server->cluster->migrating, key);
    seen->held |= held;
    if (moves_by_itself && !held && is_moving(seen->topology, slot)) seen->missing |= !is_here(seen->server, key);
}

static void see_request(struct keys_seen *seen, const struct command *command, uint32_t argc,
                        const struct resp_argument *argv) {
    bool is_of_table = command->group->data == DATA_TABLES;
    if (!command->keys || (is_of_table && !seen->server->place.is_replica)) return;
    struct key_place few[PLACES], *places = few;
    int count = command_keys(command, argc, argv, few, PLACES);
    if (count > PLACES) {
        places = memory_alloc((size_t)count * sizeof *places);
        seen->exhausted |= !places;
        count = places ? command_keys(command, argc, argv, places, count) : 0;
    }
    if (is_of_table && count > 0) seen->table = &argv[places[0].index];
    for (int i = 0; i < count && !is_of_table; i++) see_key(seen, command, &argv[places[i].index]);
    if (places != few) memory_free(places);
}

static bool see_queued(const struct client *client, const struct command *command, uint32_t argc,
                       const struct resp_argument *argv, void *seen) {
    (void)client;
    see_request(seen, command, argc, argv);
    return false;
}

/* What a replica does not answer by itself. */
static bool is_primarys(const struct keys_seen *seen, const struct client *from) {
    return seen->server->place.is_replica && (seen->writes || !from->reads_replica);
}

/* `from`: who sends the request, or calls the script that it is of. */
static enum outcome judge(const struct keys_seen *seen, const struct client *from) {
    const struct topology *topology = seen->topology;
    if (seen->exhausted) return NO_MEMORY;
    if (seen->slot == CLUSTER_SLOT_NONE) return seen->table && is_primarys(seen, from) ? FOLLOWED : HERE;
    if (!topology) return UNSERVED;
    if (seen->crossed) return CROSSED;
    int owner = topology->owner[seen->slot], target = topology->target[seen->slot];
    bool is_own = owner == topology->myself || (target == topology->myself && from->asking > 0);
    if (is_own && is_primarys(seen, from)) return FOLLOWED;
    if (owner == topology->myself) return seen->missing ? ASKED : HERE;
    if (!is_own) return MOVED;
    return seen->several && seen->missing ? TRY_AGAIN : HERE;
}

int redirect_port_of(const struct client *client, int port, int tls_port) {
    const struct client *from = client->connection ? client : client->server->acting.client; /* a script has none */
    return tls_port && from && from->connection && from->connection->is_tls ? tls_port : port;
}

int redirect_port(const struct client *client, const struct shard *shard) {
    return redirect_port_of(client, shard->port, shard->tls_port);
}

/* The primary that this replica follows, as clients reach it. False: it was told of none. */
static bool find_primary(const struct client *client, const struct topology *topology, char host[256], int *port) {
    const struct server *server = client->server;
    if (!config_follows(&server->config, host, port)) return false;
    for (int i = 0; topology && i < topology->shard_count; i++) {
        const struct shard *shard = &topology->shards[i];
        if (strcmp(shard->host, host) != 0 || (shard->port != *port && shard->tls_port != *port)) continue;
        *port = redirect_port(client, shard);
        break;
    }
    return true;
}

static const char *tell(const struct client *client, const struct keys_seen *seen, enum outcome outcome, char *message,
                        size_t size) {
    const struct topology *topology = seen->topology;
    const char *words[] = {
        [CROSSED] = "CROSSSLOT Keys in request don't hash to the same slot",
        [UNSERVED] = "CLUSTERDOWN Hash slot not served",
        [TRY_AGAIN] = "TRYAGAIN Multiple keys request during rehashing of slot",
        [NO_MEMORY] = "OOM no memory for the places of the request's keys",
    };
    if (outcome == HERE) return NULL;
    if (outcome == FOLLOWED) {
        char host[256];
        int port, slot = seen->slot;
        if (slot == CLUSTER_SLOT_NONE) slot = slot_of_key(seen->table->data, seen->table->length);
        if (!find_primary(client, topology, host, &port)) return words[UNSERVED];
        snprintf(message, size, "MOVED %d %s:%d", slot, host, port);
        return message;
    }
    if (outcome != MOVED && outcome != ASKED) return words[outcome];
    const struct shard *shard =
        &topology->shards[outcome == MOVED ? topology->owner[seen->slot] : topology->target[seen->slot]];
    snprintf(message, size, "%s %d %s:%d", outcome == MOVED ? "MOVED" : "ASK", seen->slot, shard->host,
             redirect_port(client, shard));
    return message;
}

/* A script's call. Those that say so, and those that say nothing of themselves, may reach keys of several slots, if all are
 * here. */
static const char *refuse_call(struct client *client, const struct client *caller, const struct keys_seen *seen) {
    switch (judge(seen, caller)) {
    case HERE: break;
    case UNSERVED: return "ERR Script attempted to execute a command while the cluster is down";
    default: return "ERR Script attempted to access a non local key in a cluster node";
    }
    if (seen->held) return "TRYAGAIN Script attempted to access a key that moves to another shard: name it in KEYS";
    if (seen->slot == CLUSTER_SLOT_NONE || client->crosses_slots) return NULL;
    if (client->slot == CLUSTER_SLOT_NONE) client->slot = caller->slot == CLUSTER_SLOT_NONE ? seen->slot : caller->slot;
    return client->slot == seen->slot ? NULL : "ERR Script attempted to access keys that do not hash to the same slot";
}

const char *cluster_refusal(struct client *client, const struct command *command, char *message, size_t size) {
    const struct server *server = client->server;
    struct keys_seen seen = {.server = server, .topology = server->cluster->topology, .slot = CLUSTER_SLOT_NONE};
    if (server->loading || client->is_primary) return NULL;
    seen.writes = (upcalls.transaction_flags(client, command) & COMMAND_WRITE) != 0;
    see_request(&seen, command, client->argc, client->argv);
    upcalls.transaction_has(client, command, see_queued, &seen);
    const struct client *caller = server->acting.client;
    if (caller && caller != client) return refuse_call(client, caller, &seen);
    client->slot = seen.slot;
    return tell(client, &seen, judge(&seen, client), message, size);
}

bool redirect_names_held_key(struct client *client) {
    struct keys_seen seen = {
        .server = client->server, .topology = client->server->cluster->topology, .slot = CLUSTER_SLOT_NONE};
    see_request(&seen, client->command, client->argc, client->argv);
    upcalls.transaction_has(client, client->command, see_queued, &seen);
    return seen.held;
}

/* ---- who waits ------------------------------------------------------------------------------------------------------- */

void cluster_redirect_waiting(struct server *server) {
    for (struct client *client = server->clients.head, *next; client; client = next) {
        char message[320];
        next = client->next;
        if (!client->blocked || !client->command || !(client->command->flags & COMMAND_BLOCKING)) continue;
        struct keys_seen seen = {.server = server, .topology = server->cluster->topology, .slot = CLUSTER_SLOT_NONE};
        see_request(&seen, client->command, client->argc, client->argv);
        const char *moved = tell(client, &seen, judge(&seen, client), message, sizeof message);
        if (moved) client_interrupt(client, moved);
    }
}

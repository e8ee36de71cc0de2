/* cmd_cluster_keys: CLUSTER KEYSLOT, COUNTKEYSINSLOT and GETKEYSINSLOT. Keys are not kept by slot: the two that ask for
 * those of a slot walk all keys, in slices. So keys cost nothing more in a cluster, and a slot costs a walk. */
#include "base/clock.h"
#include "base/memory.h"
#include "server/cluster/cmd_cluster.h"
#include "server/cluster/slots.h"
#include "server/core/output.h"
#include "server/core/server.h"
#include "server/core/slices.h"
#include "store/dict_walk.h"
#include "store/store.h"

#define STEPS_PER_CLOCK 64

struct slot_search {
    struct client *client;
    struct dict_walk walk;
    int slot;
    int64_t now_ms;
    size_t found, wanted;
    bool lists;
    struct output output; /* the keys' part of the reply */
};

void cluster_keyslot(struct client *client) {
    if (cluster_is_on(client)) reply_integer(client, slot_of_key(client->argv[2].data, client->argv[2].length));
}

static void visit(void *context, struct dict_entry *entry) {
    struct slot_search *search = context;
    if (search->found == search->wanted || slot_of_key(entry->key, entry->key_length) != search->slot ||
        store_has_expired(search->client->server->store, 0, entry, search->now_ms))
        return;
    if (search->lists) reply_bulk(search->client, entry->key, entry->key_length);
    search->found++;
}

static void exchange_output(struct slot_search *search) {
    struct output output = search->client->output;
    search->client->output = search->output;
    search->output = output;
}

static bool go_on(struct client *client) {
    struct slot_search *search = client_state(client);
    struct dict *keys = &client->server->store->databases[0].keys;
    bool more = search->found < search->wanted;
    search->now_ms = clock_unix_ms();
    exchange_output(search);
    do {
        for (int i = 0; i < STEPS_PER_CLOCK && more; i++)
            more = dict_walk_step(&search->walk, keys, visit, search) && search->found < search->wanted;
    } while (more && slices_have_time(client));
    exchange_output(search);
    if (more) return false;
    if (!search->lists) {
        reply_integer(client, (int64_t)search->found);
        return true;
    }
    reply_array(client, search->found);
    if (reply_is_wanted(client)) output_append_output(&client->output, &search->output);
    return true;
}

static void drop(struct client *client, void *state) {
    struct slot_search *search = state;
    output_clear(&search->output, &client->server->output_pool);
    memory_free(search);
}

static void search(struct client *client, int64_t slot, size_t wanted, bool lists) {
    struct slot_search *search = memory_calloc(1, sizeof *search);
    if (!search) {
        reply_error(client, "OOM no memory to look for the keys of a slot");
        return;
    }
    search->client = client;
    search->slot = (int)slot;
    search->wanted = wanted;
    search->lists = lists;
    client_set_state(client, search, drop);
    slices_run(client, go_on);
}

static bool number_argument(struct client *client, uint32_t index, int64_t *number) {
    if (argument_int64(&client->argv[index], number)) return true;
    reply_error(client, "ERR value is not an integer or out of range");
    return false;
}

void cluster_countkeysinslot(struct client *client) {
    int64_t slot;
    if (!cluster_is_on(client) || !number_argument(client, 2, &slot)) return;
    if (slot < 0 || slot >= CLUSTER_SLOTS)
        reply_error(client, "ERR Invalid slot");
    else
        search(client, slot, SIZE_MAX, false);
}

void cluster_getkeysinslot(struct client *client) {
    int64_t slot, count;
    if (!cluster_is_on(client) || !number_argument(client, 2, &slot) || !number_argument(client, 3, &count)) return;
    if (slot < 0 || slot >= CLUSTER_SLOTS || count < 0)
        reply_error(client, "ERR Invalid slot or number of keys");
    else
        search(client, slot, (size_t)count, true);
}

/* watch: keys that clients watch: for each key the watches on it, for each client its watches. */
#include "server/redis/transaction/watch.h"

#include <assert.h>

#include "base/memory.h"
#include "server/core/server.h"
#include "server/redis/redis_subsystem.h"
#include "store/store.h"

struct watch {
    struct client *client;
    struct watch *next_of_client;
    struct watch *next, *previous; /* of the same key */
    struct dict_entry *entry;      /* its value is the first watch on the key */
    unsigned database;
    bool was_over; /* the key's time was over when WATCH came, and the key was kept (store.h, follows) */
};

struct watched_keys {
    struct dict databases[STORE_DATABASES];
    uint64_t count; /* watches on all of them */
};

static struct dict_entry *find(struct server *server, unsigned database, const uint8_t *key, size_t length) {
    return dict_find(&server->redis->watched_keys->databases[database], dict_hash(key, length), key, length);
}

static bool watches_already(const struct client *client, const struct dict_entry *entry) {
    for (const struct watch *watch = entry->value; watch; watch = watch->next)
        if (watch->client == client) return true;
    return false;
}

static void link_watch(struct client *client, struct watch *watch, struct dict_entry *entry) {
    *watch = (struct watch){
        .client = client,
        .next_of_client = client->watches,
        .next = entry->value,
        .entry = entry,
        .database = (unsigned)client->database,
    };
    if (watch->next) watch->next->previous = watch;
    entry->value = watch;
    client->watches = watch;
    client->server->redis->watched_keys->count++;
}

bool watch_key(struct client *client, const uint8_t *key, size_t length) {
    struct server *server = client->server;
    unsigned database = (unsigned)client->database;
    store_find(server->store, database, key, length); /* a key whose time is over goes now, not as a change later */
    if (!server->redis->watched_keys)
        server->redis->watched_keys = memory_calloc(1, sizeof *server->redis->watched_keys);
    if (!server->redis->watched_keys) return false;
    struct dict_entry *entry = find(server, database, key, length);
    if (entry && watches_already(client, entry)) return true;
    struct watch *watch = memory_alloc(sizeof *watch);
    if (!watch) return false;
    if (!entry)
        entry = dict_add(&server->redis->watched_keys->databases[database], dict_hash(key, length), key, length);
    if (!entry) {
        memory_free(watch);
        return false;
    }
    link_watch(client, watch, entry);
    watch->was_over = store_is_over(server->store, database, key, length);
    return true;
}

static void unlink_watch(struct watched_keys *keys, struct watch *watch) {
    if (watch->next) watch->next->previous = watch->previous;
    if (watch->previous) {
        watch->previous->next = watch->next;
    } else {
        watch->entry->value = watch->next;
        if (!watch->next) {
            dict_unlink(&keys->databases[watch->database], watch->entry);
            dict_entry_free(watch->entry);
        }
    }
    keys->count--;
}

void watch_forget(struct client *client) {
    while (client->watches) {
        struct watch *watch = client->watches;
        client->watches = watch->next_of_client;
        unlink_watch(client->server->redis->watched_keys, watch);
        memory_free(watch);
    }
    client->watch_broken = false;
}

bool watch_is_broken(struct client *client) {
    struct store *store = client->server->store;
    /* Finding a key whose time is over removes it, which breaks the watch; where the key is kept, that is seen here. */
    for (const struct watch *watch = client->watches; watch && !client->watch_broken; watch = watch->next_of_client) {
        const struct dict_entry *entry = watch->entry;
        store_find(store, watch->database, entry->key, entry->key_length);
        bool is_over = store_is_over(store, watch->database, entry->key, entry->key_length);
        client->watch_broken |= is_over && !watch->was_over;
    }
    return client->watch_broken;
}

static void break_watches(const struct dict_entry *entry) {
    for (const struct watch *watch = entry->value; watch; watch = watch->next) watch->client->watch_broken = true;
}

void watch_changed(struct server *server, unsigned database, const uint8_t *key, size_t length) {
    if (!server->redis->watched_keys || server->redis->watched_keys->count == 0) return;
    const struct dict_entry *entry = find(server, database, key, length);
    if (entry) break_watches(entry);
}

void watch_will_flush(struct server *server, unsigned database) {
    if (!server->redis->watched_keys || server->redis->watched_keys->count == 0) return;
    struct dict *keys = &server->store->databases[database].keys;
    struct dict_position position = {0};
    const struct dict_entry *entry;
    while ((entry = dict_next(&server->redis->watched_keys->databases[database], &position)))
        if (dict_find(keys, entry->hash, entry->key, entry->key_length)) break_watches(entry);
}

void watch_free(struct server *server) {
    assert(!server->redis->watched_keys || server->redis->watched_keys->count == 0);
    for (unsigned database = 0; server->redis->watched_keys && database < STORE_DATABASES; database++)
        dict_clear(&server->redis->watched_keys->databases[database], NULL, NULL);
    memory_free(server->redis->watched_keys);
    server->redis->watched_keys = NULL;
}

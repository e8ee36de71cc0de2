#include "store/eviction.h"

#include <string.h>

#include "store/store.h"

#define ROUNDS 64 /* of looking at keys, before the policy's order no longer matters */

const char *const eviction_policy_names[EVICTION_POLICIES + 1] = {
    [EVICTION_VOLATILE_LRU] = "volatile-lru",
    [EVICTION_VOLATILE_LFU] = "volatile-lfu",
    [EVICTION_VOLATILE_RANDOM] = "volatile-random",
    [EVICTION_VOLATILE_TTL] = "volatile-ttl",
    [EVICTION_ALLKEYS_LRU] = "allkeys-lru",
    [EVICTION_ALLKEYS_LFU] = "allkeys-lfu",
    [EVICTION_ALLKEYS_RANDOM] = "allkeys-random",
    [EVICTION_NONE] = "noeviction",
    [EVICTION_POLICIES] = NULL,
};

void eviction_use(struct store *store, enum eviction_policy policy, uint32_t samples) {
    if (store->eviction.policy != policy) store->eviction.count = 0;
    store->eviction.policy = policy;
    store->eviction.samples = samples;
    bool by_frequency = policy == EVICTION_ALLKEYS_LFU || policy == EVICTION_VOLATILE_LFU;
    store->access.by_frequency = by_frequency;
}

static bool is_volatile(enum eviction_policy policy) {
    return policy <= EVICTION_VOLATILE_TTL;
}

/* A key that the policy may take, at random; NULL: there is none. */
static struct dict_entry *any_of(struct store *store, unsigned database) {
    struct store_database *db = &store->databases[database];
    if (!is_volatile(store->eviction.policy)) return dict_random(&db->keys, &store->random);
    if (db->expiry.count == 0) return NULL;
    return db->expiry.items[random_below(&store->random, db->expiry.count)].entry;
}

static uint32_t score_of(const struct store *store, const struct dict_entry *entry) {
    const struct value *value = store_value(entry);
    return store->access.by_frequency ? ACCESS_COUNTER_MAX - access_frequency(&store->access, value)
                                      : access_idle_s(&store->access, value);
}

static void forget(struct eviction *eviction, uint32_t place) {
    eviction->count--;
    memmove(&eviction->pool[place], &eviction->pool[place + 1], (eviction->count - place) * sizeof *eviction->pool);
}

/* Puts a candidate where its score belongs; the worst of a full pool makes room. */
static void remember(struct eviction *eviction, struct eviction_candidate candidate) {
    for (uint32_t i = 0; i < eviction->count; i++) {
        if (eviction->pool[i].hash == candidate.hash && eviction->pool[i].database == candidate.database) {
            forget(eviction, i);
            break;
        }
    }
    if (eviction->count == EVICTION_POOL) {
        if (eviction->pool[0].score >= candidate.score) return;
        forget(eviction, 0);
    }
    uint32_t place = eviction->count;
    for (; place > 0 && eviction->pool[place - 1].score > candidate.score; place--)
        eviction->pool[place] = eviction->pool[place - 1];
    eviction->pool[place] = candidate;
    eviction->count++;
}

/* False: no database has a key that may go. */
static bool look_around(struct store *store) {
    bool found = false;
    for (unsigned d = 0; d < STORE_DATABASES; d++) {
        for (uint32_t i = 0; i < store->eviction.samples; i++) {
            const struct dict_entry *entry = any_of(store, d);
            if (!entry) break;
            found = true;
            remember(&store->eviction,
                     (struct eviction_candidate){.score = score_of(store, entry), .hash = entry->hash, .database = d});
        }
    }
    return found;
}

/* The best candidate that is still there and was not used since. */
static struct dict_entry *take_best(struct store *store, unsigned *database) {
    struct eviction *eviction = &store->eviction;
    while (eviction->count > 0) {
        struct eviction_candidate best = eviction->pool[--eviction->count];
        struct dict_entry *entry = dict_find_hash(&store->databases[best.database].keys, best.hash);
        if (!entry || (is_volatile(eviction->policy) && store_value(entry)->expiry == 0)) continue;
        if (score_of(store, entry) < best.score) continue;
        *database = best.database;
        return entry;
    }
    return NULL;
}

static struct dict_entry *pick_random(struct store *store, unsigned *database) {
    for (unsigned tries = 0; tries < STORE_DATABASES; tries++) {
        *database = store->eviction.next_database++ % STORE_DATABASES;
        struct dict_entry *entry = any_of(store, *database);
        if (entry) return entry;
    }
    return NULL;
}

static struct dict_entry *pick_nearest_end(struct store *store, unsigned *database) {
    const struct expire_item *nearest = NULL;
    for (unsigned d = 0; d < STORE_DATABASES; d++) {
        const struct expire_heap *heap = &store->databases[d].expiry;
        if (heap->count == 0 || (nearest && heap->items[0].at_ms >= nearest->at_ms)) continue;
        nearest = &heap->items[0];
        *database = d;
    }
    return nearest ? nearest->entry : NULL;
}

struct dict_entry *eviction_pick(struct store *store, unsigned *database) {
    switch (store->eviction.policy) {
    case EVICTION_VOLATILE_RANDOM:
    case EVICTION_ALLKEYS_RANDOM: return pick_random(store, database);
    case EVICTION_VOLATILE_TTL: return pick_nearest_end(store, database);
    case EVICTION_VOLATILE_LRU:
    case EVICTION_VOLATILE_LFU:
    case EVICTION_ALLKEYS_LRU:
    case EVICTION_ALLKEYS_LFU: break;
    case EVICTION_NONE:
    case EVICTION_POLICIES: return NULL;
    }
    for (unsigned round = 0; round < ROUNDS; round++) {
        if (!look_around(store)) return NULL;
        struct dict_entry *entry = take_best(store, database);
        if (entry) return entry;
    }
    return pick_random(store, database);
}

/* store: the databases, and the slices in which expiry, rehash and freeing are done. */
#include "store/store.h"

#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"

#define FREE_AT_ONCE 64    /* values of at most this many parts are freed where they stand */
#define FREE_SLICE 64      /* parts freed between two looks at the clock */
#define EXPIRE_SLICE 16
#define REHASH_SLICE 64
#define RANDOM_TRIES 100   /* picks of keys that have run out before RANDOMKEY gives up */

struct store_discarded {
    struct store_discarded *next;
    struct value *value; /* NULL: keys */
    struct dict keys;
    uint64_t objects; /* that are counted when all of it is gone: keys, or the value */
};

struct store *store_new(void) {
    struct store *store = memory_calloc(1, sizeof *store);
    if (!store) return NULL;
    /* One hash key for the process: a second store must not change it under the first one's tables. */
    static bool seeded;
    if (!seeded) {
        dict_seed(random_entropy(), random_entropy());
        seeded = true;
    }
    random_seed(&store->random, random_entropy());
    store->access = (struct access_clock){.log_factor = 10, .decay_minutes = 1};
    access_tell_time(&store->access, clock_monotonic_us());
    store->eviction = (struct eviction){.policy = EVICTION_NONE, .samples = 5};
    return store;
}

static void discard(struct store *store, struct value *value, uint64_t objects);

static void drop_value(void *context, void *value) {
    discard(context, value, 0); /* its key is counted */
}

static void drop_at_once(void *context, void *value) {
    (void)context;
    value_free(value);
}

/* Frees part of what was discarded; true when nothing is left. */
static bool free_discarded(struct store *store, size_t steps) {
    while (store->discarded) {
        struct store_discarded *item = store->discarded;
        if (item->value) {
            if (!value_release(item->value, &steps)) return false;
            item->value = NULL;
        }
        /* Large values inside are put before this item, which stays on the list until its dict is gone. */
        if (!dict_release(&item->keys, &steps, drop_value, store)) return false;
        struct store_discarded **link = &store->discarded;
        while (*link != item) link = &(*link)->next;
        *link = item->next;
        store->discarded_count--;
        store->freed_in_slices += item->objects;
        memory_free(item);
    }
    return true;
}

void store_free(struct store *store) {
    if (!store) return;
    for (unsigned d = 0; d < STORE_DATABASES; d++) {
        dict_clear(&store->databases[d].keys, drop_at_once, NULL);
        expire_free(&store->databases[d].expiry);
    }
    free_discarded(store, SIZE_MAX);
    memory_free(store);
}

void store_adopt(struct store *store, struct store *from) {
    for (unsigned d = 0; d < STORE_DATABASES; d++) {
        assert(dict_count(&store->databases[d].keys) == 0 && store->databases[d].expiry.count == 0);
        expire_free(&store->databases[d].expiry);
        dict_clear(&store->databases[d].keys, drop_at_once, NULL);
        store->databases[d] = from->databases[d];
        memset(&from->databases[d], 0, sizeof from->databases[d]);
    }
}

static struct store_discarded *discarded_push(struct store *store) {
    struct store_discarded *discarded = memory_calloc(1, sizeof *discarded);
    if (!discarded) return NULL;
    discarded->next = store->discarded;
    store->discarded = discarded;
    store->discarded_count++;
    return discarded;
}

static void discard(struct store *store, struct value *value, uint64_t objects) {
    struct store_discarded *discarded = value_free_effort(value) > FREE_AT_ONCE ? discarded_push(store) : NULL;
    if (discarded) {
        discarded->value = value;
        discarded->objects = objects;
    } else {
        value_free(value);
    }
}

void store_discard(struct store *store, struct value *value) {
    discard(store, value, 1);
}

void store_discard_keys(struct store *store, struct dict *keys) {
    struct store_discarded *discarded = dict_count(keys) > FREE_AT_ONCE ? discarded_push(store) : NULL;
    if (discarded) {
        discarded->keys = *keys;
        discarded->objects = dict_count(keys);
        dict_init(keys);
    } else {
        dict_clear(keys, drop_value, store);
    }
}

void store_flush(struct store *store, unsigned database) {
    struct store_database *db = &store->databases[database];
    store->changes += dict_count(&db->keys);
    if (store->events.will_flush) store->events.will_flush(store->events.context, database);
    store_discard_keys(store, &db->keys); /* what nobody has taken over */
    expire_free(&db->expiry);
}

bool store_has_expired(const struct store *store, unsigned database, const struct dict_entry *entry, int64_t now_ms) {
    int64_t at_ms;
    return !store->keeps_expired && store_expiry(store, database, entry, &at_ms) && at_ms < now_ms;
}

/* The time at which keys are looked at. */
static int64_t now_ms(const struct store *store) {
    return store->frozen_ms != 0 ? store->frozen_ms : store->told_ms != 0 ? store->told_ms : clock_unix_ms();
}

static void expire_now(struct store *store, unsigned database, struct dict_entry *entry) {
    store->expired_keys++;
    if (store->events.expired) store->events.expired(store->events.context, database, entry->key, entry->key_length);
    store_remove(store, database, entry);
}

bool store_evict(struct store *store) {
    unsigned database;
    struct dict_entry *entry = eviction_pick(store, &database);
    if (!entry) return false;
    store->evicted_keys++;
    if (store->events.evicted) store->events.evicted(store->events.context, database, entry->key, entry->key_length);
    store_remove(store, database, entry);
    return true;
}

bool store_is_over(struct store *store, unsigned database, const uint8_t *key, size_t length) {
    struct dict_entry *entry = dict_find(&store->databases[database].keys, dict_hash(key, length), key, length);
    return entry && store_has_expired(store, database, entry, now_ms(store));
}

struct dict_entry *store_find(struct store *store, unsigned database, const uint8_t *key, size_t length) {
    struct dict_entry *entry = dict_find(&store->databases[database].keys, dict_hash(key, length), key, length);
    if (!entry || store_value(entry)->expiry == 0 || !store_has_expired(store, database, entry, now_ms(store)))
        return entry;
    if (!store->follows) expire_now(store, database, entry);
    return NULL;
}

static void exchange(struct store *store, struct dict_entry *entry, struct value *value) {
    struct value *old = entry->value;
    value->expiry = old->expiry;
    value->access = old->access; /* how often a key is used says something of the key, whatever it holds */
    entry->value = value;
    store_discard(store, old);
}

void store_replace(struct store *store, unsigned database, struct dict_entry *entry, struct value *value) {
    store_will_change(store, database, entry);
    exchange(store, entry, value);
    store_changed(store, database, entry->key, entry->key_length);
}

struct dict_entry *store_put(struct store *store, unsigned database, const uint8_t *key, size_t length,
                             struct value *value, bool keep_expiry) {
    struct store_database *db = &store->databases[database];
    uint32_t hash = dict_hash(key, length);
    struct dict_entry *entry = dict_find(&db->keys, hash, key, length);
    if (entry) {
        store_will_change(store, database, entry);
        store_touch(store, entry);
        if (!keep_expiry) expire_clear(&db->expiry, entry);
        exchange(store, entry, value);
        store_changed(store, database, key, length);
        return entry;
    }
    entry = dict_add(&db->keys, hash, key, length);
    if (entry) {
        value->expiry = 0;
        value->access = access_fresh(&store->access) & ACCESS_BITS;
        entry->value = value;
        store_added(store, database, key, length);
    }
    return entry;
}

void store_remove(struct store *store, unsigned database, struct dict_entry *entry) {
    struct store_database *db = &store->databases[database];
    store_will_change(store, database, entry);
    expire_clear(&db->expiry, entry);
    dict_unlink(&db->keys, entry);
    store_changed(store, database, entry->key, entry->key_length);
    store_discard(store, entry->value);
    dict_entry_free(entry);
}

bool store_rename(struct store *store, unsigned database, struct dict_entry *entry, const uint8_t *key, size_t length) {
    struct store_database *db = &store->databases[database];
    uint32_t hash = dict_hash(key, length);
    struct dict_entry *target = dict_find(&db->keys, hash, key, length);
    store_will_change(store, database, entry);
    if (!target) {
        target = dict_add(&db->keys, hash, key, length);
        if (!target) return false;
    } else {
        store_will_change(store, database, target);
        expire_clear(&db->expiry, target);
        store_discard(store, target->value);
    }
    target->value = entry->value;
    expire_moved(&db->expiry, target);
    dict_unlink(&db->keys, entry);
    store_changed(store, database, entry->key, entry->key_length);
    store_added(store, database, key, length);
    dict_entry_free(entry);
    return true;
}

bool store_move(struct store *store, unsigned database, struct dict_entry *entry, unsigned target) {
    struct store_database *from = &store->databases[database], *to = &store->databases[target];
    int64_t at_ms = 0;
    store_will_change(store, database, entry);
    bool ends = expire_get(&from->expiry, entry, &at_ms);
    if (ends && !expire_reserve(&to->expiry)) return false;
    struct dict_entry *moved = dict_add(&to->keys, entry->hash, entry->key, entry->key_length);
    if (!moved) return false;
    expire_clear(&from->expiry, entry);
    moved->value = entry->value;
    if (ends) expire_set(&to->expiry, moved, at_ms);
    dict_unlink(&from->keys, entry);
    store_changed(store, database, entry->key, entry->key_length);
    store_added(store, target, entry->key, entry->key_length);
    dict_entry_free(entry);
    return true;
}

void store_exchange(struct store *store, unsigned first, unsigned second) {
    if (first == second) return;
    if (store->events.will_exchange) store->events.will_exchange(store->events.context, first, second);
    struct store_database database = store->databases[first];
    store->databases[first] = store->databases[second];
    store->databases[second] = database;
    store->changes++;
}

bool store_expire_at(struct store *store, unsigned database, struct dict_entry *entry, int64_t at_ms) {
    store_will_change(store, database, entry);
    bool set = expire_set(&store->databases[database].expiry, entry, at_ms);
    store_changed(store, database, entry->key, entry->key_length);
    return set;
}

bool store_expiry(const struct store *store, unsigned database, const struct dict_entry *entry, int64_t *at_ms) {
    return expire_get(&store->databases[database].expiry, entry, at_ms);
}

void store_persist(struct store *store, unsigned database, struct dict_entry *entry) {
    if (store_value(entry)->expiry == 0) return;
    store_will_change(store, database, entry);
    expire_clear(&store->databases[database].expiry, entry);
    store_changed(store, database, entry->key, entry->key_length);
}

struct dict_entry *store_random(struct store *store, unsigned database) {
    int64_t at_ms = now_ms(store);
    for (int tries = 0; tries < RANDOM_TRIES; tries++) {
        struct dict_entry *entry = dict_random(&store->databases[database].keys, &store->random);
        if (!entry || !store_has_expired(store, database, entry, at_ms)) return entry;
    }
    return NULL;
}

/* Removes keys that have run out until the deadline; false when some are left. */
static bool expire_due(struct store *store, unsigned database, int64_t due_ms, uint64_t deadline_us) {
    const struct expire_heap *heap = &store->databases[database].expiry;
    for (unsigned removed = 0; heap->count > 0 && heap->items[0].at_ms < due_ms; removed++) {
        if (removed % EXPIRE_SLICE == EXPIRE_SLICE - 1 && clock_monotonic_us() >= deadline_us) return false;
        expire_now(store, database, heap->items[0].entry);
    }
    return true;
}

bool store_free_discarded(struct store *store, uint64_t deadline_us) {
    while (!free_discarded(store, FREE_SLICE))
        if (clock_monotonic_us() >= deadline_us) return false;
    return true;
}

bool store_free_some(struct store *store) {
    for (unsigned d = 0; d < STORE_DATABASES; d++) {
        const struct store_database *db = &store->databases[d];
        if (db->expiry.count > 0 || dict_is_rehashing(&db->keys)) return false;
    }
    return free_discarded(store, FREE_SLICE);
}

uint64_t store_step(struct store *store, uint64_t deadline_us) {
    uint64_t now_us = clock_monotonic_us(), next_us = CLOCK_NEVER;
    int64_t at_ms = clock_unix_ms();
    bool leaves_expired = store->leaves_expired || store->follows;
    for (unsigned d = 0; d < STORE_DATABASES; d++) {
        struct store_database *db = &store->databases[d];
        if (!leaves_expired && store->frozen_ms == 0 && !expire_due(store, d, at_ms, deadline_us)) return now_us;
        while (dict_rehash(&db->keys, REHASH_SLICE))
            if (clock_monotonic_us() >= deadline_us) return now_us;
        if (!leaves_expired && db->expiry.count > 0) {
            /* A key has run out only when its millisecond is over; a time far off must not overflow. */
            uint64_t wait_ms = (uint64_t)(db->expiry.items[0].at_ms - at_ms) + 1;
            uint64_t due_us = wait_ms < UINT32_MAX ? now_us + wait_ms * 1000 : now_us + UINT32_MAX * 1000ull;
            if (due_us < next_us) next_us = due_us;
        }
    }
    return store_free_discarded(store, deadline_us) ? next_us : now_us;
}

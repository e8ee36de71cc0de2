/* store: databases of keys with values of any type, their expiry, and the slow work that is done in slices.
 *
 * An expired key is never seen: a look-up removes it, and store_step removes the others in time. Large values and
 * whole databases are unlinked at once and freed by store_step. An entry keeps its address until its key is removed;
 * its value may be replaced. */
#ifndef REPLAY_STORE_STORE_H
#define REPLAY_STORE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"
#include "base/random.h"
#include "store/access.h"
#include "store/dict.h"
#include "store/eviction.h"
#include "store/expire.h"
#include "store/value.h"

#define STORE_DATABASES LIMIT_DATABASES

struct store_database {
    struct dict keys; /* of struct value */
    struct expire_heap expiry;
};

struct store_discarded; /* what is unlinked and waits to be freed */

/* What the owner of the store hears of. A NULL function is not called. None of them may change the store. */
struct store_events {
    void *context;
    /* The entry's value or expiry is about to change, or the entry to go; it is whole still. May be called when nothing
     * changes in the end. */
    void (*will_change)(void *context, unsigned database, struct dict_entry *entry);
    /* A key was added, changed or removed; called when that is done. The key's bytes are not the store's own. */
    void (*changed)(void *context, unsigned database, const uint8_t *key, size_t length);
    /* What `changed` tells of next is that a key was added, or took the place of one that went. */
    void (*will_add)(void *context);
    /* All keys of the database are about to go at once. */
    void (*will_flush)(void *context, unsigned database);
    /* Two databases are about to change places, with all their keys: of those `changed` is not called. */
    void (*will_exchange)(void *context, unsigned first, unsigned second);
    /* A key goes because its time is over. */
    void (*expired)(void *context, unsigned database, const uint8_t *key, size_t length);
    /* A key goes because its memory is wanted. */
    void (*evicted)(void *context, unsigned database, const uint8_t *key, size_t length);
};

struct store {
    struct store_database databases[STORE_DATABASES];
    struct store_discarded *discarded;
    uint64_t discarded_count; /* values and databases that wait to be freed */
    bool keeps_expired; /* while read from a file keys whose time is over stay: what follows may need them */
    bool follows; /* keys whose time is over are not seen, but stay: on a replica until its primary removes them, in a
                      pause until its end */
    struct random_state random;
    bool leaves_expired; /* store_step leaves them until somebody asks for them; for tests */
    struct access_clock access;
    struct eviction eviction;
    struct store_events events;
    int64_t told_ms; /* Unix time, as the owner tells it between commands: a key that one look-up of a command finds is
                          there for all of them, and none asks a clock; 0: the clock is asked */
    int64_t frozen_ms; /* not 0: the time at which keys are seen, and none is removed because its time is over */
    /* for INFO */
    uint64_t changes; /* keys changed since start */
    uint64_t expired_keys, evicted_keys;
    uint64_t freed_in_slices; /* values that were large, keys of whole databases */
    uint64_t keyspace_hits, keyspace_misses;
};

/* Whoever changes a value in place says so, before and after; the functions below that change something say it
 * themselves. */
static inline void store_will_change(struct store *store, unsigned database, struct dict_entry *entry) {
    if (store->events.will_change) store->events.will_change(store->events.context, database, entry);
}
static inline void store_changed(struct store *store, unsigned database, const uint8_t *key, size_t length) {
    store->changes++;
    if (store->events.changed) store->events.changed(store->events.context, database, key, length);
}

static inline void store_added(struct store *store, unsigned database, const uint8_t *key, size_t length) {
    if (store->events.will_add) store->events.will_add(store->events.context);
    store_changed(store, database, key, length);
}

struct store *store_new(void); /* NULL: memory exhausted */
void store_free(struct store *store);
/* Takes over all keys of `from`, which is empty then; the databases must be empty. */
void store_adopt(struct store *store, struct store *from);

/* True: store_step has nothing to do. Where only freeing is left, some of that is done first. Reads no clock. */
bool store_free_some(struct store *store);
/* Does due work (expiry, rehash, freeing) until the deadline, and returns when to call again: a time of
 * clock_monotonic_us, which is now or past while work is left, or CLOCK_NEVER. */
uint64_t store_step(struct store *store, uint64_t deadline_us);

/* Frees some of what is unlinked and waits for it, for about so long; true when nothing is left. */
bool store_free_discarded(struct store *store, uint64_t deadline_us);
/* Removes the key that should go when memory is short; false: none may. */
bool store_evict(struct store *store);

/* The key is used. */
static inline void store_touch(struct store *store, const struct dict_entry *entry) {
    access_touch(&store->access, entry->value, &store->random);
}

/* Whether the key is there, though its time is over. It stays there: store_find would remove it. */
bool store_is_over(struct store *store, unsigned database, const uint8_t *key, size_t length);
/* NULL: no such key, or it has run out. */
struct dict_entry *store_find(struct store *store, unsigned database, const uint8_t *key, size_t length);
static inline struct value *store_value(const struct dict_entry *entry) {
    return entry->value;
}

/* Gives the key this value, which the store takes over, in place of any other; its expiry is cleared, or kept with
 * keep_expiry. NULL: memory exhausted, nothing changed, the value is still the caller's. */
struct dict_entry *store_put(struct store *store, unsigned database, const uint8_t *key, size_t length,
                             struct value *value, bool keep_expiry);
/* Exchanges the value, keeping the expiry. */
void store_replace(struct store *store, unsigned database, struct dict_entry *entry, struct value *value);
void store_remove(struct store *store, unsigned database, struct dict_entry *entry);
/* Moves the value and the expiry of `entry`, which goes, to another name, whose own value goes. False: memory
 * exhausted, nothing changed. */
bool store_rename(struct store *store, unsigned database, struct dict_entry *entry, const uint8_t *key, size_t length);
/* Moves value and expiry of `entry`, which goes, to the same name in another database, where there is none. False:
 * memory exhausted, nothing changed. */
bool store_move(struct store *store, unsigned database, struct dict_entry *entry, unsigned target);
void store_exchange(struct store *store, unsigned first, unsigned second);
void store_flush(struct store *store, unsigned database);
/* Frees keys and values that were taken out of a database, which may be many, in slices; `keys` is empty then. */
void store_discard_keys(struct store *store, struct dict *keys);
/* Frees the value, later and in slices if it is large. */
void store_discard(struct store *store, struct value *value);

/* Unix time in milliseconds. False: memory exhausted. */
bool store_expire_at(struct store *store, unsigned database, struct dict_entry *entry, int64_t at_ms);
bool store_expiry(const struct store *store, unsigned database, const struct dict_entry *entry, int64_t *at_ms);
void store_persist(struct store *store, unsigned database, struct dict_entry *entry);
/* True when the key has run out and is only there until something removes it: scans leave it out. */
bool store_has_expired(const struct store *store, unsigned database, const struct dict_entry *entry, int64_t now_ms);
struct dict_entry *store_random(struct store *store, unsigned database); /* NULL: no live key */

#endif

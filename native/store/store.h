/* store: 16 databases of keys with values of any type, their expiry, and the slow work that is done in slices.
 *
 * A key that has run out is never seen: finding it removes it, and store_step removes the others when their time comes.
 * Large values and whole databases are unlinked at once and freed by store_step. An entry stays where it is until its
 * key is removed; its value may be exchanged. */
#ifndef REPLAY_STORE_STORE_H
#define REPLAY_STORE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/random.h"
#include "store/dict.h"
#include "store/expire.h"
#include "store/value.h"

#define STORE_DATABASES 16

struct store_database {
    struct dict keys; /* of struct value */
    struct expire_heap expiry;
};

struct store_discarded; /* what is unlinked and waits to be freed */

struct store {
    struct store_database databases[STORE_DATABASES];
    struct store_discarded *discarded;
    uint64_t discarded_count; /* values and databases that wait to be freed */
    struct random_state random;
    /* for INFO */
    uint64_t changes;         /* keys changed since start */
    uint64_t expired_keys;
    uint64_t keyspace_hits, keyspace_misses;
};

/* Whoever changes a value in place says so. */
static inline void store_changed(struct store *store) {
    store->changes++;
}

struct store *store_new(void); /* NULL: memory exhausted */
void store_free(struct store *store);

/* Does due work (expiry, rehash, freeing) for about budget_us, and returns when to call again: a time of
 * clock_monotonic_us, which is now or past while work is left, or CLOCK_NEVER. */
uint64_t store_step(struct store *store, uint64_t budget_us);

/* NULL: no such key, or it has run out. */
struct dict_entry *store_find(struct store *store, unsigned database, const uint8_t *key, size_t length);
static inline struct value *store_value(const struct dict_entry *entry) {
    return entry->value;
}

/* Gives the key this value, which the store takes over, in place of any other; its expiry is cleared, or kept with
 * keep_expiry. NULL: memory exhausted, nothing changed, the value is still the caller's. */
struct dict_entry *store_put(struct store *store, unsigned database, const uint8_t *key, size_t length,
                             struct value *value, bool keep_expiry);
void store_replace(struct store *store, struct dict_entry *entry, struct value *value); /* keeps the expiry */
void store_remove(struct store *store, unsigned database, struct dict_entry *entry);
/* Moves the value and the expiry of `entry`, which goes, to another name, whose own value goes. False: memory
 * exhausted, nothing changed. */
bool store_rename(struct store *store, unsigned database, struct dict_entry *entry, const uint8_t *key, size_t length);
void store_flush(struct store *store, unsigned database);
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

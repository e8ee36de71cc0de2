/* eviction: which key goes when memory is short.
 *
 * Each time a few keys are sampled, and the best candidates of all samples are remembered. This approximates the
 * exact order without a list of all keys (Redis's pool, by Salvatore Sanfilippo). A key is remembered by its hash:
 * once in 2^32 another key with the same hash is evicted instead. For volatile-ttl nothing is sampled, because the
 * key that expires next is known exactly. */
#ifndef REPLAY_STORE_EVICTION_H
#define REPLAY_STORE_EVICTION_H

#include <stdint.h>

#include "store/dict.h"

enum eviction_policy {
    EVICTION_VOLATILE_LRU, /* volatile: of the keys that expire */
    EVICTION_VOLATILE_LFU,
    EVICTION_VOLATILE_RANDOM,
    EVICTION_VOLATILE_TTL,
    EVICTION_ALLKEYS_LRU,
    EVICTION_ALLKEYS_LFU,
    EVICTION_ALLKEYS_RANDOM,
    EVICTION_NONE,
    EVICTION_POLICIES,
};

extern const char *const eviction_policy_names[EVICTION_POLICIES + 1]; /* ended by NULL */

#define EVICTION_POOL 16

struct eviction_candidate {
    uint32_t score; /* the higher, the sooner it goes */
    uint32_t hash;
    uint32_t database;
};

struct eviction {
    enum eviction_policy policy;
    uint32_t samples; /* keys looked at in each database, each time */
    uint32_t count;
    struct eviction_candidate pool[EVICTION_POOL]; /* the best last */
    uint32_t next_database; /* of the random policies: they take turns */
};

struct store;

/* Forgets the candidates if the policy is another than before: their scores mean something else. */
void eviction_use(struct store *store, enum eviction_policy policy, uint32_t samples);
/* The key that should go next, and its database. NULL: none may. */
struct dict_entry *eviction_pick(struct store *store, unsigned *database);

#endif

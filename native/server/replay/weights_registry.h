/* weights_registry: versioned blobs by key, opaque to the server: how parameters travel from learner to actors. */
#ifndef REPLAY_SERVER_WEIGHTS_REGISTRY_H
#define REPLAY_SERVER_WEIGHTS_REGISTRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/blob.h"
#include "base/error.h"
#include "resp/parse.h"

#define WEIGHTS_MAX_KEYS 4096u
#define WEIGHTS_MAX_KEY_BYTES 255u
#define WEIGHTS_BUCKETS 1024u

struct weights_entry {
    struct weights_entry *next, *previous; /* of all */
    struct weights_entry *chain;           /* of keys that share a bucket */
    uint64_t sequence; /* 1 for the first entry ever made, one more for each that followed */
    struct blob *blob;
    int64_t version;
    uint64_t published_us; /* by clock_monotonic_us: when it was published, or read from a file */
    size_t key_length;
    char key[];
};

struct weights_registry {
    struct weights_entry *entries, *newest; /* in the order they were made */
    struct weights_entry *buckets[WEIGHTS_BUCKETS];
    uint32_t count;
    uint64_t entered; /* entries that there have ever been */
};

struct weights_registry *weights_registry_new(void); /* NULL: memory is exhausted */
void weights_registry_free(struct weights_registry *registry);
/* Puts in weights that were read from a file; takes its own reference. False: memory is exhausted. */
bool weights_registry_adopt(struct weights_registry *registry, const void *key, size_t length, int64_t version,
                            struct blob *blob);
/* NULL: there is no such key. */
struct weights_entry *weights_registry_find(const struct weights_registry *registry, const struct resp_argument *key);
void weights_registry_clear(struct weights_registry *registry);
bool weights_registry_remove(struct weights_registry *registry, const struct resp_argument *key);

/* Publishing in two steps, the second of which cannot fail, so that several keys change at once or none does. */
struct weights_staged {
    struct weights_entry *entry; /* the key's, or one that is not among the others yet */
    struct blob *blob;
    bool is_new;
};
/* Checks the key, and makes what a new one needs, of which `more` keys are staged already. The caller has seen that the
 * version is above the published one. -1: refused. */
int weights_stage(struct weights_registry *registry, const struct resp_argument *key, const struct resp_argument *blob,
                  uint32_t more, struct weights_staged *staged, struct error *error);
void weights_install(struct weights_registry *registry, struct weights_staged *staged, int64_t version);
void weights_unstage(struct weights_staged *staged);
/* ERROR_STALEVERSION: weights of the version `current` are published. */
int weights_refuse_version(int64_t current, int64_t version, struct error *error);
/* The same where weights of that version or newer are published under the key. */
int weights_check_version(struct weights_registry *registry, const struct resp_argument *key, int64_t version,
                          struct error *error);

#endif

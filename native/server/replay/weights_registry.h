/* weights_registry: versioned blobs by key, opaque to the server: how parameters travel from learner to actors. */
#ifndef REPLAY_SERVER_WEIGHTS_REGISTRY_H
#define REPLAY_SERVER_WEIGHTS_REGISTRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/blob.h"

#define WEIGHTS_MAX_KEYS 4096u
#define WEIGHTS_MAX_KEY_BYTES 255u

struct server;

struct weights_entry {
    struct weights_entry *next;
    struct blob *blob;
    int64_t version;
    size_t key_length;
    char key[];
};

struct weights_registry {
    struct weights_entry *entries;
    uint32_t count;
};

struct weights_registry *weights_registry_new(struct server *server); /* NULL: memory is exhausted */
/* Puts in weights that were read from a file; takes its own reference. False: memory is exhausted. */
bool weights_registry_adopt(struct weights_registry *registry, const void *key, size_t length, int64_t version,
                            struct blob *blob);
void weights_registry_free(struct weights_registry *registry);

#endif

/* weights_registry: versioned blobs by key, opaque to the server: how parameters travel from learner to actors. */
#ifndef REPLAY_SERVER_WEIGHTS_REGISTRY_H
#define REPLAY_SERVER_WEIGHTS_REGISTRY_H

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
void weights_registry_free(struct weights_registry *registry);

#endif

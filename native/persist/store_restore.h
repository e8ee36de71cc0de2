/* store_restore: reads keys, and what stands beside them, from the records of a snapshot into a new store. Nothing in
 * the records is trusted. */
#ifndef REPLAY_PERSIST_STORE_RESTORE_H
#define REPLAY_PERSIST_STORE_RESTORE_H

#include "base/blob.h"
#include "base/error.h"
#include "persist/store_piece.h"
#include "store/store.h"

struct store_weights {
    struct store_weights *next;
    struct blob *blob;
    int64_t version;
    size_t key_length;
    uint8_t key[];
};

struct store_content {
    struct store *store; /* the caller's; NULL: none */
    struct store_weights *weights; /* the newest first */
    struct store_weights *gradients,
        *last_gradient; /* in order; their keys and versions are for whoever adopts them to read */
    struct store_weights *libraries, *last_library; /* of functions, in order; their blobs are all that is of use */
    uint64_t keys;
};
void store_content_free(struct store_content *content);
/* One more library. False: memory is exhausted. */
bool store_content_add_library(struct store_content *content, const void *code, size_t length);

/* Is given each key in turn, whole; the value is not its own. -1 with `error`: nothing more is read. */
struct store_keys_sink {
    void *context;
    int (*key)(void *context, unsigned database, const struct piece_key *key, const struct value *value,
               struct error *error);
    int (*library)(void *context, const struct blob *code, struct error *error);
};

struct store_restore;
/* Into a store; with a sink keys and libraries go there, weights and gradients nowhere. NULL: memory is exhausted. */
struct store_restore *store_restore_begin(const struct store_keys_sink *sink);
int store_restore_keys(struct store_restore *restore, uint32_t database, const uint8_t *body, size_t length,
                       struct error *error);
/* What stands beside the keys, by the kind of its record: SNAPSHOT_RECORD_WEIGHTS, _GRADIENTS or _LIBRARIES. */
int store_restore_beside(struct store_restore *restore, uint32_t kind, const uint8_t *body, size_t length,
                         struct error *error);
/* Nothing more comes. -1: something that was begun has no end. The content is the caller's, also then. */
int store_restore_finish(struct store_restore *restore, struct store_content *content, struct error *error);
void store_restore_free(struct store_restore *restore); /* NULL is allowed */

#endif

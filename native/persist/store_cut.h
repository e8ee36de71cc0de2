/* store_cut: a store, and weights and gradients beside it, as they are at one moment, the cut, handed out piece by
 * piece while they change.
 *
 * Why every key is handed out once, with the value that it had at the cut:
 *   - Keys are walked in the order of their hashes, which growing tables keep, so that it is always known whether
 *     the walk has passed a key.
 *   - The store tells before a value changes or goes. Where the walk has not passed its key, the value is handed out
 *     then, and marked; what is new under a key gets the same mark. The walk passes over marked values.
 *   - Large strings are kept by reference: their bytes never change, and they are copied later. A large value of
 *     many parts that is about to change, while it waits or is being copied, is copied to its end at once. Who can wait
 *     for it asks before (store_cut_copies_first), and it is copied next, piece by piece.
 *   - A database that is flushed is taken over with its walk, and freed when it has been walked.
 * It would break if a value changed without store_cut_will_change, or a key came without store_cut_changed. */
#ifndef REPLAY_PERSIST_STORE_CUT_H
#define REPLAY_PERSIST_STORE_CUT_H

#include "base/blob.h"
#include "store/store.h"

struct store_cut;

struct store_cut_sink {
    /* Room for a record's body. NULL: the cut is of no use any more. */
    uint8_t *(*record)(struct store_cut_sink *sink, uint32_t kind, uint32_t database, size_t bytes);
};

struct store_cut *store_cut_new(struct store *store); /* NULL: memory is exhausted */
/* The store is there still. */
void store_cut_free(struct store_cut *cut);

/* False: the last cut is still being cleared away (store_cut_step does). */
bool store_cut_may_begin(const struct store_cut *cut);
void store_cut_begin(struct store_cut *cut, struct store_cut_sink *sink);
/* Keeps a reference to the blob. False: memory is exhausted. */
bool store_cut_add_weights(struct store_cut *cut, const void *key, size_t length, int64_t version, struct blob *blob);
/* The same for gradients, which come back in the order in which they were added. */
bool store_cut_add_gradients(struct store_cut *cut, const void *key, size_t length, int64_t version, struct blob *blob);
/* Hands out a little. False: all is handed out, or cleared away, or there is no cut. */
bool store_cut_step(struct store_cut *cut);
bool store_cut_failed(const struct store_cut *cut);
/* Nothing more is handed out. Where it had not come to its end, store_cut_step clears it away. */
void store_cut_end(struct store_cut *cut);

bool store_cut_hands_out(const struct store_cut *cut);
/* Whether the key has a value of many parts that has still to be handed out, and must be before it changes. It is the next
 * that is. */
bool store_cut_copies_first(struct store_cut *cut, unsigned database, const uint8_t *key, size_t length);

/* Events of the store. */
void store_cut_will_change(struct store_cut *cut, unsigned database, struct dict_entry *entry);
void store_cut_changed(struct store_cut *cut, unsigned database, const uint8_t *key, size_t length);
void store_cut_will_flush(struct store_cut *cut, unsigned database);
void store_cut_will_swap(struct store_cut *cut, unsigned first, unsigned second);

#endif

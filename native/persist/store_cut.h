/* store_cut: hands out a store, and the weights, gradients and libraries beside it, piece by piece as they were at
 * one moment, the cut, while they change.
 *
 * Why every key is handed out once, with the value that it had at the cut:
 *   - Keys are walked in the order of their hashes. A table that grows keeps this order, so it is always known
 *     whether the walk has passed a key.
 *   - The store tells the cut before a value changes or is removed. If the walk has not passed the key, the value is
 *     handed out then and marked. A new value of a key gets the same mark. The walk skips marked values.
 *   - Large strings are kept by reference and copied later: their bytes never change. If a large value of many parts
 *     is about to change before its copy is complete, the rest is copied at once. A command that can wait asks first
 *     (store_cut_copies_first); then the value is copied next, piece by piece.
 *   - If a database is flushed, the cut takes it over with its walk, and frees it when the walk has ended.
 * This would break if a value changed without store_cut_will_change, or a key was added without store_cut_changed. */
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
/* The same for libraries of functions, which come before all keys. */
bool store_cut_add_library(struct store_cut *cut, const void *name, size_t length, struct blob *code);
/* Hands out a little. False: all is handed out, or cleared away, or there is no cut. */
bool store_cut_step(struct store_cut *cut);
bool store_cut_failed(const struct store_cut *cut);
/* Nothing more is handed out. Where it had not come to its end, store_cut_step clears it away. */
void store_cut_end(struct store_cut *cut);

/* Keys at the cut, and about how many of them have been handed out; 0 where none runs. */
void store_cut_progress(const struct store_cut *cut, uint64_t *keys, uint64_t *passed);

bool store_cut_hands_out(const struct store_cut *cut);
/* Whether the key has a value of many parts that has still to be handed out, and must be before it changes. It is the next
 * that is. */
bool store_cut_copies_first(struct store_cut *cut, unsigned database, const uint8_t *key, size_t length);

/* Events of the store. */
void store_cut_will_change(struct store_cut *cut, unsigned database, struct dict_entry *entry);
void store_cut_changed(struct store_cut *cut, unsigned database, const uint8_t *key, size_t length);
void store_cut_will_flush(struct store_cut *cut, unsigned database);
void store_cut_will_exchange(struct store_cut *cut, unsigned first, unsigned second);

#endif

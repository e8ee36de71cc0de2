/* expire: when keys expire: a binary heap per database, so that the next one due is known without a search. */
#ifndef REPLAY_STORE_EXPIRE_H
#define REPLAY_STORE_EXPIRE_H

#include <stdbool.h>
#include <stdint.h>

#include "store/dict.h"

struct expire_item {
    int64_t at_ms; /* Unix time */
    struct dict_entry *entry; /* its value's `expiry` is this item's place */
};

struct expire_heap {
    struct expire_item *items;
    uint32_t count, capacity;
    double sum_ms; /* of all at_ms, for the average time to live */
};

/* Makes room for one more expiry time, so that the next expire_set does not fail. False: memory exhausted. */
bool expire_reserve(struct expire_heap *heap);
/* Sets or changes the entry's expiry time. False: memory exhausted, nothing changed. */
bool expire_set(struct expire_heap *heap, struct dict_entry *entry, int64_t at_ms);
void expire_clear(struct expire_heap *heap, struct dict_entry *entry); /* nothing if it has none */
bool expire_get(const struct expire_heap *heap, const struct dict_entry *entry, int64_t *at_ms); /* false: none */
/* The entry has taken over a value, and with it the value's expiry time, from another entry. */
void expire_moved(struct expire_heap *heap, struct dict_entry *entry);
void expire_free(struct expire_heap *heap);

#endif

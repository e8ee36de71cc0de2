/* freshness: finds the live items that were made by a policy too old to learn from. Versions may come in any
 * order. */
#ifndef REPLAY_REPLAY_FRESHNESS_H
#define REPLAY_REPLAY_FRESHNESS_H

#include <stdbool.h>
#include <stdint.h>

#include "replay/selector_heap.h"

struct freshness {
    int column; /* of the items' policy versions; -1: they have none */
    int64_t newest; /* version seen so far; INT64_MIN: none */
    int64_t max_staleness; /* -1: items of any age are fresh, and none are kept here */
    struct selector_heap by_version; /* oldest first */
};

void freshness_init(struct freshness *freshness, const struct table_config *config);
/* Begins or stops keeping items, which the caller inserts. -1: memory is exhausted, and nothing changed. */
int freshness_limit(struct freshness *freshness, int64_t max_staleness, uint32_t capacity, uint32_t slots);
void freshness_free(struct freshness *freshness);
void freshness_forget(struct freshness *freshness); /* no version was seen */
void freshness_see(struct freshness *freshness, int64_t version);
/* Whether any item is too old, and the oldest such. O(1). */
bool freshness_stale(const struct freshness *freshness, uint32_t *slot);

/* Sees an item's version, and keeps the item if there is a limit; O(log items). */
void freshness_insert(struct freshness *freshness, const struct slot_store *items, uint32_t slot);
void freshness_remove(struct freshness *freshness, uint32_t slot);

#endif

/* window: which steps each item sees. Windows of equal length and offset see the same steps, whatever column they look at,
 * so an item keeps one list of step slots for each such group (slot_store.h), one group behind the other. */
#ifndef REPLAY_REPLAY_WINDOW_H
#define REPLAY_REPLAY_WINDOW_H

#include <stdint.h>

#include "base/error.h"
#include "replay/slot_store.h"
#include "replay/stream.h"
#include "replay/table.h"

struct window_group {
    uint32_t length; /* >= 1 */
    int32_t offset;
    uint32_t first; /* where its steps begin in an item's list */
};

struct window_map {
    uint32_t groups;
    struct window_group group[TABLE_MAX_COLUMNS];
    uint32_t first[TABLE_MAX_COLUMNS]; /* of window columns: where their group's steps begin */
    uint32_t steps; /* places in an item's list; 0: a table without windows */
    uint32_t span; /* steps of a stream from the first to the last that an item can see */
};

void window_map_init(struct window_map *map, const struct table_config *config);

/* Writes the list of an item at step `number` and takes its references; on refusal it takes none. */
int window_map_resolve(const struct window_map *map, struct slot_store *store, const struct stream *stream,
                       uint64_t number, uint32_t *list, struct error *error);

/* Copies what a window column of n slots of items shows. */
void window_map_gather(const struct window_map *map, const struct slot_store *items, const struct column *column,
                       uint32_t index, const uint32_t *slots, uint32_t n, void *out, size_t result_bytes);

#endif

/* window: which steps each item sees. Windows of equal length and offset see the same steps, whatever column they look at,
 * so an item keeps one list of step slots for each such group, and holds a reference for each place in it. */
#ifndef REPLAY_REPLAY_WINDOW_H
#define REPLAY_REPLAY_WINDOW_H

#include <stdint.h>

#include "base/error.h"
#include "replay/step_store.h"
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
    uint32_t slots;
    uint32_t *list; /* by item slot */
};

/* Groups, steps and span of a signature, without the lists. */
void window_map_plan(struct window_map *map, const struct table_config *config);
int window_map_init(struct window_map *map, const struct table_config *config, uint32_t slots, struct error *error);
void window_map_free(struct window_map *map);

static inline uint32_t *window_map_list(const struct window_map *map, uint32_t slot) {
    return map->list + (size_t)slot * map->steps;
}

/* Writes the list of an item at step `number` and takes its references; on refusal it takes none. */
int window_map_resolve(const struct window_map *map, struct step_store *store, const struct stream *stream,
                       uint64_t number, uint32_t *list, struct error *error);
void window_map_drop(const struct window_map *map, struct step_store *store, const uint32_t *list);

/* Copies what a window column of n slots shows. */
void window_map_gather(const struct window_map *map, const struct step_store *store, const struct column *column,
                       uint32_t index, const uint32_t *slots, uint32_t n, void *out, size_t result_bytes);

#endif

/* item_windows: which steps each item sees. Windows of equal length and offset see the same steps, whatever column they
 * look at, so an item keeps one list of step slots for each such group (slot_store.h), one group behind the other. A
 * ragged window is a group of its own, with as many places as it has steps at most. It shows the steps that its item
 * was made with. Where these are fewer, the places behind them are SLOT_NONE, but for the last, which says how many
 * they are: SLOT_STEPS_MOST + number. */
#ifndef REPLAY_REPLAY_ITEM_WINDOWS_H
#define REPLAY_REPLAY_ITEM_WINDOWS_H

#include <stdint.h>

#include "base/error.h"
#include "replay/slot_store.h"
#include "replay/stream.h"
#include "replay/table.h"

struct window_group {
    uint32_t length; /* >= 1; ragged: at most */
    int32_t offset;
    bool ragged;
    uint32_t column; /* ragged: whose it is */
    uint32_t first; /* where its steps begin in an item's list */
};

struct window_map {
    uint32_t groups;
    struct window_group group[TABLE_MAX_COLUMNS];
    uint32_t first[TABLE_MAX_COLUMNS]; /* of window columns: where their group's steps begin */
    uint32_t steps; /* places in an item's list; 0: a table without windows */
    uint32_t
        span; /* steps of a stream from the first to the last that an item can see: its ragged windows each by itself */
    bool ragged; /* there are ragged windows */
};

void window_map_init(struct window_map *map, const struct table_config *config);

/* The most steps that one item can show: fixed windows overlap, ragged ones may all lie apart. */
static inline uint32_t window_map_most_steps(const struct window_map *map) {
    return map->ragged || map->steps < map->span ? map->steps : map->span;
}

/* Writes the list of item `item` of several, at step `number`, and takes its references; on refusal it takes none. */
int window_map_resolve(const struct window_map *map, struct slot_store *store, const struct stream *stream,
                       uint64_t number, const struct table_spans *spans, uint32_t item, uint32_t *list,
                       struct error *error);

/* Whether a list that was read has steps wherever it needs them; which ones is not looked at. */
bool window_map_is_list(const struct window_map *map, const uint32_t *list);

/* How many steps a ragged window of a slot shows. */
uint32_t window_map_rows(const struct window_map *map, const struct slot_store *items, uint32_t index,
                         uint32_t max_length, uint32_t slot);

/* Copies what a window column of n slots of items shows. */
void window_map_gather(const struct window_map *map, const struct slot_store *items, const struct column *column,
                       uint32_t index, const uint32_t *slots, uint32_t n, void *out, size_t result_bytes);

/* Copies the first `rows` steps that a ragged window of a slot shows, which has as many; returns their bytes. */
size_t window_map_read(const struct window_map *map, const struct slot_store *items, const struct column *column,
                       uint32_t index, uint32_t slot, uint32_t rows, void *out);

#endif

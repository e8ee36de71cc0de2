/* item_windows: groups of windows, the lists of steps that items see, and copying them out. */
#include "replay/item_windows.h"

#include <inttypes.h>
#include <string.h>

#include "base/copy.h"

#define AHEAD 8u       /* steps to prefetch ahead of a copy */
#define LISTS_AHEAD 4u /* items whose lists are prefetched */

static uint32_t group_of(struct window_map *map, const struct column *column, uint32_t index) {
    bool ragged = column_is_ragged(column);
    uint32_t length = ragged ? column->max_length : column_steps(column);
    for (uint32_t i = 0; i < map->groups && !ragged; i++)
        if (!map->group[i].ragged && map->group[i].length == length && map->group[i].offset == column->offset) return i;
    map->group[map->groups] = (struct window_group){length, column->offset, ragged, index, map->steps};
    map->steps += length;
    return map->groups++;
}

void window_map_init(struct window_map *map, const struct table_config *config) {
    memset(map, 0, sizeof *map);
    int64_t least = 0, most = 0; /* steps that an item sees, against its own */
    for (uint32_t i = 0; i < config->columns; i++) {
        const struct column *column = &config->column[i];
        if (column->kind == COLUMN_WINDOW) {
            const struct window_group *group = &map->group[group_of(map, column, i)];
            map->first[i] = group->first;
            map->ragged |= group->ragged;
            int64_t first = (int64_t)group->offset - (group->length - 1);
            least = first < least ? first : least;
            most = group->offset > most ? group->offset : most;
        }
    }
    map->span = map->steps ? (uint32_t)(most - least + 1) : 0;
}

int window_map_resolve(const struct window_map *map, struct slot_store *store, const struct stream *stream,
                       uint64_t number, const struct table_spans *spans, uint32_t item, uint32_t *list,
                       struct error *error) {
    for (uint32_t i = 0; i < map->groups; i++) {
        const struct window_group *group = &map->group[i];
        uint32_t *places = list + group->first;
        int refused;
        if (group->ragged) {
            struct table_span span;
            memcpy(&span, spans->of[group->column] + (size_t)item * sizeof span, sizeof span);
            refused = stream_span(stream, &span, group->length, places, error);
        } else {
            refused = stream_window(stream, number, group->length, group->offset, places, error);
        }
        if (refused) return -1;
    }
    for (uint32_t i = 0; i < map->steps; i++) {
        if (list[i] >= SLOT_STEPS_MOST) continue;
        if (*slot_references(store, list[i]) >= SLOT_MOST_REFERENCES) {
            while (i-- > 0)
                if (list[i] < SLOT_STEPS_MOST) slot_store_drop(store, list[i]);
            return error_set(error, ERROR_LIMIT, "a step that its windows show is shown %" PRIu32 " times already",
                             SLOT_MOST_REFERENCES);
        }
        slot_store_hold(store, list[i]);
    }
    return 0;
}

/* How many of a ragged group's places have steps. */
static uint32_t rows_of(const uint32_t *places, uint32_t most) {
    uint32_t last = places[most - 1];
    return last < SLOT_STEPS_MOST ? most : last - SLOT_STEPS_MOST;
}

bool window_map_is_list(const struct window_map *map, const uint32_t *list) {
    for (uint32_t i = 0; i < map->groups; i++) {
        const struct window_group *group = &map->group[i];
        const uint32_t *places = list + group->first;
        uint32_t rows = group->ragged ? rows_of(places, group->length) : group->length;
        if (rows > group->length || (rows == group->length && places[rows - 1] >= SLOT_STEPS_MOST)) return false;
        for (uint32_t k = 0; k + 1 < group->length; k++)
            if (k < rows ? places[k] >= SLOT_STEPS_MOST : places[k] != SLOT_NONE) return false;
    }
    return true;
}

uint32_t window_map_rows(const struct window_map *map, const struct slot_store *items, uint32_t index,
                         uint32_t max_length, uint32_t slot) {
    return rows_of(slot_list(items, slot) + map->first[index], max_length);
}

/* A coded column: each step is decoded where it is shown, and copied where the same one is shown again. */
static void gather_coded(const struct window_map *map, const struct slot_store *items, const struct column *column,
                         uint32_t index, const uint32_t *slots, uint32_t n, uint8_t *to) {
    uint32_t length = column_steps(column);
    size_t step_bytes = items->seen->value_bytes[column->source];
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t *list = slot_list(items, slots[i]) + map->first[index];
        for (uint32_t k = 0; k < length; k++, to += step_bytes)
            if (k && list[k] == list[k - 1])
                memcpy(to, to - step_bytes, step_bytes);
            else
                coded_columns_decode(&items->seen->coded, column->source, list[k], to);
    }
}

void window_map_gather(const struct window_map *map, const struct slot_store *items, const struct column *column,
                       uint32_t index, const uint32_t *slots, uint32_t n, void *out, size_t result_bytes) {
    uint32_t length = column_steps(column), first = map->first[index];
    const struct column_arrays *steps = &items->seen->arrays;
    size_t stride = steps->stride[column->source], step_bytes = items->seen->value_bytes[column->source];
    const uint8_t *base = steps->base[column->source];
    uint8_t *to = out;
    if (coded_columns_has(&items->seen->coded, column->source)) {
        gather_coded(map, items, column, index, slots, n, to);
        return;
    }
    bool streamed = copy_streams(result_bytes, step_bytes);
    for (uint32_t i = 0; i < n; i++) {
        if (i + AHEAD + LISTS_AHEAD < n) __builtin_prefetch(slot_list(items, slots[i + AHEAD + LISTS_AHEAD]) + first);
        if (i + AHEAD < n) __builtin_prefetch(base + slot_list(items, slots[i + AHEAD])[first] * stride);
        const uint32_t *list = slot_list(items, slots[i]) + first;
        if (streamed) {
            const uint8_t *from[COPY_STREAM_PIECES];
            for (uint32_t k = 0; k < length;) {
                uint32_t count = 0;
                while (count < COPY_STREAM_PIECES && k < length) from[count++] = base + list[k++] * stride;
                copy_streamed_pieces(to, from, count, step_bytes);
                to += count * step_bytes;
            }
        } else {
            for (uint32_t k = 0; k < length; k++, to += step_bytes) memcpy(to, base + list[k] * stride, step_bytes);
        }
    }
    if (streamed) copy_streamed_end();
}

size_t window_map_read(const struct window_map *map, const struct slot_store *items, const struct column *column,
                       uint32_t index, uint32_t slot, uint32_t rows, void *out) {
    const uint32_t *list = slot_list(items, slot) + map->first[index];
    const struct slot_store *steps = items->seen;
    size_t row_bytes = column->row_bytes, stride = steps->arrays.stride[column->source];
    const uint8_t *base = steps->arrays.base[column->source];
    uint8_t *to = out;
    if (coded_columns_has(&steps->coded, column->source)) {
        for (uint32_t k = 0; k < rows; k++, to += row_bytes)
            coded_columns_decode(&steps->coded, column->source, list[k], to);
        return rows * row_bytes;
    }
    for (uint32_t k = 0; k < rows; k++, to += row_bytes) {
        if (k + AHEAD < rows) __builtin_prefetch(base + list[k + AHEAD] * stride);
        memcpy(to, base + list[k] * stride, row_bytes);
    }
    return rows * row_bytes;
}

/* window: groups of windows, the lists of steps that items see, and copying them out. */
#include "replay/window.h"

#include <inttypes.h>
#include <string.h>

#include "base/copy.h"
#include "base/memory.h"

#define AHEAD 8u       /* steps to prefetch ahead of a copy */
#define LISTS_AHEAD 4u /* items whose lists are prefetched */

static uint32_t group_of(struct window_map *map, const struct column *column) {
    uint32_t length = column->length ? column->length : 1;
    for (uint32_t i = 0; i < map->groups; i++) {
        if (map->group[i].length == length && map->group[i].offset == column->offset) {
            return i;
        }
    }
    map->group[map->groups] = (struct window_group){length, column->offset, map->steps};
    map->steps += length;
    return map->groups++;
}

void window_map_plan(struct window_map *map, const struct table_config *config) {
    memset(map, 0, sizeof *map);
    int64_t least = 0, most = 0; /* steps that an item sees, against its own */
    for (uint32_t i = 0; i < config->columns; i++) {
        const struct column *column = &config->column[i];
        if (column->kind == COLUMN_WINDOW) {
            const struct window_group *group = &map->group[group_of(map, column)];
            map->first[i] = group->first;
            int64_t first = (int64_t)group->offset - (group->length - 1);
            least = first < least ? first : least;
            most = group->offset > most ? group->offset : most;
        }
    }
    map->span = map->steps ? (uint32_t)(most - least + 1) : 0;
}

int window_map_init(struct window_map *map, const struct table_config *config, uint32_t slots, struct error *error) {
    window_map_plan(map, config);
    if (map->steps == 0) {
        return 0;
    }
    map->slots = slots;
    map->list = memory_map((size_t)slots * map->steps * sizeof *map->list);
    return map->list ? 0
                     : error_set(error, ERROR_GENERIC, "out of memory: the windows of table '%s' could not be mapped",
                                 config->name);
}

void window_map_free(struct window_map *map) {
    if (map->list) {
        memory_unmap(map->list, (size_t)map->slots * map->steps * sizeof *map->list);
    }
    memset(map, 0, sizeof *map);
}

int window_map_resolve(const struct window_map *map, struct step_store *store, const struct stream *stream,
                       uint64_t number, uint32_t *list, struct error *error) {
    for (uint32_t i = 0; i < map->groups; i++) {
        const struct window_group *group = &map->group[i];
        if (stream_window(stream, number, group->length, group->offset, list + group->first, error)) {
            return -1;
        }
    }
    for (uint32_t i = 0; i < map->steps; i++) {
        if (store->references[list[i]] == UINT32_MAX) {
            while (i-- > 0) {
                step_store_drop(store, list[i]);
            }
            return error_set(error, ERROR_LIMIT, "a step that its windows show is shown %" PRIu32 " times already",
                             UINT32_MAX);
        }
        step_store_hold(store, list[i]);
    }
    return 0;
}

void window_map_drop(const struct window_map *map, struct step_store *store, const uint32_t *list) {
    for (uint32_t i = 0; i < map->steps; i++) {
        step_store_drop(store, list[i]);
    }
}

/* A coded column: each step is decoded where it is shown, and copied where the same one is shown again. */
static void gather_coded(const struct window_map *map, const struct step_store *store, const struct column *column,
                         uint32_t index, const uint32_t *slots, uint32_t n, uint8_t *to) {
    uint32_t length = column->length ? column->length : 1;
    size_t step_bytes = store->column_step_bytes[column->source];
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t *list = window_map_list(map, slots[i]) + map->first[index];
        for (uint32_t k = 0; k < length; k++, to += step_bytes) {
            if (k && list[k] == list[k - 1]) {
                memcpy(to, to - step_bytes, step_bytes);
            } else {
                step_store_copy(store, column->source, list[k], to);
            }
        }
    }
}

void window_map_gather(const struct window_map *map, const struct step_store *store, const struct column *column,
                       uint32_t index, const uint32_t *slots, uint32_t n, void *out, size_t result_bytes) {
    uint32_t length = column->length ? column->length : 1, first = map->first[index];
    size_t stride = store->arrays.stride[column->source], step_bytes = store->column_step_bytes[column->source];
    const uint8_t *base = store->arrays.base[column->source];
    uint8_t *to = out;
    if (step_store_is_coded(store, column->source)) {
        gather_coded(map, store, column, index, slots, n, to);
        return;
    }
    bool streamed = copy_streams(result_bytes, step_bytes);
    for (uint32_t i = 0; i < n; i++) {
        if (i + AHEAD + LISTS_AHEAD < n) {
            __builtin_prefetch(window_map_list(map, slots[i + AHEAD + LISTS_AHEAD]) + first);
        }
        if (i + AHEAD < n) {
            __builtin_prefetch(base + window_map_list(map, slots[i + AHEAD])[first] * stride);
        }
        const uint32_t *list = window_map_list(map, slots[i]) + first;
        for (uint32_t k = 0; k < length; k++, to += step_bytes) {
            if (streamed) {
                copy_streamed(to, base + list[k] * stride, step_bytes);
            } else {
                memcpy(to, base + list[k] * stride, step_bytes);
            }
        }
    }
    if (streamed) {
        copy_streamed_end();
    }
}

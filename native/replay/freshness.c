/* freshness: a heap of live items by policy version, and the newest version seen. */
#include "replay/freshness.h"

#include <string.h>

void freshness_init(struct freshness *freshness, const struct table_config *config) {
    memset(freshness, 0, sizeof *freshness);
    freshness->column = -1;
    freshness->newest = INT64_MIN;
    freshness->max_staleness = -1;
    for (uint32_t i = 0; i < config->columns; i++) {
        const struct column *column = &config->column[i];
        if (strcmp(column->name, TABLE_VERSION_COLUMN) == 0 && column->kind == COLUMN_ITEM &&
            column->type == COLUMN_INT64 && column->item_bytes == sizeof(int64_t)) {
            freshness->column = (int)i;
        }
    }
}

int freshness_limit(struct freshness *freshness, int64_t max_staleness, uint32_t capacity, uint32_t slots) {
    if (max_staleness >= 0 && freshness->max_staleness < 0 &&
        selector_heap_init(&freshness->by_version, capacity, slots)) {
        return -1;
    }
    if (max_staleness < 0) selector_heap_free(&freshness->by_version);
    freshness->max_staleness = max_staleness;
    return 0;
}

void freshness_free(struct freshness *freshness) {
    selector_heap_free(&freshness->by_version);
}

void freshness_forget(struct freshness *freshness) {
    freshness->newest = INT64_MIN;
}

void freshness_see(struct freshness *freshness, int64_t version) {
    freshness->newest = version > freshness->newest ? version : freshness->newest;
}

bool freshness_stale(const struct freshness *freshness, uint32_t *slot) {
    const struct selector_heap *heap = &freshness->by_version;
    if (freshness->max_staleness < 0 || heap->count == 0) return false;
    /* While the table is being filled an item may be ahead of the newest version; as an unsigned number the distance
     * always fits. */
    uint64_t newest = heap_key_of_integer(freshness->newest), version = heap->entries[0].key;
    *slot = heap->entries[0].slot;
    return newest > version && newest - version > (uint64_t)freshness->max_staleness;
}

void freshness_insert(struct freshness *freshness, const struct slot_store *items, uint32_t slot) {
    if (freshness->column < 0) return;
    int64_t version;
    memcpy(&version, column_arrays_value(&items->arrays, (uint32_t)freshness->column, slot), sizeof version);
    freshness_see(freshness, version);
    if (freshness->max_staleness >= 0) selector_heap_insert(&freshness->by_version, slot, heap_key_of_integer(version));
}

void freshness_remove(struct freshness *freshness, uint32_t slot) {
    if (freshness->max_staleness >= 0) selector_heap_remove(&freshness->by_version, slot);
}

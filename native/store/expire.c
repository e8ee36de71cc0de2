/* expire: a heap of the keys that expire, each knowing its place. */
#include "store/expire.h"

#include <string.h>

#include "base/heap.h"
#include "base/memory.h"
#include "store/value.h"

#define KEPT_CAPACITY 1024 /* an empty heap of more places than this gives its memory back */

static struct value *value_of(const struct dict_entry *entry) {
    return entry->value;
}

static bool ends_before(const void *left, const void *right, const void *context) {
    (void)context;
    return ((const struct expire_item *)left)->at_ms < ((const struct expire_item *)right)->at_ms;
}

static void placed(const void *item, uint32_t at, void *context) {
    (void)context;
    value_of(((const struct expire_item *)item)->entry)->expiry = at + 1;
}

static void put(struct expire_heap *heap, uint32_t at, struct expire_item item) {
    const struct heap items = {heap->items, sizeof item, heap->count, ends_before, placed, NULL};
    heap_settle(items, at, &item);
}

bool expire_reserve(struct expire_heap *heap) {
    if (heap->count < heap->capacity) return true;
    if (heap->capacity > UINT32_MAX / 2) return false;
    uint32_t capacity = heap->capacity == 0 ? 16 : heap->capacity * 2;
    struct expire_item *grown = memory_realloc(heap->items, capacity * sizeof *grown);
    if (!grown) return false;
    heap->items = grown;
    heap->capacity = capacity;
    return true;
}

bool expire_set(struct expire_heap *heap, struct dict_entry *entry, int64_t at_ms) {
    struct expire_item item = {.at_ms = at_ms, .entry = entry};
    uint32_t slot = value_of(entry)->expiry;
    if (slot > 0) {
        heap->sum_ms += (double)at_ms - (double)heap->items[slot - 1].at_ms;
        put(heap, slot - 1, item);
        return true;
    }
    if (!expire_reserve(heap)) return false;
    heap->sum_ms += (double)at_ms;
    heap->count++;
    put(heap, heap->count - 1, item);
    return true;
}

void expire_clear(struct expire_heap *heap, struct dict_entry *entry) {
    uint32_t slot = value_of(entry)->expiry;
    if (slot == 0) return;
    heap->sum_ms -= (double)heap->items[slot - 1].at_ms;
    value_of(entry)->expiry = 0;
    struct expire_item last = heap->items[--heap->count];
    if (last.entry != entry) put(heap, slot - 1, last);
    if (heap->count == 0 && heap->capacity > KEPT_CAPACITY) expire_free(heap);
}

void expire_moved(struct expire_heap *heap, struct dict_entry *entry) {
    uint32_t slot = value_of(entry)->expiry;
    if (slot > 0) heap->items[slot - 1].entry = entry;
}

bool expire_get(const struct expire_heap *heap, const struct dict_entry *entry, int64_t *at_ms) {
    uint32_t slot = value_of(entry)->expiry;
    if (slot == 0) return false;
    *at_ms = heap->items[slot - 1].at_ms;
    return true;
}

void expire_free(struct expire_heap *heap) {
    memory_free(heap->items);
    memset(heap, 0, sizeof *heap);
}

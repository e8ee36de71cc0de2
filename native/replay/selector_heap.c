/* selector_heap: a binary heap of keys and ages, and the walk that finds its first n without taking them out. */
#include "replay/selector_heap.h"

#include <assert.h>
#include <string.h>

#include "base/heap.h"
#include "base/memory.h"

int selector_heap_init(struct selector_heap *heap, uint32_t room, uint32_t slots) {
    memset(heap, 0, sizeof *heap);
    heap->room = room;
    heap->slots = slots;
    heap->frontier_room = (room < TABLE_MAX_BATCH ? room : TABLE_MAX_BATCH) + 2;
    heap->entries = memory_map((size_t)room * sizeof *heap->entries);
    heap->position = memory_map((size_t)slots * sizeof *heap->position);
    heap->frontier = memory_map((size_t)heap->frontier_room * sizeof *heap->frontier);
    if (!heap->entries || !heap->position || !heap->frontier) {
        selector_heap_free(heap);
        return -1;
    }
    return 0;
}

void selector_heap_free(struct selector_heap *heap) {
    if (heap->entries) memory_unmap(heap->entries, (size_t)heap->room * sizeof *heap->entries);
    if (heap->position) memory_unmap(heap->position, (size_t)heap->slots * sizeof *heap->position);
    if (heap->frontier) memory_unmap(heap->frontier, (size_t)heap->frontier_room * sizeof *heap->frontier);
    memset(heap, 0, sizeof *heap);
}

uint64_t heap_key_of_priority(double priority) {
    double positive = priority + 0.0; /* of -0.0 as of 0.0; the bits of numbers >= 0 are in the numbers' order */
    uint64_t key;
    memcpy(&key, &positive, sizeof key);
    return key;
}

static bool before(const void *one, const void *other, const void *context) {
    const struct heap_entry *left = one, *right = other;
    (void)context;
    return left->key < right->key || (left->key == right->key && left->age < right->age);
}

static void placed(const void *element, uint32_t at, void *context) {
    struct selector_heap *heap = context;
    heap->position[((const struct heap_entry *)element)->slot] = at + 1;
}

static void settle(struct selector_heap *heap, uint32_t at, struct heap_entry entry) {
    const struct heap entries = {heap->entries, sizeof entry, heap->count, before, placed, heap};
    heap_settle(entries, at, &entry);
}

void selector_heap_insert(struct selector_heap *heap, uint32_t slot, uint64_t key) {
    assert(heap->count < heap->room && !selector_heap_holds(heap, slot));
    heap->count++;
    settle(heap, heap->count - 1, (struct heap_entry){key, heap->next_age++, slot});
}

void selector_heap_remove(struct selector_heap *heap, uint32_t slot) {
    if (!selector_heap_holds(heap, slot)) return;
    uint32_t at = heap->position[slot] - 1;
    heap->position[slot] = 0;
    struct heap_entry last = heap->entries[--heap->count];
    if (at < heap->count) settle(heap, at, last);
}

void selector_heap_update(struct selector_heap *heap, uint32_t slot, uint64_t key) {
    if (selector_heap_holds(heap, slot)) {
        uint32_t at = heap->position[slot] - 1;
        struct heap_entry entry = heap->entries[at];
        entry.key = key;
        settle(heap, at, entry);
    }
}

/* ---- the first n --------------------------------------------------------------------------------------------------- */

/* The frontier is itself a heap, of places in the heap. */
static bool place_before(const void *left, const void *right, const void *context) {
    const struct selector_heap *heap = context;
    return before(&heap->entries[*(const uint32_t *)left], &heap->entries[*(const uint32_t *)right], NULL);
}

static void frontier_settle(struct selector_heap *heap, uint32_t length, uint32_t at, uint32_t place) {
    const struct heap frontier = {heap->frontier, sizeof place, length, place_before, NULL, heap};
    assert(length <= heap->frontier_room);
    heap_settle(frontier, at, &place);
}

void selector_heap_first(struct selector_heap *heap, uint32_t n, uint32_t *slots) {
    assert(n <= heap->count && n <= TABLE_MAX_BATCH);
    uint32_t length = 1;
    heap->frontier[0] = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = heap->frontier[0], last = heap->frontier[--length];
        if (length > 0) frontier_settle(heap, length, 0, last);
        slots[i] = heap->entries[at].slot;
        for (uint64_t child = 2 * (uint64_t)at + 1; child <= 2 * (uint64_t)at + 2 && child < heap->count; child++) {
            length++;
            frontier_settle(heap, length, length - 1, (uint32_t)child);
        }
    }
}

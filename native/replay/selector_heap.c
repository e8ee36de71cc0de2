/* selector_heap: a binary heap of keys and ages, and the walk that finds its first n without taking them out. */
#include "replay/selector_heap.h"

#include <assert.h>
#include <string.h>

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
    if (heap->entries) {
        memory_unmap(heap->entries, (size_t)heap->room * sizeof *heap->entries);
    }
    if (heap->position) {
        memory_unmap(heap->position, (size_t)heap->slots * sizeof *heap->position);
    }
    if (heap->frontier) {
        memory_unmap(heap->frontier, (size_t)heap->frontier_room * sizeof *heap->frontier);
    }
    memset(heap, 0, sizeof *heap);
}

uint64_t heap_key_of_priority(double priority) {
    double positive = priority + 0.0; /* of -0.0 as of 0.0; the bits of numbers >= 0 are in the numbers' order */
    uint64_t key;
    memcpy(&key, &positive, sizeof key);
    return key;
}

static bool before(const struct heap_entry *left, const struct heap_entry *right) {
    return left->key < right->key || (left->key == right->key && left->age < right->age);
}

static void place(struct selector_heap *heap, uint32_t at, struct heap_entry entry) {
    heap->entries[at] = entry;
    heap->position[entry.slot] = at + 1;
}

static void sift_up(struct selector_heap *heap, uint32_t at, struct heap_entry entry) {
    while (at > 0 && before(&entry, &heap->entries[(at - 1) / 2])) {
        place(heap, at, heap->entries[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    place(heap, at, entry);
}

static void sift_down(struct selector_heap *heap, uint32_t at, struct heap_entry entry) {
    for (uint64_t child = 2 * (uint64_t)at + 1; child < heap->count; child = 2 * (uint64_t)at + 1) {
        child += child + 1 < heap->count && before(&heap->entries[child + 1], &heap->entries[child]);
        if (before(&entry, &heap->entries[child])) {
            break;
        }
        place(heap, at, heap->entries[child]);
        at = (uint32_t)child;
    }
    place(heap, at, entry);
}

static void settle(struct selector_heap *heap, uint32_t at, struct heap_entry entry) {
    if (at > 0 && before(&entry, &heap->entries[(at - 1) / 2])) {
        sift_up(heap, at, entry);
    } else {
        sift_down(heap, at, entry);
    }
}

void selector_heap_insert(struct selector_heap *heap, uint32_t slot, uint64_t key) {
    assert(heap->count < heap->room && !selector_heap_holds(heap, slot));
    sift_up(heap, heap->count++, (struct heap_entry){key, heap->next_age++, slot});
}

void selector_heap_remove(struct selector_heap *heap, uint32_t slot) {
    if (!selector_heap_holds(heap, slot)) {
        return;
    }
    uint32_t at = heap->position[slot] - 1;
    heap->position[slot] = 0;
    struct heap_entry last = heap->entries[--heap->count];
    if (at < heap->count) {
        settle(heap, at, last);
    }
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

/* The frontier is itself a heap, of places in the heap: whoever comes next is a child of one that was taken. */
static void frontier_push(struct selector_heap *heap, uint32_t *length, uint32_t place_of) {
    uint32_t *frontier = heap->frontier, at = (*length)++;
    assert(at < heap->frontier_room);
    for (; at > 0 && before(&heap->entries[place_of], &heap->entries[frontier[(at - 1) / 2]]); at = (at - 1) / 2) {
        frontier[at] = frontier[(at - 1) / 2];
    }
    frontier[at] = place_of;
}

static uint32_t frontier_pop(struct selector_heap *heap, uint32_t *length) {
    uint32_t *frontier = heap->frontier, first = frontier[0], last = frontier[--*length], at = 0;
    for (uint32_t child = 1; child < *length; child = 2 * at + 1) {
        child += child + 1 < *length && before(&heap->entries[frontier[child + 1]], &heap->entries[frontier[child]]);
        if (before(&heap->entries[last], &heap->entries[frontier[child]])) {
            break;
        }
        frontier[at] = frontier[child];
        at = child;
    }
    frontier[at] = last;
    return first;
}

void selector_heap_first(struct selector_heap *heap, uint32_t n, uint32_t *slots) {
    assert(n <= heap->count && n <= TABLE_MAX_BATCH);
    uint32_t length = 0;
    frontier_push(heap, &length, 0);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = frontier_pop(heap, &length);
        slots[i] = heap->entries[at].slot;
        for (uint64_t child = 2 * (uint64_t)at + 1; child <= 2 * (uint64_t)at + 2 && child < heap->count; child++) {
            frontier_push(heap, &length, (uint32_t)child);
        }
    }
}

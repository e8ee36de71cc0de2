/* heap: a binary heap over an array that the caller owns. No other element comes before its first one.
 *
 * Elements are copied, so they should be small. `before` says which of two comes first. `placed` is called with each
 * element's new place; it may be NULL. All functions are inlined, these two callbacks included. */
#ifndef REPLAY_BASE_HEAP_H
#define REPLAY_BASE_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HEAP_INLINE static inline __attribute__((always_inline))

struct heap {
    void *elements;
    size_t element_bytes;
    uint32_t count;
    bool (*before)(const void *left, const void *right, const void *context);
    void (*placed)(const void *element, uint32_t at, void *context);
    void *context;
};

HEAP_INLINE void *heap_at(struct heap heap, uint64_t at) {
    return (uint8_t *)heap.elements + at * heap.element_bytes;
}

HEAP_INLINE void heap_place(struct heap heap, uint32_t at, const void *element) {
    memcpy(heap_at(heap, at), element, heap.element_bytes);
    if (heap.placed) heap.placed(element, at, heap.context);
}

/* Puts an element where it belongs, when the place `at` is to be filled: a new last one, or one whose element changed or has
 * gone. The element lies outside the array. O(log count). */
HEAP_INLINE void heap_settle(struct heap heap, uint32_t at, const void *element) {
    uint32_t from = at;
    for (; at > 0 && heap.before(element, heap_at(heap, (at - 1) / 2), heap.context); at = (at - 1) / 2)
        heap_place(heap, at, heap_at(heap, (at - 1) / 2));
    if (at == from) {
        for (uint64_t child; (child = 2 * (uint64_t)at + 1) < heap.count; at = (uint32_t)child) {
            bool second =
                child + 1 < heap.count && heap.before(heap_at(heap, child + 1), heap_at(heap, child), heap.context);
            child += second;
            if (!heap.before(heap_at(heap, child), element, heap.context)) break;
            heap_place(heap, at, heap_at(heap, child));
        }
    }
    heap_place(heap, at, element);
}

#endif

/* selector_heap: slots in the order of a key, and of equal keys by age: a binary heap that knows where each slot
 * stands. max_heap, min_heap and the policy versions of items use it. Insert, remove and update are O(log items).
 *
 * The first n slots are found in O(n log n) and stay in the heap. In a heap nothing comes before its parent, so the
 * next slot in order is always a child of one that was taken. The frontier, a small heap of places, holds just those
 * children: each time its first is taken, its two children are put in. It holds at most one place more than were
 * taken. This would break if the heap changed during the walk. */
#ifndef REPLAY_REPLAY_SELECTOR_HEAP_H
#define REPLAY_REPLAY_SELECTOR_HEAP_H

#include <stdint.h>

#include "replay/slot_store.h"

struct heap_entry {
    uint64_t key, age; /* `age` counts insertions, so that the oldest of equal ones comes first */
    uint32_t slot;
};

struct selector_heap {
    struct heap_entry *entries;
    uint32_t *position; /* by slot: its place in entries + 1; 0: it is not here */
    uint32_t *frontier; /* of a walk to the first n: places whose parents were taken */
    uint32_t count, room, slots, frontier_room;
    uint64_t next_age;
};

/* For at most `room` of `slots` slots. -1: memory is exhausted. */
int selector_heap_init(struct selector_heap *heap, uint32_t room, uint32_t slots);
void selector_heap_free(struct selector_heap *heap);
void selector_heap_insert(struct selector_heap *heap, uint32_t slot, uint64_t key); /* as the youngest */
void selector_heap_remove(struct selector_heap *heap, uint32_t slot); /* one that is not here: nothing */
void selector_heap_update(struct selector_heap *heap, uint32_t slot, uint64_t key); /* its age stays; likewise */
/* The n slots with the smallest keys, in order; n <= count and n <= TABLE_MAX_BATCH. */
void selector_heap_first(struct selector_heap *heap, uint32_t n, uint32_t *slots);

static inline bool selector_heap_holds(const struct selector_heap *heap, uint32_t slot) {
    return heap->position[slot] != 0;
}

/* Keys in the order of what they are made from. */
static inline uint64_t heap_key_of_integer(int64_t value) {
    return (uint64_t)value ^ 1ull << 63;
}
static inline int64_t heap_integer_of_key(uint64_t key) {
    return (int64_t)(key ^ 1ull << 63);
}
uint64_t heap_key_of_priority(double priority); /* finite, >= 0 */

#endif

/* selector_uniform: a dense array of live slots; removal moves the last one into the gap. */
#include "replay/selector_uniform.h"

#include <assert.h>

#include "base/memory.h"

int selector_uniform_init(struct selector_uniform *uniform, uint32_t room) {
    uniform->count = 0;
    uniform->room = room;
    uniform->slots = memory_map((size_t)room * sizeof *uniform->slots);
    return uniform->slots ? 0 : -1;
}

void selector_uniform_free(struct selector_uniform *uniform) {
    if (uniform->slots) {
        memory_unmap(uniform->slots, (size_t)uniform->room * sizeof *uniform->slots);
        uniform->slots = NULL;
    }
}

void selector_uniform_insert(struct selector_uniform *uniform, struct storage *storage, uint32_t slot) {
    assert(uniform->count < uniform->room);
    storage->slot[slot].position = uniform->count;
    uniform->slots[uniform->count++] = slot;
}

void selector_uniform_remove(struct selector_uniform *uniform, struct storage *storage, uint32_t slot) {
    uint32_t position = storage->slot[slot].position;
    assert(position < uniform->count && uniform->slots[position] == slot);
    uint32_t last = uniform->slots[--uniform->count];
    uniform->slots[position] = last;
    storage->slot[last].position = position;
}

void selector_uniform_sample(const struct selector_uniform *uniform, struct random_state *random, uint32_t n,
                             uint32_t *slots) {
    for (uint32_t i = 0; i < n; i++) {
        slots[i] = uniform->slots[random_below(random, uniform->count)];
    }
}

void selector_uniform_sample_distinct(struct selector_uniform *uniform, struct storage *storage,
                                      struct random_state *random, uint32_t n, uint32_t *slots) {
    assert(n <= uniform->count);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t other = i + (uint32_t)random_below(random, uniform->count - i);
        uint32_t drawn = uniform->slots[other];
        uniform->slots[other] = uniform->slots[i];
        uniform->slots[i] = drawn;
        storage->slot[uniform->slots[other]].position = other;
        storage->slot[drawn].position = i;
        slots[i] = drawn;
    }
}

/* selector_uniform: a dense array of live slots; removal moves the last one into the gap. */
#include "replay/selector_uniform.h"

#include <assert.h>
#include <string.h>

#include "base/memory.h"

int selector_uniform_init(struct selector_uniform *uniform, uint32_t room, uint32_t slots) {
    memset(uniform, 0, sizeof *uniform);
    uniform->room = room;
    uniform->position_room = slots;
    uniform->slots = memory_map((size_t)room * sizeof *uniform->slots);
    uniform->position = memory_map((size_t)slots * sizeof *uniform->position);
    if (!uniform->slots || !uniform->position) {
        selector_uniform_free(uniform);
        return -1;
    }
    return 0;
}

void selector_uniform_free(struct selector_uniform *uniform) {
    if (uniform->slots) memory_unmap(uniform->slots, (size_t)uniform->room * sizeof *uniform->slots);
    if (uniform->position) memory_unmap(uniform->position, (size_t)uniform->position_room * sizeof *uniform->position);
    memset(uniform, 0, sizeof *uniform);
}

void selector_uniform_insert(struct selector_uniform *uniform, uint32_t slot) {
    assert(uniform->count < uniform->room && uniform->position[slot] == 0);
    uniform->slots[uniform->count++] = slot;
    uniform->position[slot] = uniform->count;
}

void selector_uniform_remove(struct selector_uniform *uniform, uint32_t slot) {
    uint32_t position = uniform->position[slot];
    if (position == 0) return;
    assert(position <= uniform->count && uniform->slots[position - 1] == slot);
    uint32_t last = uniform->slots[--uniform->count];
    uniform->slots[position - 1] = last;
    uniform->position[last] = position;
    uniform->position[slot] = 0;
}

void selector_uniform_sample(const struct selector_uniform *uniform, struct random_state *random, uint32_t n,
                             uint32_t *slots) {
    for (uint32_t i = 0; i < n; i++) slots[i] = uniform->slots[random_below(random, uniform->count)];
}

void selector_uniform_sample_distinct(struct selector_uniform *uniform, struct random_state *random, uint32_t n,
                                      uint32_t *slots) {
    assert(n <= uniform->count);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t other = i + (uint32_t)random_below(random, uniform->count - i);
        uint32_t drawn = uniform->slots[other];
        uniform->slots[other] = uniform->slots[i];
        uniform->slots[i] = drawn;
        uniform->position[uniform->slots[other]] = other + 1;
        uniform->position[drawn] = i + 1;
        slots[i] = drawn;
    }
}

/* selector_uniform: draws live items with equal probability: a dense array of their slots. All operations are O(1). */
#ifndef REPLAY_REPLAY_SELECTOR_UNIFORM_H
#define REPLAY_REPLAY_SELECTOR_UNIFORM_H

#include "base/random.h"
#include "replay/slot_store.h"

struct selector_uniform {
    uint32_t *slots;
    uint32_t *position; /* by slot: its place in slots + 1; 0: it is not here */
    uint32_t count, room, position_room;
};

/* For at most `room` of `slots` slots. -1: memory is exhausted. */
int selector_uniform_init(struct selector_uniform *uniform, uint32_t room, uint32_t slots);
void selector_uniform_free(struct selector_uniform *uniform);
void selector_uniform_insert(struct selector_uniform *uniform, uint32_t slot);
void selector_uniform_remove(struct selector_uniform *uniform, uint32_t slot); /* one that is not here: nothing */
/* n draws with replacement; count > 0. */
void selector_uniform_sample(const struct selector_uniform *uniform, struct random_state *random, uint32_t n,
                             uint32_t *slots);
/* n different ones; n <= count. O(n): the first steps of a Fisher-Yates shuffle of the array. */
void selector_uniform_sample_distinct(struct selector_uniform *uniform, struct random_state *random, uint32_t n,
                                      uint32_t *slots);

#endif

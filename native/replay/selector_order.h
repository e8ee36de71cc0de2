/* selector_order: live items by age, a doubly linked list over the slots; for fifo and lifo, and for walks over all items.
 * Append and remove are O(1). */
#ifndef REPLAY_REPLAY_SELECTOR_ORDER_H
#define REPLAY_REPLAY_SELECTOR_ORDER_H

#include "replay/slot_store.h"

struct selector_order {
    uint32_t oldest, newest; /* SLOT_NONE when empty */
};

void selector_order_init(struct selector_order *order);
void selector_order_append(struct selector_order *order, struct slot_store *items, uint32_t slot);
void selector_order_remove(struct selector_order *order, struct slot_store *items, uint32_t slot);
/* The n oldest, or newest, in that order; as many are live. */
void selector_order_oldest(const struct selector_order *order, const struct slot_store *items, uint32_t n,
                           uint32_t *slots);
void selector_order_newest(const struct selector_order *order, const struct slot_store *items, uint32_t n,
                           uint32_t *slots);

#endif

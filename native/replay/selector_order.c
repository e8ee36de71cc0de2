#include "replay/selector_order.h"

void selector_order_init(struct selector_order *order) {
    order->oldest = order->newest = SLOT_NONE;
}

void selector_order_append(struct selector_order *order, struct slot_store *items, uint32_t slot) {
    items->slot[slot].older = order->newest;
    items->slot[slot].newer = SLOT_NONE;
    if (order->newest == SLOT_NONE)
        order->oldest = slot;
    else
        items->slot[order->newest].newer = slot;
    order->newest = slot;
}

void selector_order_remove(struct selector_order *order, struct slot_store *items, uint32_t slot) {
    uint32_t older = items->slot[slot].older, newer = items->slot[slot].newer;
    if (older == SLOT_NONE)
        order->oldest = newer;
    else
        items->slot[older].newer = newer;
    if (newer == SLOT_NONE)
        order->newest = older;
    else
        items->slot[newer].older = older;
}

void selector_order_oldest(const struct selector_order *order, const struct slot_store *items, uint32_t n,
                           uint32_t *slots) {
    uint32_t slot = order->oldest;
    for (uint32_t i = 0; i < n; i++) {
        slots[i] = slot;
        slot = items->slot[slot].newer;
    }
}

void selector_order_newest(const struct selector_order *order, const struct slot_store *items, uint32_t n,
                           uint32_t *slots) {
    uint32_t slot = order->newest;
    for (uint32_t i = 0; i < n; i++) {
        slots[i] = slot;
        slot = items->slot[slot].older;
    }
}

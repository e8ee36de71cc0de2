/* selector_order: the list of live slots from oldest to newest. */
#include "replay/selector_order.h"

void selector_order_init(struct selector_order *order) {
    order->oldest = order->newest = STORAGE_NO_SLOT;
}

void selector_order_append(struct selector_order *order, struct storage *storage, uint32_t slot) {
    storage->slot[slot].older = order->newest;
    storage->slot[slot].newer = STORAGE_NO_SLOT;
    if (order->newest == STORAGE_NO_SLOT) {
        order->oldest = slot;
    } else {
        storage->slot[order->newest].newer = slot;
    }
    order->newest = slot;
}

void selector_order_remove(struct selector_order *order, struct storage *storage, uint32_t slot) {
    uint32_t older = storage->slot[slot].older, newer = storage->slot[slot].newer;
    if (older == STORAGE_NO_SLOT) {
        order->oldest = newer;
    } else {
        storage->slot[older].newer = newer;
    }
    if (newer == STORAGE_NO_SLOT) {
        order->newest = older;
    } else {
        storage->slot[newer].older = older;
    }
}

void selector_order_oldest(const struct selector_order *order, const struct storage *storage, uint32_t n,
                           uint32_t *slots) {
    uint32_t slot = order->oldest;
    for (uint32_t i = 0; i < n; i++) {
        slots[i] = slot;
        slot = storage->slot[slot].newer;
    }
}

void selector_order_newest(const struct selector_order *order, const struct storage *storage, uint32_t n,
                           uint32_t *slots) {
    uint32_t slot = order->newest;
    for (uint32_t i = 0; i < n; i++) {
        slots[i] = slot;
        slot = storage->slot[slot].older;
    }
}

/* pins: what keeps the bytes of drawn items where they are while a reply that shows them is being sent. Each reply has a pin,
 * a reference to the slot; an item that leaves meanwhile gives its slot back when the last pin goes (slot_store.h says why
 * nobody's bytes are overwritten before). */
#include <assert.h>

#include "replay/slot_store.h"
#include "replay/table_state.h"

void slot_store_unpin(struct slot_store *store, uint32_t slot) {
    struct slot *entry = &store->slot[slot];
    assert(slot < store->slots && entry->references > entry->live && entry->references != SLOT_RESERVED);
    if (--entry->references > entry->live) return;
    store->pinned--;
    if (!entry->live) slot_store_release(store, slot);
}

void table_unpin(struct table *table, const uint32_t *slots, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        if (i + 16 < n) __builtin_prefetch(&table->items.slot[slots[i + 16]], 1);
        slot_store_unpin(&table->items, slots[i]);
    }
}

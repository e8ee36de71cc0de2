/* slot_cut: which slots were handed out, and which are held until they are. */
#include "replay/slot_cut.h"

#include <string.h>

#include "base/arithmetic.h"
#include "base/bitmap.h"
#include "base/memory.h"
#include "replay/slot_record.h"

#define AHEAD_BYTES (16u << 20)
#define AHEAD_PIECES 16u
#define LOOKED_AT 512u /* slots in one step of the walk, however few of them are to be handed out */

int slot_cut_begin(struct slot_cut *cut, struct slot_store *store, struct table_cut_sink *sink, enum table_record kind,
                   uint32_t held_limit) {
    assert(!store->cut);
    size_t bytes = sizeof(uint32_t) * (1 + store->list_length) + store->slot_bytes;
    *cut = (struct slot_cut){.sink = sink, .kind = kind, .slots = store->fresh, .held_limit = held_limit};
    cut->group = (uint32_t)at_most(TABLE_CUT_RECORD_BYTES / bytes, SLOT_RECORD_MOST);
    cut->group += cut->group == 0;
    cut->held = memory_alloc((held_limit + 1) * sizeof *cut->held);
    cut->passed = memory_map(bitmap_bytes(cut->slots));
    cut->store = store;
    store->cut = cut;
    if (cut->held && cut->passed) return 0;
    slot_cut_end(cut);
    return -1;
}

uint8_t *slot_cut_record(struct slot_cut *cut, enum table_record kind, size_t bytes) {
    uint8_t *body = cut->failed ? NULL : cut->sink->record(cut->sink, kind, bytes);
    cut->failed |= !body;
    return body;
}

static void write_slots(struct slot_cut *cut, const uint32_t *slots, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) bitmap_set(cut->passed, slots[i]);
    uint8_t *body = slot_cut_record(cut, cut->kind, slot_record_bytes(cut->store, slots, n));
    if (body) slot_record_write(cut->store, slots, n, body);
}

/* ---- what the store tells ------------------------------------------------------------------------------------------ */

void slot_cut_before_enter(struct slot_cut *cut, uint32_t slot) {
    if (slot >= cut->slots) return;
    if (cut->describe) cut->describe(cut, slot);
    bitmap_set(cut->passed, slot);
}

void slot_cut_before_rewrite(struct slot_cut *cut, uint32_t slot) {
    if (slot < cut->slots && !bitmap_has(cut->passed, slot)) write_slots(cut, &slot, 1);
}

bool slot_cut_holds(struct slot_cut *cut, uint32_t slot) {
    if (slot >= cut->slots) return false;
    if (cut->describe) cut->describe(cut, slot);
    if (cut->failed || bitmap_has(cut->passed, slot)) return false;
    /* A record may name the slot as the next one to be entered: then it has to be free. */
    if (cut->held_count == cut->held_limit || cut->store->takes_by_number) {
        write_slots(cut, &slot, 1);
        return false;
    }
    *slot_references(cut->store, slot) = 1;
    cut->store->held++;
    if (cut->store->coded.slot_bytes) cut->store->block_bytes -= coded_columns_bytes(&cut->store->coded, slot);
    cut->held[cut->held_count++] = slot;
    return true;
}

/* Of the last `count` of some slots: as many as fit a record, at least one. */
static uint32_t fitting(const struct slot_cut *cut, const uint32_t *end, uint32_t count) {
    uint32_t n = (uint32_t)at_most(count, cut->group);
    uint64_t bytes = 0;
    for (uint32_t i = 0; cut->store->ragged && i < n; i++) {
        bytes += slot_store_ragged_bytes(cut->store, end[-1 - (int64_t)i]);
        if (bytes > TABLE_CUT_RECORD_BYTES) return i + (i == 0);
    }
    return n;
}

/* ---- handing out in turn ------------------------------------------------------------------------------------------- */

static void release_held(struct slot_cut *cut, uint32_t slot) {
    struct slot_store *store = cut->store;
    bitmap_set(cut->passed, slot);
    store->held--;
    if (store->coded.slot_bytes)
        store->block_bytes += coded_columns_bytes(&store->coded, slot); /* its going takes them off */
    slot_store_drop(store, slot);
}

static void write_held(struct slot_cut *cut) {
    uint32_t n = fitting(cut, cut->held + cut->held_count, cut->held_count);
    const uint32_t *slots = cut->held + cut->held_count - n;
    write_slots(cut, slots, n);
    cut->held_count -= n;
    for (uint32_t i = 0; i < n; i++) release_held(cut, slots[i]);
}

/* Of a store on a disk: what will be handed out a while later is read meanwhile. */
static void look_ahead(struct slot_cut *cut) {
    const struct slot_store *store = cut->store;
    size_t slot_bytes = store->arrays.slot_bytes;
    uint64_t slots = slot_bytes ? at_most(AHEAD_BYTES / slot_bytes + 1, cut->slots) : 0;
    while (slots && cut->expected < cut->slots && cut->expected < cut->walked + slots) {
        uint64_t first = ((uint64_t)cut->first + cut->expected) % cut->slots, piece = slots / AHEAD_PIECES + 1;
        piece = at_most(at_most(piece, cut->slots - first), cut->slots - cut->expected);
        column_arrays_expect(&store->arrays, (uint32_t)first, (uint32_t)piece, DISK_TO_READ);
        cut->expected += (uint32_t)piece;
    }
}

/* Those of the next few slots that are still to be handed out, no more than fit one record. */
static void write_next(struct slot_cut *cut) {
    uint32_t slots[SLOT_RECORD_MOST], n = 0;
    uint64_t bytes = 0;
    if (cut->store->disk) look_ahead(cut);
    for (uint32_t looked = 0; n < cut->group && looked < LOOKED_AT && cut->walked < cut->slots; looked++) {
        uint32_t slot = (uint32_t)(((uint64_t)cut->first + cut->walked++) % cut->slots);
        if (!slot_is_occupied(cut->store, slot) || bitmap_has(cut->passed, slot)) continue;
        slots[n++] = slot;
        if (cut->store->ragged) bytes += slot_store_ragged_bytes(cut->store, slot);
        if (bytes > TABLE_CUT_RECORD_BYTES) break;
    }
    if (n > 0) write_slots(cut, slots, n);
}

bool slot_cut_step(struct slot_cut *cut) {
    if (cut->failed || (cut->held_count == 0 && cut->walked == cut->slots)) return false;
    if (cut->held_count > 0)
        write_held(cut);
    else
        write_next(cut);
    return !cut->failed;
}

void slot_cut_end(struct slot_cut *cut) {
    if (!cut->store) return;
    while (cut->held && cut->held_count > 0) release_held(cut, cut->held[--cut->held_count]);
    cut->store->cut = NULL;
    memory_free(cut->held);
    memory_unmap(cut->passed, bitmap_bytes(cut->slots));
    memset(cut, 0, sizeof *cut);
}

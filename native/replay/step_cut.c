/* step_cut: which steps were handed out, which are held, and their records. */
#include "replay/step_cut.h"

#include <string.h>

#include "base/memory.h"

struct step_cut {
    struct table_cut_sink *sink;
    uint32_t slots;   /* used at the cut */
    uint64_t *passed; /* one bit a slot: its step was handed out, or came after the cut */
    uint32_t walked;
    uint32_t group; /* steps of one record */
    uint32_t held_limit, held_count;
    uint32_t *held;
    bool failed;
};

static void cut_free(struct step_cut *cut) {
    memory_free(cut->held);
    if (cut->passed) {
        memory_unmap(cut->passed, cut_bitmap_bytes(cut->slots));
    }
    memory_free(cut);
}

int step_cut_begin(struct step_store *store, struct table_cut_sink *sink, uint32_t held_limit) {
    assert(!store->cut && store->step_bytes > 0);
    struct step_cut *cut = memory_calloc(1, sizeof *cut);
    if (!cut) {
        return -1;
    }
    size_t group = TABLE_CUT_RECORD_BYTES / store->step_bytes;
    cut->sink = sink;
    cut->slots = store->fresh;
    cut->group = group < 1 ? 1 : group < TABLE_CUT_CHUNK ? (uint32_t)group : TABLE_CUT_CHUNK;
    cut->held_limit = held_limit;
    cut->held = memory_alloc((held_limit + 1) * sizeof *cut->held);
    cut->passed = memory_map(cut_bitmap_bytes(cut->slots));
    if (!cut->held || !cut->passed) {
        cut_free(cut);
        return -1;
    }
    store->cut = cut;
    return 0;
}

bool step_cut_failed(const struct step_store *store) {
    return store->cut->failed;
}

/* Bytes of a column of n steps: packed, or with its blocks' sizes before them. */
static size_t column_bytes(const struct step_store *store, uint32_t column, const uint32_t *steps, uint32_t n) {
    size_t bytes = n * (step_store_is_coded(store, column) ? sizeof(uint32_t) : store->column_step_bytes[column]);
    for (uint32_t i = 0; i < n && step_store_is_coded(store, column); i++) {
        size_t size;
        step_store_block(store, column, steps[i], &size);
        bytes += size;
    }
    return bytes;
}

static uint8_t *write_blocks(const struct step_store *store, uint32_t column, const uint32_t *steps, uint32_t n,
                             uint8_t *at) {
    uint8_t *block_at = at + n * sizeof(uint32_t);
    for (uint32_t i = 0; i < n; i++) {
        size_t size;
        const uint8_t *block = step_store_block(store, column, steps[i], &size);
        uint32_t size_in_file = (uint32_t)size;
        memcpy(at + i * sizeof size_in_file, &size_in_file, sizeof size_in_file);
        memcpy(block_at, block, size);
        block_at += size;
    }
    return block_at;
}

static uint8_t *write_column(const struct step_store *store, uint32_t column, const uint32_t *steps, uint32_t n,
                             uint8_t *at) {
    size_t step_bytes = store->column_step_bytes[column];
    if (step_store_is_coded(store, column)) {
        return write_blocks(store, column, steps, n, at);
    }
    for (uint32_t i = 0; i < n && step_bytes > 0; i++, at += step_bytes) {
        memcpy(at, step_store_step(store, column, steps[i]), step_bytes);
    }
    return at;
}

/* u32 n; u32 step slots[n]; then each column of these n steps, in the order of the signature; of a coded column u32 sizes[n]
 * and the blocks */
static void write_steps(struct step_store *store, const uint32_t *steps, uint32_t n) {
    struct step_cut *cut = store->cut;
    size_t bytes = 4 + 4 * (size_t)n;
    for (uint32_t i = 0; i < n; i++) {
        cut_set_bit(cut->passed, steps[i]);
    }
    for (uint32_t column = 0; column < store->columns; column++) {
        bytes += column_bytes(store, column, steps, n);
    }
    uint8_t *at = cut->failed ? NULL : cut->sink->record(cut->sink, TABLE_RECORD_STEPS, bytes);
    if (!at) {
        cut->failed = true;
        return;
    }
    memcpy(at, &n, 4);
    memcpy(at + 4, steps, 4 * (size_t)n);
    at += 4 + 4 * (size_t)n;
    for (uint32_t column = 0; column < store->columns; column++) {
        at = write_column(store, column, steps, n, at);
    }
}

/* ---- hooks --------------------------------------------------------------------------------------------------------- */

void step_cut_before_enter(struct step_store *store, uint32_t step) {
    if (step < store->cut->slots) {
        cut_set_bit(store->cut->passed, step);
    }
}

bool step_cut_holds(struct step_store *store, uint32_t step) {
    struct step_cut *cut = store->cut;
    if (cut->failed || step >= cut->slots || cut_bit(cut->passed, step)) {
        return false;
    }
    if (cut->held_count == cut->held_limit) {
        write_steps(store, &step, 1);
        return false;
    }
    store->references[step] = 1;
    store->held++;
    store->live_bytes -= step_store_bytes(store, step);
    cut->held[cut->held_count++] = step;
    return true;
}

/* ---- handing out in turn ------------------------------------------------------------------------------------------- */

static void release_held(struct step_store *store, uint32_t step) {
    cut_set_bit(store->cut->passed, step);
    store->held--;
    store->live_bytes += step_store_bytes(store, step); /* which its going takes off */
    step_store_drop(store, step);
}

static void write_held(struct step_store *store) {
    struct step_cut *cut = store->cut;
    uint32_t steps[TABLE_CUT_CHUNK], n = 0;
    uint32_t count = cut->held_count < cut->group ? cut->held_count : cut->group;
    const uint32_t *held = cut->held + cut->held_count - count;
    for (uint32_t i = 0; i < count; i++) {
        if (!cut_bit(cut->passed, held[i])) { /* the walk may have met it */
            steps[n++] = held[i];
        }
    }
    if (n > 0) {
        write_steps(store, steps, n);
    }
    cut->held_count -= count;
    for (uint32_t i = 0; i < count; i++) {
        release_held(store, held[i]);
    }
}

static void write_next(struct step_store *store) {
    struct step_cut *cut = store->cut;
    uint32_t steps[TABLE_CUT_CHUNK], n = 0;
    for (uint32_t looked = 0; n < cut->group && looked < 8 * TABLE_CUT_CHUNK && cut->walked < cut->slots; looked++) {
        uint32_t step = cut->walked++;
        if (store->references[step] > 0 && !cut_bit(cut->passed, step)) {
            steps[n++] = step;
        }
    }
    if (n > 0) {
        write_steps(store, steps, n);
    }
}

bool step_cut_step(struct step_store *store) {
    struct step_cut *cut = store->cut;
    if (cut->failed) {
        return false;
    }
    if (cut->held_count > 0) {
        write_held(store);
    } else if (cut->walked < cut->slots) {
        write_next(store);
    } else {
        return false;
    }
    return !cut->failed;
}

void step_cut_end(struct step_store *store) {
    struct step_cut *cut = store->cut;
    if (!cut) {
        return;
    }
    while (cut->held_count > 0) {
        release_held(store, cut->held[--cut->held_count]);
    }
    store->cut = NULL;
    cut_free(cut);
}

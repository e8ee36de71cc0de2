/* step_store: mapped columns of steps, references, and slots that are used again. */
#include "replay/step_store.h"

#include <string.h>

#include "base/memory.h"

size_t step_store_step_bytes(const struct table_config *config) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < config->columns; i++) {
        bytes += config->column[i].in_steps ? config->column[i].item_bytes : 0;
    }
    return bytes;
}

static bool coded(const struct table_config *config, uint32_t column) {
    return config->codec != CODEC_NONE && config->column[column].in_steps &&
           config->column[column].item_bytes >= CODEC_LEAST_STEP_BYTES;
}

/* A block begins with its size. */
static int init_blocks(struct step_store *store, const struct table_config *config) {
    size_t largest = 0, slack = 0;
    for (uint32_t i = 0; i < config->columns; i++) {
        if (coded(config, i)) {
            largest = config->column[i].item_bytes > largest ? config->column[i].item_bytes : largest;
            store->coded_bytes += config->column[i].item_bytes;
            slack += sizeof(uint32_t);
        }
    }
    if (!largest) {
        return 0;
    }
    uint64_t most_bytes = (store->coded_bytes + slack) * (uint64_t)store->slots;
    bool failed = block_pool_init(&store->blocks, largest + sizeof(uint32_t),
                                  most_bytes < STEP_STORE_MAX_MAPPED_BYTES ? most_bytes : STEP_STORE_MAX_MAPPED_BYTES);
    store->codec = codec_new(config->codec);
    store->scratch = memory_map(largest);
    for (uint32_t i = 0; i < config->columns; i++) {
        if (coded(config, i)) {
            store->block[i] = memory_map(store->slots * sizeof *store->block[i]);
            failed = failed || !store->block[i];
        }
    }
    return failed || !store->codec || !store->scratch ? -1 : 0;
}

int step_store_init(struct step_store *store, const struct table_config *config, uint64_t slots, struct error *error) {
    memset(store, 0, sizeof *store);
    store->step_bytes = step_store_step_bytes(config);
    size_t plain_bytes[TABLE_MAX_COLUMNS] = {0}; /* of columns that are not coded */
    for (uint32_t i = 0; i < config->columns; i++) {
        if (config->column[i].in_steps) {
            store->column_step_bytes[i] = config->column[i].item_bytes;
            plain_bytes[i] = coded(config, i) ? 0 : config->column[i].item_bytes;
            store->plain_bytes += plain_bytes[i];
        }
    }
    column_arrays_init(&store->arrays, config->columns, plain_bytes);
    uint64_t slot_bytes = store->arrays.slot_bytes + store->step_bytes - store->plain_bytes;
    slots = slots < UINT32_MAX ? slots : UINT32_MAX - 1;
    slots = slots < STEP_STORE_MAX_MAPPED_BYTES / slot_bytes ? slots : STEP_STORE_MAX_MAPPED_BYTES / slot_bytes;
    store->slots = (uint32_t)slots;
    store->columns = config->columns;
    store->references = memory_map(slots * sizeof *store->references);
    store->returned = memory_map(slots * sizeof *store->returned);
    bool failed = !store->references || !store->returned || init_blocks(store, config) ||
                  column_arrays_map(&store->arrays, slots);
    if (failed) {
        step_store_free(store);
        return error_set(error, ERROR_GENERIC, "out of memory: %llu bytes could not be mapped for the steps of '%s'",
                         (unsigned long long)(slot_bytes * slots), config->name);
    }
    return 0;
}

void step_store_free(struct step_store *store) {
    column_arrays_free(&store->arrays);
    size_t largest = 0;
    for (uint32_t i = 0; i < store->columns; i++) {
        if (store->block[i]) {
            memory_unmap(store->block[i], store->slots * sizeof *store->block[i]);
            largest = store->column_step_bytes[i] > largest ? store->column_step_bytes[i] : largest;
        }
    }
    memory_unmap(store->scratch, largest);
    codec_free(store->codec);
    block_pool_free(&store->blocks);
    memory_unmap(store->references, store->slots * sizeof *store->references);
    memory_unmap(store->returned, store->slots * sizeof *store->returned);
    memset(store, 0, sizeof *store);
}

uint32_t step_store_reserve(struct step_store *store) {
    assert(step_store_free_slots(store) > 0);
    uint32_t step = store->returned_count ? store->returned[--store->returned_count] : store->fresh++;
    assert(store->references[step] == 0);
    store->reserved++;
    return step;
}

/* The pool's bytes of a step. */
static uint64_t block_bytes(const struct step_store *store, uint32_t step) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; store->codec && i < store->columns; i++) {
        if (store->block[i]) {
            size_t size;
            step_store_block(store, i, step, &size);
            bytes += block_pool_size(&store->blocks, size + sizeof(uint32_t));
        }
    }
    return bytes;
}

uint64_t step_store_bytes(const struct step_store *store, uint32_t step) {
    return store->plain_bytes + block_bytes(store, step);
}

static void give_blocks(struct step_store *store, uint32_t step) {
    for (uint32_t i = 0; store->codec && i < store->columns; i++) {
        if (store->block[i] && store->block[i][step]) {
            block_pool_give(&store->blocks, store->block[i][step]);
            store->block[i][step] = NULL;
        }
    }
}

void step_store_unreserve(struct step_store *store, uint32_t step) {
    assert(store->references[step] == 0 && store->reserved > 0);
    store->reserved--;
    step_store_forget(store, step);
}

void step_store_enter(struct step_store *store, uint32_t step) {
    assert(store->references[step] == 0 && store->reserved > 0);
    if (store->cut) {
        step_cut_before_enter(store, step);
    }
    store->reserved--;
    store->live++;
    store->live_bytes += step_store_bytes(store, step);
    store->references[step] = 1;
}

void step_store_release(struct step_store *store, uint32_t step) {
    assert(store->references[step] == 0 && store->live > 0);
    if (store->cut && step_cut_holds(store, step)) {
        return;
    }
    store->live--;
    store->live_bytes -= step_store_bytes(store, step);
    step_store_forget(store, step);
}

void step_store_forget(struct step_store *store, uint32_t step) {
    give_blocks(store, step);
    store->returned[store->returned_count++] = step;
}

/* ---- coded columns ------------------------------------------------------------------------------------------------- */

int step_store_put_block(struct step_store *store, uint32_t column, uint32_t step, const uint8_t *block, size_t size) {
    assert(store->block[column] && size <= store->column_step_bytes[column]);
    uint8_t **at = &store->block[column][step];
    if (*at) {
        block_pool_give(&store->blocks, *at);
    }
    uint32_t head = (uint32_t)size;
    *at = block_pool_take(&store->blocks, sizeof head + size);
    if (!*at) {
        return -1;
    }
    memcpy(*at, &head, sizeof head);
    memcpy(*at + sizeof head, block, size);
    return 0;
}

int step_store_encode(struct step_store *store, uint32_t column, uint32_t step, const uint8_t *value) {
    size_t size = codec_encode(store->codec, value, store->column_step_bytes[column], store->scratch);
    return step_store_put_block(store, column, step, store->scratch, size);
}

const uint8_t *step_store_block(const struct step_store *store, uint32_t column, uint32_t step, size_t *size) {
    const uint8_t *block = store->block[column][step];
    assert(block);
    uint32_t head;
    memcpy(&head, block, sizeof head);
    *size = head;
    return block + sizeof head;
}

bool step_store_is_block(const struct step_store *store, uint32_t column, const uint8_t *block, size_t size) {
    return codec_decode(store->codec, block, size, store->scratch, store->column_step_bytes[column]);
}

void step_store_copy(const struct step_store *store, uint32_t column, uint32_t step, uint8_t *out) {
    size_t length = store->column_step_bytes[column], size;
    if (!store->block[column]) {
        memcpy(out, step_store_step(store, column, step), length);
        return;
    }
    const uint8_t *block = step_store_block(store, column, step, &size);
    bool decoded = codec_decode(store->codec, block, size, out, length);
    assert(decoded); /* it was encoded here, or checked when it came */
    (void)decoded;
}

void step_store_scatter(struct step_store *store, uint32_t column, const uint32_t *steps, uint32_t n,
                        const void *values) {
    size_t step_bytes = store->column_step_bytes[column];
    assert(store->arrays.base[column]);
    const uint8_t *value = values;
    for (uint32_t i = 0; i < n; i++) {
        memcpy(step_store_step(store, column, steps[i]), value + i * step_bytes, step_bytes);
    }
}

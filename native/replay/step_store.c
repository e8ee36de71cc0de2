/* step_store: mapped columns of steps, references, and slots that are used again. */
#include "replay/step_store.h"

#include <string.h>

#include "base/memory.h"

/* As for items: large steps begin on a cache line, small ones are packed. */
static size_t column_stride(size_t step_bytes) {
    return step_bytes < 512 ? step_bytes : (step_bytes + 63) / 64 * 64;
}

size_t step_store_step_bytes(const struct table_config *config) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < config->columns; i++) {
        bytes += config->column[i].in_steps ? config->column[i].item_bytes : 0;
    }
    return bytes;
}

int step_store_init(struct step_store *store, const struct table_config *config, uint64_t slots, struct error *error) {
    memset(store, 0, sizeof *store);
    store->step_bytes = step_store_step_bytes(config);
    uint64_t stride = 0;
    for (uint32_t i = 0; i < config->columns; i++) {
        if (config->column[i].in_steps) {
            store->column_step_bytes[i] = config->column[i].item_bytes;
            store->stride[i] = column_stride(config->column[i].item_bytes);
            stride += store->stride[i];
        }
    }
    slots = slots < UINT32_MAX ? slots : UINT32_MAX - 1;
    slots = slots < STEP_STORE_MAX_MAPPED_BYTES / stride ? slots : STEP_STORE_MAX_MAPPED_BYTES / stride;
    store->slots = (uint32_t)slots;
    store->columns = config->columns;
    store->references = memory_map(slots * sizeof *store->references);
    store->returned = memory_map(slots * sizeof *store->returned);
    bool failed = !store->references || !store->returned;
    for (uint32_t i = 0; i < store->columns; i++) {
        if (store->stride[i]) {
            store->base[i] = memory_map(store->stride[i] * slots);
            if (store->base[i] && store->stride[i] * slots >= MEMORY_HUGE_BYTES) {
                memory_advise_huge(store->base[i], store->stride[i] * slots);
            }
            failed = failed || !store->base[i];
        }
    }
    if (failed) {
        step_store_free(store);
        return error_set(error, ERROR_GENERIC, "out of memory: %llu bytes could not be mapped for the steps of '%s'",
                         (unsigned long long)(stride * slots), config->name);
    }
    return 0;
}

void step_store_free(struct step_store *store) {
    for (uint32_t i = 0; i < store->columns; i++) {
        memory_unmap(store->base[i], store->stride[i] * store->slots);
    }
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

void step_store_unreserve(struct step_store *store, uint32_t step) {
    assert(store->references[step] == 0 && store->reserved > 0);
    store->reserved--;
    store->returned[store->returned_count++] = step;
}

void step_store_enter(struct step_store *store, uint32_t step) {
    assert(store->references[step] == 0 && store->reserved > 0);
    store->reserved--;
    store->live++;
    store->references[step] = 1;
}

void step_store_release(struct step_store *store, uint32_t step) {
    assert(store->references[step] == 0 && store->live > 0);
    store->live--;
    store->returned[store->returned_count++] = step;
}

void step_store_scatter(struct step_store *store, uint32_t column, const uint32_t *steps, uint32_t n,
                        const void *values) {
    size_t step_bytes = store->column_step_bytes[column];
    const uint8_t *value = values;
    for (uint32_t i = 0; i < n; i++) {
        memcpy(step_store_step(store, column, steps[i]), value + i * step_bytes, step_bytes);
    }
}

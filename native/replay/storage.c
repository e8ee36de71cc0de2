/* storage: mapped columns, slot states, pins and generations. */
#include "replay/storage.h"

#include <assert.h>
#include <string.h>

#include "base/copy.h"
#include "base/memory.h"

/* A slot is hardly used so often between a snapshot and the end that came after it. */
#define FORGOTTEN_GENERATIONS 16384u
#define AHEAD 8u        /* items to prefetch ahead of a copy */
#define SMALL_AHEAD 24u /* the same out of columns of small items, which take less time */

int storage_init(struct storage *storage, const struct table_config *config, uint32_t slots, struct error *error) {
    memset(storage, 0, sizeof *storage);
    storage->slots = slots;
    for (uint32_t i = 0; i < config->columns; i++) {
        storage->column_item_bytes[i] = config->column[i].kind == COLUMN_ITEM ? config->column[i].item_bytes : 0;
        storage->item_bytes += storage->column_item_bytes[i];
    }
    column_arrays_init(&storage->arrays, config->columns, storage->column_item_bytes);
    if (storage->arrays.slot_bytes > STORAGE_MAX_MAPPED_BYTES / slots) {
        return error_set(error, ERROR_LIMIT,
                         "table '%s' would need more than %llu bytes of address space for its %u slots; "
                         "make capacity or the items smaller",
                         config->name, (unsigned long long)STORAGE_MAX_MAPPED_BYTES, slots);
    }
    if (column_arrays_map(&storage->arrays, slots)) {
        unsigned long long total = (unsigned long long)storage->arrays.slot_bytes * slots;
        storage_free(storage);
        return error_set(error, ERROR_GENERIC, "out of memory: %llu bytes could not be mapped for table '%s'", total,
                         config->name);
    }
    storage->slot = memory_map(slots * sizeof *storage->slot);
    storage->returned = memory_map(slots * sizeof *storage->returned);
    storage->age = memory_map(slots * sizeof *storage->age);
    if (!storage->slot || !storage->returned || !storage->age) {
        storage_free(storage);
        return error_set(error, ERROR_GENERIC, "out of memory: the index of table '%s' could not be mapped",
                         config->name);
    }
    memory_advise_huge(storage->slot, slots * sizeof *storage->slot);
    return 0;
}

void storage_free(struct storage *storage) {
    column_arrays_free(&storage->arrays);
    if (storage->slot) {
        memory_unmap(storage->slot, storage->slots * sizeof *storage->slot);
    }
    if (storage->age) {
        memory_unmap(storage->age, storage->slots * sizeof *storage->age);
    }
    if (storage->returned) {
        memory_unmap(storage->returned, storage->slots * sizeof *storage->returned);
    }
    memset(storage, 0, sizeof *storage);
}

static void give_back(struct storage *storage, uint32_t slot) {
    if (storage->slot[slot].generation >= STORAGE_MAX_GENERATION) {
        storage->slot[slot].state = SLOT_RETIRED;
        storage->retired++;
        return;
    }
    storage->slot[slot].state = SLOT_FREE;
    storage->returned[storage->returned_count++] = slot;
}

uint32_t storage_reserve(struct storage *storage) {
    assert(storage_free_slots(storage) > 0);
    uint32_t slot = storage->returned_count ? storage->returned[--storage->returned_count] : storage->fresh++;
    assert(storage->slot[slot].state == SLOT_FREE && storage->slot[slot].pins == 0);
    storage->slot[slot].state = SLOT_RESERVED;
    storage->reserved++;
    return slot;
}

void storage_unreserve(struct storage *storage, uint32_t slot) {
    assert(storage->slot[slot].state == SLOT_RESERVED);
    storage->reserved--;
    give_back(storage, slot);
}

void storage_enter(struct storage *storage, uint32_t slot) {
    struct slot *entry = &storage->slot[slot];
    assert(entry->state == SLOT_RESERVED && entry->generation < STORAGE_MAX_GENERATION);
    storage->reserved--;
    storage->live++;
    entry->state = SLOT_LIVE;
    entry->generation++;
    if (entry->generation < storage->least_generation) {
        entry->generation = storage->least_generation;
    }
    storage->last_lives += entry->generation == STORAGE_MAX_GENERATION;
    entry->times_sampled = 0;
    storage->age[slot] = storage->next_age++;
}

void storage_forget_ids(struct storage *storage, uint64_t entropy) {
    uint32_t newest = 0;
    for (uint32_t slot = 0; slot < storage->fresh; slot++) {
        uint32_t generation = storage->slot[slot].generation;
        newest = generation > newest && storage->slot[slot].state != SLOT_RETIRED ? generation : newest;
    }
    uint32_t jump = FORGOTTEN_GENERATIONS + (uint32_t)(entropy % FORGOTTEN_GENERATIONS);
    if (newest < STORAGE_MAX_GENERATION - 2 * FORGOTTEN_GENERATIONS) { /* else slots would be used up by jumping */
        storage->least_generation = newest + jump;
    }
}

bool storage_leave(struct storage *storage, uint32_t slot) {
    assert(storage->slot[slot].state == SLOT_LIVE);
    storage->live--;
    storage->last_lives -= storage->slot[slot].generation == STORAGE_MAX_GENERATION;
    if (storage->slot[slot].pins) {
        storage->slot[slot].state = SLOT_ZOMBIE;
        storage->zombies++;
        return false;
    }
    give_back(storage, slot);
    return true;
}

bool storage_unpin(struct storage *storage, uint32_t slot) {
    struct slot *entry = &storage->slot[slot];
    assert(slot < storage->slots && entry->pins > 0);
    if (--entry->pins > 0) {
        return false;
    }
    storage->pinned--;
    if (entry->state != SLOT_ZOMBIE) {
        return false;
    }
    storage->zombies--;
    give_back(storage, slot);
    return true;
}

void storage_scatter(struct storage *storage, uint32_t column, const uint32_t *slots, uint32_t n, const void *items) {
    size_t stride = storage->arrays.stride[column], item_bytes = storage->column_item_bytes[column];
    uint8_t *base = storage->arrays.base[column];
    const uint8_t *item = items;
    for (uint32_t i = 0; i < n; i++) {
        if (i + AHEAD < n) {
            __builtin_prefetch(base + slots[i + AHEAD] * stride, 1);
        }
        memcpy(base + slots[i] * stride, item + i * item_bytes, item_bytes);
    }
}

/* Copies items of a size known at compile time. */
static inline __attribute__((always_inline)) void gather_fixed(const uint8_t *base, size_t stride, size_t item_bytes,
                                                               const uint32_t *slots, uint32_t n, uint8_t *items) {
    for (uint32_t i = 0; i < n; i++) {
        memcpy(items + i * item_bytes, base + slots[i] * stride, item_bytes);
    }
}

#define SMALL_BYTES 256u /* items up to here are copied by words, without a call for each */

/* 8 to SMALL_BYTES bytes: whole words, and a last one that may overlap them. */
static inline __attribute__((always_inline)) void copy_small(uint8_t *to, const uint8_t *from, size_t bytes) {
    if (bytes < 16) {
        memcpy(to, from, 8);
        memcpy(to + bytes - 8, from + bytes - 8, 8);
        return;
    }
    for (size_t at = 0; at + 16 < bytes; at += 16) {
        memcpy(to + at, from + at, 16);
    }
    memcpy(to + bytes - 16, from + bytes - 16, 16);
}

static void gather_small(const uint8_t *base, size_t stride, size_t item_bytes, const uint32_t *slots, uint32_t n,
                         uint8_t *items) {
    for (uint32_t i = 0; i < n; i++) {
        if (i + SMALL_AHEAD < n) {
            const uint8_t *ahead = base + slots[i + SMALL_AHEAD] * stride;
            for (size_t line = 0; line < item_bytes; line += 64) {
                __builtin_prefetch(ahead + line);
            }
            __builtin_prefetch(ahead + item_bytes - 1);
        }
        copy_small(items + i * item_bytes, base + slots[i] * stride, item_bytes);
    }
}

/* Large results: the caches could not hold them anyway. */
static void gather_streamed(const uint8_t *base, size_t stride, size_t item_bytes, const uint32_t *slots, uint32_t n,
                            uint8_t *items) {
    for (uint32_t i = 0; i < n; i++) {
        if (i + 1 < n) {
            __builtin_prefetch(base + slots[i + 1] * stride);
        }
        copy_streamed(items + i * item_bytes, base + slots[i] * stride, item_bytes);
    }
    copy_streamed_end();
}

void storage_gather(const struct storage *storage, uint32_t column, const uint32_t *slots, uint32_t n, void *items,
                    size_t result_bytes) {
    size_t stride = storage->arrays.stride[column], item_bytes = storage->column_item_bytes[column];
    const uint8_t *base = storage->arrays.base[column];
    uint8_t *item = items;
    switch (item_bytes) {
    case 1: gather_fixed(base, stride, 1, slots, n, item); return;
    case 2: gather_fixed(base, stride, 2, slots, n, item); return;
    case 4: gather_fixed(base, stride, 4, slots, n, item); return;
    case 8: gather_fixed(base, stride, 8, slots, n, item); return;
    default: break;
    }
    if (item_bytes > 8 && item_bytes <= SMALL_BYTES) {
        gather_small(base, stride, item_bytes, slots, n, item);
        return;
    }
    if (copy_streams(result_bytes, item_bytes)) {
        gather_streamed(base, stride, item_bytes, slots, n, item);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (i + AHEAD < n) {
            const uint8_t *ahead = base + slots[i + AHEAD] * stride;
            __builtin_prefetch(ahead);
            __builtin_prefetch(ahead + (item_bytes > 64 ? 64 : 0));
        }
        memcpy(item + i * item_bytes, base + slots[i] * stride, item_bytes);
    }
}

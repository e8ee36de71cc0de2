/* slot_store: mapped columns, references, generations, and slots that are used again. */
#include "replay/slot_store.h"

#include <string.h>

#include "base/arithmetic.h"
#include "base/memory.h"
#include "replay/slot_cut.h"

#define MOST_ITEM_BYTES (1ull << 46) /* address space of one table's items */
#define MOST_STEP_BYTES (1ull << 44) /* and of its steps */
/* A slot is hardly used so often between a snapshot and the end that came after it. */
#define FORGOTTEN_GENERATIONS 16384u
#define COLLECTED_AT_ONCE 256u /* slots looked at, where a free one is needed before all are found */
#define MOST_BEING_READ 1024u          /* slots of a disk that were given back and are not used again at once */
#define BYTES_BEING_READ (32u << 20)

/* ---- memory -------------------------------------------------------------------------------------------------------- */

size_t slot_column_bytes(const struct column *column, enum slot_kind kind) {
    bool has = kind == SLOT_OF_ITEM ? column->kind == COLUMN_ITEM : column->in_steps;
    return has ? column->item_bytes : 0;
}

size_t slot_row_bytes(const struct table_config *config, enum slot_kind kind) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < config->columns; i++) bytes += slot_column_bytes(&config->column[i], kind);
    return bytes;
}

/* Which columns there are, and which of them are coded: long ones of steps, in a table that is compressed. */
static void init_columns(struct slot_store *store, const struct table_config *config) {
    size_t plain[TABLE_MAX_COLUMNS] = {0}, coded[TABLE_MAX_COLUMNS] = {0};
    bool codes = store->kind == SLOT_OF_STEP && config->codec != CODEC_NONE;
    store->columns = config->columns;
    for (uint32_t i = 0; i < config->columns; i++) {
        size_t bytes = slot_column_bytes(&config->column[i], store->kind);
        bool is_coded = codes && bytes >= CODEC_LEAST_STEP_BYTES;
        (is_coded ? coded : plain)[i] = store->value_bytes[i] = bytes;
        store->slot_bytes += bytes;
        store->plain_bytes += is_coded ? 0 : bytes;
    }
    column_arrays_init(&store->arrays, config->columns, plain);
    coded_columns_init(&store->coded, config->columns, coded);
}

int slot_store_init(struct slot_store *store, const struct table_config *config, enum slot_kind kind, uint64_t slots,
                    struct disk_memory *disk, struct error *error) {
    memset(store, 0, sizeof *store);
    store->kind = kind;
    store->disk = disk;
    init_columns(store, config);
    uint64_t bytes = store->arrays.slot_bytes + store->coded.slot_bytes; /* 0: all that they have is without bytes */
    assert(slots > 0);
    if (kind == SLOT_OF_STEP) {
        slots = at_most(at_most(slots, SLOT_STEPS_MOST), MOST_STEP_BYTES / (bytes ? bytes : 1));
    } else if (bytes > MOST_ITEM_BYTES / slots) {
        return error_set(error, ERROR_LIMIT,
                         "table '%s' would need more than %llu bytes of address space for its %llu slots; "
                         "make capacity or the items smaller",
                         config->name, MOST_ITEM_BYTES, (unsigned long long)slots);
    }
    store->slots = (uint32_t)slots;
    store->entry_bytes = kind == SLOT_OF_ITEM ? sizeof(struct slot) : sizeof(uint32_t);
    store->entries = memory_map(slots * store->entry_bytes);
    store->returned = memory_map(slots * sizeof *store->returned);
    bool ragged = kind == SLOT_OF_ITEM && ragged_largest_bytes(config) > 0;
    if (ragged && !(store->ragged = ragged_store_new(config, disk, error))) {
        slot_store_free(store);
        return -1;
    }
    store->keeps_apart = ragged || store->coded.slot_bytes > 0;
    bool failed = !store->entries || !store->returned || column_arrays_map(&store->arrays, slots, disk) ||
                  coded_columns_map(&store->coded, config->codec, slots, MOST_STEP_BYTES, disk);
    if (kind == SLOT_OF_ITEM && !failed) {
        memory_advise_huge(store->entries, slots * store->entry_bytes);
        store->slot = (struct slot *)(void *)store->entries;
    }
    if (!failed) return 0;
    slot_store_free(store);
    if (disk && disk_memory_failed(disk, error)) return -1;
    return error_set(error, ERROR_GENERIC, "out of memory: %llu slots of %llu bytes could not be mapped for table '%s'",
                     (unsigned long long)slots, (unsigned long long)bytes, config->name);
}

int slot_store_init_lists(struct slot_store *store, struct slot_store *seen, uint32_t length) {
    store->list = memory_map((size_t)store->slots * length * sizeof *store->list);
    if (!store->list) return -1;
    store->seen = seen;
    store->list_length = length;
    return 0;
}

void slot_store_free(struct slot_store *store) {
    column_arrays_free(&store->arrays);
    coded_columns_free(&store->coded);
    ragged_store_free(store->ragged);
    memory_unmap(store->entries, store->slots * store->entry_bytes);
    memory_unmap(store->returned, store->slots * sizeof *store->returned);
    memory_unmap(store->list, (size_t)store->slots * store->list_length * sizeof *store->list);
    memset(store, 0, sizeof *store);
}

/* ---- the life of a slot -------------------------------------------------------------------------------------------- */

/* Not inlined, as few slots have any. */
static __attribute__((noinline)) void forget_apart(struct slot_store *store, uint32_t slot) {
    struct ragged_store *ragged = store->ragged;
    if (store->coded.slot_bytes) coded_columns_forget(&store->coded, slot);
    for (uint32_t i = 0; ragged && i < ragged->columns; i++)
        ragged_store_drop(ragged, ragged->column[i], slot_ragged(store, ragged->column[i], slot));
}

static bool is_retired(const struct slot_store *store, uint32_t slot) {
    return store->slot && store->slot[slot].generation >= SLOT_MAX_GENERATION;
}

static void keep_for_reuse(struct slot_store *store, uint32_t slot) {
    if (store->disk) {
        store->returned[((uint64_t)store->returned_first + store->returned_count++) % store->slots] = slot;
        column_arrays_expect(&store->arrays, slot, 1, DISK_TO_WRITE);
    } else {
        store->returned[store->returned_count++] = slot;
    }
}

static void give_back(struct slot_store *store, uint32_t slot) {
    if (store->keeps_apart) forget_apart(store, slot);
    if (is_retired(store, slot))
        store->retired++;
    else if (slot < store->uncollected)
        store->uncollected_free++;
    else if (!store->takes_by_number)
        keep_for_reuse(store, slot);
}

/* How many slots that were given back are kept apart while their pages are read: none without a disk. */
static uint64_t being_read(const struct slot_store *store) {
    size_t slot_bytes = store->arrays.slot_bytes;
    return store->disk && slot_bytes ? at_most(MOST_BEING_READ, BYTES_BEING_READ / slot_bytes) : 0;
}

/* Free slots among those that were not looked at yet are the last choice: many may have to be looked at before one is found.
 *
 * The pages of a slot that was given back to a disk may be absent, and a write would have to read them first. So that slot is
 * used that was given back longest ago, and none before there are some: a helper has brought its pages in by then. */
static uint32_t take_free(struct slot_store *store) {
    bool has_fresh = store->fresh < (store->disk ? store->backed : store->slots);
    while (!has_fresh && store->returned_count == 0 && store->uncollected_free > 0)
        slot_store_collect_some(store, COLLECTED_AT_ONCE);
    if (store->returned_count == 0 || (has_fresh && store->returned_count < being_read(store))) return store->fresh++;
    if (!store->disk) return store->returned[--store->returned_count];
    uint32_t slot = store->returned[store->returned_first++];
    store->returned_first %= store->slots;
    store->returned_count--;
    return slot;
}

bool slot_store_back(struct slot_store *store, uint64_t more) {
    if (!store->disk) return true;
    uint64_t used_before = (uint64_t)store->returned_count + store->uncollected_free;
    uint64_t fresh = more > used_before ? more - used_before : 0;
    uint64_t needed = at_most(store->fresh + fresh, store->slots);
    bool spares = used_before < being_read(store) + more;
    uint64_t wanted = spares ? at_most(store->fresh + more, store->slots) : needed;
    if (wanted > store->backed && column_arrays_back(&store->arrays, wanted)) store->backed = (uint32_t)wanted;
    if (needed > store->backed && column_arrays_back(&store->arrays, needed)) store->backed = (uint32_t)needed;
    return needed <= store->backed;
}

uint32_t slot_store_reserve(struct slot_store *store) {
    assert(slot_store_free_slots(store) > 0);
    uint32_t slot = take_free(store);
    uint32_t *references = slot_references(store, slot);
    assert(*references == 0);
    *references = SLOT_RESERVED;
    store->reserved++;
    return slot;
}

void slot_store_unreserve(struct slot_store *store, uint32_t slot) {
    uint32_t *references = slot_references(store, slot);
    assert(*references == SLOT_RESERVED);
    *references = 0;
    store->reserved--;
    give_back(store, slot);
}

static void enter(struct slot_store *store, uint32_t slot, uint32_t *references) {
    assert(*references == SLOT_RESERVED);
    if (store->cut) slot_cut_before_enter(store->cut, slot);
    *references = 1;
    store->reserved--;
    store->occupied++;
}

void slot_store_enter(struct slot_store *store, uint32_t slot) {
    enter(store, slot, slot_references(store, slot));
    if (store->coded.slot_bytes) store->block_bytes += coded_columns_bytes(&store->coded, slot);
}

/* Not inlined: items without windows have neither blocks nor lists, and should not save registers for them. */
static __attribute__((noinline)) void let_go(struct slot_store *store, uint32_t slot) {
    if (store->coded.slot_bytes) store->block_bytes -= coded_columns_bytes(&store->coded, slot);
    if (store->list) slot_store_drop_list(store, slot_list(store, slot));
}

void slot_store_release(struct slot_store *store, uint32_t slot) {
    if (store->cut && slot_cut_holds(store->cut, slot)) return;
    store->occupied--;
    if (store->coded.slot_bytes || store->list) let_go(store, slot);
    give_back(store, slot);
}

void slot_store_take_by_number(struct slot_store *store, bool by_number) {
    store->takes_by_number = by_number;
    store->returned_count = 0;
    store->least_generation = 0;
    store->uncollected = by_number ? 0 : store->fresh;
    store->uncollected_free =
        store->uncollected ? store->fresh - store->occupied - store->reserved - store->retired : 0;
}

bool slot_store_collect_some(struct slot_store *store, uint32_t slots) {
    for (; slots > 0 && store->uncollected > 0; slots--) {
        uint32_t slot = --store->uncollected;
        if (*slot_references(store, slot) > 0 || is_retired(store, slot)) continue;
        store->uncollected_free--;
        keep_for_reuse(store, slot);
    }
    assert(store->uncollected > 0 || store->uncollected_free == 0);
    return store->uncollected > 0;
}

void slot_store_collect(struct slot_store *store) {
    for (uint32_t slot = store->fresh; slot-- > 0;)
        if (*slot_references(store, slot) == 0) give_back(store, slot);
}

/* ---- items --------------------------------------------------------------------------------------------------------- */

void slot_store_enter_item(struct slot_store *store, uint32_t slot) {
    struct slot *entry = &store->slot[slot];
    assert(entry->generation < SLOT_MAX_GENERATION);
    enter(store, slot, &entry->references);
    entry->live = true;
    store->live++;
    entry->generation++;
    if (entry->generation < store->least_generation) entry->generation = store->least_generation;
    slot_store_see_generation(store, entry->generation);
    store->last_lives += entry->generation == SLOT_MAX_GENERATION;
    entry->times_sampled = 0;
    entry->age = store->next_age++;
}

void slot_store_leave(struct slot_store *store, uint32_t slot) {
    struct slot *entry = &store->slot[slot];
    assert(entry->live && entry->references > 0);
    entry->live = false;
    store->live--;
    store->last_lives -= entry->generation == SLOT_MAX_GENERATION;
    if (--entry->references == 0) slot_store_release(store, slot);
}

void slot_store_forget_ids(struct slot_store *store, uint64_t entropy) {
    uint32_t newest = store->newest_generation;
    uint32_t jump = FORGOTTEN_GENERATIONS + (uint32_t)(entropy % FORGOTTEN_GENERATIONS);
    if (newest < SLOT_MAX_GENERATION - 2 * FORGOTTEN_GENERATIONS) /* else slots would be used up by jumping */
        store->least_generation = newest + jump;
}

/* ---- bytes --------------------------------------------------------------------------------------------------------- */

uint64_t slot_store_slot_bytes(const struct slot_store *store, uint32_t slot) {
    return store->plain_bytes + coded_columns_bytes(&store->coded, slot);
}

uint64_t slot_store_ragged_bytes(const struct slot_store *store, uint32_t slot) {
    const struct ragged_store *ragged = store->ragged;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < ragged->columns; i++) {
        uint32_t column = ragged->column[i];
        bytes += ragged_store_takes(ragged, column, slot_ragged(store, column, slot)->length);
    }
    return bytes;
}

uint64_t slot_store_bytes(const struct slot_store *store) {
    return (uint64_t)(store->occupied - store->held) * store->plain_bytes + store->block_bytes;
}

uint64_t slot_store_mean_bytes(const struct slot_store *store) {
    uint32_t slots = store->occupied - store->held;
    return slots ? slot_store_bytes(store) / slots : store->slot_bytes;
}

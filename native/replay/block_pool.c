/* block_pool: chunks, size classes, and blocks that are used again. */
#include "replay/block_pool.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "base/arithmetic.h"
#include "base/bitmap.h"
#include "base/memory.h"

#define ALIGNMENT 16u
/* On a disk at most so many blocks of a class, and empty chunks, are kept apart while their pages are read. */
#define BLOCKS_BEING_READ 256u
#define CHUNKS_BEING_READ 16u
/* Fewer where they are large: no more bytes than this of a class, and of chunks, but one in any case. */
#define BYTES_BEING_READ (8u << 20)

static uint32_t being_read(uint32_t most, size_t bytes) {
    return (uint32_t)at_most(most, 1 + BYTES_BEING_READ / bytes);
}

static void make_classes(struct block_pool *pool, const struct block_sizes *sizes) {
    size_t bytes = sizes->least, largest = sizes->largest > bytes ? sizes->largest : bytes;
    while (pool->classes < BLOCK_POOL_MAX_CLASSES - 1 && bytes < largest) {
        pool->class_bytes[pool->classes++] = bytes;
        size_t doubling = sizes->least;
        while (doubling * 2 <= bytes) doubling *= 2;
        size_t step = doubling / sizes->classes_in_doubling;
        bytes += step < ALIGNMENT ? ALIGNMENT : step;
    }
    pool->class_bytes[pool->classes++] = (largest + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

int block_pool_init(struct block_pool *pool, const struct block_sizes *sizes, uint64_t total_bytes,
                    struct disk_memory *disk) {
    memset(pool, 0, sizeof *pool);
    make_classes(pool, sizes);
    pool->chunk_bytes = sizes->least_chunk;
    while (pool->chunk_bytes < BLOCK_POOL_BLOCKS_IN_CHUNK * pool->class_bytes[pool->classes - 1])
        pool->chunk_bytes *= 2;
    /* Adds an eighth: blocks of the largest class may leave that much of a chunk unused. */
    uint64_t chunks = (total_bytes + total_bytes / 8) / pool->chunk_bytes + pool->classes + 1;
    for (uint32_t i = 0; disk && i < pool->classes; i++)
        chunks += being_read(BLOCKS_BEING_READ, pool->class_bytes[i]) * pool->class_bytes[i] / pool->chunk_bytes + 1;
    if (disk) chunks += being_read(CHUNKS_BEING_READ, pool->chunk_bytes);
    pool->chunks = chunks < BLOCK_POOL_NONE ? (uint32_t)chunks : BLOCK_POOL_NONE - 1;
    pool->returned = BLOCK_POOL_NONE;
    for (uint32_t i = 0; i < pool->classes; i++) pool->with_room[i] = pool->filling[i] = BLOCK_POOL_NONE;
    pool->chunk = memory_map(pool->chunks * sizeof *pool->chunk);
    pool->words = (uint32_t)(bitmap_bytes((uint32_t)(pool->chunk_bytes / sizes->least)) / sizeof *pool->given_back);
    pool->given_back = memory_map(pool->chunks * pool->words * sizeof *pool->given_back);
    pool->region = disk ? disk_region_new(disk, pool->chunks * pool->chunk_bytes) : NULL;
    pool->base = disk ? pool->region ? pool->region->base : NULL : memory_map(pool->chunks * pool->chunk_bytes);
    if (!pool->chunk || !pool->given_back || !pool->base) {
        block_pool_free(pool);
        return -1;
    }
    return 0;
}

void block_pool_free(struct block_pool *pool) {
    memory_unmap(pool->chunk, pool->chunks * sizeof *pool->chunk);
    memory_unmap(pool->given_back, pool->chunks * pool->words * sizeof *pool->given_back);
    if (!pool->region) memory_unmap(pool->base, pool->chunks * pool->chunk_bytes);
    memset(pool, 0, sizeof *pool);
}

static uint32_t class_of(const struct block_pool *pool, size_t bytes) {
    uint32_t low = 0, high = pool->classes - 1;
    assert(bytes <= pool->class_bytes[high]);
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (pool->class_bytes[middle] < bytes)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

size_t block_pool_size(const struct block_pool *pool, size_t bytes) {
    return pool->class_bytes[class_of(pool, bytes)];
}

/* ---- chunks with room, by class ------------------------------------------------------------------------------------ */

/* The latest is the first to be used, on a disk the last. */
static void link_chunk(struct block_pool *pool, uint32_t index) {
    struct block_chunk *chunk = &pool->chunk[index];
    uint32_t *first = &pool->with_room[chunk->class], *last = &pool->with_room_last[chunk->class];
    bool at_end = pool->region && *first != BLOCK_POOL_NONE;
    chunk->previous = at_end ? *last : BLOCK_POOL_NONE;
    chunk->next = at_end ? BLOCK_POOL_NONE : *first;
    if (chunk->next != BLOCK_POOL_NONE) pool->chunk[chunk->next].previous = index;
    *(at_end ? &pool->chunk[*last].next : first) = index;
    if (chunk->next == BLOCK_POOL_NONE) *last = index;
}

static void unlink_chunk(struct block_pool *pool, uint32_t index) {
    const struct block_chunk *chunk = &pool->chunk[index];
    if (chunk->previous == BLOCK_POOL_NONE)
        pool->with_room[chunk->class] = chunk->next;
    else
        pool->chunk[chunk->previous].next = chunk->next;
    if (chunk->next != BLOCK_POOL_NONE)
        pool->chunk[chunk->next].previous = chunk->previous;
    else
        pool->with_room_last[chunk->class] = chunk->previous;
}

static uint64_t *given_back(const struct block_pool *pool, uint32_t index) {
    return pool->given_back + (size_t)index * pool->words;
}

static void return_chunk(struct block_pool *pool, uint32_t index) {
    struct block_chunk *chunk = &pool->chunk[index];
    if (pool->region && pool->returned != BLOCK_POOL_NONE) {
        chunk->next = BLOCK_POOL_NONE;
        pool->chunk[pool->returned_last].next = index;
    } else {
        chunk->next = pool->returned;
        pool->returned = index;
    }
    pool->returned_last = index;
    pool->returned_count++;
    pool->idle[chunk->class] -= chunk->fresh;
    if (pool->filling[chunk->class] == index) pool->filling[chunk->class] = BLOCK_POOL_NONE;
}

static bool has_fresh_chunk(struct block_pool *pool) {
    return pool->fresh < pool->chunks &&
           (!pool->region || disk_region_back(pool->region, (pool->fresh + (size_t)1) * pool->chunk_bytes));
}

static uint32_t new_chunk(struct block_pool *pool, uint32_t class) {
    uint32_t index = pool->returned;
    uint32_t wait = being_read(CHUNKS_BEING_READ, pool->chunk_bytes);
    bool is_early = index == BLOCK_POOL_NONE || (pool->region && pool->returned_count < wait);
    if (is_early && has_fresh_chunk(pool)) {
        index = pool->fresh++;
    } else if (index != BLOCK_POOL_NONE) {
        pool->returned = pool->chunk[index].next;
        pool->returned_count--;
        memset(given_back(pool, index), 0, pool->words * sizeof *pool->given_back);
    } else {
        return BLOCK_POOL_NONE;
    }
    pool->chunk[index] = (struct block_chunk){.class = class};
    pool->filling[class] = index;
    link_chunk(pool, index);
    return index;
}

static bool is_full(const struct block_pool *pool, const struct block_chunk *chunk) {
    return chunk->used == chunk->fresh && (chunk->fresh + 1) * pool->class_bytes[chunk->class] > pool->chunk_bytes;
}

/* ---- blocks -------------------------------------------------------------------------------------------------------- */

/* The first free block of a chunk that has one. */
static uint32_t take_given_back(struct block_pool *pool, uint32_t index) {
    uint64_t *words = given_back(pool, index);
    uint32_t *lowest = &pool->chunk[index].lowest;
    while (words[*lowest] == 0) ++*lowest;
    uint32_t bit = (uint32_t)__builtin_ctzll(words[*lowest]);
    words[*lowest] &= words[*lowest] - 1;
    return *lowest * 64 + bit;
}

static bool has_fresh_block(const struct block_pool *pool, uint32_t index) {
    const struct block_chunk *chunk = &pool->chunk[index];
    return (chunk->fresh + 1) * pool->class_bytes[chunk->class] <= pool->chunk_bytes;
}

/* Which chunk a block of a pool on a disk is taken from, and whether it is one that was never used. */
static uint32_t choose_chunk(struct block_pool *pool, uint32_t class, bool *is_fresh) {
    uint32_t index = pool->with_room[class], filling = pool->filling[class];
    disk_memory_forget_refusal(pool->region->disk);
    if (filling != BLOCK_POOL_NONE && !has_fresh_block(pool, filling)) filling = BLOCK_POOL_NONE;
    *is_fresh = pool->idle[class] < being_read(BLOCKS_BEING_READ, pool->class_bytes[class]);
    if (*is_fresh && filling == BLOCK_POOL_NONE) filling = new_chunk(pool, class);
    if (*is_fresh && filling != BLOCK_POOL_NONE) return filling;
    *is_fresh = false;
    if (index != BLOCK_POOL_NONE && pool->chunk[index].used == pool->chunk[index].fresh)
        index = pool->chunk[index].next;
    return index; /* blocks that were given back are in it, or there is none */
}

void *block_pool_take(struct block_pool *pool, size_t bytes) {
    uint32_t class = class_of(pool, bytes), index = pool->with_room[class];
    bool is_fresh = false;
    if (pool->region)
        index = choose_chunk(pool, class, &is_fresh);
    else if (index == BLOCK_POOL_NONE)
        index = new_chunk(pool, class);
    if (index == BLOCK_POOL_NONE) return NULL;
    struct block_chunk *chunk = &pool->chunk[index];
    is_fresh |= chunk->used == chunk->fresh;
    uint32_t number = is_fresh ? chunk->fresh++ : take_given_back(pool, index);
    pool->idle[class] -= !is_fresh;
    chunk->used++;
    if (is_full(pool, chunk)) unlink_chunk(pool, index);
    return pool->base + index * pool->chunk_bytes + number * pool->class_bytes[class];
}

void block_pool_give(struct block_pool *pool, void *block) {
    size_t offset = (size_t)((uint8_t *)block - pool->base);
    uint32_t index = (uint32_t)(offset / pool->chunk_bytes);
    assert(index < pool->fresh);
    struct block_chunk *chunk = &pool->chunk[index];
    size_t block_bytes = pool->class_bytes[chunk->class];
    assert(chunk->used > 0 && offset % pool->chunk_bytes % block_bytes == 0);
    if (is_full(pool, chunk)) link_chunk(pool, index);
    uint32_t number = (uint32_t)(offset % pool->chunk_bytes / block_bytes);
    bitmap_set(given_back(pool, index), number);
    if (number / 64 < chunk->lowest) chunk->lowest = number / 64;
    if (pool->region) disk_memory_expect(pool->region->disk, block, block_bytes, DISK_TO_WRITE);
    pool->idle[chunk->class]++;
    if (--chunk->used == 0) {
        unlink_chunk(pool, index);
        return_chunk(pool, index);
    }
}

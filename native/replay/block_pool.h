/* block_pool: memory for blocks of many sizes, such as compressed steps: chunks of one mapping, each cut into blocks
 * of one size class. With eight classes for each doubling of the size, a block wastes a sixteenth on average. A chunk
 * whose last block is given back may serve another class. Giving back is O(1), allocating a search in the few words that
 * have a bit for each block of a chunk. Pages are touched only as chunks fill, and free blocks not at all.
 *
 * The pages of a block that was given back to a disk may be absent, and a write would have to read them first. A helper is
 * asked for them at once, and meanwhile others are taken: the class has some blocks, and the pool some chunks, that were given
 * back and wait; those are used first that were given back longest ago, whole chunks exactly and others by chunk. */
#ifndef REPLAY_REPLAY_BLOCK_POOL_H
#define REPLAY_REPLAY_BLOCK_POOL_H

#include <stddef.h>
#include <stdint.h>

#include "base/disk_memory.h"

#define BLOCK_POOL_BLOCKS_IN_CHUNK 8u /* at least */
#define BLOCK_POOL_MAX_CLASSES 256u
#define BLOCK_POOL_NONE UINT32_MAX

struct block_chunk {
    uint32_t next, previous; /* among those of its class with room, or (next) among the free ones */
    uint32_t used, fresh; /* blocks in use; blocks from `fresh` on were never used */
    uint32_t lowest; /* word of its `given_back` before which none has a bit */
    uint32_t class;
};

struct block_pool {
    uint8_t *base;
    size_t chunk_bytes;
    struct disk_region *region; /* that `base` is of; NULL: it is in memory */
    struct block_chunk *chunk;
    uint64_t *given_back; /* one bit a block of each chunk: it was used, and is free */
    uint32_t words; /* of a chunk in there */
    uint32_t chunks, fresh, returned; /* chunks from `fresh` on were never used; `returned` begins a list */
    uint32_t classes;
    size_t class_bytes[BLOCK_POOL_MAX_CLASSES];
    uint32_t with_room[BLOCK_POOL_MAX_CLASSES]; /* first of the chunks of a class that have a free block */
    /* Of a pool on a disk: */
    uint32_t returned_last, returned_count;
    uint32_t with_room_last[BLOCK_POOL_MAX_CLASSES];
    uint32_t filling[BLOCK_POOL_MAX_CLASSES]; /* the chunk of a class that may have blocks which were never used */
    uint32_t idle[BLOCK_POOL_MAX_CLASSES];    /* blocks of a class that were given back */
};

/* Which sizes of blocks a pool has. Classes are at least 16 bytes apart. */
struct block_sizes {
    size_t least, largest; /* `least`: a multiple of 16 */
    size_t classes_in_doubling;
    size_t least_chunk; /* bytes */
};

/* Room for blocks of these sizes, `total_bytes` of them together and a little more, on a disk unless that is NULL. -1: no
 * address space. */
int block_pool_init(struct block_pool *pool, const struct block_sizes *sizes, uint64_t total_bytes,
                    struct disk_memory *disk);
void block_pool_free(struct block_pool *pool); /* takes zeroed memory as well */
size_t block_pool_size(const struct block_pool *pool, size_t bytes); /* what a block of so many bytes occupies */
/* What a block that was taken occupies. */
static inline size_t block_pool_taken(const struct block_pool *pool, const uint8_t *block) {
    return pool->class_bytes[pool->chunk[(size_t)(block - pool->base) / pool->chunk_bytes].class];
}

void *block_pool_take(struct block_pool *pool, size_t bytes); /* NULL: all chunks are in use, or the disk is full */
void block_pool_give(struct block_pool *pool, void *block);

#endif

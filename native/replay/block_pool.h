/* block_pool: memory for blocks of many sizes, such as compressed steps: chunks of one mapping, each cut into blocks
 * of one size class. With eight classes for each doubling of the size, a block wastes a sixteenth on average. A chunk
 * whose last block is given back may serve another class. Allocating and giving back are O(1) (finding the class:
 * O(log classes)). Pages are touched only as chunks fill. */
#ifndef REPLAY_REPLAY_BLOCK_POOL_H
#define REPLAY_REPLAY_BLOCK_POOL_H

#include <stddef.h>
#include <stdint.h>

#define BLOCK_POOL_BLOCKS_IN_CHUNK 8u /* at least */
#define BLOCK_POOL_MAX_CLASSES 256u
#define BLOCK_POOL_NONE UINT32_MAX

struct block_chunk {
    uint32_t next, previous; /* among those of its class with room, or (next) among the free ones */
    uint32_t used, fresh; /* blocks in use; blocks from `fresh` on were never used */
    uint32_t returned; /* first of the blocks that were given back; each holds the number of the next */
    uint32_t class;
};

struct block_pool {
    uint8_t *base;
    size_t chunk_bytes;
    struct block_chunk *chunk;
    uint32_t chunks, fresh, returned; /* chunks from `fresh` on were never used; `returned` begins a list */
    uint32_t classes;
    size_t class_bytes[BLOCK_POOL_MAX_CLASSES];
    uint32_t with_room[BLOCK_POOL_MAX_CLASSES]; /* first of the chunks of a class that have a free block */
};

/* Which sizes of blocks a pool has. Classes are at least 16 bytes apart. */
struct block_sizes {
    size_t least, largest; /* `least`: a multiple of 16 */
    size_t classes_in_doubling;
    size_t least_chunk; /* bytes */
};

/* Room for blocks of these sizes, `total_bytes` of them together and a little more. -1: no address space. */
int block_pool_init(struct block_pool *pool, const struct block_sizes *sizes, uint64_t total_bytes);
void block_pool_free(struct block_pool *pool); /* takes zeroed memory as well */
size_t block_pool_size(const struct block_pool *pool, size_t bytes); /* what a block of so many bytes occupies */
void *block_pool_take(struct block_pool *pool, size_t bytes); /* NULL: all chunks are in use */
void block_pool_give(struct block_pool *pool, void *block);

#endif

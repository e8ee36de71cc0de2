/* pools: lists of free pieces in one mapping; a piece's size is known by its address. */
#include "net/lwip/pools.h"

#include <assert.h>
#include <string.h>

#include <lwip/opt.h>

#include <lwip/tcp.h>

#include "base/arithmetic.h"
#include "base/memory.h"

enum pool_name {
    POOL_SMALL, /* segments, references to memory */
    POOL_HEADER, /* headers with their options */
    POOL_CONNECTION, /* exactly lwIP's control blocks: their number bounds the connections */
    POOL_COPIED, /* small pieces of replies, copied */
    POOL_FRAME, /* answers to pings */
    POOL_LARGE, /* what is left of a segment that was split because the peer's window took only a part */
    POOL_COPY_SMALL, /* received frames, copied */
    POOL_COPY_FRAME,
    POOLS,
};

#define FOR_LWIP POOL_COPY_SMALL /* those before it */
#define COPY_SMALL_BYTES 320u
#define COPIES_SMALL 16384u
#define COPIES_FRAME 32768u

struct free_piece {
    struct free_piece *next;
};

struct pool {
    uint8_t *begin, *end;
    uint8_t *unused; /* from here on nothing was ever taken */
    size_t piece_bytes;
    uint32_t count, taken;
    struct free_piece *free;
};

static struct {
    struct pool pools[POOLS];
    uint8_t *mapping;
    size_t mapping_bytes;
    uint64_t refusals;
} all;

int pools_open(uint32_t connections, uint16_t mtu, struct error *error) {
    assert(!all.mapping);
    const struct {
        size_t piece_bytes;
        uint32_t count;
    } sizes[POOLS] = {
        [POOL_SMALL] = {64, 65536 + 8 * connections},
        [POOL_HEADER] = {128, 16384 + 4 * connections},
        [POOL_CONNECTION] = {round_up(sizeof(struct tcp_pcb), 16), 2 * connections + 1024}, /* as many closed ones */
        [POOL_COPIED] = {1152, 4096 + connections / 2},
        [POOL_FRAME] = {round_up((size_t)mtu + 256, 64), 64},
        [POOL_LARGE] = {66048, 64},
        [POOL_COPY_SMALL] = {COPY_SMALL_BYTES, COPIES_SMALL},
        [POOL_COPY_FRAME] = {round_up((size_t)mtu + 128, 64), COPIES_FRAME},
    };
    size_t total = 0;
    for (int i = 0; i < POOLS; i++) total += round_up(sizes[i].piece_bytes * sizes[i].count, 4096);
    all.mapping = memory_map(total);
    if (!all.mapping)
        return error_set(error, ERROR_GENERIC, "no memory for %u connections: %zu bytes were asked for", connections,
                         total);
    all.mapping_bytes = total;
    uint8_t *at = all.mapping;
    for (int i = 0; i < POOLS; i++) {
        size_t bytes = sizes[i].piece_bytes * sizes[i].count;
        all.pools[i] = (struct pool){
            .begin = at, .end = at + bytes, .unused = at, .piece_bytes = sizes[i].piece_bytes, .count = sizes[i].count};
        at += round_up(bytes, 4096);
    }
    return 0;
}

void pools_close(void) {
    if (all.mapping) memory_unmap(all.mapping, all.mapping_bytes);
    memset(&all, 0, sizeof all);
}

static void *take(struct pool *pool) {
    struct free_piece *piece = pool->free;
    if (piece) {
        pool->free = piece->next;
    } else if (pool->unused < pool->end) {
        piece = (struct free_piece *)(void *)pool->unused;
        pool->unused += pool->piece_bytes;
    } else {
        all.refusals++;
        return NULL;
    }
    pool->taken++;
    return piece;
}

static void give(void *memory, int from, int to) {
    for (int i = from; i < to; i++) {
        struct pool *pool = &all.pools[i];
        if ((uint8_t *)memory < pool->begin || (uint8_t *)memory >= pool->end) continue;
        struct free_piece *piece = memory;
        piece->next = pool->free;
        pool->free = piece;
        pool->taken--;
        return;
    }
    assert(!"a piece of no pool");
}

void *pools_take(size_t size_bytes) {
    if (size_bytes == sizeof(struct tcp_pcb)) return take(&all.pools[POOL_CONNECTION]);
    for (int i = 0; i < FOR_LWIP; i++)
        if (i != POOL_CONNECTION && size_bytes <= all.pools[i].piece_bytes) return take(&all.pools[i]);
    all.refusals++;
    return NULL;
}

void *pools_take_zeroed(size_t count, size_t size_bytes) {
    void *piece = pools_take(count * size_bytes);
    if (piece) memset(piece, 0, count * size_bytes);
    return piece;
}

void pools_give(void *piece) {
    give(piece, 0, FOR_LWIP);
}

static bool is_low(const struct pool *pool) {
    return pool->count - pool->taken < pool->count / 8;
}

bool pools_are_low(void) {
    return is_low(&all.pools[POOL_SMALL]) || is_low(&all.pools[POOL_HEADER]) || is_low(&all.pools[POOL_COPIED]);
}

uint64_t pools_refusals(void) {
    return all.refusals;
}

void *pools_take_copy(size_t size_bytes) {
    for (int i = POOL_COPY_SMALL; i < POOLS; i++) {
        struct pool *pool = &all.pools[i];
        if (size_bytes <= pool->piece_bytes && pool->taken < pool->count) return take(pool);
    }
    return NULL;
}

void pools_give_copy(void *piece) {
    give(piece, POOL_COPY_SMALL, POOLS);
}

size_t pools_copy_room(void) {
    const struct pool *pool = &all.pools[POOL_COPY_FRAME];
    return (pool->count - pool->taken) * pool->piece_bytes;
}

/* out_of_order: blocks of frames, out of one pool. */
#include "net/lwip/out_of_order.h"

#include <assert.h>
#include <stddef.h>

#include "base/memory.h"

static struct {
    struct out_of_order_block *table, *free;
} pool;

static bool is_before(uint32_t left, uint32_t right) {
    return (int32_t)(left - right) < 0;
}

int out_of_order_open(uint32_t blocks, struct error *error) {
    pool.table = memory_calloc(blocks, sizeof *pool.table);
    if (!pool.table) return error_set(error, ERROR_GENERIC, "no memory for %u blocks of early frames", blocks);
    pool.free = NULL;
    for (uint32_t i = blocks; i-- > 0;) {
        pool.table[i].next = pool.free;
        pool.free = &pool.table[i];
    }
    return 0;
}

void out_of_order_close(void) {
    memory_free(pool.table);
    pool.table = pool.free = NULL;
}

static void give_back(struct out_of_order *early, struct out_of_order_block *block) {
    if (early->newest == block) early->newest = NULL;
    early->blocks--;
    block->next = pool.free;
    pool.free = block;
}

static bool begin_block(struct out_of_order *early, struct out_of_order_block **link, struct received *received,
                        uint32_t left, uint32_t right) {
    struct out_of_order_block *block = pool.free;
    if (!block || early->blocks == OUT_OF_ORDER_BLOCKS_MOST) return false;
    pool.free = block->next;
    *block =
        (struct out_of_order_block){.left = left, .right = right, .first = received, .last = received, .next = *link};
    *link = early->newest = block;
    early->blocks++;
    early->frames++;
    return true;
}

/* A block that has grown may touch the next ones. */
static void join(struct out_of_order *early, struct out_of_order_block *block) {
    while (block->next && !is_before(block->right, block->next->left)) {
        struct out_of_order_block *next = block->next;
        block->last->next = next->first;
        block->last = next->last;
        if (is_before(block->right, next->right)) block->right = next->right;
        block->next = next->next;
        give_back(early, next);
    }
}

bool out_of_order_hold(struct out_of_order *early, struct received *received, uint32_t left, uint32_t right) {
    assert(is_before(left, right));
    received->next = NULL;
    struct out_of_order_block **link = &early->first;
    while (*link && is_before((*link)->right, left)) link = &(*link)->next;
    struct out_of_order_block *block = *link;
    if (!block || is_before(right, block->left)) return begin_block(early, link, received, left, right);
    if (is_before(left, block->left)) { /* before it, and touches it */
        received->next = block->first;
        block->first = received;
        block->left = left;
        if (is_before(block->right, right)) block->right = right;
    } else if (is_before(block->right, right)) {
        block->last->next = received;
        block->last = received;
        block->right = right;
    } else {
        return false;
    }
    early->frames++;
    early->newest = block;
    join(early, block);
    return true;
}

bool out_of_order_has(struct out_of_order *early, uint32_t left, uint32_t right) {
    struct out_of_order_block *block = early->first;
    while (block && is_before(block->right, right)) block = block->next;
    if (!block || is_before(left, block->left)) return false;
    early->newest = block;
    return true;
}

struct received *out_of_order_take(struct out_of_order *early, uint32_t expected) {
    struct out_of_order_block *block = early->first;
    if (!block || is_before(expected, block->left)) return NULL;
    struct received *received = block->first;
    block->first = received->next;
    received->next = NULL;
    early->frames--;
    if (block->first) {
        block->left = block->first->sequence;
    } else {
        early->first = block->next;
        give_back(early, block);
    }
    return received;
}

void out_of_order_drop(struct out_of_order *early) {
    while (early->first) received_free(out_of_order_take(early, early->first->left));
}

uint32_t out_of_order_report(const struct out_of_order *early, struct out_of_order_range ranges[OUT_OF_ORDER_RANGES]) {
    uint32_t count = 0;
    if (early->newest) ranges[count++] = (struct out_of_order_range){early->newest->left, early->newest->right};
    for (const struct out_of_order_block *block = early->first; block && count < OUT_OF_ORDER_RANGES;
         block = block->next)
        if (block != early->newest) ranges[count++] = (struct out_of_order_range){block->left, block->right};
    return count;
}

/* early: blocks of frames, out of one pool. */
#include "net/lwip/early.h"

#include <assert.h>
#include <stddef.h>

#include "base/memory.h"

static struct {
    struct early_block *table, *free;
} pool;

static bool is_before(uint32_t left, uint32_t right) {
    return (int32_t)(left - right) < 0;
}

int early_open(uint32_t blocks, struct error *error) {
    pool.table = memory_calloc(blocks, sizeof *pool.table);
    if (!pool.table) return error_set(error, ERROR_GENERIC, "no memory for %u blocks of early frames", blocks);
    pool.free = NULL;
    for (uint32_t i = blocks; i-- > 0;) {
        pool.table[i].next = pool.free;
        pool.free = &pool.table[i];
    }
    return 0;
}

void early_close(void) {
    memory_free(pool.table);
    pool.table = pool.free = NULL;
}

static void give_back(struct early *early, struct early_block *block) {
    if (early->newest == block) early->newest = NULL;
    early->blocks--;
    block->next = pool.free;
    pool.free = block;
}

static bool begin_block(struct early *early, struct early_block **link, struct received *received, uint32_t left,
                        uint32_t right) {
    struct early_block *block = pool.free;
    if (!block || early->blocks == EARLY_BLOCKS_MOST) return false;
    pool.free = block->next;
    *block = (struct early_block){.left = left, .right = right, .first = received, .last = received, .next = *link};
    *link = early->newest = block;
    early->blocks++;
    early->frames++;
    return true;
}

/* A block that has grown may touch the next ones. */
static void join(struct early *early, struct early_block *block) {
    while (block->next && !is_before(block->right, block->next->left)) {
        struct early_block *next = block->next;
        block->last->next = next->first;
        block->last = next->last;
        if (is_before(block->right, next->right)) block->right = next->right;
        block->next = next->next;
        give_back(early, next);
    }
}

bool early_hold(struct early *early, struct received *received, uint32_t left, uint32_t right) {
    assert(is_before(left, right));
    received->next = NULL;
    struct early_block **link = &early->first;
    while (*link && is_before((*link)->right, left)) link = &(*link)->next;
    struct early_block *block = *link;
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

bool early_has(struct early *early, uint32_t left, uint32_t right) {
    struct early_block *block = early->first;
    while (block && is_before(block->right, right)) block = block->next;
    if (!block || is_before(left, block->left)) return false;
    early->newest = block;
    return true;
}

struct received *early_take(struct early *early, uint32_t expected) {
    struct early_block *block = early->first;
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

void early_drop(struct early *early) {
    while (early->first) received_free(early_take(early, early->first->left));
}

uint32_t early_report(const struct early *early, struct early_range ranges[EARLY_RANGES]) {
    uint32_t count = 0;
    if (early->newest) ranges[count++] = (struct early_range){early->newest->left, early->newest->right};
    for (const struct early_block *block = early->first; block && count < EARLY_RANGES; block = block->next)
        if (block != early->newest) ranges[count++] = (struct early_range){block->left, block->right};
    return count;
}

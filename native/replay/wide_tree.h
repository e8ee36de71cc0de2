/* wide_tree: the shape shared by sum_tree and max_tree: nodes of 8 doubles, one cache line each, level above level.
 *
 * Level 0 holds the leaves. Entry i of level k + 1 combines node i of level k, which is its entries 8 i … 8 i + 7.
 * Leaves are written first. wide_tree_repair then recomputes the parents of written leaves, level by level and always
 * from all their children. So sums do not drift, however many updates there were. (Nodes of two lines were measured:
 * they make fewer levels, but slower updates.) */
#ifndef REPLAY_REPLAY_WIDE_TREE_H
#define REPLAY_REPLAY_WIDE_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIDE_TREE_FANOUT 8u
#define WIDE_TREE_MAX_DEPTH 12u /* 8^11 leaves are more than 32 bits can count */
#define WIDE_TREE_AHEAD 16u     /* writes to prefetch ahead */

struct wide_tree {
    double *level[WIDE_TREE_MAX_DEPTH];
    uint32_t nodes[WIDE_TREE_MAX_DEPTH]; /* of each level; after the last one there is always one of zeros */
    uint64_t *touched_bits;              /* one bit for each node of level 0: it waits for repair */
    uint32_t *touched;                   /* the same as a list */
    uint32_t touched_count;
    uint32_t depth; /* the top level is level[depth - 1], a single node */
    uint32_t leaves;
    void *map;
    size_t map_bytes;
};

/* All leaves zero. Returns -1 when memory is exhausted. leaves >= 1. */
int wide_tree_init(struct wide_tree *tree, uint32_t leaves);
void wide_tree_free(struct wide_tree *tree);

static inline double wide_tree_leaf(const struct wide_tree *tree, uint32_t leaf) {
    return tree->level[0][leaf];
}

/* Prefetches the leaf, and what a repair will write above it that may be far away. */
static inline void wide_tree_prefetch_leaf(const struct wide_tree *tree, uint32_t leaf) {
    __builtin_prefetch(&tree->level[0][leaf], 1);
    if (tree->depth > 2) {
        __builtin_prefetch(&tree->level[1][leaf / WIDE_TREE_FANOUT], 1);
        __builtin_prefetch(&tree->level[2][leaf / (WIDE_TREE_FANOUT * WIDE_TREE_FANOUT)], 1);
    }
}

/* Writes a leaf; its ancestors are wrong until the next repair. */
static inline void wide_tree_write(struct wide_tree *tree, uint32_t leaf, double value) {
    uint32_t node = leaf / WIDE_TREE_FANOUT;
    tree->level[0][leaf] = value;
    uint64_t *word = &tree->touched_bits[node / 64];
    uint64_t bit = 1ull << (node % 64);
    tree->touched[tree->touched_count] = node;
    tree->touched_count += !(*word & bit);
    *word |= bit;
}

/* Recomputes parents of a level: entry `node` of `parents` from node `node` of `children`. It does so for each node
 * in the list, in which it leaves the nodes above that need it too, and returns how many those are; without a list,
 * for nodes 0 … count - 1. */
typedef uint32_t wide_tree_combine(const double *children, double *parents, uint32_t *touched, uint32_t count);

/* Recomputes what the writes since the last repair touched. Above level 0 a parent may be listed twice, which is cheaper than
 * finding out; a level with fewer nodes than the list is recomputed whole. */
void wide_tree_repair(struct wide_tree *tree, wide_tree_combine *combine);
/* As wide_tree_repair, for the levels above `level`, where the list holds the `count` nodes of it to be recomputed. */
void wide_tree_repair_from(struct wide_tree *tree, uint32_t level, uint32_t count, wide_tree_combine *combine);

#endif

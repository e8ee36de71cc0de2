/* wide_tree: the shape shared by sum_tree and max_tree: nodes of 8 doubles, one cache line each, level above level.
 *
 * Level 0 holds the leaves. Entry i of level k + 1 combines node i of level k, that is its entries 8 i … 8 i + 7. Leaves
 * are written first; `wide_tree_repair` then recomputes every touched parent once per level, always from its children, so
 * nothing drifts however many updates there were. */
#ifndef REPLAY_REPLAY_WIDE_TREE_H
#define REPLAY_REPLAY_WIDE_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIDE_TREE_FANOUT 8u
#define WIDE_TREE_MAX_DEPTH 12u /* 8^11 leaves are more than 32 bits can count */

struct wide_tree {
    double *level[WIDE_TREE_MAX_DEPTH];
    uint64_t *touched_bits[WIDE_TREE_MAX_DEPTH]; /* one bit for each node of the level: it waits for repair */
    uint32_t *touched;                           /* the same as a list, of level 0 nodes between repairs */
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

static inline void wide_tree_prefetch_leaf(const struct wide_tree *tree, uint32_t leaf) {
    __builtin_prefetch(&tree->level[0][leaf], 1);
}

static inline bool wide_tree_mark(struct wide_tree *tree, uint32_t level, uint32_t node) {
    uint64_t *word = &tree->touched_bits[level][node / 64];
    uint64_t bit = 1ull << (node % 64);
    bool fresh = !(*word & bit);
    *word |= bit;
    return fresh;
}

/* Writes a leaf; its ancestors are wrong until the next repair. */
static inline void wide_tree_write(struct wide_tree *tree, uint32_t leaf, double value) {
    uint32_t node = leaf / WIDE_TREE_FANOUT;
    tree->level[0][leaf] = value;
    if (wide_tree_mark(tree, 0, node)) {
        tree->touched[tree->touched_count++] = node;
    }
}

/* Recomputes what the writes since the last repair touched. `combine` is inlined: sum or maximum of one node. A parent that
 * comes out as it was needs nothing above it recomputed. */
static inline __attribute__((always_inline)) void wide_tree_repair(struct wide_tree *tree,
                                                                   double (*combine)(const double *)) {
    uint32_t count = tree->touched_count;
    uint32_t *touched = tree->touched;
    for (uint32_t level = 0; level < tree->depth; level++) {
        uint64_t *bits = tree->touched_bits[level];
        if (level + 1 == tree->depth) { /* nothing above the top node */
            bits[0] = 0;
            break;
        }
        const double *children = tree->level[level];
        double *parents = tree->level[level + 1];
        uint32_t above = 0; /* never overtakes i, so that the list is rewritten in place */
        for (uint32_t i = 0; i < count; i++) {
            if (i + 8 < count) {
                __builtin_prefetch(&parents[touched[i + 8]], 1);
            }
            uint32_t node = touched[i];
            bits[node / 64] &= ~(1ull << (node % 64));
            double value = combine(children + (size_t)node * WIDE_TREE_FANOUT);
            if (value != parents[node]) {
                parents[node] = value;
                uint32_t parent = node / WIDE_TREE_FANOUT;
                if (wide_tree_mark(tree, level + 1, parent)) {
                    touched[above++] = parent;
                }
            }
        }
        count = above;
    }
    tree->touched_count = 0;
}

#endif

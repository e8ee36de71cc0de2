/* max_tree: the largest of many non-negative numbers that come and go; the default priority of new items. */
#ifndef REPLAY_REPLAY_MAX_TREE_H
#define REPLAY_REPLAY_MAX_TREE_H

#include "replay/wide_tree.h"

struct max_tree {
    struct wide_tree tree;
};

int max_tree_init(struct max_tree *max_tree, uint32_t leaves); /* -1: memory is exhausted */
void max_tree_free(struct max_tree *max_tree);
/* Writes a leaf (>= 0); the maximum is wrong until max_tree_repair. O(log8 leaves), mostly one node. */
static inline void max_tree_write(struct max_tree *max_tree, uint32_t leaf, double value) {
    wide_tree_write(&max_tree->tree, leaf, value);
}
void max_tree_repair(struct max_tree *max_tree);
double max_tree_maximum(const struct max_tree *max_tree); /* 0 when all leaves are zero */

static inline double max_tree_value(const struct max_tree *max_tree, uint32_t leaf) {
    return wide_tree_leaf(&max_tree->tree, leaf);
}

#endif

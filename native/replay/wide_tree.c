/* wide_tree: memory of the trees: one mapping with all levels, the touched bits and the touched list. */
#include "replay/wide_tree.h"

#include <assert.h>
#include <string.h>

#include "base/arithmetic.h"
#include "base/memory.h"

int wide_tree_init(struct wide_tree *tree, uint32_t leaves) {
    assert(leaves >= 1);
    memset(tree, 0, sizeof *tree);
    tree->leaves = leaves;
    size_t level_offset[WIDE_TREE_MAX_DEPTH];
    size_t bytes = 0, length = leaves;
    do {
        assert(tree->depth < WIDE_TREE_MAX_DEPTH);
        uint32_t level = tree->depth++;
        length = round_up(length, WIDE_TREE_FANOUT) / WIDE_TREE_FANOUT;
        tree->nodes[level] = (uint32_t)length;
        level_offset[level] = bytes;
        bytes += (length + 1) * WIDE_TREE_FANOUT * sizeof(double);
    } while (length > 1);
    size_t bits_offset = bytes;
    bytes = round_up(bytes + round_up(tree->nodes[0], 64) / 8, 64);
    size_t touched_offset = bytes;
    bytes += ((size_t)tree->nodes[0] + 1) * sizeof(uint32_t); /* a write goes past the list, and may then not count */
    uint8_t *map = memory_map(bytes);
    if (!map) return -1;
    memory_advise_huge(map, bytes);
    tree->map = map;
    tree->map_bytes = bytes;
    for (uint32_t level = 0; level < tree->depth; level++)
        tree->level[level] = (double *)(void *)(map + level_offset[level]);
    tree->touched_bits = (uint64_t *)(void *)(map + bits_offset);
    tree->touched = (uint32_t *)(void *)(map + touched_offset);
    return 0;
}

void wide_tree_free(struct wide_tree *tree) {
    if (tree->map) memory_unmap(tree->map, tree->map_bytes);
    memset(tree, 0, sizeof *tree);
}

void wide_tree_repair_from(struct wide_tree *tree, uint32_t level, uint32_t count, wide_tree_combine *combine) {
    for (; level + 1 < tree->depth && count; level++) {
        bool whole = tree->nodes[level] <= count;
        count = combine(tree->level[level], tree->level[level + 1], whole ? NULL : tree->touched,
                        whole ? tree->nodes[level] : count);
    }
}

void wide_tree_repair(struct wide_tree *tree, wide_tree_combine *combine) {
    for (uint32_t i = 0; i < tree->touched_count; i++) tree->touched_bits[tree->touched[i] / 64] = 0;
    wide_tree_repair_from(tree, 0, tree->touched_count, combine);
    tree->touched_count = 0;
}

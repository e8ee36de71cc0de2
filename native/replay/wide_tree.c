/* wide_tree: memory of the trees: one mapping with all levels, the touched bits and the touched list. */
#include "replay/wide_tree.h"

#include <assert.h>
#include <string.h>

#include "base/memory.h"

static size_t round_up(size_t value, size_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

int wide_tree_init(struct wide_tree *tree, uint32_t leaves) {
    assert(leaves >= 1);
    memset(tree, 0, sizeof *tree);
    tree->leaves = leaves;
    size_t entries[WIDE_TREE_MAX_DEPTH], level_offset[WIDE_TREE_MAX_DEPTH], bits_offset[WIDE_TREE_MAX_DEPTH];
    size_t bytes = 0, length = leaves;
    do {
        assert(tree->depth < WIDE_TREE_MAX_DEPTH);
        uint32_t level = tree->depth++;
        entries[level] = round_up(length, WIDE_TREE_FANOUT);
        level_offset[level] = bytes;
        bytes = round_up(bytes + entries[level] * sizeof(double), 64);
        length = entries[level] / WIDE_TREE_FANOUT;
        bits_offset[level] = bytes;
        bytes = round_up(bytes + round_up(length, 64) / 8, 64);
    } while (length > 1);
    size_t touched_offset = bytes;
    bytes += entries[0] / WIDE_TREE_FANOUT * sizeof(uint32_t);
    uint8_t *map = memory_map(bytes);
    if (!map) {
        return -1;
    }
    memory_advise_huge(map, bytes);
    tree->map = map;
    tree->map_bytes = bytes;
    for (uint32_t level = 0; level < tree->depth; level++) {
        tree->level[level] = (double *)(void *)(map + level_offset[level]);
        tree->touched_bits[level] = (uint64_t *)(void *)(map + bits_offset[level]);
    }
    tree->touched = (uint32_t *)(void *)(map + touched_offset);
    return 0;
}

void wide_tree_free(struct wide_tree *tree) {
    if (tree->map) {
        memory_unmap(tree->map, tree->map_bytes);
    }
    memset(tree, 0, sizeof *tree);
}

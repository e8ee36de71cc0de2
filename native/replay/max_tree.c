/* max_tree: maxima over a wide_tree. */
#include "replay/max_tree.h"

static inline double node_maximum(const double *node) {
    double maximum = node[0];
    for (uint32_t i = 1; i < WIDE_TREE_FANOUT; i++) maximum = node[i] > maximum ? node[i] : maximum;
    return maximum;
}

int max_tree_init(struct max_tree *max_tree, uint32_t leaves) {
    return wide_tree_init(&max_tree->tree, leaves);
}

void max_tree_free(struct max_tree *max_tree) {
    wide_tree_free(&max_tree->tree);
}

/* A parent that did not change needs nothing above it recomputed: most updates change no maximum. */
static uint32_t maxima(const double *children, double *parents, uint32_t *touched, uint32_t count) {
    uint32_t above = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t node = touched ? touched[i] : i;
        double maximum = node_maximum(children + (size_t)node * WIDE_TREE_FANOUT);
        bool changed = maximum != parents[node];
        parents[node] = maximum;
        if (touched) touched[above] = node / WIDE_TREE_FANOUT;
        above += changed;
    }
    return touched ? above : count;
}

void max_tree_repair(struct max_tree *max_tree) {
    wide_tree_repair(&max_tree->tree, maxima);
}

double max_tree_maximum(const struct max_tree *max_tree) {
    const struct wide_tree *tree = &max_tree->tree;
    return node_maximum(tree->level[tree->depth - 1]);
}

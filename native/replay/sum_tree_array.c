#include "replay/sum_tree_array.h"

#include <inttypes.h>
#include <math.h>

#include "base/memory.h"
#include "replay/sum_tree.h"
#include "replay/table.h"

#define CHUNK 64u /* updates; their leaves and the sums above them take 8 kB */

struct sum_tree_array {
    struct sum_tree tree;
    struct random_state random;
};

struct sum_tree_array *sum_tree_array_new(uint64_t capacity, uint64_t seed, struct error *error) {
    if (capacity < 1 || capacity > TABLE_MAX_CAPACITY) {
        error_set(error, ERROR_LIMIT, "expected a capacity of 1 to %llu, got %" PRIu64, TABLE_MAX_CAPACITY, capacity);
        return NULL;
    }
    struct sum_tree_array *array = memory_alloc(sizeof *array);
    if (!array || sum_tree_init(&array->tree, (uint32_t)capacity)) {
        memory_free(array);
        error_set(error, ERROR_GENERIC, "out of memory for a sum tree of %" PRIu64 " values", capacity);
        return NULL;
    }
    random_seed(&array->random, seed ? seed : random_entropy());
    return array;
}

void sum_tree_array_free(struct sum_tree_array *array) {
    sum_tree_free(&array->tree);
    memory_free(array);
}

double sum_tree_array_total(const struct sum_tree_array *array) {
    return sum_tree_total(&array->tree);
}

static int refuse_index(const struct sum_tree_array *array, uint64_t n, const int64_t *indices, struct error *error) {
    uint64_t at = 0;
    while (at < n && (uint64_t)indices[at] < array->tree.tree.leaves) at++;
    return error_set(error, ERROR_BADSHAPE,
                     "expected indices from 0 to %" PRIu32 ", got %" PRId64 " at position %" PRIu64,
                     array->tree.tree.leaves - 1, indices[at], at);
}

static int refuse_value(uint64_t n, const double *values, struct error *error) {
    uint64_t at = 0;
    while (at < n && values[at] >= 0 && values[at] <= SUM_TREE_MAX_WEIGHT) at++;
    return error_set(error, ERROR_BADPRIORITY,
                     "expected finite values from 0 to %g, got %g at position %" PRIu64 "; nothing was changed",
                     SUM_TREE_MAX_WEIGHT, values[at], at);
}

static void prefetch_chunk(const struct wide_tree *tree, const int64_t *indices, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        __builtin_prefetch(&tree->level[0][indices[i]], 1);
        __builtin_prefetch(&tree->level[1][(uint64_t)indices[i] / WIDE_TREE_FANOUT], 1);
    }
}

/* For at most as many updates as the list of touched nodes has room for, so that no node needs to be looked up in
 * it, and for a tree of several levels. A chunk stays in the first cache while it is written and summed, and the
 * next one is prefetched meanwhile. */
static void update_by_chunks(struct sum_tree *sum_tree, uint64_t n, const int64_t *indices, const double *values) {
    struct wide_tree *tree = &sum_tree->tree;
    prefetch_chunk(tree, indices, n < CHUNK ? n : CHUNK);
    for (uint64_t first = 0; first < n; first += CHUNK) {
        uint64_t left = n - first, count = left < CHUNK ? left : CHUNK, next = left - count;
        prefetch_chunk(tree, indices + first + count, next < CHUNK ? next : CHUNK);
        for (uint64_t i = first; i < first + count; i++) {
            tree->level[0][indices[i]] = values[i];
            tree->touched[i] = (uint32_t)indices[i] / WIDE_TREE_FANOUT;
        }
        sum_tree->kernels->sums(tree->level[0], tree->level[1], tree->touched + first, (uint32_t)count);
    }
    wide_tree_repair_from(tree, 1, (uint32_t)n, sum_tree->kernels->sums);
}

int sum_tree_array_update(struct sum_tree_array *array, uint64_t n, const int64_t *indices, const double *values,
                          struct error *error) {
    struct wide_tree *tree = &array->tree.tree;
    const int64_t last = (int64_t)tree->leaves - 1;
    int64_t outside = 0; /* negative: an index is negative, or is beyond the last one */
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < n; i++) outside |= indices[i] | (int64_t)((uint64_t)last - (uint64_t)indices[i]);
    for (uint64_t i = 0; i < n;
         i++) /* without branches, so that it is compiled to vector instructions, like the loop before */
        wrong |= (uint64_t)!(values[i] >= 0) | (uint64_t)!(values[i] <= SUM_TREE_MAX_WEIGHT);
    if (outside < 0) return refuse_index(array, n, indices, error);
    if (wrong) return refuse_value(n, values, error);
    if (n <= tree->nodes[0] && tree->depth > 1) {
        update_by_chunks(&array->tree, n, indices, values);
        return 0;
    }
    for (uint64_t i = 0; i < n; i++) wide_tree_write(tree, (uint32_t)indices[i], values[i]);
    sum_tree_repair(&array->tree);
    return 0;
}

int sum_tree_array_get(const struct sum_tree_array *array, uint64_t n, const int64_t *indices, double *values,
                       struct error *error) {
    for (uint64_t i = 0; i < n; i++)
        if ((uint64_t)indices[i] >= array->tree.tree.leaves) return refuse_index(array, n, indices, error);
    for (uint64_t i = 0; i < n; i++) values[i] = sum_tree_weight(&array->tree, (uint32_t)indices[i]);
    return 0;
}

int sum_tree_array_sample(struct sum_tree_array *array, uint64_t n, bool stratified, int64_t *indices,
                          double *probabilities, struct error *error) {
    double total = sum_tree_total(&array->tree);
    if (n > TABLE_MAX_BATCH)
        return error_set(error, ERROR_LIMIT, "expected a sample of at most %u, got %" PRIu64, TABLE_MAX_BATCH, n);
    if (n && !(total > 0)) {
        return error_set(error, ERROR_BADPRIORITY,
                         "all values are zero: there is nothing to sample; update some first");
    }
    uint32_t leaves[SUM_TREE_LANES];
    double scale = 1 / total;
    bool divides = !isfinite(scale); /* of a total too small for its inverse */
    for (uint64_t i = 0; i < n; i += SUM_TREE_LANES) {
        uint32_t count = n - i < SUM_TREE_LANES ? (uint32_t)(n - i) : SUM_TREE_LANES;
        sum_tree_sample_part(&array->tree, &array->random, total, (uint32_t)n, (uint32_t)i, count, stratified, leaves);
        for (uint32_t k = 0; k < count; k++) {
            double value = sum_tree_weight(&array->tree, leaves[k]);
            indices[i + k] = leaves[k];
            probabilities[i + k] = divides ? value / total : value * scale;
        }
    }
    return 0;
}

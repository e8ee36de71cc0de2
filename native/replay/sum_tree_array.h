/* sum_tree_array: a sum tree for callers outside the core: 64-bit indices, everything checked, random numbers of its own.
 *
 * Functions that can refuse return 0, or -1 with `error` set and nothing changed. One thread at a time. */
#ifndef REPLAY_REPLAY_SUM_TREE_ARRAY_H
#define REPLAY_REPLAY_SUM_TREE_ARRAY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct sum_tree_array;

/* `capacity` values, all zero. seed 0: from the operating system. NULL with `error` set. */
struct sum_tree_array *sum_tree_array_new(uint64_t capacity, uint64_t seed, struct error *error);
void sum_tree_array_free(struct sum_tree_array *array);
double sum_tree_array_total(const struct sum_tree_array *array);
/* Of an index named twice the last value counts. */
int sum_tree_array_update(struct sum_tree_array *array, uint64_t n, const int64_t *indices, const double *values,
                          struct error *error);
int sum_tree_array_get(const struct sum_tree_array *array, uint64_t n, const int64_t *indices, double *values,
                       struct error *error);
/* n indices by value, with replacement, and the probability of each. Refused where all values are zero. */
int sum_tree_array_sample(struct sum_tree_array *array, uint64_t n, bool stratified, int64_t *indices,
                          double *probabilities, struct error *error);

#endif

/* weighted_sum: Σ w_k x_k over vectors of float32 or bfloat16, for gradients that are summed in the queue that holds
 * them.
 *
 * Products and sums are doubles, added in the order of the vectors. At the end each element is rounded once to
 * float32, and then for bfloat16 once more (to nearest, ties to even). The result has the same bits on every
 * processor, into whatever parts the range is cut. */
#ifndef REPLAY_BASE_WEIGHTED_SUM_H
#define REPLAY_BASE_WEIGHTED_SUM_H

#include <stddef.h>
#include <stdint.h>

enum vector_type { VECTOR_FLOAT32, VECTOR_BFLOAT16, VECTOR_TYPES };

const char *vector_type_name(enum vector_type type); /* "float32", "bfloat16" */
size_t vector_type_bytes(enum vector_type type);     /* of one element */

/* Elements [first, first + n) of the sum, into the same places of `out`. All vectors and `out` are aligned to their
 * elements; count >= 1. */
void weighted_sum(enum vector_type type, const void *const *vectors, const double *weights, uint32_t count,
                  size_t first, size_t n, void *out);

#endif

/* selector_prioritized: powers of priorities, within what a sum tree can hold. */
#include "replay/selector_prioritized.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/power.h"

void selector_prioritized_weights(double exponent, const double *priorities, uint32_t n, double *weights) {
    if (exponent == 1)
        memcpy(weights, priorities, n * sizeof *weights);
    else
        power_many(priorities, exponent, n, weights);
    for (uint32_t i = 0; i < n; i++) { /* a positive priority stays drawable where the power underflows */
        double weight = weights[i] > DBL_MIN ? weights[i] : DBL_MIN;
        weights[i] = priorities[i] > 0 ? weight : 0;
    }
}

double selector_prioritized_limit(double exponent) {
    return exponent > 1 ? pow(SUM_TREE_MAX_WEIGHT, 1 / exponent) * (1 - 1e-9) : SUM_TREE_MAX_WEIGHT;
}

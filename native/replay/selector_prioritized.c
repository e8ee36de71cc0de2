/* selector_prioritized: powers of priorities, within what a sum tree can hold. */
#include "replay/selector_prioritized.h"

#include <float.h>
#include <math.h>

double selector_prioritized_weight(double exponent, double priority) {
    if (!(priority > 0)) {
        return 0;
    }
    double weight = exponent == 1 ? priority : exponent == 0.5 ? sqrt(priority) : pow(priority, exponent);
    return weight > DBL_MIN ? weight : DBL_MIN; /* a positive priority stays drawable where the power underflows */
}

double selector_prioritized_limit(double exponent) {
    return exponent > 1 ? pow(SUM_TREE_MAX_WEIGHT, 1 / exponent) * (1 - 1e-9) : SUM_TREE_MAX_WEIGHT;
}

/* importance_weights: what a drawn item counts in a learner's loss, so that drawing by priority does not bias it: (N P)^-beta
 * over the batch's maximum (Schaul et al. 2016, section 3.4), declared in table.h. */
#include <float.h>
#include <math.h>

#include "base/power.h"
#include "replay/table_state.h"

double table_least_probability(uint32_t n, const double *probabilities) {
    double least = INFINITY;
    for (uint32_t i = 0; i < n; i++) least = probabilities[i] < least ? probabilities[i] : least;
    return least;
}

/* (N P)^-beta over the batch's maximum, which is (P_min / P)^beta whatever N is. */
void table_weigh(const struct table *table, uint32_t n, double beta, double least, const double *probabilities,
                 float *weights) {
    bool weighted = table->config.sampler == SELECTOR_PRIORITIZED;
    for (uint32_t i = 0; !weighted && i < n; i++) weights[i] = 1;
    double ratios[64], powers[64];
    for (uint32_t i = 0; weighted && i < n; i += 64) {
        uint32_t count = n - i < 64 ? n - i : 64;
        for (uint32_t k = 0; k < count; k++) {
            double ratio = least / probabilities[i + k];
            ratio = ratio > DBL_TRUE_MIN ? ratio : DBL_TRUE_MIN; /* not zero, whose power 0 would be zero too */
            ratios[k] = probabilities[i + k] > least ? ratio : 1; /* both may be zero */
        }
        power_many(ratios, beta, count, powers);
        for (uint32_t k = 0; k < count; k++) weights[i + k] = (float)powers[k];
    }
}

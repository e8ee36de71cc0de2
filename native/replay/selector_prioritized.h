/* selector_prioritized: draws slots with probability p^exponent / sum (Schaul et al. 2016): a sum tree over all slots.
 * Every operation is O(log items). */
#ifndef REPLAY_REPLAY_SELECTOR_PRIORITIZED_H
#define REPLAY_REPLAY_SELECTOR_PRIORITIZED_H

#include "replay/sum_tree.h"

/* p^exponent; > 0 exactly if p > 0. */
void selector_prioritized_weights(double exponent, const double *priorities, uint32_t n, double *weights);
/* The largest priority whose power a sum tree can hold. */
double selector_prioritized_limit(double exponent);

#endif

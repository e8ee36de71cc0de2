/* power: many powers of one exponent, in vectors; for priorities and importance weights.
 *
 * A result is within 1e-13 of the true value, relatively. It has the same bits on every processor. So a table that is
 * restored on another processor, or a seed that is used there, draws the same items. */
#ifndef REPLAY_BASE_POWER_H
#define REPLAY_BASE_POWER_H

#include <stdint.h>

/* out[i] = x[i]^exponent for finite x[i] >= 0 and finite exponent; 0 of zero, whatever the exponent. Results outside the
 * normal doubles come out as the smallest one, or as one above 2^1022. out may be x. */
void power_many(const double *x, double exponent, uint32_t n, double *out);

#endif

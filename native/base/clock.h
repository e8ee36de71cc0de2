/* clock: monotonic time for deadlines and latencies, wall time for expiry. */
#ifndef REPLAY_BASE_CLOCK_H
#define REPLAY_BASE_CLOCK_H

#include <stdint.h>

#define CLOCK_NEVER UINT64_MAX /* a deadline that never comes */

uint64_t clock_monotonic_us(void);
uint64_t clock_monotonic_ns(void);
int64_t clock_unix_us(void);
int64_t clock_unix_ms(void);

#endif

/* priority_counts: how many items have a priority of each order of magnitude; every change keeps it up to date. */
#ifndef REPLAY_REPLAY_PRIORITY_COUNTS_H
#define REPLAY_REPLAY_PRIORITY_COUNTS_H

#include <stdint.h>
#include <string.h>

#include "replay/table.h"

#define PRIORITY_ORDERS 2049u /* zero, and one for each exponent that a double may have */

/* Every add and removal counts here, so counting reads only a number's exponent; the buckets are added up when
 * someone asks. */
struct priority_counts {
    uint32_t count[PRIORITY_ORDERS]; /* [0]: zeros; [e + 1]: biased exponent e */
};

static inline uint32_t priority_order(double priority) {
    uint64_t bits;
    memcpy(&bits, &priority, sizeof bits);
    bits <<= 1; /* minus zero is zero */
    return (uint32_t)(bits >> 53) + (bits != 0);
}

static inline void priority_counts_enter(struct priority_counts *counts, double priority) {
    counts->count[priority_order(priority)]++;
}

static inline void priority_counts_leave(struct priority_counts *counts, double priority) {
    counts->count[priority_order(priority)]--;
}

/* As table_priorities tells them. */
static inline void priority_counts_gather(const struct priority_counts *counts,
                                          uint64_t buckets[TABLE_PRIORITY_BUCKETS]) {
    const int most = (int)TABLE_PRIORITY_BUCKETS - 1;
    memset(buckets, 0, TABLE_PRIORITY_BUCKETS * sizeof *buckets);
    buckets[0] = counts->count[0];
    for (int order = 1; order < (int)PRIORITY_ORDERS; order++) {
        int bucket = order - 1 - 1023 - TABLE_PRIORITY_LEAST + 1;
        buckets[bucket < 1 ? 1 : bucket > most ? most : bucket] += counts->count[order];
    }
}

#endif

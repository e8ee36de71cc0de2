/* priority_counts: how many items have a priority of which order of magnitude; kept up with every change. */
#ifndef REPLAY_REPLAY_PRIORITY_COUNTS_H
#define REPLAY_REPLAY_PRIORITY_COUNTS_H

#include <stdint.h>
#include <string.h>

#include "replay/table.h"

/* count[0] is of zeros and not kept: it is the live items less all others. Entry i >= 1 counts priorities p with
 * 2^e <= p < 2^(e + 1), e = i - 1 + TABLE_PRIORITY_LEAST; the first and the last of them also what lies beyond. */
struct priority_counts {
    uint64_t count[TABLE_PRIORITY_BUCKETS];
};

static inline uint32_t priority_bucket(double priority) {
    const int32_t most = TABLE_PRIORITY_LEAST + (int32_t)TABLE_PRIORITY_BUCKETS - 2;
    uint64_t bits;
    memcpy(&bits, &priority, sizeof bits);
    int32_t exponent = (int32_t)(bits >> 52 & 0x7ff) - 1023;
    exponent = exponent < TABLE_PRIORITY_LEAST ? TABLE_PRIORITY_LEAST : exponent;
    exponent = exponent > most ? most : exponent;
    return priority > 0 ? (uint32_t)(exponent - TABLE_PRIORITY_LEAST + 1) : 0;
}

/* A slot without an item has priority zero. */
static inline void priority_counts_move(struct priority_counts *counts, double from, double to) {
    counts->count[priority_bucket(from)]--;
    counts->count[priority_bucket(to)]++;
}

#endif

/* column_set: some of a table's columns, as bits. */
#ifndef REPLAY_REPLAY_COLUMN_SET_H
#define REPLAY_REPLAY_COLUMN_SET_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "replay/table.h"

#define COLUMN_SET_WORDS (TABLE_MAX_COLUMNS / 64)
_Static_assert(TABLE_MAX_COLUMNS % 64 == 0 && TABLE_MAX_COLUMNS <= UINT8_MAX + 1, "numbers of columns fit a byte");

struct column_set {
    uint64_t words[COLUMN_SET_WORDS];
};

static inline bool column_set_has(const struct column_set *set, uint32_t column) {
    return set->words[column / 64] >> column % 64 & 1;
}

static inline void column_set_add(struct column_set *set, uint32_t column) {
    set->words[column / 64] |= 1ull << column % 64;
}

static inline void column_set_remove(struct column_set *set, uint32_t column) {
    set->words[column / 64] &= ~(1ull << column % 64);
}

static inline uint32_t column_set_count(const struct column_set *set) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < COLUMN_SET_WORDS; i++) count += (uint32_t)__builtin_popcountll(set->words[i]);
    return count;
}

static inline bool column_set_equals(const struct column_set *set, const struct column_set *other) {
    return memcmp(set, other, sizeof *set) == 0;
}

/* The first of them that is `from` or greater; TABLE_MAX_COLUMNS: there is none. */
static inline uint32_t column_set_next(const struct column_set *set, uint32_t from) {
    for (uint32_t i = from / 64; i < COLUMN_SET_WORDS; i++, from = i * 64) {
        uint64_t left = set->words[i] >> from % 64;
        if (left) return from + (uint32_t)__builtin_ctzll(left);
    }
    return TABLE_MAX_COLUMNS;
}

#define COLUMN_SET_EACH(column, set)                                            \
    for (uint32_t column = column_set_next(set, 0); column < TABLE_MAX_COLUMNS; \
         column = column_set_next(set, column + 1))

#endif

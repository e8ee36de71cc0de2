/* table_stage: what the tests of tables share: a small table, adding to it, its counters. */
#ifndef REPLAY_TESTS_TABLE_STAGE_H
#define REPLAY_TESTS_TABLE_STAGE_H

#include <string.h>

#include "check.h"
#include "replay/table_state.h"

static struct error error;

static inline struct table_config small_config(uint64_t capacity, enum selector_kind sampler) {
    struct table_config config = {.capacity = capacity,
                                  .columns = 2,
                                  .sampler = sampler,
                                  .remover = SELECTOR_FIFO,
                                  .max_staleness = -1,
                                  .min_size_to_sample = 1,
                                  .seed = 7};
    strcpy(config.name, "t");
    config.priority_exponent = sampler == SELECTOR_PRIORITIZED ? 1 : 0;
    config.column[0] = (struct column){.name = "value", .type = COLUMN_UINT64, .item_bytes = 8};
    config.column[1] =
        (struct column){.name = "pair", .type = COLUMN_UINT8, .dimensions = 1, .shape = {3}, .item_bytes = 3};
    return config;
}

static inline struct table *make(const struct table_config *config) {
    struct table *table = table_new(config, &error);
    CHECK(table);
    return table;
}

/* Adds n items whose columns hold first, first + 1, … */
static inline int add(struct table *table, uint32_t n, uint64_t first, const double *priorities, uint64_t *ids) {
    struct reservation *reservation = table_reserve(table, n, &error);
    if (!reservation) return -1;
    uint64_t *values = malloc(n * sizeof *values);
    uint8_t *pairs = malloc(n * 3);
    for (uint32_t i = 0; i < n; i++) {
        values[i] = first + i;
        memset(pairs + i * 3, (int)(uint8_t)(first + i), 3);
    }
    reservation_fill(reservation, 0, values);
    reservation_fill(reservation, 1, pairs);
    free(values);
    free(pairs);
    int refused = table_commit(table, reservation, priorities, ids, &error);
    if (refused) reservation_release(reservation);
    return refused;
}

static inline struct table_info info_of(const struct table *table) {
    struct table_info info;
    table_info(table, &info);
    return info;
}

#endif

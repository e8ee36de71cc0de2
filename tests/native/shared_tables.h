/* shared_tables: what the tests of tables that share steps have in common: an owner of steps of one frame, and tables that show
 * them. Each test program uses some of it. */
#ifndef REPLAY_TESTS_SHARED_TABLES_H
#define REPLAY_TESTS_SHARED_TABLES_H

#include "table_stage.h"

#define FRAME_BYTES 600u
#define LENGTH 3u
#define TABLES 3u /* the first is the owner of the steps */

enum { FRAME, NUMBER, OBS, COLUMNS };
static const char *const names[TABLES] = {"owner", "queue", "other"};

static inline void fill_frame(uint8_t *frame, uint64_t value) {
    memset(frame, (int)(value & 7), FRAME_BYTES);
    memcpy(frame, &value, sizeof value);
}

static inline struct table_config config_of(const char *name, enum step_codec codec, uint64_t capacity) {
    struct table_config config = small_config(capacity, SELECTOR_PRIORITIZED);
    strcpy(config.name, name);
    if (strcmp(name, names[0]) != 0) strcpy(config.steps_of, names[0]);
    config.codec = codec;
    config.durable = config.log_priorities = true;
    config.columns = COLUMNS;
    config.column[FRAME] = (struct column){.name = "frame",
                                           .kind = COLUMN_STEP,
                                           .type = COLUMN_UINT8,
                                           .item_bytes = FRAME_BYTES,
                                           .in_steps = true,
                                           .dimensions = 1,
                                           .shape = {FRAME_BYTES}};
    config.column[NUMBER] = (struct column){.name = "number", .type = COLUMN_UINT64, .item_bytes = 8};
    config.column[OBS] = (struct column){.name = "obs",
                                         .kind = COLUMN_WINDOW,
                                         .type = COLUMN_UINT8,
                                         .source = FRAME,
                                         .length = LENGTH,
                                         .item_bytes = LENGTH * FRAME_BYTES};
    return config;
}

static inline void append_frames(struct table *table, struct stream *stream, uint32_t n) {
    for (uint64_t i = 0; i < n; i++) {
        uint8_t frame[FRAME_BYTES];
        struct reservation *reservation = table_reserve_steps(table, 1, &error);
        CHECK(reservation);
        fill_frame(frame, i);
        reservation_fill(reservation, FRAME, frame);
        CHECK(table_append(table, reservation, &stream, NULL, &error) == 0);
    }
}

static inline uint64_t item_at(struct table *table, struct stream *stream, uint64_t step) {
    uint64_t id;
    struct reservation *reservation = table_reserve(table, 1, &error);
    CHECK(reservation);
    reservation_fill(reservation, NUMBER, &step);
    CHECK(table_resolve(table, reservation, &stream, &step, NULL, &error) == 0);
    CHECK(table_commit(table, reservation, NULL, &id, &error) == 0);
    return id;
}

static inline void pair_of(struct table *tables[2], uint64_t capacity, uint64_t max_bytes) {
    for (uint32_t i = 0; i < 2; i++) {
        struct table_config config = config_of(names[i], CODEC_NONE, capacity);
        config.max_bytes = i == 0 ? max_bytes : 0;
        tables[i] = make(&config);
    }
    CHECK(table_share_steps(tables[1], tables[0], &error) == 0);
}

static inline void pair(struct table *tables[2], uint64_t max_bytes) {
    pair_of(tables, 100, max_bytes);
}

#endif

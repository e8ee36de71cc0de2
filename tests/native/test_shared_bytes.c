/* Tests of max_bytes where tables share the steps of another: what counts, what leaves for it, and what is refused. */
#include "shared_tables.h"

#define MANY 4000u /* items, of which more must leave than leave with a part of an append */

static int append_one(struct table *table, struct stream *stream) {
    uint8_t frame[FRAME_BYTES] = {0};
    struct reservation *reservation = table_reserve_steps(table, 1, &error);
    reservation_fill(reservation, FRAME, frame);
    int failed = table_append(table, reservation, &stream, NULL, &error);
    if (failed) reservation_release(reservation);
    return failed;
}

static void max_bytes_of_the_owner_counts_what_others_show(void) {
    struct table *tables[2];
    pair(tables, 20 * FRAME_BYTES);
    struct stream *stream = table_stream_new(tables[0], 3, &error);
    append_frames(tables[0], stream, 3);
    item_at(tables[0], stream, 2);
    for (uint32_t i = 3; i < 22; i++) {
        append_frames(tables[0], stream, 1);
        item_at(tables[1], stream, i);
    }
    CHECK(info_of(tables[0]).size == 0 && info_of(tables[1]).size == 19); /* its own left, the others are not its */
    CHECK(!error.code);
    CHECK(append_one(tables[0], stream) == -1 && error.code == ERROR_LIMIT);
    CHECK(strstr(error.message, "items of the tables that share its steps"));
    error.code = ERROR_NONE;
    table_reset(tables[1]);
    append_frames(tables[0], stream, 1);
    table_free(tables[0]);
    table_free(tables[1]);
}

static void append_and_show(struct table *tables[2], struct stream *stream, uint32_t most, uint32_t shown_by) {
    append_frames(tables[0], stream, 1);
    for (uint32_t i = 0; i < most; i++)
        if (shown_by >> i & 1) item_at(tables[i], stream, stream_steps(stream) - 1);
}

static void an_owner_keeps_its_items_where_they_would_leave_in_vain(void) {
    uint64_t max_bytes = 90 * (FRAME_BYTES + 8);
    struct table *tables[2];
    pair(tables, max_bytes);
    struct stream *stream = table_stream_new(tables[0], 3, &error);
    append_frames(tables[0], stream, 2);
    for (uint32_t i = 0; i < 88; i++) append_and_show(tables, stream, 2, 3);
    CHECK(info_of(tables[0]).size == 88);
    append_frames(tables[0], stream, 1); /* as many bytes as those of 75 items without their steps */
    CHECK(info_of(tables[0]).size == 88 - 64 && info_of(tables[0]).bytes > max_bytes);
    for (uint32_t i = 1; i < 4; i++) {
        CHECK(append_one(tables[0], stream) == -1 && error.code == ERROR_LIMIT);
        CHECK(strstr(error.message, "streams, or items of the tables that share its steps, show those too"));
        CHECK(info_of(tables[0]).size == 88 - 64 - i && info_of(tables[1]).size == 88);
        error.code = ERROR_NONE;
    }
    table_reset(tables[1]);
    for (uint32_t i = 0; i < 200; i++) append_and_show(tables, stream, 1, 1); /* now each that leaves frees a step */
    CHECK(info_of(tables[0]).size > 80 && info_of(tables[0]).bytes <= max_bytes + 8);
    table_free(tables[0]);
    table_free(tables[1]);
}

/* `n` steps, which all enter with one part. */
static struct reservation *begin_many(struct table *table, struct stream *stream, uint32_t n) {
    static struct stream *streams[MANY];
    static uint8_t frames[MANY * FRAME_BYTES];
    struct reservation *reservation = table_reserve_steps(table, n, &error);
    for (uint32_t i = 0; i < n; i++) streams[i] = stream;
    CHECK(reservation);
    reservation_fill(reservation, FRAME, frames);
    reservation_expect(reservation, n, streams);
    return reservation;
}

static void enter_many(struct table *table, struct reservation *reservation, struct stream *stream, uint32_t n) {
    static struct stream *streams[MANY];
    for (uint32_t i = 0; i < n; i++) streams[i] = stream;
    table_append_part(table, reservation, n, streams, NULL);
}

/* Symptom: thousands of items were to leave, and with the first thousand the owner was above max_bytes for good: the next
 * append was refused although more of its items would have made room. */
static void all_items_of_an_owner_leave_that_must_however_many(void) {
    uint64_t max_bytes = (MANY + 20) * (FRAME_BYTES + 8);
    struct table *tables[2];
    pair_of(tables, MANY, max_bytes);
    struct stream *stream = table_stream_new(tables[0], 3, &error), *large = table_stream_new(tables[0], MANY, &error);
    append_frames(tables[0], stream, 2);
    for (uint32_t i = 0; i < MANY; i++) append_and_show(tables, stream, 2, 1);
    CHECK(info_of(tables[0]).size == MANY);

    struct reservation *reservation = begin_many(tables[0], large, MANY);
    CHECK(table_begin_append(tables[0], reservation, &error) == 0);
    enter_many(tables[0], reservation, large, MANY);
    CHECK(info_of(tables[0]).size == MANY - 1024 && info_of(tables[0]).bytes > max_bytes);
    CHECK(table_is_shrinking(tables[0]));

    reservation = begin_many(tables[0], stream, 1); /* whoever does not wait */
    CHECK(table_begin_append(tables[0], reservation, &error) == 1 && info_of(tables[0]).size == MANY - 2048);
    CHECK(table_is_shrinking(tables[0]));
    uint32_t slices = 1;
    for (; table_step(tables[0], 0); slices++) continue;
    CHECK(slices > 10 && info_of(tables[0]).bytes <= max_bytes && info_of(tables[0]).size > 0);
    CHECK(table_begin_append(tables[0], reservation, &error) == 0);
    enter_many(tables[0], reservation, stream, 1);
    CHECK(info_of(tables[0]).bytes <= max_bytes);
    table_free(tables[0]);
    table_free(tables[1]);
}

/* Slices end as well when items leave in vain, and then it is refused. */
static void slices_end_where_items_leave_in_vain(void) {
    uint64_t max_bytes = (MANY + 20) * (FRAME_BYTES + 8);
    struct table *tables[2];
    pair_of(tables, MANY, max_bytes);
    struct stream *stream = table_stream_new(tables[0], 3, &error), *large = table_stream_new(tables[0], MANY, &error);
    append_frames(tables[0], stream, 2);
    for (uint32_t i = 0; i < MANY; i++) append_and_show(tables, stream, 2, i < 1500 ? 1 : 3);
    struct reservation *reservation = begin_many(tables[0], large, MANY);
    CHECK(table_begin_append(tables[0], reservation, &error) == 0);
    enter_many(tables[0], reservation, large, MANY);
    CHECK(table_is_shrinking(tables[0]));
    while (table_step(tables[0], 0)) continue;
    uint64_t left = info_of(tables[0]).size;
    CHECK(!table_is_shrinking(tables[0]) && left < MANY - 1500 && left > MANY - 1600);
    CHECK(info_of(tables[0]).bytes > max_bytes && info_of(tables[1]).size == MANY - 1500);
    CHECK(append_one(tables[0], stream) == -1 && error.code == ERROR_LIMIT && info_of(tables[0]).size == left - 1);
    error.code = ERROR_NONE;
    table_reset(tables[1]);
    CHECK(append_one(tables[0], stream) == 0 && info_of(tables[0]).bytes <= max_bytes);
    table_free(tables[0]);
    table_free(tables[1]);
}

static void a_table_that_shares_may_hold_steps_beyond_its_max_bytes(void) {
    struct table_config config = config_of(names[1], CODEC_NONE, 100);
    CHECK(table_full_bytes(&config) == 100 * (FRAME_BYTES + 8));
    config.max_bytes = 50 * 8;
    CHECK(table_full_bytes(&config) == 50 * (FRAME_BYTES + 8));
    config.steps_of[0] = 0;
    CHECK(table_full_bytes(&config) == 50 * 8);
}

int main(void) {
    RUN(max_bytes_of_the_owner_counts_what_others_show);
    RUN(an_owner_keeps_its_items_where_they_would_leave_in_vain);
    RUN(all_items_of_an_owner_leave_that_must_however_many);
    RUN(slices_end_where_items_leave_in_vain);
    RUN(a_table_that_shares_may_hold_steps_beyond_its_max_bytes);
    return 0;
}

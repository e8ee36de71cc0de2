/* Tests of steps, streams and windows: what an item sees, what is refused, and when steps leave. */
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "check.h"
#include "replay/table_state.h"
#include "table_stage.h"

/* Columns: "frame" of a step (step_only), "reward" of items and steps, and windows over both. */
#define MANY 4000u
#define PART 1024u

enum { FRAME, REWARD, OBS, NEXT, LAST_REWARDS, BEFORE, COLUMNS };

static struct table_config window_config(uint64_t capacity) {
    struct table_config config = {.capacity = capacity,
                                  .columns = COLUMNS,
                                  .sampler = SELECTOR_UNIFORM,
                                  .remover = SELECTOR_FIFO,
                                  .max_staleness = -1,
                                  .seed = 7};
    config.min_size_to_sample = 1;
    strcpy(config.name, "t");
    config.column[FRAME] =
        (struct column){.name = "frame", .kind = COLUMN_STEP, .type = COLUMN_UINT64, .item_bytes = 8, .in_steps = true};
    config.column[REWARD] = (struct column){.name = "reward", .type = COLUMN_UINT64, .item_bytes = 8, .in_steps = true};
    config.column[OBS] = (struct column){
        .name = "obs", .kind = COLUMN_WINDOW, .type = COLUMN_UINT64, .item_bytes = 32, .source = FRAME, .length = 4};
    config.column[NEXT] = config.column[OBS];
    config.column[NEXT].offset = 3;
    strcpy(config.column[NEXT].name, "next");
    config.column[LAST_REWARDS] = config.column[OBS]; /* the group of obs, over another column */
    config.column[LAST_REWARDS].source = REWARD;
    config.column[BEFORE] = (struct column){
        .name = "before", .kind = COLUMN_WINDOW, .type = COLUMN_UINT64, .item_bytes = 8, .source = FRAME, .offset = -2};
    return config;
}

/* Appends n steps to one stream: frames first, first + 1, …, rewards ten times as much. */
static int append(struct table *table, struct stream *stream, uint32_t n, uint64_t first, const uint8_t *flags) {
    struct reservation *reservation = table_reserve_steps(table, n, &error);
    if (!reservation) return -1;
    uint64_t *frames = malloc(2 * n * sizeof *frames), *rewards = frames + n;
    struct stream **streams = malloc(n * sizeof *streams);
    for (uint32_t i = 0; i < n; i++) {
        frames[i] = first + i;
        rewards[i] = 10 * (first + i);
        streams[i] = stream;
    }
    reservation_fill(reservation, FRAME, frames);
    reservation_fill(reservation, REWARD, rewards);
    int refused = table_append(table, reservation, streams, flags, &error);
    if (refused) reservation_release(reservation);
    free(frames);
    free(streams);
    return refused;
}

/* One item at a step. */
static int make_item(struct table *table, struct stream *stream, uint64_t step, uint64_t *id) {
    struct reservation *reservation = table_reserve(table, 1, &error);
    CHECK(reservation);
    uint64_t reward = 1000 + step;
    reservation_fill(reservation, REWARD, &reward);
    if (table_resolve(table, reservation, &stream, &step, NULL, &error) ||
        table_commit(table, reservation, NULL, id, &error)) {
        reservation_release(reservation);
        return -1;
    }
    return 0;
}

static void check_item(struct table *table, uint64_t id, const uint64_t obs[4], const uint64_t next[4],
                       uint64_t before) {
    uint32_t slot;
    uint64_t values[4], one;
    CHECK(table_get(table, 1, &id, 0, &slot, NULL, &error) == 0);
    table_gather(table, OBS, &slot, 1, values);
    CHECK(memcmp(values, obs, sizeof values) == 0);
    table_gather(table, NEXT, &slot, 1, values);
    CHECK(memcmp(values, next, sizeof values) == 0);
    table_gather(table, LAST_REWARDS, &slot, 1, values);
    for (int i = 0; i < 4; i++) {
        CHECK(values[i] == 10 * obs[i]);
        size_t size_bytes;
        const uint8_t *step = table_window_step(table, NEXT, slot, (uint32_t)i, &size_bytes);
        memcpy(&one, step, sizeof one);
        CHECK(size_bytes == 8 && one == next[i]);
        CHECK(table_window_step_number(table, OBS, slot, (uint32_t)i) ==
              table_window_step_number(table, LAST_REWARDS, slot, (uint32_t)i));
    }
    table_gather(table, BEFORE, &slot, 1, &one);
    CHECK(one == before);
    table_unpin(table, &slot, 1);
}

#define FRAMES(...) ((const uint64_t[]){__VA_ARGS__})

static struct table *window_table(uint64_t capacity) {
    struct table_config config = window_config(capacity);
    return make(&config);
}

static void windows_repeat_the_first_and_the_last_step_of_an_episode(void) {
    struct table *table = window_table(100);
    struct stream *stream = table_stream_new(table, 32, &error);
    uint64_t id;
    CHECK(stream);
    CHECK(append(table, stream, 3, 100, (const uint8_t[]){STEP_FIRST, 0, 0}) == 0);
    CHECK(append(table, stream, 4, 103, (const uint8_t[]){0, 0, 0, STEP_LAST}) == 0);
    CHECK(append(table, stream, 5, 200, NULL) == 0); /* without a flag: after a last step, a first one */
    CHECK(stream_steps(stream) == 12);
    CHECK(make_item(table, stream, 0, &id) == 0);
    check_item(table, id, FRAMES(100, 100, 100, 100), FRAMES(100, 101, 102, 103), 100);
    CHECK(make_item(table, stream, 1, &id) == 0);
    check_item(table, id, FRAMES(100, 100, 100, 101), FRAMES(101, 102, 103, 104), 100);
    CHECK(make_item(table, stream, 3, &id) == 0);
    check_item(table, id, FRAMES(100, 101, 102, 103), FRAMES(103, 104, 105, 106), 101);
    CHECK(make_item(table, stream, 5, &id) == 0);
    check_item(table, id, FRAMES(102, 103, 104, 105), FRAMES(103, 104, 105, 106), 103);
    CHECK(make_item(table, stream, 7, &id) == 0);
    check_item(table, id, FRAMES(200, 200, 200, 200), FRAMES(200, 201, 202, 203), 200);
    table_free(table);
}

static void a_first_flag_ends_the_episode_before_it(void) {
    struct table *table = window_table(100);
    struct stream *stream = table_stream_new(table, 32, &error);
    uint64_t id;
    CHECK(append(table, stream, 4, 0, (const uint8_t[]){0, 0, STEP_FIRST, 0}) == 0);
    CHECK(make_item(table, stream, 1, &id) == 0);
    check_item(table, id, FRAMES(0, 0, 0, 1), FRAMES(0, 0, 0, 1), 0);
    CHECK(append(table, stream, 1, 4, (const uint8_t[]){STEP_FIRST | STEP_LAST}) == 0); /* an episode of one step */
    CHECK(make_item(table, stream, 4, &id) == 0);
    check_item(table, id, FRAMES(4, 4, 4, 4), FRAMES(4, 4, 4, 4), 4);
    table_free(table);
}

static void what_a_window_cannot_see_is_refused_and_changes_nothing(void) {
    struct table *table = window_table(100);
    struct stream *stream = table_stream_new(table, 8, &error);
    uint64_t id;
    CHECK(make_item(table, stream, 0, &id) == -1 && strstr(error.message, "not there yet"));
    CHECK(append(table, stream, 3, 0, NULL) == 0);
    CHECK(make_item(table, stream, 0, &id) == -1 && strstr(error.message, "reaches to step 3"));
    CHECK(make_item(table, stream, 3, &id) == -1 && strstr(error.message, "has 3 steps"));
    CHECK(append(table, stream, 1, 3, NULL) == 0 && make_item(table, stream, 0, &id) == 0);
    CHECK(append(table, stream, 8, 4, NULL) == 0); /* 4 … 11 are known */
    CHECK(make_item(table, stream, 3, &id) == -1 && strstr(error.message, "among the last 8"));
    CHECK(make_item(table, stream, 6, &id) == -1 && strstr(error.message, "step 3 is no longer"));
    CHECK(make_item(table, stream, 7, &id) == 0);
    check_item(table, id, FRAMES(4, 5, 6, 7), FRAMES(7, 8, 9, 10), 5);
    CHECK(info_of(table).size == 2 && info_of(table).steps == 12 && info_of(table).reserved_slots == 0);
    struct reservation *reservation = table_reserve(table, 2, &error);
    CHECK(table_resolve(table, reservation, (struct stream *[]){stream, stream}, FRAMES(8, 20), NULL, &error) == -1);
    CHECK(strstr(error.message, "item 1 of 2"));
    CHECK(table_commit(table, reservation, NULL, &id, &error) == -1 && error.code == ERROR_BADSCHEMA);
    reservation_release(reservation);
    CHECK(append(table, stream, 1, 0, (const uint8_t[]){4}) == -1 && strstr(error.message, "flags"));
    CHECK(stream_steps(stream) == 12 && table->steps->reserved == 0);
    table_free(table);
}

static void streams_are_bounded(void) {
    struct table_config plain = small_config(4, SELECTOR_UNIFORM);
    struct table *without = make(&plain), *table = window_table(100);
    CHECK(!table_stream_new(without, 8, &error) && error.code == ERROR_BADSCHEMA);
    CHECK(!table_reserve_steps(without, 1, &error) && error.code == ERROR_BADSCHEMA);
    CHECK(!table_stream_new(table, 6, &error) && strstr(error.message, "history of 7"));
    CHECK(!table_stream_new(table, STREAM_MAX_HISTORY + 1, &error));
    uint32_t n = 0;
    while (table_stream_new(table, STREAM_MAX_HISTORY, &error)) n++;
    CHECK(n == TABLE_MAX_STREAM_STEPS / STREAM_MAX_HISTORY && error.code == ERROR_LIMIT);
    CHECK(info_of(table).streams == n);
    table_stream_free(table, table->streams->next);
    CHECK(table_stream_new(table, STREAM_MAX_HISTORY, &error));
    CHECK(!table_reserve_steps(table, 0, &error) && !table_reserve_steps(table, TABLE_MAX_BATCH + 1, &error));
    table_free(table);
    table_free(without);
}

static void steps_leave_when_nobody_needs_them(void) {
    struct table *table = window_table(4);
    struct stream *stream = table_stream_new(table, 8, &error);
    uint64_t ids[4], id;
    uint32_t slot;
    CHECK(append(table, stream, 30, 0, NULL) == 0);
    CHECK(info_of(table).steps == 8 && table->steps->fresh == 30);
    for (uint32_t i = 0; i < 4; i++)  /* items at 25, 26: they see 22 … 29 */
        CHECK(make_item(table, stream, 25 + i / 2, &ids[i]) == 0);
    CHECK(append(table, stream, 8, 30, NULL) == 0);
    CHECK(info_of(table).steps == 8 + 8 && info_of(table).step_bytes == 16 * 16);
    CHECK(info_of(table).bytes == 4 * 8 + 16 * 16);
    CHECK(table_get(table, 1, &ids[0], 0, &slot, NULL, &error) == 0); /* pinned: sees 22 … 28 */
    CHECK(table_delete(table, 4, ids) == 4);
    CHECK(info_of(table).steps == 8 + 7 && info_of(table).size == 0);
    table_unpin(table, &slot, 1);
    CHECK(info_of(table).steps == 8);
    CHECK(make_item(table, stream, 34, &id) == 0);
    table_stream_free(table, stream);
    CHECK(info_of(table).steps == 7 && info_of(table).streams == 0);
    check_item(table, id, FRAMES(31, 32, 33, 34), FRAMES(34, 35, 36, 37), 32);
    table_reset(table);
    CHECK(info_of(table).steps == 0 && info_of(table).bytes == 0);
    stream = table_stream_new(table, 8, &error);
    CHECK(append(table, stream, 30, 0, NULL) == 0 && table->steps->fresh <= 38); /* slots are used again */
    table_free(table);
}

static void a_long_stream_gives_its_steps_back_in_slices(void) {
    struct table *table = window_table(4);
    struct stream *stream = table_stream_new(table, 8, &error);
    uint64_t id;
    CHECK(append(table, stream, 30, 0, NULL) == 0);
    CHECK(make_item(table, stream, 25, &id) == 0); /* sees 22 … 28 */
    CHECK(table_stream_free_some(table, stream, 3));
    CHECK(info_of(table).steps == 8 && table->kept_steps == 5 && info_of(table).streams == 1);
    CHECK(table_stream_free_some(table, stream, 5)); /* it has yet to go itself */
    CHECK(info_of(table).steps == 7 && table->kept_steps == 0);
    CHECK(!table_stream_free_some(table, stream, 5));
    CHECK(info_of(table).streams == 0 && table->stream_steps == 0);
    check_item(table, id, FRAMES(22, 23, 24, 25), FRAMES(25, 26, 27, 28), 23);
    stream = table_stream_new(table, 8, &error);
    CHECK(append(table, stream, 6, 0, NULL) == 0);
    CHECK(table_stream_free_some(table, stream, 2));
    table_free(table); /* takes what is left along */
}

static void a_step_that_is_shown_too_often_is_refused(void) {
    struct table *table = window_table(4);
    struct stream *stream = table_stream_new(table, 8, &error);
    uint64_t id;
    CHECK(append(table, stream, 8, 0, NULL) == 0);
    uint32_t step = stream_at(stream, 3)->step, before = *slot_references(table->steps, stream_at(stream, 2)->step);
    *slot_references(table->steps, step) = SLOT_MOST_REFERENCES;
    CHECK(make_item(table, stream, 3, &id) == -1 && error.code == ERROR_LIMIT);
    CHECK(*slot_references(table->steps, step) == SLOT_MOST_REFERENCES);
    CHECK(*slot_references(table->steps, stream_at(stream, 2)->step) == before);
    *slot_references(table->steps, step) = 1;
    CHECK(make_item(table, stream, 3, &id) == 0);
    table_free(table);
}

static void a_reservation_holds_the_steps_that_it_resolved(void) {
    struct table *table = window_table(4);
    struct stream *stream = table_stream_new(table, 8, &error);
    uint64_t step = 4, id;
    CHECK(append(table, stream, 8, 0, NULL) == 0);
    struct reservation *reservation = table_reserve(table, 1, &error);
    reservation_fill(reservation, REWARD, &step);
    CHECK(table_resolve(table, reservation, &stream, &step, NULL, &error) == 0);
    CHECK(append(table, stream, 8, 8, NULL) == 0);
    CHECK(info_of(table).steps == 8 + 7);
    CHECK(table_commit(table, reservation, NULL, &id, &error) == 0);
    check_item(table, id, FRAMES(1, 2, 3, 4), FRAMES(4, 5, 6, 7), 2);
    reservation = table_reserve(table, 1, &error);
    step = 12;
    CHECK(table_resolve(table, reservation, &stream, &step, NULL, &error) == 0);
    table_stream_free(table, stream);
    CHECK(info_of(table).steps == 7 + 7);
    reservation_release(reservation);
    CHECK(info_of(table).steps == 7);
    table_free(table);
}

/* Where no spare slots are left, items are staged; their windows must come along. */
static void staged_items_keep_their_windows(void) {
    struct table_config config = window_config(2 * TABLE_SPARE_SLOTS);
    struct table *table = make(&config);
    struct stream *stream = table_stream_new(table, 64, &error);
    uint32_t n = TABLE_RESERVED_LIMIT + 8;
    uint64_t *steps = malloc(3 * n * sizeof *steps), *values = steps + n, *ids = values + n;
    struct stream **streams = malloc(n * sizeof *streams);
    CHECK(append(table, stream, 64, 0, NULL) == 0);
    for (uint32_t i = 0; i < n; i++) {
        steps[i] = 3 + i % 58;
        values[i] = i;
        streams[i] = stream;
    }
    struct reservation *reservation = table_reserve(table, n, &error);
    CHECK(reservation && reservation->staging);
    reservation_fill(reservation, REWARD, values);
    CHECK(table_resolve(table, reservation, streams, steps, NULL, &error) == 0);
    CHECK(table_commit(table, reservation, NULL, ids, &error) == 0);
    for (uint32_t i = 0; i < n; i += 1001) {
        uint64_t at = steps[i];
        check_item(table, ids[i], FRAMES(at - 3, at - 2, at - 1, at), FRAMES(at, at + 1, at + 2, at + 3), at - 2);
    }
    table_free(table);
    free(steps);
    free(streams);
}

static void items_leave_for_steps_where_max_bytes_is_near(void) {
    struct table_config config = window_config(1000);
    config.max_bytes = 40 * 16; /* 40 steps, or fewer beside items */
    struct table *table = make(&config);
    struct stream *stream = table_stream_new(table, 16, &error), *other;
    uint64_t id;
    for (uint64_t i = 0; i < 400; i++) {
        CHECK(append(table, stream, 1, i, NULL) == 0);
        CHECK(i < 3 || make_item(table, stream, i - 3, &id) == 0);
        CHECK(info_of(table).bytes <= config.max_bytes);
    }
    struct table_info info = info_of(table);
    CHECK(info.size > 15 && info.bytes > config.max_bytes - 32 && info.removed == info.added - info.size);
    CHECK((other = table_stream_new(table, 32, &error)));
    CHECK(append(table, other, 24, 0, NULL) == 0); /* items make room */
    CHECK(info_of(table).bytes <= config.max_bytes && info_of(table).size < info.size);
    CHECK(append(table, other, 1, 24, NULL) == -1 && error.code == ERROR_LIMIT && strstr(error.message, "max_bytes"));
    CHECK(append(table, stream, 1, 400, NULL) == 0); /* one goes as one comes */
    CHECK(make_item(table, stream, 397, &id) == -1 && error.code == ERROR_LIMIT);
    table_free(table);
}

/* Symptom: of two large appends to new streams, one that fits and one that never does, both were refused. */
/* A remover that chooses at random frees few steps, since other items show them as well. */
static void few_items_leave_with_a_part_of_an_append_however_many_must(void) {
    struct table_config config = window_config(MANY);
    config.remover = SELECTOR_UNIFORM;
    config.max_bytes = MANY * (8 + 16) + 16 * 16; /* of items, and of steps with some to spare */
    struct table *table = make(&config);
    struct stream *stream = table_stream_new(table, PART, &error), *streams[PART];
    uint64_t id, values[PART] = {0};
    for (uint32_t i = 0; i < MANY + 3; i++) {
        CHECK(append(table, stream, 1, i, NULL) == 0);
        CHECK(i < 3 || make_item(table, stream, i - 3, &id) == 0);
    }
    CHECK(info_of(table).size == MANY);

    struct reservation *reservation = table_reserve_steps(table, PART, &error);
    for (uint32_t i = 0; i < PART; i++) streams[i] = stream;
    CHECK(reservation);
    reservation_fill(reservation, FRAME, values);
    reservation_fill(reservation, REWARD, values);
    reservation_expect(reservation, PART, streams);
    CHECK(table_begin_append(table, reservation, &error) == 0);
    table_append_part(table, reservation, PART, streams, NULL);
    CHECK(info_of(table).size == MANY - 1024 && info_of(table).bytes > config.max_bytes);
    CHECK(table_is_shrinking(table) && table_has_work(table));
    /* Symptom: meanwhile samples and items were refused, as of a table that is being changed. */
    uint32_t slot;
    CHECK(table_sample(table, 1, 0, true, &slot, NULL, NULL, NULL, NULL, &error) == 0);
    table_unpin(table, &slot, 1);
    CHECK(table_can_add(table, 1, &error) && table_can_sample_timed(table, 1, &error));
    uint32_t slices = 1;
    for (; table_step(table, 0); slices++) continue;
    CHECK(slices > 10 && info_of(table).size < MANY - 1024 && info_of(table).bytes <= config.max_bytes);
    CHECK(!table_is_shrinking(table) && append(table, stream, PART, 0, NULL) == 0);
    CHECK(info_of(table).bytes <= config.max_bytes); /* one in a single call does it all */
    table_stream_free(table, stream);
    table_free(table);
}

static void steps_that_may_still_be_refused_take_no_room_in_max_bytes(void) {
    struct table_config config = window_config(1000);
    config.max_bytes = 40 * 16;
    struct table *table = make(&config);
    struct stream *small[30], *large[50];
    small[0] = table_stream_new(table, 64, &error);
    large[0] = table_stream_new(table, 64, &error);
    for (int i = 1; i < 30; i++) small[i] = small[0];
    for (int i = 1; i < 50; i++) large[i] = large[0];
    struct reservation *fits = table_reserve_steps(table, 30, &error), *never = table_reserve_steps(table, 50, &error);
    reservation_expect(never, 25, large);
    reservation_expect(fits, 30, small);
    CHECK(table_begin_append(table, fits, &error) == 0);
    reservation_expect(never, 25, large);
    CHECK(table_begin_append(table, never, &error) == -1 && strstr(error.message, "the 80 last steps"));
    reservation_release(never);
    table_append_part(table, fits, 30, small, NULL);
    CHECK(info_of(table).steps == 30 && table->keeping == 0);
    table_free(table);
}

static void coded_steps_of_an_uncompressed_table_are_the_steps(void) {
    struct table *table = window_table(4);
    struct reservation *reservation = table_reserve_steps(table, 2, &error);
    const uint64_t values[2] = {5, 6};
    CHECK(reservation_fill_coded(reservation, FRAME, (const uint32_t[]){8, 7}, (const uint8_t *)values, 15, CLOCK_NEVER,
                                 &error) == -1);
    CHECK(error.code == ERROR_BADSHAPE && strstr(error.message, "got one of 7 bytes at index 1"));
    CHECK(reservation_fill_coded(reservation, FRAME, (const uint32_t[]){8, 8}, (const uint8_t *)values, 17, CLOCK_NEVER,
                                 &error) == -1);
    CHECK(reservation_fill_coded(reservation, FRAME, (const uint32_t[]){8, 8}, (const uint8_t *)values, 16, CLOCK_NEVER,
                                 &error) == 0);
    reservation_release(reservation);
    table_free(table);
}

int main(void) {
    RUN(windows_repeat_the_first_and_the_last_step_of_an_episode);
    RUN(a_first_flag_ends_the_episode_before_it);
    RUN(what_a_window_cannot_see_is_refused_and_changes_nothing);
    RUN(streams_are_bounded);
    RUN(steps_leave_when_nobody_needs_them);
    RUN(a_long_stream_gives_its_steps_back_in_slices);
    RUN(a_step_that_is_shown_too_often_is_refused);
    RUN(a_reservation_holds_the_steps_that_it_resolved);
    RUN(staged_items_keep_their_windows);
    RUN(items_leave_for_steps_where_max_bytes_is_near);
    RUN(few_items_leave_with_a_part_of_an_append_however_many_must);
    RUN(steps_that_may_still_be_refused_take_no_room_in_max_bytes);
    RUN(coded_steps_of_an_uncompressed_table_are_the_steps);
    CHECK(memory_mapped_bytes() == 0);
    return 0;
}

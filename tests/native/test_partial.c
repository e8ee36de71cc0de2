/* Tests of batches of which only the first items may enter: how many the rate limiter admits, and what happens to the rest. */
#include "table_stage.h"

static struct table_config limited(enum limiter_kind kind, uint64_t queue_size, double samples_per_insert,
                                   uint64_t min_size_to_sample, double error_buffer) {
    struct table_config config = small_config(100000, SELECTOR_UNIFORM);
    config.limiter = kind;
    config.queue_size = queue_size;
    config.samples_per_insert = samples_per_insert;
    config.min_size_to_sample = min_size_to_sample;
    config.error_buffer = error_buffer;
    return config;
}

/* Whatever is admitted could be added at once, and one more could not. */
static void admits(struct table *table, uint32_t n, uint32_t expected) {
    CHECK(table_admits(table, n) == expected);
    CHECK(expected == 0 || table_can_add(table, expected, &error));
    CHECK(expected == n || !table_can_add(table, expected + 1, &error));
}

static void as_many_are_admitted_as_could_be_added(void) {
    uint64_t ids[100];
    struct table_config config = limited(LIMITER_QUEUE, 5, 0, 1, 0);
    struct table *table = make(&config);
    admits(table, 8, 5);
    CHECK(add(table, 3, 0, NULL, ids) == 0);
    admits(table, 8, 2);
    admits(table, 1, 1);
    CHECK(add(table, 2, 3, NULL, ids) == 0);
    admits(table, 8, 0);
    table_free(table);

    config = limited(LIMITER_MIN_SIZE, 0, 0, 10, 0);
    table = make(&config);
    admits(table, 50000, 50000);
    table_free(table);

    /* 2 samples an item, 10 items to begin with, 6 samples of room: 13 items before anybody has sampled. */
    config = limited(LIMITER_SAMPLE_TO_INSERT_RATIO, 0, 2, 10, 6);
    table = make(&config);
    admits(table, 50000, 13);
    CHECK(add(table, 12, 0, NULL, ids) == 0);
    admits(table, 50, 1);
    CHECK(add(table, 1, 12, NULL, ids) == 0);
    admits(table, 50, 0);
    uint32_t slots[4];
    CHECK(table_sample(table, 4, 0, true, slots, NULL, NULL, NULL, NULL, &error) == 0);
    table_unpin(table, slots, 4);
    admits(table, 50, 2);
    /* Below min_size_to_sample nobody can sample: what brings it back there passes, whatever the ratio says. */
    CHECK(table_delete(table, 12, ids) == 12);
    CHECK(info_of(table).size == 1);
    admits(table, 9, 9);
    table_free(table);

    config = small_config(4, SELECTOR_UNIFORM);
    table = make(&config);
    admits(table, 9, 4);
    table_free(table);
}

/* Directly in slots, and in staging, which is laid out for all of them. */
static void the_first_items_enter_and_the_slots_of_the_others_are_free_again(void) {
    for (uint32_t n = 6; n <= TABLE_RESERVED_LIMIT + 6; n += TABLE_RESERVED_LIMIT) {
        struct table_config config = small_config(100000, SELECTOR_UNIFORM);
        struct table *table = make(&config);
        struct reservation *reservation = table_reserve(table, n, &error);
        CHECK(reservation && (reservation->staging != NULL) == (n > 6));
        uint64_t *values = malloc(n * sizeof *values), ids[4], value;
        uint8_t *pairs = malloc(n * 3), pair[3];
        for (uint32_t i = 0; i < n; i++) {
            values[i] = 1000 + i;
            memset(pairs + i * 3, (int)(uint8_t)i + 1, 3);
        }
        reservation_fill(reservation, 0, values);
        reservation_fill(reservation, 1, pairs);
        free(values);
        free(pairs);
        reservation_shorten(reservation, 4);
        CHECK(info_of(table).reserved_slots == (n > 6 ? 0 : 4));
        CHECK(table_commit(table, reservation, NULL, ids, &error) == 0);
        CHECK(info_of(table).size == 4 && info_of(table).added == 4 && info_of(table).reserved_slots == 0);
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t slot;
            CHECK(table_get(table, 1, &ids[i], 0, &slot, NULL, &error) == 0);
            table_gather(table, 0, &slot, 1, &value);
            table_gather(table, 1, &slot, 1, pair);
            CHECK(value == 1000 + i && pair[0] == i + 1 && pair[2] == i + 1);
            table_unpin(table, &slot, 1);
        }
        table_free(table);
    }
}

static void a_shortened_reservation_can_be_released(void) {
    struct table_config config = small_config(100, SELECTOR_UNIFORM);
    struct table *table = make(&config);
    struct reservation *reservation = table_reserve(table, 6, &error);
    reservation_shorten(reservation, 6);
    CHECK(info_of(table).reserved_slots == 6);
    reservation_shorten(reservation, 1);
    CHECK(info_of(table).reserved_slots == 1);
    reservation_release(reservation);
    CHECK(info_of(table).reserved_slots == 0 && info_of(table).size == 0);
    table_free(table);
}

/* One column of steps, one window of two over it. */
static struct table_config windows(void) {
    struct table_config config = small_config(10, SELECTOR_UNIFORM);
    config.column[0] =
        (struct column){.name = "frame", .kind = COLUMN_STEP, .type = COLUMN_UINT64, .item_bytes = 8, .in_steps = true};
    config.column[1] = (struct column){
        .name = "obs", .kind = COLUMN_WINDOW, .type = COLUMN_UINT64, .item_bytes = 16, .source = 0, .length = 2};
    return config;
}

static void the_others_let_go_of_their_steps(void) {
    struct table_config config = windows();
    struct table *table = make(&config);
    struct stream *stream = table_stream_new(table, 4, &error);
    struct stream *streams[6] = {stream, stream, stream, stream, stream, stream};
    uint64_t frames[6] = {1, 2, 3, 4, 5, 6}, numbers[4] = {0, 1, 4, 5}, ids[2], obs[2];
    struct reservation *steps = table_reserve_steps(table, 4, &error);
    reservation_fill(steps, 0, frames);
    CHECK(table_append(table, steps, streams, NULL, &error) == 0);
    steps = table_reserve_steps(table, 2, &error);
    reservation_fill(steps, 0, frames + 4);
    uint64_t early[2] = {0, 1};
    struct reservation *kept = table_reserve(table, 2, &error);
    CHECK(table_resolve(table, kept, streams, early, NULL, &error) == 0);
    CHECK(table_append(table, steps, streams, NULL, &error) == 0);
    struct reservation *reservation = table_reserve(table, 2, &error);
    CHECK(table_resolve(table, reservation, streams, numbers + 2, NULL, &error) == 0);
    CHECK(info_of(table).steps == 6);
    reservation_shorten(kept, 1); /* its second item was the last to see steps 1 and 2 but for the first one's step */
    CHECK(info_of(table).steps == 5);
    CHECK(table_commit(table, kept, NULL, ids, &error) == 0);
    table_stream_free(table, stream);
    reservation_shorten(reservation, 1); /* item at step 4 sees 3 and 4; step 5 has nobody left */
    CHECK(info_of(table).steps == 3);
    CHECK(table_commit(table, reservation, NULL, ids + 1, &error) == 0);
    uint32_t slots[2];
    CHECK(table_get(table, 2, ids, 0, slots, NULL, &error) == 0);
    table_gather(table, 1, slots + 1, 1, obs);
    CHECK(obs[0] == 4 && obs[1] == 5);
    table_gather(table, 1, slots, 1, obs);
    CHECK(obs[0] == 1 && obs[1] == 1);
    table_unpin(table, slots, 2);
    table_free(table);
}

int main(void) {
    RUN(as_many_are_admitted_as_could_be_added);
    RUN(the_first_items_enter_and_the_slots_of_the_others_are_free_again);
    RUN(a_shortened_reservation_can_be_released);
    RUN(the_others_let_go_of_their_steps);
    return 0;
}

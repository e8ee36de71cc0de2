/* Tests of closed tables: nothing enters, samples go on with what is there, and who waits for more is told. */
#include <string.h>

#include "cut_stage.h"

static void close_table(struct table *table, const char *reason) {
    CHECK(table_close(table, reason, strlen(reason), &error) == 0);
}

static bool sampled(struct table *table, uint32_t n, bool replace) {
    uint32_t slots[16];
    if (table_sample(table, n, 0, replace, slots, NULL, NULL, NULL, NULL, &error)) return false;
    table_unpin(table, slots, n);
    return true;
}

static void nothing_enters_until_it_is_opened(void) {
    struct table_config config = small_config(8, SELECTOR_UNIFORM);
    struct table *table = make(&config);
    uint64_t id;
    struct reservation *early = table_reserve(table, 1, &error); /* its bytes were on their way */
    close_table(table, "the learner is done");
    CHECK(table_commit(table, early, NULL, &id, &error) == -1 && error.code == ERROR_CLOSED);
    CHECK(strcmp(error_code_name(error.code), "CLOSED") == 0);
    CHECK(strstr(error.message, "table 't' is closed: the learner is done"));
    reservation_release(early);
    CHECK(add(table, 1, 0, NULL, &id) == -1 && error.code == ERROR_CLOSED && table_admits(table, 4) == 0);
    struct table_info info = info_of(table);
    CHECK(info.closed && strcmp(info.closed_reason, "the learner is done") == 0 && info.size == 0 && info.added == 0);
    CHECK(info.reserved_slots == 0);
    table_open(table);
    info = info_of(table);
    CHECK(!info.closed && info.closed_reason[0] == 0 && add(table, 1, 0, NULL, &id) == 0);
    table_free(table);
}

static void a_reason_is_one_line_of_a_bounded_length(void) {
    struct table_config config = small_config(8, SELECTOR_UNIFORM);
    struct table *table = make(&config);
    char longest[TABLE_MAX_REASON + 1];
    memset(longest, 'x', sizeof longest);
    CHECK(table_close(table, longest, sizeof longest, &error) == -1 && error.code == ERROR_LIMIT);
    CHECK(table_close(table, "two\nlines", 9, &error) == -1 && error.code == ERROR_GENERIC);
    CHECK(!info_of(table).closed);
    CHECK(table_close(table, longest, TABLE_MAX_REASON, &error) == 0);
    CHECK(strlen(info_of(table).closed_reason) == TABLE_MAX_REASON);
    close_table(table, ""); /* the last reason stands */
    CHECK(info_of(table).closed && info_of(table).closed_reason[0] == 0);
    CHECK(table_check_open(table, &error) == -1 && strstr(error.message, "table 't' is closed; "));
    table_free(table);
}

/* Every limiter: a wait for items is refused at once, and whatever the table has is still given. */
static void samples_go_on_with_what_is_there_and_no_further(void) {
    struct table_config config = small_config(16, SELECTOR_FIFO);
    uint64_t ids[16];
    config.limiter = LIMITER_QUEUE;
    config.queue_size = 16;
    config.max_times_sampled = 1;
    struct table *queue = make(&config);
    CHECK(add(queue, 7, 0, NULL, ids) == 0);
    close_table(queue, "");
    CHECK(sampled(queue, 4, true) && !sampled(queue, 4, true) && error.code == ERROR_CLOSED);
    CHECK(strstr(error.message, "a sample of 4 waits, the queue holds 3"));
    CHECK(sampled(queue, 3, true) && !sampled(queue, 1, true) && error.code == ERROR_CLOSED);
    CHECK(!sampled(queue, 17, true) && error.code == ERROR_LIMIT); /* was never possible */
    table_free(queue);

    config = small_config(16, SELECTOR_UNIFORM);
    config.min_size_to_sample = 5;
    struct table *small = make(&config);
    CHECK(add(small, 4, 0, NULL, ids) == 0);
    close_table(small, "");
    CHECK(!sampled(small, 1, true) && error.code == ERROR_CLOSED);
    table_open(small);
    CHECK(!sampled(small, 1, true) && error.code == ERROR_TIMEOUT && add(small, 1, 0, NULL, ids) == 0);
    close_table(small, "");
    CHECK(sampled(small, 16, true) && !sampled(small, 6, false) && error.code == ERROR_CLOSED);
    table_free(small);

    config.limiter = LIMITER_SAMPLE_TO_INSERT_RATIO;
    config.samples_per_insert = 2;
    config.error_buffer = 10;
    struct table *ratio = make(&config);
    CHECK(add(ratio, 5, 0, NULL, ids) == 0);
    close_table(ratio, "");
    uint32_t draws = 0;
    while (sampled(ratio, 2, true)) draws += 2;
    CHECK(draws == 10 && error.code == ERROR_CLOSED);
    table_free(ratio);
}

/* Items of priority zero may get another: such a wait is no wait for items. */
static void a_sample_that_an_update_may_let_through_goes_on_waiting(void) {
    struct table_config config = small_config(8, SELECTOR_PRIORITIZED);
    struct table *table = make(&config);
    const double zeros[3] = {0, 0, 0};
    const double ones[3] = {1, 1, 1};
    uint64_t ids[3], applied, stale;
    CHECK(add(table, 3, 0, zeros, ids) == 0);
    close_table(table, "");
    CHECK(!sampled(table, 1, true) && error.code == ERROR_TIMEOUT);
    CHECK(table_update(table, 2, ids, ones, &applied, &stale, &error) == 0 && sampled(table, 1, true));
    CHECK(!sampled(table, 3, false) && error.code == ERROR_TIMEOUT);
    CHECK(table_update(table, 3, ids, ones, &applied, &stale, &error) == 0 && sampled(table, 3, false));
    CHECK(!sampled(table, 4, false) && error.code == ERROR_CLOSED);
    CHECK(table_delete(table, 3, ids) == 3 && !sampled(table, 1, true) && error.code == ERROR_CLOSED);
    table_free(table);
}

static void a_reset_leaves_it_closed_and_a_sample_waits_for_the_reset(void) {
    struct table_config config = small_config(8, SELECTOR_UNIFORM);
    struct table *table = make(&config);
    uint64_t ids[8];
    CHECK(add(table, 8, 0, NULL, ids) == 0);
    close_table(table, "over");
    table_begin_reset(table);
    CHECK(!sampled(table, 1, true) && error.code == ERROR_TIMEOUT); /* the reset is not done */
    table_reset(table);
    CHECK(info_of(table).closed && !sampled(table, 1, true) && error.code == ERROR_CLOSED);
    CHECK(add(table, 1, 0, NULL, ids) == -1 && error.code == ERROR_CLOSED);
    table_free(table);
}

static void a_snapshot_keeps_it_closed(void) {
    struct table_config config = small_config(8, SELECTOR_UNIFORM);
    for (int closed = 0; closed < 2; closed++) {
        struct table *table = make(&config);
        struct memory_sink memory;
        uint64_t ids[4];
        CHECK(add(table, 4, 0, NULL, ids) == 0);
        if (closed) close_table(table, "over");
        begin(table, &memory, 0);
        if (closed)
            table_open(table); /* after the moment of the cut */
        else
            close_table(table, "late");
        finish_cut(table);
        struct table *restored = restore_from(&memory);
        CHECK(info_of(restored).closed == closed && strcmp(info_of(restored).closed_reason, closed ? "over" : "") == 0);
        CHECK(add(restored, 1, 0, NULL, ids) == (closed ? -1 : 0) && sampled(restored, 4, true));
        forget(&memory);
        table_free(restored);
        table_free(table);
    }
}

int main(void) {
    RUN(nothing_enters_until_it_is_opened);
    RUN(a_reason_is_one_line_of_a_bounded_length);
    RUN(samples_go_on_with_what_is_there_and_no_further);
    RUN(a_sample_that_an_update_may_let_through_goes_on_waiting);
    RUN(a_reset_leaves_it_closed_and_a_sample_waits_for_the_reset);
    RUN(a_snapshot_keeps_it_closed);
    return 0;
}

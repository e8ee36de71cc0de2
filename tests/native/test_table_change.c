/* Tests of resets and changes of live tables, in slices, and of items that grow too old. */
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/msgpack.h"
#include "check.h"
#include "replay/table_state.h"
#include "table_stage.h"

/* ---- changes ------------------------------------------------------------------------------------------------------- */

static void write_text(struct msgpack_writer *writer, const char *text) {
    msgpack_write_string(writer, text, strlen(text));
}

/* {key: kind} */
static int configure_kind(struct table *table, const char *key, const char *kind, bool begin) {
    struct msgpack_writer writer = {0};
    msgpack_write_map(&writer, 1);
    write_text(&writer, key);
    write_text(&writer, kind);
    int refused = begin ? table_begin_configure(table, writer.data, writer.length, &error)
                        : table_configure(table, writer.data, writer.length, &error);
    memory_free(writer.data);
    return refused;
}

/* {key: number} */
static int configure_number(struct table *table, const char *key, int64_t number, bool begin) {
    struct msgpack_writer writer = {0};
    msgpack_write_map(&writer, 1);
    write_text(&writer, key);
    if (number < 0)
        msgpack_write_signed(&writer, number);
    else
        msgpack_write_unsigned(&writer, (uint64_t)number);
    int refused = begin ? table_begin_configure(table, writer.data, writer.length, &error)
                        : table_configure(table, writer.data, writer.length, &error);
    memory_free(writer.data);
    return refused;
}

static uint64_t first_value(struct table *table) {
    uint32_t slot;
    uint64_t value;
    CHECK(table_sample(table, 1, 0, true, &slot, NULL, NULL, NULL, NULL, &error) == 0);
    table_gather(table, 0, &slot, 1, &value);
    table_unpin(table, &slot, 1);
    return value;
}

static void sampler_and_remover_change_in_a_live_table(void) {
    struct table_config config = small_config(4, SELECTOR_PRIORITIZED);
    struct table *table = make(&config);
    const double priorities[4] = {3, 1, 7, 0};
    uint64_t ids[4], id;
    CHECK(add(table, 4, 0, priorities, ids) == 0);
    CHECK(configure_kind(table, "sampler", "max_heap", false) == 0 && first_value(table) == 2);
    CHECK(configure_kind(table, "sampler", "min_heap", false) == 0 && first_value(table) == 3);
    CHECK(configure_kind(table, "sampler", "lifo", false) == 0 && first_value(table) == 3);
    CHECK(configure_kind(table, "sampler", "fifo", false) == 0 && first_value(table) == 0);
    CHECK(configure_kind(table, "sampler", "uniform", false) == 0);
    CHECK(configure_kind(table, "sampler", "prioritized", false) == 0);
    CHECK(table_config(table)->priority_exponent == 0.6 && table_drawable(table) == 3);
    CHECK(configure_kind(table, "remover", "max_heap", false) == 0);
    CHECK(add(table, 1, 4, priorities, &id) == 0 && table_slot(table, ids[2]) == SLOT_NONE);
    CHECK(configure_kind(table, "remover", "lifo", false) == 0);
    CHECK(add(table, 1, 5, priorities, &ids[2]) == 0 && table_slot(table, id) == SLOT_NONE);
    CHECK(configure_kind(table, "remover", "newest", false) == -1 && error.code == ERROR_BADSCHEMA);
    CHECK(table_config(table)->remover == SELECTOR_LIFO && info_of(table).size == 4);
    table_free(table);
}

/* Counts of draws that are left must be those of the new sampler, whatever was drawn under the old one. */
static void counts_of_draws_outlive_a_change_of_sampler(void) {
    struct table_config config = small_config(10, SELECTOR_UNIFORM);
    config.max_times_sampled = 3;
    struct table *table = make(&config);
    const double priorities[4] = {1, 0, 1, 1};
    uint64_t ids[4];
    uint32_t slots[12];
    CHECK(add(table, 4, 0, priorities, ids) == 0);
    CHECK(table_sample(table, 2, 0, false, slots, NULL, NULL, NULL, NULL, &error) == 0);
    table_unpin(table, slots, 2);
    CHECK(table_drawable(table) == 4 && table_drawable_times(table) == 2);
    CHECK(configure_kind(table, "sampler", "prioritized", false) == 0);
    uint64_t zero_times = table->items.slot[table_slot(table, ids[1])].times_sampled;
    CHECK(table_drawable(table) == 3 && table_drawable_times(table) == 2 - zero_times);
    uint32_t left = (uint32_t)(9 - (2 - zero_times));
    CHECK(table_sample(table, left + 1, 0, true, slots, NULL, NULL, NULL, NULL, &error) == -1);
    CHECK(table_sample(table, left, 0, true, slots, NULL, NULL, NULL, NULL, &error) == 0);
    table_unpin(table, slots, left);
    CHECK(info_of(table).size == 1);
    table_free(table);
}

static void an_exponent_that_the_priorities_do_not_allow_is_refused(void) {
    struct table_config config = small_config(4, SELECTOR_UNIFORM);
    struct table *table = make(&config);
    double large = 1e200;
    uint64_t id;
    CHECK(add(table, 1, 0, &large, &id) == 0);
    struct msgpack_writer writer = {0};
    msgpack_write_map(&writer, 1);
    write_text(&writer, "sampler");
    msgpack_write_map(&writer, 2);
    write_text(&writer, "kind");
    write_text(&writer, "prioritized");
    write_text(&writer, "priority_exponent");
    msgpack_write_double(&writer, 2);
    CHECK(table_configure(table, writer.data, writer.length, &error) == -1 && error.code == ERROR_BADSCHEMA);
    CHECK(strstr(error.message, "lower them first") && table_config(table)->sampler == SELECTOR_UNIFORM);
    memory_free(writer.data);
    table_free(table);
}

#define MANY 100000u

static struct table *make_large(enum selector_kind sampler) {
    struct table_config config = small_config(MANY, sampler);
    struct table *table = make(&config);
    uint64_t *ids = malloc(MANY * sizeof *ids);
    CHECK(add(table, MANY / 2, 0, NULL, ids) == 0 && add(table, MANY / 2, MANY / 2, NULL, ids) == 0);
    free(ids);
    return table;
}

/* Steps with a deadline that has passed, so that each does one slice; returns how many there were. */
static uint32_t slices(struct table *table) {
    uint32_t count = 1;
    while (table_step(table, 0)) count++;
    return count;
}

static void check_waits(struct table *table, const char *why) {
    uint64_t id;
    uint32_t slot;
    CHECK(table_sample(table, 1, 0, true, &slot, NULL, NULL, NULL, NULL, &error) == -1 && error.code == ERROR_TIMEOUT);
    CHECK(strstr(error.message, why));
    CHECK(add(table, 1, 7, NULL, &id) == -1 && error.code == ERROR_TIMEOUT && strstr(error.message, why));
}

static void a_reset_is_done_in_slices_and_others_wait_for_it(void) {
    struct table *table = make_large(SELECTOR_PRIORITIZED);
    uint64_t id;
    table_begin_reset(table);
    CHECK(table_has_work(table) && info_of(table).size == MANY);
    check_waits(table, "is being reset");
    CHECK(table_step(table, 0) && info_of(table).size < MANY && info_of(table).size > MANY - 1000);
    CHECK(configure_kind(table, "sampler", "fifo", true) == -1 && error.code == ERROR_TIMEOUT);
    CHECK(slices(table) > 100 && !table_has_work(table) && info_of(table).size == 0);
    CHECK(info_of(table).total_priority == 0 && info_of(table).max_priority == 0);
    CHECK(add(table, 1, 7, NULL, &id) == 0 && first_value(table) == 7);
    table_free(table);
}

static void a_change_of_sampler_is_done_in_slices(void) {
    struct table *table = make_large(SELECTOR_UNIFORM);
    CHECK(configure_kind(table, "sampler", "max_heap", true) == 0 && table_has_work(table));
    check_waits(table, "is being changed");
    CHECK(table_step(table, 0));
    /* Updates and removals go on meanwhile, before the place that it has come to and behind it. */
    uint64_t applied, stale, early = table_id(table, table->order.oldest), late = table_id(table, table->order.newest);
    uint64_t second = table_id(table, table->items.slot[table->order.newest].older),
             at = table_id(table, table->work.next);
    double fifty = 50, sixty = 60, seventy = 70;
    CHECK(table_update(table, 1, &early, &fifty, &applied, &stale, &error) == 0 && applied == 1);
    CHECK(table_update(table, 1, &late, &seventy, &applied, &stale, &error) == 0 && applied == 1);
    CHECK(table_update(table, 1, &second, &sixty, &applied, &stale, &error) == 0 && applied == 1);
    CHECK(table_delete(table, 1, &late) == 1 && table_delete(table, 1, &at) == 1);
    CHECK(slices(table) > 100 && table->sampler.heap.count == MANY - 2);
    CHECK(first_value(table) == MANY - 2 && table_delete(table, 1, &second) == 1 && first_value(table) == 0);
    table_free(table);
}

static void shrinking_is_done_in_slices_as_the_remover_chooses(void) {
    struct table *table = make_large(SELECTOR_UNIFORM);
    CHECK(configure_kind(table, "remover", "lifo", false) == 0);
    CHECK(configure_number(table, "max_bytes", 11 * 10, true) == 0);
    check_waits(table, "more than it may");
    CHECK(slices(table) > 100 && info_of(table).size == 10 && info_of(table).removed == MANY - 10);
    uint64_t value;
    table_gather(table, 0, &table->order.newest, 1, &value);
    CHECK(value == 9);
    table_free(table);
}

static void items_sampled_too_often_for_a_new_limit_leave(void) {
    struct table_config config = small_config(10, SELECTOR_FIFO);
    struct table *table = make(&config);
    uint64_t ids[5];
    uint32_t slots[5];
    CHECK(add(table, 5, 0, NULL, ids) == 0);
    for (uint32_t n = 1; n <= 3; n++) {
        CHECK(table_sample(table, n, 0, true, slots, NULL, NULL, NULL, NULL, &error) == 0);
        table_unpin(table, slots, n);
    }
    CHECK(configure_number(table, "max_times_sampled", 2, false) == 0); /* they were drawn 3, 2, 1, 0 and 0 times */
    CHECK(info_of(table).size == 3 && first_value(table) == 2 && table_slot(table, ids[1]) == SLOT_NONE);
    table_free(table);
}

/* ---- staleness ----------------------------------------------------------------------------------------------------- */

static struct table *make_versioned(uint64_t capacity, enum selector_kind sampler, int64_t max_staleness) {
    struct table_config config = small_config(capacity, sampler);
    strcpy(config.column[0].name, TABLE_VERSION_COLUMN);
    config.column[0].type = COLUMN_INT64;
    config.max_staleness = max_staleness;
    return make(&config);
}

/* Adds items of these versions, one by one. */
static void add_versions(struct table *table, const int64_t *versions, uint32_t n, uint64_t *ids) {
    for (uint32_t i = 0; i < n; i++) CHECK(add(table, 1, (uint64_t)versions[i], NULL, &ids[i]) == 0);
}

static void items_of_old_policies_leave(void) {
    for (int sampler = 0; sampler < SELECTOR_KINDS; sampler++) {
        struct table *table = make_versioned(20, (enum selector_kind)sampler, 3);
        const int64_t versions[6] = {5, 3, 8, 5, 4, 7}; /* out of order; 8 makes 3 too old, and 4 is too old at once */
        uint64_t ids[6];
        add_versions(table, versions, 6, ids);
        CHECK(info_of(table).newest_version == 8 && info_of(table).stale_items == 2 && info_of(table).size == 4);
        CHECK(table_slot(table, ids[1]) == SLOT_NONE && table_slot(table, ids[4]) == SLOT_NONE);
        CHECK(table_see_version(table, 6, &error) == 0 && info_of(table).size == 4); /* an older one changes nothing */
        CHECK(table_see_version(table, 9, &error) == 0 && info_of(table).size == 2 && info_of(table).removed == 4);
        CHECK(table_see_version(table, INT64_MAX, &error) == 0 && info_of(table).size == 0);
        uint32_t slot;
        CHECK(table_sample(table, 1, 0, true, &slot, NULL, NULL, NULL, NULL, &error) == -1 &&
              error.code == ERROR_TIMEOUT);
        table_free(table);
    }
}

/* A second run whose versions begin at 0 lost every item that it added. */
static void a_reset_forgets_the_versions_of_the_run_before(void) {
    struct table *table = make_versioned(20, SELECTOR_UNIFORM, 2);
    uint64_t ids[2];
    add_versions(table, (int64_t[]){99, 100}, 2, ids);
    table_reset(table);
    CHECK(info_of(table).newest_version == INT64_MIN);
    add_versions(table, (int64_t[]){0, 1}, 2, ids);
    CHECK(info_of(table).size == 2 && info_of(table).stale_items == 0 && info_of(table).newest_version == 1);
    table_free(table);
}

static void the_ends_of_the_numbers_are_versions_too(void) {
    struct table *table = make_versioned(20, SELECTOR_UNIFORM, 0);
    uint64_t ids[3];
    add_versions(table, (int64_t[]){INT64_MIN, INT64_MIN + 1, INT64_MAX}, 3, ids);
    CHECK(info_of(table).size == 1 && info_of(table).stale_items == 2);
    CHECK(configure_number(table, "max_staleness", INT64_MAX, false) == 0);
    add_versions(table, (int64_t[]){-1, 0, INT64_MIN}, 3, ids);
    CHECK(info_of(table).size == 2 && table_slot(table, ids[1]) != SLOT_NONE);
    table_free(table);
}

static void a_limit_set_later_holds_for_items_that_are_there(void) {
    struct table *table = make_versioned(20, SELECTOR_UNIFORM, -1);
    uint64_t ids[5];
    add_versions(table, (int64_t[]){1, 2, 3, 9, 10}, 5, ids);
    CHECK(info_of(table).size == 5 && info_of(table).newest_version == 10);
    CHECK(configure_number(table, "max_staleness", 7, false) == 0 && info_of(table).size == 3);
    CHECK(configure_number(table, "max_staleness", 1, false) == 0 && info_of(table).size == 2);
    CHECK(configure_number(table, "max_staleness", -1, false) == 0);
    add_versions(table, (int64_t[]){0}, 1, ids);
    CHECK(info_of(table).size == 3 && info_of(table).stale_items == 3);
    table_free(table);
    struct table_config config = small_config(4, SELECTOR_UNIFORM);
    table = make(&config);
    CHECK(configure_number(table, "max_staleness", 1, false) == -1 && strstr(error.message, TABLE_VERSION_COLUMN));
    CHECK(table_see_version(table, 1, &error) == -1 && error.code == ERROR_BADSCHEMA);
    table_free(table);
}

/* A jump that makes very many items too old costs one command little; until they have left nobody samples. */
static void many_stale_items_leave_in_slices(void) {
    struct table *table = make_versioned(MANY, SELECTOR_PRIORITIZED, 1u << 20);
    uint64_t *ids = malloc(MANY * sizeof *ids), id;
    uint32_t slot;
    CHECK(add(table, MANY / 2, 0, NULL, ids) == 0 && add(table, MANY / 2, MANY / 2, NULL, ids) == 0);
    CHECK(table_see_version(table, 1ll << 40, &error) == 0);
    if (table_has_work(table)) { /* unless the machine was fast enough to be done already */
        CHECK(table_sample(table, 1, 0, true, &slot, NULL, NULL, NULL, NULL, &error) == -1);
        CHECK(strstr(error.message, "have still to leave") && error.code == ERROR_TIMEOUT);
        CHECK(add(table, 1, 1ull << 40, NULL, &id) == 0);
    }
    CHECK(!table_step(table, CLOCK_NEVER));
    CHECK(info_of(table).stale_items == MANY && info_of(table).size <= 1);
    free(ids);
    table_free(table);
}

/* ---- settings that could never work -------------------------------------------------------------------------------- */

/* Items were deleted, so that the table is too small to sample, and adding had run ahead: it must go on. */
static void a_ratio_never_leaves_both_sides_waiting_after_removals(void) {
    struct table_config config = small_config(100, SELECTOR_UNIFORM);
    config.limiter = LIMITER_SAMPLE_TO_INSERT_RATIO;
    config.min_size_to_sample = 5;
    config.samples_per_insert = 1;
    config.error_buffer = 10;
    struct table *table = make(&config);
    uint64_t ids[16], id[6];
    uint32_t slot;
    CHECK(add(table, 15, 0, NULL, ids) == 0 && add(table, 1, 0, NULL, id) == -1 && error.code == ERROR_TIMEOUT);
    CHECK(table_delete(table, 13, ids) == 13);
    CHECK(table_sample(table, 1, 0, true, &slot, NULL, NULL, NULL, NULL, &error) == -1 && error.code == ERROR_TIMEOUT);
    CHECK(add(table, 6, 0, NULL, id) == 0);
    CHECK(table_sample(table, 1, 0, true, &slot, NULL, NULL, NULL, NULL, &error) == 0);
    table_unpin(table, &slot, 1);
    table_free(table);
}

int main(void) {
    RUN(sampler_and_remover_change_in_a_live_table);
    RUN(counts_of_draws_outlive_a_change_of_sampler);
    RUN(an_exponent_that_the_priorities_do_not_allow_is_refused);
    RUN(a_reset_is_done_in_slices_and_others_wait_for_it);
    RUN(a_change_of_sampler_is_done_in_slices);
    RUN(shrinking_is_done_in_slices_as_the_remover_chooses);
    RUN(items_sampled_too_often_for_a_new_limit_leave);
    RUN(items_of_old_policies_leave);
    RUN(a_reset_forgets_the_versions_of_the_run_before);
    RUN(the_ends_of_the_numbers_are_versions_too);
    RUN(a_limit_set_later_holds_for_items_that_are_there);
    RUN(many_stale_items_leave_in_slices);
    RUN(a_ratio_never_leaves_both_sides_waiting_after_removals);
    return 0;
}

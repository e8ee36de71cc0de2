/* table_cut and table_restore: what is restored is the table as it was at the cut, whatever was done to it meanwhile. */
#include <math.h>

#include "base/clock.h"
#include "base/msgpack.h"
#include "cut_stage.h"

/* ---- what a table holds, to compare -------------------------------------------------------------------------------- */

struct item_state {
    uint64_t id, value;
    double priority, weight;
    uint32_t times_sampled;
    uint8_t pair[3];
};

struct table_copy {
    struct table_info info;
    struct rate_limiter limiter;
    struct random_state random;
    uint64_t drawable, drawable_times, next_age;
    uint32_t count;
    struct item_state *items; /* oldest first */
};

static struct table_copy copy_of(const struct table *table) {
    struct table_copy copy = {.limiter = table->limiter, .random = table->random, .drawable = table_drawable(table)};
    copy.drawable_times = table_drawable_times(table);
    copy.next_age = table->items.next_age;
    table_info(table, &copy.info);
    copy.items = calloc(table->items.live + 1, sizeof *copy.items);
    for (uint32_t slot = table->order.oldest; slot != SLOT_NONE; slot = table->items.slot[slot].newer) {
        struct item_state *item = &copy.items[copy.count++];
        item->id = table_id(table, slot);
        item->priority = max_tree_value(&table->priorities, slot);
        item->weight =
            table->config.sampler == SELECTOR_PRIORITIZED ? sum_tree_weight(&table->sampler.weights, slot) : 0;
        item->times_sampled = table->items.slot[slot].times_sampled;
        table_gather(table, 0, &slot, 1, &item->value);
        table_gather(table, 1, &slot, 1, item->pair);
    }
    CHECK(copy.count == copy.info.size);
    return copy;
}

static void check_same(const struct table_copy *a, const struct table_copy *b) {
    CHECK(a->count == b->count);
    for (uint32_t i = 0; i < a->count; i++) CHECK(memcmp(&a->items[i], &b->items[i], sizeof a->items[i]) == 0);
    CHECK(a->limiter.kind == b->limiter.kind && a->limiter.inserts == b->limiter.inserts);
    CHECK(a->limiter.samples == b->limiter.samples && a->limiter.error_buffer == b->limiter.error_buffer);
    CHECK(a->limiter.queue_size == b->limiter.queue_size);
    CHECK(a->limiter.min_size_to_sample == b->limiter.min_size_to_sample);
    CHECK(memcmp(&a->random, &b->random, sizeof a->random) == 0);
    CHECK(a->drawable == b->drawable && a->drawable_times == b->drawable_times && a->next_age == b->next_age);
    CHECK(a->info.size == b->info.size && a->info.added == b->info.added && a->info.sampled == b->info.sampled);
    CHECK(a->info.removed == b->info.removed && a->info.stale_updates == b->info.stale_updates);
    CHECK(a->info.updates_applied == b->info.updates_applied && a->info.bytes == b->info.bytes);
    CHECK(a->info.max_priority == b->info.max_priority && a->info.total_priority == b->info.total_priority);
}

/* ---- changing a table at random ------------------------------------------------------------------------------------ */

struct storm {
    struct random_state random;
    uint64_t ids[4096]; /* of items that were there at some time */
    uint32_t id_count;
    uint64_t next_value;
};

static double some_priority(struct storm *storm) {
    uint64_t choice = random_below(&storm->random, 8);
    return choice == 0 ? 0 : pow(10, random_unit(&storm->random) * 12 - 6);
}

static void storm_add(struct storm *storm, struct table *table) {
    uint32_t n = 1 + (uint32_t)random_below(&storm->random, 40);
    double priorities[40];
    uint64_t ids[40];
    for (uint32_t i = 0; i < n; i++) priorities[i] = some_priority(storm);
    if (add(table, n, storm->next_value, random_below(&storm->random, 3) ? priorities : NULL, ids)) return;
    storm->next_value += n;
    for (uint32_t i = 0; i < n; i++) storm->ids[storm->id_count++ % 4096] = ids[i];
}

static void storm_name_ids(struct storm *storm, struct table *table, bool delete) {
    uint64_t ids[64], applied, stale;
    double priorities[64];
    uint32_t known = storm->id_count < 4096 ? storm->id_count : 4096;
    uint32_t n = known ? (uint32_t)random_below(&storm->random, delete ? 4 : 64) : 0;
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = storm->ids[random_below(&storm->random, known)];
        priorities[i] = some_priority(storm);
    }
    if (delete)
        table_delete(table, n, ids);
    else
        CHECK(table_update(table, n, ids, priorities, &applied, &stale, &error) == 0);
}

static void storm_sample(struct storm *storm, struct table *table) {
    uint32_t slots[16], n = 1 + (uint32_t)random_below(&storm->random, 16);
    if (table_sample(table, n, 0.4, true, slots, NULL, NULL, NULL, NULL, &error) == 0) table_unpin(table, slots, n);
}

static void storm_once(struct storm *storm, struct table *table) {
    switch (random_below(&storm->random, 8)) {
    case 0:
    case 1:
    case 2: storm_add(storm, table); return;
    case 3:
    case 4: storm_name_ids(storm, table, false); return;
    case 5: storm_name_ids(storm, table, true); return;
    default: storm_sample(storm, table); return;
    }
}

/* One table through many cuts, each while it changes. */
static void cut_in_storm(const struct table_config *config, uint64_t seed, uint64_t held_bytes) {
    struct storm storm = {0};
    random_seed(&storm.random, seed);
    struct table *table = make(config);
    for (int round = 0; round < 8; round++) {
        for (uint64_t i = random_below(&storm.random, 120); i > 0; i--) storm_once(&storm, table);
        struct memory_sink memory;
        begin(table, &memory, held_bytes);
        struct table_copy before = copy_of(table);
        if (random_below(&storm.random, 6) == 0) table_reset(table);
        do {
            for (uint64_t i = random_below(&storm.random, 4); i > 0; i--) storm_once(&storm, table);
        } while (table_cut_step(table));
        CHECK(!table_cut_failed(table));
        table_cut_end(table);
        CHECK(table->items.held == 0 && table->items.pinned == 0);
        struct table *restored = restore_from(&memory);
        struct table_copy after = copy_of(restored);
        check_same(&before, &after);
        const struct slot_store *items = &restored->items;
        CHECK(slot_store_free_slots(items) + items->live + items->retired == items->slots);
        free(before.items);
        free(after.items);
        forget(&memory);
        table_free(table);
        table = restored; /* and goes on from there */
    }
    table_free(table);
}

static void what_is_restored_is_the_table_at_the_cut(void) {
    static const uint64_t held[] = {0, 11 * 5, 1u << 20};
    for (uint64_t seed = 1; seed <= 6; seed++) {
        for (int sampler = SELECTOR_PRIORITIZED; sampler < SELECTOR_KINDS; sampler++) {
            for (int h = 0; h < 3; h++) {
                struct table_config config = small_config(seed % 2 ? 300 : 1000, (enum selector_kind)sampler);
                config.max_times_sampled = seed % 3 == 0 ? 3 : 0;
                config.priority_exponent = sampler == SELECTOR_PRIORITIZED ? 0.6 : 0;
                cut_in_storm(&config, seed, held[h]);
            }
        }
    }
}

static void every_limiter_goes_on_where_it_stood(void) {
    for (int limiter = LIMITER_MIN_SIZE; limiter <= LIMITER_QUEUE; limiter++) {
        struct table_config config = small_config(200, limiter == LIMITER_QUEUE ? SELECTOR_FIFO : SELECTOR_UNIFORM);
        config.limiter = (enum limiter_kind)limiter;
        config.min_size_to_sample = limiter == LIMITER_QUEUE ? 1 : 20;
        config.samples_per_insert = limiter == LIMITER_SAMPLE_TO_INSERT_RATIO ? 2 : 0;
        config.error_buffer = limiter == LIMITER_SAMPLE_TO_INSERT_RATIO ? 100 : 0;
        config.queue_size = limiter == LIMITER_QUEUE ? 100 : 0;
        config.max_times_sampled = limiter == LIMITER_QUEUE ? 1 : 0;
        for (uint64_t seed = 1; seed <= 4; seed++) cut_in_storm(&config, seed, 1000);
    }
}

/* ---- single properties --------------------------------------------------------------------------------------------- */

static void draws_go_on_as_they_would_have(void) {
    struct table_config config = small_config(1000, SELECTOR_PRIORITIZED);
    struct storm storm = {0};
    random_seed(&storm.random, 5);
    struct table *table = make(&config);
    for (int i = 0; i < 200; i++) storm_once(&storm, table);
    struct memory_sink memory;
    begin(table, &memory, 0);
    finish_cut(table);
    struct table *restored = restore_from(&memory);
    uint32_t left[64], right[64];
    for (int i = 0; i < 20; i++) {
        CHECK(table_sample(table, 64, 0.4, true, left, NULL, NULL, NULL, NULL, &error) == 0);
        CHECK(table_sample(restored, 64, 0.4, true, right, NULL, NULL, NULL, NULL, &error) == 0);
        CHECK(memcmp(left, right, sizeof left) == 0);
        table_unpin(table, left, 64);
        table_unpin(restored, right, 64);
    }
    forget(&memory);
    table_free(table);
    table_free(restored);
}

/* Items sampled more often than the new limit allows were counted as draws that are left: 2^64 less a few. */
static void a_cut_in_the_middle_of_a_change_restores_what_the_new_settings_allow(void) {
    struct table_config config = small_config(200, SELECTOR_UNIFORM);
    struct table *table = make(&config);
    struct msgpack_writer writer = {0};
    uint64_t ids[200];
    uint32_t slots[1000], slot;
    CHECK(add(table, 200, 0, NULL, ids) == 0);
    CHECK(table_sample(table, 1000, 0, true, slots, NULL, NULL, NULL, NULL, &error) == 0);
    table_unpin(table, slots, 1000);
    msgpack_write_map(&writer, 1);
    msgpack_write_string(&writer, "max_times_sampled", 17);
    msgpack_write_unsigned(&writer, 1);
    CHECK(table_begin_configure(table, writer.data, writer.length, &error) == 0 && table_step(table, 0));
    memory_free(writer.data);
    struct memory_sink memory;
    begin(table, &memory, 0);
    finish_cut(table);
    struct table *restored = restore_from(&memory);
    table_step(table, CLOCK_NEVER);
    CHECK(info_of(restored).size == info_of(table).size && info_of(restored).size < 100);
    for (uint64_t left = info_of(restored).size; left > 0; left--) {
        CHECK(table_sample(restored, 1, 0, true, &slot, NULL, NULL, NULL, NULL, &error) == 0);
        table_unpin(restored, &slot, 1);
    }
    CHECK(table_sample(restored, 1, 0, true, &slot, NULL, NULL, NULL, NULL, &error) == -1 &&
          info_of(restored).size == 0);
    forget(&memory);
    table_free(table);
    table_free(restored);
}

static void ids_of_items_that_left_before_the_cut_stay_stale(void) {
    struct table_config config = small_config(4, SELECTOR_UNIFORM);
    struct table *table = make(&config);
    uint64_t old[4], ids[4], applied, stale;
    CHECK(add(table, 4, 0, NULL, old) == 0);
    CHECK(table_delete(table, 4, old) == 4);
    struct memory_sink memory;
    begin(table, &memory, 0);
    finish_cut(table);
    struct table *restored = restore_from(&memory);
    CHECK(add(restored, 4, 10, NULL, ids) == 0);
    double ones[4] = {1, 1, 1, 1};
    CHECK(table_update(restored, 4, old, ones, &applied, &stale, &error) == 0 && applied == 0 && stale == 4);
    CHECK(table_update(restored, 4, ids, ones, &applied, &stale, &error) == 0 && applied == 4);
    forget(&memory);
    table_free(table);
    table_free(restored);
}

static void ids_given_out_after_the_cut_name_no_item_of_the_restored_table(void) {
    struct table_config config = small_config(4, SELECTOR_UNIFORM);
    struct table *table = make(&config);
    uint64_t ids[4], forgotten[400], restored_ids[4], applied, stale;
    CHECK(add(table, 4, 0, NULL, ids) == 0);
    struct memory_sink memory;
    begin(table, &memory, 0);
    finish_cut(table);
    for (uint32_t i = 0; i < 100; i++) CHECK(add(table, 4, 10, NULL, forgotten + 4 * i) == 0);
    struct table *restored = restore_from(&memory);
    double ones[400];
    for (uint32_t i = 0; i < 400; i++) ones[i] = 1;
    CHECK(table_update(restored, 4, ids, ones, &applied, &stale, &error) == 0 && applied == 4);
    for (uint32_t i = 0; i < 100; i++) { /* through as many lives of the slots */
        CHECK(add(restored, 4, 20, NULL, restored_ids) == 0);
        CHECK(table_update(restored, 400, forgotten, ones, &applied, &stale, &error) == 0 && applied == 0);
    }
    forget(&memory);
    table_free(table);
    table_free(restored);
}

static void a_slot_that_was_retired_stays_retired(void) {
    struct table_config config = small_config(4, SELECTOR_UNIFORM);
    struct table *table = make(&config);
    uint64_t ids[1];
    CHECK(add(table, 1, 0, NULL, ids) == 0);
    table->items.slot[(uint32_t)ids[0]].generation = SLOT_MAX_GENERATION;
    uint64_t last = (uint64_t)SLOT_MAX_GENERATION << 32 | (uint32_t)ids[0];
    CHECK(table_delete(table, 1, &last) == 1 && table->items.retired == 1);
    struct memory_sink memory;
    begin(table, &memory, 0);
    finish_cut(table);
    struct table *restored = restore_from(&memory);
    CHECK(info_of(restored).retired_slots == 1);
    CHECK(add(restored, 1, 0, NULL, ids) == 0 && ids[0] != last);
    forget(&memory);
    table_free(table);
    table_free(restored);
}

/* Symptom looked for: a restored table did not know which of its slots are in their last life, and promised room for items
 * that it then did not have. */
static void a_slot_in_its_last_life_is_known_as_such(void) {
    struct table_config config = small_config(4, SELECTOR_UNIFORM);
    struct table *table = make(&config);
    uint64_t ids[4];
    CHECK(add(table, 3, 0, NULL, ids) == 0 && table_delete(table, 3, ids) == 3);
    table->items.slot[(uint32_t)ids[2]].generation = SLOT_MAX_GENERATION - 1;
    CHECK(add(table, 4, 0, NULL, ids) == 0 && table->items.last_lives == 1);
    struct memory_sink memory;
    begin(table, &memory, 0);
    finish_cut(table);
    struct table *restored = restore_from(&memory);
    CHECK(restored->items.last_lives == 1);
    CHECK(table_delete(restored, 4, ids) == 4);
    CHECK(restored->items.last_lives == 0 && info_of(restored).retired_slots == 1);
    forget(&memory);
    table_free(table);
    table_free(restored);
}

static void removed_items_stay_in_their_slots_until_written_and_no_longer(void) {
    struct table_config config = small_config(100, SELECTOR_UNIFORM);
    struct table *table = make(&config);
    uint64_t ids[100];
    CHECK(add(table, 100, 0, NULL, ids) == 0);
    uint64_t free_before = info_of(table).free_slots;
    struct memory_sink memory;
    begin(table, &memory, 11 * 30);
    CHECK(table_delete(table, 100, ids) == 100);
    CHECK(table->items.held == 30); /* the others' bytes were handed out at once */
    CHECK(info_of(table).pinned_slots == 0 && info_of(table).free_slots == free_before + 70);
    finish_cut(table);
    CHECK(table->items.held == 0 && info_of(table).free_slots == free_before + 100);
    struct table *restored = restore_from(&memory);
    CHECK(info_of(restored).size == 100);
    forget(&memory);
    table_free(table);
    table_free(restored);
}

/* Replies in flight keep the bytes of items that left before the cut, and of items that leave after it. */
static void a_pinned_item_is_copied_if_it_was_there_at_the_cut(void) {
    for (uint64_t held = 0; held <= 50; held += 50) {
        struct table_config config = small_config(100, SELECTOR_UNIFORM);
        struct table *table = make(&config);
        uint64_t ids[100], more[50], value;
        uint32_t slots[100], slot;
        CHECK(add(table, 100, 0, NULL, ids) == 0);
        CHECK(table_get(table, 100, ids, 0, slots, NULL, &error) == 0);
        CHECK(table_delete(table, 40, ids) == 40);
        struct memory_sink memory;
        begin(table, &memory, 11 * held);
        table_unpin(table, slots, 10); /* before anything was said of these slots */
        CHECK(table_delete(table, 30, ids + 40) == 30);
        CHECK(table->items.held == 0); /* the replies still hold them */
        table_unpin(table, slots + 10, 10);
        table_unpin(table, slots + 40, 20);
        CHECK(table->items.held == (held ? 20 : 0) && info_of(table).pinned_slots == 60);
        CHECK(add(table, 50, 1000, NULL, more) == 0);
        finish_cut(table);
        CHECK(table->items.held == 0 && info_of(table).pinned_slots == 60);
        table_unpin(table, slots + 20, 20);
        table_unpin(table, slots + 60, 40);
        CHECK(info_of(table).pinned_slots == 0 && table->items.occupied == info_of(table).size);
        struct table *restored = restore_from(&memory);
        CHECK(info_of(restored).size == 60 && table_get(restored, 1, ids, 0, &slot, NULL, &error) == -1);
        for (uint32_t i = 40; i < 100; i++) {
            CHECK(table_get(restored, 1, &ids[i], 0, &slot, NULL, &error) == 0);
            table_gather(restored, 0, &slot, 1, &value);
            CHECK(value == i);
            table_unpin(restored, &slot, 1);
        }
        forget(&memory);
        table_free(table);
        table_free(restored);
    }
}

static void a_sink_without_room_ends_the_cut_and_harms_nothing(void) {
    for (uint32_t room = 0; room < 12; room++) {
        struct table_config config = small_config(300, SELECTOR_PRIORITIZED);
        struct storm storm = {0};
        random_seed(&storm.random, room);
        struct table *table = make(&config);
        uint64_t ids[300];
        CHECK(add(table, 300, 0, NULL, ids) == 0);
        struct memory_sink memory;
        begin(table, &memory, 40);
        memory.left = room;
        for (int i = 0; i < 60; i++) {
            storm_once(&storm, table);
            table_cut_step(table);
        }
        CHECK(table_cut_failed(table) && !table_cut_step(table));
        table_cut_end(table);
        CHECK(table->items.held == 0 && table->items.pinned == 0);
        CHECK(table_delete(table, 300, ids) <= 300);
        forget(&memory);
        table_free(table);
    }
}

/* ---- refusing ------------------------------------------------------------------------------------------------------ */

/* Restores with one record left out, given twice, or with a byte of it turned; no combination may be taken for whole. */
static void records_that_do_not_fit_are_refused(void) {
    struct table_config config = small_config(200, SELECTOR_PRIORITIZED);
    struct storm storm = {0};
    random_seed(&storm.random, 9);
    struct table *table = make(&config);
    for (int i = 0; i < 60; i++) storm_add(&storm, table);
    struct memory_sink memory;
    begin(table, &memory, 0);
    finish_cut(table);
    uint32_t records = 0;
    for (struct kept_record *record = memory.first; record; record = record->next) records++;
    for (uint32_t wrong = 0; wrong < 2 * records; wrong++) {
        struct table_restore *restore = table_restore_begin(memory.description, memory.description_length, &error);
        uint32_t at = 0;
        bool refused = false;
        for (struct kept_record *record = memory.first; record && !refused; record = record->next, at++) {
            int times = at != wrong % records ? 1 : wrong < records ? 0 : 2;
            for (int i = 0; i < times && !refused; i++)
                refused = table_restore_record(restore, record->kind, record->body, record->length, &error) != 0;
        }
        if (refused)
            table_restore_free(restore);
        else
            CHECK(!table_restore_finish(restore, &error));
        CHECK(error.message[0]);
    }
    struct table_restore *restore = table_restore_begin(memory.description, memory.description_length, &error);
    CHECK(table_restore_record(restore, 99, memory.first->body, memory.first->length, &error) == -1);
    CHECK(table_restore_record(restore, memory.first->kind, memory.first->body, 7, &error) == -1);
    table_restore_free(restore);
    for (size_t length = 0; length < memory.description_length; length++)
        CHECK(!table_restore_begin(memory.description, length, &error));
    forget(&memory);
    table_free(table);
}

int main(void) {
    RUN(what_is_restored_is_the_table_at_the_cut);
    RUN(every_limiter_goes_on_where_it_stood);
    RUN(draws_go_on_as_they_would_have);
    RUN(a_cut_in_the_middle_of_a_change_restores_what_the_new_settings_allow);
    RUN(ids_of_items_that_left_before_the_cut_stay_stale);
    RUN(ids_given_out_after_the_cut_name_no_item_of_the_restored_table);
    RUN(a_slot_that_was_retired_stays_retired);
    RUN(a_slot_in_its_last_life_is_known_as_such);
    RUN(removed_items_stay_in_their_slots_until_written_and_no_longer);
    RUN(a_pinned_item_is_copied_if_it_was_there_at_the_cut);
    RUN(a_sink_without_room_ends_the_cut_and_harms_nothing);
    RUN(records_that_do_not_fit_are_refused);
    return 0;
}

/* slot_cut: tables with windows through a cut: every item sees the same steps afterwards, and no other step is kept. */
#include "cut_stage.h"

enum { FRAME, REWARD, OBS, NEXT, REWARDS, COLUMNS };

#define STREAMS 3
#define WORDS 24 /* of a frame: long enough to be coded where the table is compressed */

static struct table_config window_config(uint64_t capacity) {
    struct table_config config = {.capacity = capacity, .columns = COLUMNS, .sampler = SELECTOR_UNIFORM, .seed = 7};
    config.min_size_to_sample = 1;
    config.remover = SELECTOR_FIFO;
    config.max_staleness = -1;
    strcpy(config.name, "t");
    config.column[FRAME] =
        (struct column){.name = "frame", .kind = COLUMN_STEP, .type = COLUMN_UINT64, .in_steps = true};
    config.column[FRAME].item_bytes = 8 * WORDS;
    config.column[FRAME].dimensions = 1;
    config.column[FRAME].shape[0] = WORDS;
    config.column[REWARD] = (struct column){.name = "reward", .type = COLUMN_UINT64, .item_bytes = 8, .in_steps = true};
    config.column[OBS] = (struct column){.name = "obs",
                                         .kind = COLUMN_WINDOW,
                                         .type = COLUMN_UINT64,
                                         .item_bytes = 32 * WORDS,
                                         .source = FRAME,
                                         .length = 4};
    config.column[NEXT] = config.column[OBS];
    config.column[NEXT].offset = 3;
    strcpy(config.column[NEXT].name, "next");
    config.column[REWARDS] = (struct column){.name = "rewards",
                                             .kind = COLUMN_WINDOW,
                                             .type = COLUMN_UINT64,
                                             .item_bytes = 16,
                                             .source = REWARD,
                                             .length = 2};
    return config;
}

struct storm {
    struct random_state random;
    struct stream *streams[STREAMS];
    uint64_t made[STREAMS]; /* the next step to make an item of */
    uint64_t next_value;
    uint64_t ids[1024];
    uint32_t id_count;
};

static void append_some(struct storm *storm, struct table *table) {
    uint32_t n = 1 + (uint32_t)random_below(&storm->random, 12);
    uint64_t frames[12][WORDS], rewards[12];
    uint8_t flags[12];
    struct stream *streams[12];
    struct reservation *reservation = table_reserve_steps(table, n, &error);
    CHECK(reservation);
    for (uint32_t i = 0; i < n; i++) {
        for (int k = 0; k < WORDS; k++) frames[i][k] = storm->next_value;
        rewards[i] = 1000000 + storm->next_value++;
        flags[i] = random_below(&storm->random, 9) == 0 ? STEP_LAST : 0;
        streams[i] = storm->streams[random_below(&storm->random, STREAMS)];
    }
    reservation_fill(reservation, FRAME, frames);
    reservation_fill(reservation, REWARD, rewards);
    CHECK(table_append(table, reservation, streams, flags, &error) == 0);
}

static void make_some(struct storm *storm, struct table *table) {
    uint32_t which = (uint32_t)random_below(&storm->random, STREAMS);
    uint64_t steps = stream_steps(storm->streams[which]);
    if (storm->made[which] + 10 < steps)
        storm->made[which] = steps - 10; /* so that what an item sees is in the history of 16 steps */
    for (int tries = 0; tries < 6 && storm->made[which] < stream_steps(storm->streams[which]); tries++) {
        struct reservation *reservation = table_reserve(table, 1, &error);
        uint64_t step = storm->made[which], reward = 77 + step, id;
        CHECK(reservation);
        reservation_fill(reservation, REWARD, &reward);
        if (table_resolve(table, reservation, &storm->streams[which], &step, NULL, &error) ||
            table_commit(table, reservation, NULL, &id, &error)) {
            reservation_release(reservation);
            return;
        }
        storm->ids[storm->id_count++ % 1024] = id;
        storm->made[which]++;
    }
}

static void storm_once(struct storm *storm, struct table *table) {
    uint32_t slots[8], known = storm->id_count < 1024 ? storm->id_count : 1024;
    switch (random_below(&storm->random, 6)) {
    case 0:
    case 1: append_some(storm, table); return;
    case 2:
    case 3: make_some(storm, table); return;
    case 4:
        if (known) table_delete(table, 1, &storm->ids[random_below(&storm->random, known)]);
        return;
    default:
        if (table_sample(table, 8, 0, true, slots, NULL, NULL, NULL, NULL, &error) == 0) table_unpin(table, slots, 8);
        return;
    }
}

static void open_streams(struct storm *storm, struct table *table) {
    for (int i = 0; i < STREAMS; i++) {
        storm->streams[i] = table_stream_new(table, 16, &error);
        CHECK(storm->streams[i]);
        storm->made[i] = 0;
    }
}

/* ---- what items see ------------------------------------------------------------------------------------------------ */

struct seen {
    uint64_t id, reward, obs[4 * WORDS], next[4 * WORDS], rewards[2];
};

struct sight {
    uint32_t count;
    struct seen *items; /* oldest first */
};

static struct sight sight_of(const struct table *table) {
    struct sight sight = {.items = calloc(table->items.live + 1, sizeof *sight.items)};
    for (uint32_t slot = table->order.oldest; slot != SLOT_NONE; slot = table->items.slot[slot].newer) {
        struct seen *item = &sight.items[sight.count++];
        item->id = table_id(table, slot);
        table_gather(table, REWARD, &slot, 1, &item->reward);
        table_gather(table, OBS, &slot, 1, item->obs);
        table_gather(table, NEXT, &slot, 1, item->next);
        table_gather(table, REWARDS, &slot, 1, item->rewards);
    }
    return sight;
}

/* How many steps the items of a table see, and that each has as many references as places that show it. */
static uint32_t count_steps(const struct table *table) {
    uint32_t *places = calloc(table->steps->fresh + 1, sizeof *places), steps = 0;
    for (uint32_t slot = table->order.oldest; slot != SLOT_NONE; slot = table->items.slot[slot].newer)
        for (uint32_t i = 0; i < table->windows.steps; i++) steps += places[slot_list(&table->items, slot)[i]]++ == 0;
    for (uint32_t step = 0; step < table->steps->fresh; step++)
        CHECK(places[step] == *slot_references(table->steps, step));
    free(places);
    return steps;
}

static void cut_in_storm(uint64_t seed, uint64_t held_bytes, enum step_codec codec) {
    struct storm storm = {0};
    random_seed(&storm.random, seed);
    struct table_config config = window_config(60 + 100 * (seed % 3));
    config.max_bytes = seed % 2 ? 0 : 20000;
    config.codec = codec;
    struct table *table = make(&config);
    for (int round = 0; round < 6; round++) {
        open_streams(&storm, table);
        for (uint64_t i = random_below(&storm.random, 400); i > 0; i--) storm_once(&storm, table);
        struct memory_sink memory;
        begin(table, &memory, held_bytes);
        struct sight before = sight_of(table);
        if (random_below(&storm.random, 3) == 0) table_reset(table);
        if (random_below(&storm.random, 3) == 0) {
            table_stream_free(table, storm.streams[0]);
            storm.streams[0] = table_stream_new(table, 16, &error);
            storm.made[0] = 0;
        }
        do {
            for (uint64_t i = random_below(&storm.random, 6); i > 0; i--) storm_once(&storm, table);
        } while (table_cut_step(table));
        CHECK(!table_cut_failed(table));
        table_cut_end(table);
        CHECK(table->steps->held == 0 && table->items.held == 0 && table->items.pinned == 0);
        struct table *restored = restore_from(&memory);
        struct sight after = sight_of(restored);
        CHECK(before.count == after.count);
        for (uint32_t i = 0; i < before.count; i++)
            CHECK(memcmp(&before.items[i], &after.items[i], sizeof before.items[i]) == 0);
        CHECK(count_steps(restored) == restored->steps->occupied);
        uint64_t bytes = 0;
        for (uint32_t step = 0; step < restored->steps->fresh; step++)
            bytes += *slot_references(restored->steps, step) ? slot_store_slot_bytes(restored->steps, step) : 0;
        CHECK(bytes == slot_store_bytes(restored->steps));
        CHECK(slot_store_free_slots(restored->steps) + restored->steps->occupied == restored->steps->slots);
        free(before.items);
        free(after.items);
        forget(&memory);
        table_free(table);
        table = restored;
    }
    table_free(table);
}

static void every_item_sees_the_same_steps_again(void) {
    static const uint64_t held[] = {0, 200 * 3, 1u << 20};
    for (int codec = CODEC_NONE; codec <= CODEC_ZSTD; codec++) {
        for (uint64_t seed = 1; seed <= 9 && codec_available((enum step_codec)codec); seed++)
            for (int h = 0; h < 3; h++) cut_in_storm(seed, held[h], (enum step_codec)codec);
    }
}

/* Symptom looked for: with max_bytes set, steps that a snapshot holds count as live and drive all items out. */
static void steps_held_for_a_snapshot_do_not_count_against_max_bytes(void) {
    struct table_config config = window_config(1000);
    config.max_bytes = 40000;
    struct storm storm = {0};
    random_seed(&storm.random, 3);
    struct table *table = make(&config);
    open_streams(&storm, table);
    for (int i = 0; i < 3000; i++) storm_once(&storm, table);
    uint64_t size = info_of(table).size;
    CHECK(size > 20 && info_of(table).bytes <= 40000);
    struct memory_sink memory;
    begin(table, &memory, 1u << 20);
    for (int i = 0; i < 400; i++) storm_once(&storm, table);
    CHECK(table->steps->held > 0 && info_of(table).size > size / 2 && info_of(table).bytes <= 40000);
    finish_cut(table);
    forget(&memory);
    table_free(table);
}

static void a_step_that_is_missing_is_refused(void) {
    struct table_config config = window_config(100);
    config.codec = codec_available(CODEC_LZ4) ? CODEC_LZ4 : CODEC_NONE;
    struct storm storm = {0};
    random_seed(&storm.random, 5);
    struct table *table = make(&config);
    open_streams(&storm, table);
    for (int i = 0; i < 200; i++) storm_once(&storm, table);
    struct memory_sink memory;
    begin(table, &memory, 0);
    finish_cut(table);
    uint32_t tried = 0;
    for (struct kept_record *wrong = memory.first; wrong; wrong = wrong->next) {
        if (wrong->kind != TABLE_RECORD_STEPS) continue;
        for (int times = 0; times <= 2; times += 2) {
            struct table_restore *restore = table_restore_begin(memory.description, memory.description_length, &error);
            bool refused = false;
            for (struct kept_record *record = memory.first; record && !refused; record = record->next)
                for (int i = record == wrong ? times : 1; i > 0 && !refused; i--)
                    refused = table_restore_record(restore, record->kind, record->body, record->length, &error) != 0;
            if (refused)
                table_restore_free(restore);
            else
                CHECK(!table_restore_finish(restore, &error));
            tried++;
        }
    }
    CHECK(tried >= 2);
    forget(&memory);
    table_free(table);
}

int main(void) {
    RUN(every_item_sees_the_same_steps_again);
    RUN(steps_held_for_a_snapshot_do_not_count_against_max_bytes);
    RUN(a_step_that_is_missing_is_refused);
    return 0;
}

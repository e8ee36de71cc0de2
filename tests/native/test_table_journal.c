/* test_table_journal: random use of tables with a journal, and tables made of their records, compared item by item. Now and
 * then the copy is made anew out of a cut, as a base of an append-only file is, and takes the records from there on. */
#include "base/clock.h"
#include "base/random.h"
#include "cut_stage.h"
#include "replay/codec.h"
#include "replay/table_apply.h"

#define FRAME_BYTES 600u
#define ROW_BYTES 24u
#define HISTORY 12u
#define CAPACITY 40u
#define STREAMS 3u
#define KNOWN 512u
#define MOST_RECORDS 512u
#define MANY 1000u

enum { FRAME, NUMBER, OBS, NEXT, BEFORE };

struct stage {
    struct table_journal_sink sink;
    struct table *table, *copy;
    uint8_t *record[MOST_RECORDS]; /* applied when another comes that is not held back */
    size_t length[MOST_RECORDS];
    uint32_t waiting;
    bool holds_back;
    uint64_t records;
    struct stream *streams[STREAMS];
    uint64_t ids[KNOWN]; /* some that were given out */
    uint32_t known;
    struct random_state random;
    uint64_t next;
};

static uint32_t below(struct stage *stage, uint32_t limit) {
    return (uint32_t)random_below(&stage->random, limit);
}

static void apply(struct stage *stage, const uint8_t *record, size_t length) {
    error.code = ERROR_NONE;
    if (table_apply_kind(record, length) == TABLE_JOURNAL_CREATE)
        stage->copy = table_apply_create(record, length, "t", &error);
    else if (table_apply(stage->copy, record, length, &error))
        printf("%s\n", error.message);
    CHECK(stage->copy && error.code == ERROR_NONE);
}

/* The first that waits; what it leaves to do is left. */
static void apply_first(struct stage *stage) {
    apply(stage, stage->record[0], stage->length[0]);
    free(stage->record[0]);
    stage->waiting--;
    memmove(stage->record, stage->record + 1, stage->waiting * sizeof *stage->record);
    memmove(stage->length, stage->length + 1, stage->waiting * sizeof *stage->length);
}

static void apply_waiting(struct stage *stage) {
    while (stage->waiting) {
        apply_first(stage);
        table_step(stage->copy, CLOCK_NEVER);
    }
}

static uint8_t *take_record(struct table_journal_sink *sink, size_t bytes) {
    struct stage *stage = (struct stage *)sink;
    if (!stage->holds_back) apply_waiting(stage);
    CHECK(stage->waiting < MOST_RECORDS);
    stage->records++;
    stage->length[stage->waiting] = bytes;
    return stage->record[stage->waiting++] = malloc(bytes);
}

/* ---- use ----------------------------------------------------------------------------------------------------------- */

static double priority_of(struct stage *stage) {
    return below(stage, 8) ? random_unit(&stage->random) : 0;
}

static void know(struct stage *stage, const uint64_t *ids, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) stage->ids[stage->known++ % KNOWN] = ids[i];
}

static void commit(struct stage *stage, struct reservation *reservation, uint32_t n) {
    double priorities[16];
    uint64_t ids[16];
    for (uint32_t i = 0; i < n; i++) priorities[i] = priority_of(stage);
    if (table_commit(stage->table, reservation, below(stage, 4) ? priorities : NULL, ids, &error) == 0)
        know(stage, ids, n);
    else
        reservation_release(reservation);
    error.code = ERROR_NONE;
}

static void append(struct stage *stage) {
    uint32_t n = 1 + below(stage, 4);
    struct reservation *reservation = table_reserve_steps(stage->table, n, &error);
    CHECK(reservation);
    uint8_t frames[4 * FRAME_BYTES];
    uint64_t numbers[4];
    struct stream *streams[4];
    uint8_t flags[4];
    for (uint32_t i = 0; i < n; i++) {
        numbers[i] = stage->next++;
        for (uint32_t j = 0; j < FRAME_BYTES; j++)
            frames[i * FRAME_BYTES + j] = numbers[i] % 3 ? (uint8_t)(numbers[i] + j / 64) : (uint8_t)below(stage, 256);
        streams[i] = stage->streams[below(stage, STREAMS)];
        flags[i] = below(stage, 6) ? 0 : STEP_LAST;
    }
    reservation_fill(reservation, FRAME, frames);
    reservation_fill(reservation, NUMBER, numbers);
    CHECK(table_append(stage->table, reservation, streams, flags, &error) == 0);
}

static void make_items(struct stage *stage) {
    uint32_t n = 1 + below(stage, 3);
    struct reservation *reservation = table_reserve(stage->table, n, &error);
    CHECK(reservation);
    uint64_t steps[3], numbers[3];
    struct stream *streams[3];
    for (uint32_t i = 0; i < n; i++) {
        streams[i] = stage->streams[below(stage, STREAMS)];
        uint64_t count = stream_steps(streams[i]);
        steps[i] = count ? count - 1 - below(stage, count < 8 ? (uint32_t)count : 8) : 0;
        numbers[i] = stage->next++;
    }
    reservation_fill(reservation, NUMBER, numbers);
    if (table_resolve(stage->table, reservation, streams, steps, NULL, &error) == 0)
        commit(stage, reservation, n);
    else
        reservation_release(reservation);
    error.code = ERROR_NONE;
}

static void add_ragged(struct stage *stage) {
    uint32_t n = 1 + below(stage, 8);
    static uint8_t rows[8 * 300 * ROW_BYTES];
    int64_t offsets[9] = {0};
    uint64_t numbers[8];
    for (uint32_t i = 0; i < n; i++) {
        offsets[i + 1] = offsets[i] + below(stage, 300);
        numbers[i] = stage->next++;
    }
    memset(rows, (int)(stage->next & 255), sizeof rows);
    struct reservation *reservation = table_reserve(stage->table, n, &error);
    CHECK(reservation);
    reservation_fill(reservation, 0, numbers);
    CHECK(reservation_fill_ragged(reservation, 1, offsets, rows, (size_t)offsets[n] * ROW_BYTES, CLOCK_NEVER, &error) ==
          0);
    commit(stage, reservation, n);
}

static void sample(struct stage *stage) {
    uint32_t slots[8], n = 1 + below(stage, 8);
    if (table_sample(stage->table, n, 0.4, true, slots, NULL, NULL, NULL, NULL, &error) == 0)
        table_unpin(stage->table, slots, n);
    error.code = ERROR_NONE;
}

static void change_known(struct stage *stage, bool removes) {
    uint64_t ids[8], applied, stale;
    double priorities[8];
    uint32_t n = 1 + below(stage, 8);
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = stage->known ? stage->ids[below(stage, stage->known < KNOWN ? stage->known : KNOWN)] : 12345;
        priorities[i] = priority_of(stage);
    }
    if (removes)
        table_delete(stage->table, n < 3 ? n : 2, ids);
    else
        CHECK(table_update(stage->table, n, ids, priorities, &applied, &stale, &error) == 0);
}

static void configure(struct stage *stage) {
    struct table_config config = *table_config(stage->table);
    uint8_t *spec;
    size_t length;
    config.max_times_sampled = below(stage, 3) ? 2 + below(stage, 3) : 0;
    config.sampler = below(stage, 2) ? SELECTOR_PRIORITIZED : SELECTOR_UNIFORM;
    config.priority_exponent = config.sampler == SELECTOR_PRIORITIZED ? 0.7 : 0;
    config.remover = below(stage, 2) ? SELECTOR_FIFO : SELECTOR_MIN_HEAP;
    CHECK(table_config_write_changeable(&config, &spec, &length, &error) == 0);
    CHECK(table_configure(stage->table, spec, length, &error) == 0);
    memory_free(spec);
}

static void close_stream(struct stage *stage) {
    struct stream **stream = &stage->streams[below(stage, STREAMS)];
    table_stream_free(stage->table, *stream);
    *stream = table_stream_new(stage->table, HISTORY, &error);
}

static void use(struct stage *stage) {
    bool windows = table_has_windows(stage->table);
    switch (below(stage, 40)) {
    case 0: table_reset(stage->table); break;
    case 1: configure(stage); break;
    case 2:
        CHECK(table_close(stage->table, "for now", 7, &error) == 0);
        table_open(stage->table);
        break;
    case 3:
        if (windows) close_stream(stage);
        break;
    case 4:
    case 5: change_known(stage, true); break;
    case 6:
    case 7:
    case 8:
    case 9:
    case 10: change_known(stage, false); break;
    case 11:
    case 12:
    case 13:
    case 14:
    case 15: sample(stage); break;
    default:
        if (!windows)
            add_ragged(stage);
        else if (below(stage, 2))
            append(stage);
        else
            make_items(stage);
    }
}

/* ---- comparing ----------------------------------------------------------------------------------------------------- */

static void compare_values(const struct table *left, const struct table *right, uint32_t slot) {
    static uint8_t a[300 * ROW_BYTES], b[sizeof a];
    for (uint32_t i = 0; i < left->config.columns; i++) {
        const struct column *column = &left->config.column[i];
        if (column_is_ragged(column)) {
            const struct ragged_value *value = slot_ragged(&left->items, i, slot);
            CHECK(value->length == slot_ragged(&right->items, i, slot)->length);
            ragged_store_read(left->items.ragged, i, value, a);
            ragged_store_read(right->items.ragged, i, slot_ragged(&right->items, i, slot), b);
            CHECK(memcmp(a, b, value->length * ROW_BYTES) == 0);
        } else if (column->kind != COLUMN_STEP) {
            table_gather(left, i, &slot, 1, a);
            table_gather(right, i, &slot, 1, b);
            CHECK(memcmp(a, b, column->item_bytes) == 0);
        }
    }
}

static void compare(struct stage *stage) {
    const struct table *table = stage->table, *copy = stage->copy;
    struct table_info a = info_of(table), b = info_of(copy);
    CHECK(a.size == b.size && a.added == b.added && a.sampled == b.sampled && a.removed == b.removed);
    CHECK(a.stale_updates == b.stale_updates && a.updates_applied == b.updates_applied);
    CHECK(a.max_priority == b.max_priority && a.total_priority == b.total_priority);
    CHECK(table->limiter.inserts == copy->limiter.inserts && table->limiter.samples == copy->limiter.samples);
    CHECK(memcmp(&table->random, &copy->random, sizeof table->random) == 0);
    uint32_t slot = table->order.oldest, other = copy->order.oldest;
    for (uint32_t i = 0; i < table->items.live; i++) {
        CHECK(slot == other && table_id(table, slot) == table_id(copy, other));
        CHECK(table->items.slot[slot].age == copy->items.slot[slot].age);
        CHECK(max_tree_value(&table->priorities, slot) == max_tree_value(&copy->priorities, slot));
        if (table->config.max_times_sampled)
            CHECK(table->items.slot[slot].times_sampled >= copy->items.slot[slot].times_sampled);
        compare_values(table, copy, slot);
        slot = table->items.slot[slot].newer;
        other = copy->items.slot[other].newer;
    }
    CHECK(slot == SLOT_NONE && other == SLOT_NONE);
}

/* The copy out of a cut of the table, and the records of what happened meanwhile. */
static void begin_anew(struct stage *stage) {
    struct memory_sink memory;
    apply_waiting(stage);
    begin(stage->table, &memory, 1 << 20);
    stage->holds_back = true;
    for (uint32_t i = 0; i < 20; i++) {
        table_cut_step(stage->table);
        use(stage);
    }
    finish_cut(stage->table);
    table_free(stage->copy);
    stage->copy = restore_from(&memory);
    forget(&memory);
    table_apply_begin(stage->copy);
    stage->holds_back = false;
}

/* ---- tables -------------------------------------------------------------------------------------------------------- */

static struct table_config windows_config(enum step_codec codec) {
    struct table_config config = small_config(CAPACITY, SELECTOR_PRIORITIZED);
    config.codec = codec;
    config.columns = 5;
    config.column[FRAME] = (struct column){.name = "frame",
                                           .kind = COLUMN_STEP,
                                           .type = COLUMN_UINT8,
                                           .item_bytes = FRAME_BYTES,
                                           .in_steps = true,
                                           .dimensions = 1,
                                           .shape = {FRAME_BYTES}};
    config.column[NUMBER] = (struct column){.name = "number", .type = COLUMN_UINT64, .item_bytes = 8, .in_steps = true};
    config.column[OBS] = (struct column){.name = "obs",
                                         .kind = COLUMN_WINDOW,
                                         .type = COLUMN_UINT8,
                                         .source = FRAME,
                                         .length = 4,
                                         .item_bytes = 4 * FRAME_BYTES};
    config.column[NEXT] = config.column[OBS];
    strcpy(config.column[NEXT].name, "next");
    config.column[NEXT].offset = 3;
    config.column[BEFORE] = (struct column){.name = "before",
                                            .kind = COLUMN_WINDOW,
                                            .type = COLUMN_UINT64,
                                            .source = NUMBER,
                                            .offset = -2,
                                            .item_bytes = 8};
    return config;
}

static struct table_config ragged_config(void) {
    struct table_config config = small_config(CAPACITY, SELECTOR_PRIORITIZED);
    config.max_times_sampled = 3;
    config.column[1] = (struct column){.name = "rows",
                                       .type = COLUMN_UINT8,
                                       .dimensions = 2,
                                       .shape = {0, ROW_BYTES},
                                       .item_bytes = sizeof(struct ragged_value),
                                       .row_bytes = ROW_BYTES,
                                       .max_length = 300};
    return config;
}

static void run(struct table_config config, uint64_t seed) {
    config.durable = config.log_priorities = true;
    struct stage stage = {.sink.record = take_record, .table = make(&config)};
    random_seed(&stage.random, seed);
    CHECK(table_journal_begin(stage.table, &stage.sink, &error) == 0 && table_journal_tell_created(stage.table));
    for (uint32_t i = 0; table_has_windows(stage.table) && i < STREAMS; i++)
        CHECK(stage.streams[i] = table_stream_new(stage.table, HISTORY, &error));
    for (uint32_t i = 0; i < 3000; i++) {
        use(&stage);
        error.code = ERROR_NONE;
        apply_waiting(&stage);
        if (i % 16 == 0) compare(&stage);
        if (i % 400 == 399) begin_anew(&stage);
        if (i % 700 == 699) { /* as after a restart of whoever writes */
            table_journal_end(stage.table);
            CHECK(table_journal_begin(stage.table, &stage.sink, &error) == 0);
        }
    }
    CHECK(stage.records > 1000);
    compare(&stage);
    CHECK(stage.copy->items.returned_count == 0); /* else it would grow with each record, beyond its memory */
    table_apply_end(stage.copy);
    struct table_info info = info_of(stage.copy);
    CHECK(info.size == stage.table->items.live);
    if (!table_has_windows(stage.copy)) {
        struct stage other = stage;
        other.table = stage.copy;
        add_ragged(&other);
        CHECK(other.known > stage.known);
    }
    table_free(stage.table);
    table_reset(stage.copy);
    CHECK(stage.copy->items.occupied == 0 && stage.copy->steps->occupied == 0); /* no reference is left over */
    table_free(stage.copy);
}

static void test_windows(void) {
    for (uint64_t seed = 1; seed <= 4; seed++) run(windows_config(CODEC_NONE), seed);
}

static void test_windows_in_blocks(void) {
    for (uint64_t seed = 1; seed <= 4 && codec_available(CODEC_LZ4); seed++) run(windows_config(CODEC_LZ4), seed);
}

static void test_ragged(void) {
    for (uint64_t seed = 1; seed <= 4; seed++) run(ragged_config(), seed);
}

/* ---- work that a record leaves -------------------------------------------------------------------------------------- */

static void begin_stage(struct stage *stage, struct table_config config) {
    config.durable = config.log_priorities = true;
    *stage = (struct stage){.sink.record = take_record, .table = make(&config), .holds_back = true};
    CHECK(table_journal_begin(stage->table, &stage->sink, &error) == 0 && table_journal_tell_created(stage->table));
    apply_waiting(stage);
}

static void end_stage(struct stage *stage) {
    compare(stage);
    table_free(stage->table);
    table_free(stage->copy);
}

static uint32_t slices_of(struct table *table) {
    uint32_t slices = 0;
    for (; table_has_work(table); slices++) table_step(table, 0);
    return slices;
}

static void refuses_the_next(struct stage *stage) {
    CHECK(table_apply(stage->copy, stage->record[0], stage->length[0], &error) == -1);
    CHECK(strstr(error.message, "an earlier one is not done"));
}

static void what_looks_at_every_item_is_done_in_slices(void) {
    struct stage stage;
    uint64_t ids[MANY];
    begin_stage(&stage, small_config(MANY, SELECTOR_PRIORITIZED));
    CHECK(add(stage.table, MANY, 0, NULL, ids) == 0);
    apply_waiting(&stage);

    struct table_config config = *table_config(stage.table);
    uint8_t *spec;
    size_t length;
    config.sampler = SELECTOR_UNIFORM;
    config.priority_exponent = 0;
    CHECK(table_config_write_changeable(&config, &spec, &length, &error) == 0);
    CHECK(table_configure(stage.table, spec, length, &error) == 0);
    memory_free(spec);
    table_reset(stage.table);

    apply_first(&stage);
    CHECK(stage.copy->sampler.kind == SELECTOR_UNIFORM && stage.copy->sampler.uniform.count == 0);
    refuses_the_next(&stage);
    CHECK(slices_of(stage.copy) >= MANY / 64 && stage.copy->sampler.uniform.count == MANY);

    CHECK(add(stage.table, 1, 7, NULL, ids) == 0);
    apply_first(&stage);
    CHECK(info_of(stage.copy).size == MANY && !table_is_ready(stage.copy, &error));
    refuses_the_next(&stage);
    CHECK(slices_of(stage.copy) >= MANY / 64 && info_of(stage.copy).size == 0);
    apply_waiting(&stage);
    end_stage(&stage);
}

/* Whoever takes part of a primary takes its work as well. */
static void what_is_left_is_done_when_records_end(void) {
    struct stage stage;
    uint64_t ids[MANY];
    begin_stage(&stage, small_config(MANY, SELECTOR_UNIFORM));
    CHECK(add(stage.table, MANY, 0, NULL, ids) == 0);
    apply_waiting(&stage);
    table_reset(stage.table);
    apply_first(&stage);
    table_apply_end(stage.copy);
    CHECK(!table_has_work(stage.copy) && info_of(stage.copy).size == 0);
    end_stage(&stage);
}

/* The version of a new item makes others too old: these leave by the record that comes next, and not before. */
static void items_that_are_too_old_leave_by_records_alone(void) {
    struct stage stage;
    struct table_config config = small_config(20, SELECTOR_UNIFORM);
    uint64_t id;
    strcpy(config.column[0].name, TABLE_VERSION_COLUMN);
    config.column[0].type = COLUMN_INT64;
    config.max_staleness = 3;
    begin_stage(&stage, config);
    CHECK(add(stage.table, 1, 1, NULL, &id) == 0 && add(stage.table, 1, 9, NULL, &id) == 0);
    CHECK(stage.waiting == 3 && info_of(stage.table).size == 1);
    apply_first(&stage);
    apply_first(&stage);
    CHECK(!table_has_work(stage.copy) && !table_step(stage.copy, CLOCK_NEVER) && info_of(stage.copy).size == 2);
    apply_waiting(&stage);
    end_stage(&stage);
}

/* Where the free slots are the last that are looked at, the first item would have to wait for all of them. */
static void an_item_enters_before_the_free_slots_among_many_are_found(void) {
    struct table_config config = small_config(MANY, SELECTOR_UNIFORM);
    struct table *table = make(&config);
    uint64_t ids[MANY];
    CHECK(add(table, MANY, 0, NULL, ids) == 0);
    for (uint32_t i = 0; i < MANY; i++) /* the oldest have the lowest slots */
        if (table_slot(table, ids[i]) < 8) CHECK(table_delete(table, 1, &ids[i]) == 1);
    table_apply_begin(table);
    table_apply_stop(table);
    uint32_t left = table->items.uncollected, free_slots = slot_store_free_slots(&table->items);
    CHECK(left == MANY && table->items.uncollected_free == 8);
    CHECK(add(table, 1, MANY, NULL, ids) == 0 && table->items.uncollected == left);
    table_step(table, CLOCK_NEVER);
    CHECK(table->items.uncollected == 0 && slot_store_free_slots(&table->items) == free_slots - 1);
    CHECK(add(table, 1, MANY, NULL, ids) == 0 && table_slot(table, ids[0]) < 8);
    table_free(table);
}

int main(void) {
    RUN(an_item_enters_before_the_free_slots_among_many_are_found);
    RUN(what_looks_at_every_item_is_done_in_slices);
    RUN(what_is_left_is_done_when_records_end);
    RUN(items_that_are_too_old_leave_by_records_alone);
    RUN(test_windows);
    RUN(test_windows_in_blocks);
    RUN(test_ragged);
    return 0;
}

/* Tests of tables that share the steps of another: random use of three against a model, against copies that are made of
 * their records, and against tables out of a cut; what is refused; and which memory goes when. What max_bytes does:
 * test_shared_bytes.c. */
#include <unistd.h>

#include "base/clock.h"
#include "base/random.h"
#include "cut_stage.h"
#include "persist/snapshot_reader.h"
#include "persist/table_file.h"
#include "replay/codec.h"
#include "replay/table_apply.h"
#include "shared_tables.h"

#define HISTORY 12u
#define STREAMS 3u
#define MOST_STEPS 8192u
#define KNOWN 4096u /* ids of one table, the newest */
#define MOST_RECORDS 1024u

/* What was appended to a stream, and where episodes begin. */
struct appended {
    uint64_t values[MOST_STEPS];
    uint32_t first[MOST_STEPS], count;
    bool open;
};

struct expected {
    uint64_t id, number, obs[LENGTH];
};

struct stage;

struct one {
    struct table_journal_sink sink; /* first */
    struct stage *stage;
    uint32_t place;
    struct table *table, *copy;
    struct expected expected[KNOWN];
    uint32_t known;
};

struct stage {
    struct one tables[TABLES];
    struct stream *streams[STREAMS];
    struct appended appended[STREAMS];
    struct {
        uint32_t place;
        size_t length;
        uint8_t *bytes;
    } records[MOST_RECORDS];
    uint32_t waiting;
    bool holds_back;
    struct random_state random;
    uint64_t next;
};

static uint32_t below(struct stage *stage, uint32_t limit) {
    return (uint32_t)random_below(&stage->random, limit);
}

/* ---- records ------------------------------------------------------------------------------------------------------- */

static void apply(struct stage *stage, uint32_t place, const uint8_t *record, size_t length) {
    struct one *one = &stage->tables[place];
    error.code = ERROR_NONE;
    if (table_apply_kind(record, length) == TABLE_JOURNAL_CREATE) {
        CHECK(one->copy = table_apply_create(record, length, names[place], &error));
        CHECK(place == 0 || table_share_steps(one->copy, stage->tables[0].copy, &error) == 0);
    } else if (table_apply(one->copy, record, length, &error)) {
        printf("%s\n", error.message);
    }
    CHECK(error.code == ERROR_NONE);
}

static void apply_waiting(struct stage *stage) {
    for (uint32_t i = 0; i < stage->waiting; i++) {
        apply(stage, stage->records[i].place, stage->records[i].bytes, stage->records[i].length);
        table_step(stage->tables[stage->records[i].place].copy, CLOCK_NEVER);
        free(stage->records[i].bytes);
    }
    stage->waiting = 0;
}

static uint8_t *take_record(struct table_journal_sink *sink, size_t bytes) {
    struct one *one = (struct one *)sink;
    struct stage *stage = one->stage;
    if (!stage->holds_back) apply_waiting(stage);
    CHECK(stage->waiting < MOST_RECORDS);
    stage->records[stage->waiting].place = one->place;
    stage->records[stage->waiting].length = bytes;
    return stage->records[stage->waiting++].bytes = malloc(bytes);
}

/* ---- use ----------------------------------------------------------------------------------------------------------- */

static void append(struct stage *stage) {
    struct table *owner = stage->tables[0].table;
    uint32_t n = 1 + below(stage, 4), which = below(stage, STREAMS);
    struct appended *appended = &stage->appended[which];
    if (appended->count + n > MOST_STEPS) return;
    struct reservation *reservation = table_reserve_steps(owner, n, &error);
    CHECK(reservation);
    uint8_t frames[4 * FRAME_BYTES], flags[4];
    struct stream *streams[4];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = appended->count++;
        fill_frame(frames + i * FRAME_BYTES, appended->values[at] = stage->next++);
        appended->first[at] = appended->open ? appended->first[at - 1] : at;
        streams[i] = stage->streams[which];
        flags[i] = below(stage, 6) ? 0 : STEP_LAST;
        appended->open = !flags[i];
    }
    reservation_fill(reservation, FRAME, frames);
    CHECK(table_append(owner, reservation, streams, flags, &error) == 0);
}

static void make_item(struct stage *stage, struct one *one) {
    uint32_t which = below(stage, STREAMS);
    struct appended *appended = &stage->appended[which];
    if (appended->count == 0) return;
    uint64_t step = appended->count - 1 - below(stage, appended->count < 8 ? appended->count : 8);
    struct expected expected = {.number = stage->next++};
    for (uint32_t i = 0; i < LENGTH; i++) {
        uint64_t at = step + i + 1 - LENGTH, first = appended->first[step];
        expected.obs[i] = appended->values[step + i + 1 >= LENGTH + first ? at : first];
    }
    struct reservation *reservation = table_reserve(one->table, 1, &error);
    CHECK(reservation);
    reservation_fill(reservation, NUMBER, &expected.number);
    double priority = below(stage, 8) ? random_unit(&stage->random) : 0;
    if (table_resolve(one->table, reservation, &stage->streams[which], &step, NULL, &error) ||
        table_commit(one->table, reservation, &priority, &expected.id, &error)) {
        reservation_release(reservation); /* steps further back than the history */
        error.code = ERROR_NONE;
        return;
    }
    one->expected[one->known++ % KNOWN] = expected;
}

static uint64_t some_id(struct stage *stage, const struct one *one) {
    return one->known ? one->expected[below(stage, one->known < KNOWN ? one->known : KNOWN)].id : 1234;
}

static void sample(struct stage *stage, struct table *table) {
    uint32_t slots[2], n = 1 + below(stage, 2);
    if (table_sample(table, n, 0.4, true, slots, NULL, NULL, NULL, NULL, &error) == 0) table_unpin(table, slots, n);
    error.code = ERROR_NONE;
}

static void close_stream(struct stage *stage) {
    uint32_t which = below(stage, STREAMS);
    table_stream_free(stage->tables[0].table, stage->streams[which]);
    CHECK(stage->streams[which] = table_stream_new(stage->tables[0].table, HISTORY, &error));
    stage->appended[which].count = 0;
    stage->appended[which].open = false;
}

static void use(struct stage *stage) {
    struct one *one = &stage->tables[below(stage, TABLES)];
    uint64_t id = some_id(stage, one), applied, stale;
    double priority = random_unit(&stage->random);
    switch (below(stage, 24)) {
    case 0: below(stage, 4) ? (void)0 : table_reset(one->table); break;
    case 1: close_stream(stage); break;
    case 2:
    case 3:
    case 4: table_delete(one->table, 1, &id); break;
    case 5:
    case 6: CHECK(table_update(one->table, 1, &id, &priority, &applied, &stale, &error) == 0); break;
    case 7:
    case 8:
    case 9: sample(stage, one->table); break;
    case 10:
    case 11:
    case 12:
    case 13:
    case 14:
    case 15: append(stage); break;
    default: make_item(stage, one);
    }
}

/* ---- checks -------------------------------------------------------------------------------------------------------- */

static void check_items(const struct one *one, const struct table *table) {
    static uint8_t seen[LENGTH * FRAME_BYTES], frame[FRAME_BYTES];
    uint32_t known = one->known < KNOWN ? one->known : KNOWN;
    for (uint32_t slot = table->order.oldest; slot != SLOT_NONE; slot = table->items.slot[slot].newer) {
        uint32_t i = 0;
        while (i < known && one->expected[i].id != table_id(table, slot)) i++;
        CHECK(i < known);
        uint64_t number;
        table_gather(table, NUMBER, &slot, 1, &number);
        table_gather(table, OBS, &slot, 1, seen);
        CHECK(number == one->expected[i].number);
        for (uint32_t k = 0; k < LENGTH; k++) {
            fill_frame(frame, one->expected[i].obs[k]);
            CHECK(memcmp(seen + k * FRAME_BYTES, frame, FRAME_BYTES) == 0);
        }
    }
}

/* Each reference of a step is a stream's, or of a place of an item of one of the tables. */
static void check_references(struct table *const tables[TABLES]) {
    const struct slot_store *steps = &tables[0]->own_steps;
    uint32_t *places = calloc(steps->fresh + 1, sizeof *places), occupied = 0;
    for (const struct stream *stream = tables[0]->streams; stream; stream = stream->next)
        for (uint64_t n = stream_oldest(stream); n < stream->steps; n++) places[stream_at(stream, n)->step]++;
    for (uint32_t t = 0; t < TABLES; t++) {
        const struct slot_store *items = &tables[t]->items;
        CHECK(tables[t]->steps == steps && (t == 0 || tables[t]->own_steps.slots == 0));
        for (uint32_t slot = 0; slot < items->fresh; slot++)
            for (uint32_t i = 0; slot_is_occupied(items, slot) && i < items->list_length; i++)
                places[slot_list(items, slot)[i]]++;
    }
    for (uint32_t slot = 0; slot < steps->fresh; slot++) {
        CHECK(places[slot] == *slot_references(steps, slot));
        occupied += places[slot] > 0;
    }
    CHECK(steps->occupied == occupied && info_of(tables[0]).steps == occupied && info_of(tables[1]).steps == 0);
    free(places);
}

static void tables_of(struct stage *stage, bool copies, struct table *tables[TABLES]) {
    for (uint32_t i = 0; i < TABLES; i++) tables[i] = copies ? stage->tables[i].copy : stage->tables[i].table;
}

static void check(struct stage *stage) {
    struct table *tables[TABLES];
    for (uint32_t i = 0; i < TABLES; i++) {
        const struct one *one = &stage->tables[i];
        struct table_info a = info_of(one->table), b = info_of(one->copy);
        CHECK(a.size == b.size && a.added == b.added && a.removed == b.removed && a.max_priority == b.max_priority);
        check_items(one, one->table);
        check_items(one, one->copy);
    }
    tables_of(stage, false, tables);
    check_references(tables);
    tables_of(stage, true, tables);
    check_references(tables);
}

/* The copies out of a cut of all tables at one moment, and the records of what happened meanwhile. */
static void begin_anew(struct stage *stage) {
    struct memory_sink memory[TABLES];
    struct table_restore *restores[TABLES];
    apply_waiting(stage);
    for (uint32_t i = 0; i < TABLES; i++) begin(stage->tables[i].table, &memory[i], 1 << 20);
    stage->holds_back = true;
    for (uint32_t i = 0; i < 30; i++) {
        table_cut_step(stage->tables[below(stage, TABLES)].table);
        use(stage);
    }
    for (uint32_t i = 0; i < TABLES; i++) finish_cut(stage->tables[i].table);
    for (uint32_t i = 0; i < TABLES; i++) table_free(stage->tables[i].copy);
    for (uint32_t i = 0; i < TABLES; i++) {
        CHECK(restores[i] = table_restore_begin(memory[i].description, memory[i].description_length, &error));
        CHECK(i == 0 || table_restore_share(restores[i], restores[0], &error) == 0);
    }
    for (uint32_t i = TABLES; i-- > 0; forget(&memory[i]))
        for (const struct kept_record *record = memory[i].first; record; record = record->next)
            CHECK(table_restore_record(restores[i], record->kind, record->body, record->length, &error) == 0);
    for (uint32_t i = TABLES; i-- > 0;) CHECK(stage->tables[i].copy = table_restore_finish(restores[i], &error));
    for (uint32_t i = 0; i < TABLES; i++) {
        table_apply_settle(stage->tables[i].copy);
        table_apply_begin(stage->tables[i].copy);
    }
    stage->holds_back = false;
}

/* One of the tables that share goes, and comes again; the others show what they showed. */
static void drop_one(struct stage *stage, enum step_codec codec) {
    struct one *one = &stage->tables[1 + below(stage, TABLES - 1)];
    apply_waiting(stage);
    table_share_leave(one->table);
    while (table_let_go_some(one->table, 1 + below(stage, 2 * LENGTH))) {
        append(stage);
        make_item(stage, &stage->tables[0]);
        table_let_go_some(one->copy, 1);
    }
    apply_waiting(stage);
    table_free(one->table);
    table_free(one->copy);
    struct table_config config = config_of(names[one->place], codec, 30);
    one->table = make(&config);
    one->known = 0;
    CHECK(table_share_steps(one->table, stage->tables[0].table, &error) == 0);
    CHECK(table_journal_begin(one->table, &one->sink, &error) == 0 && table_journal_tell_created(one->table));
}

static struct table *make_one(struct stage *stage, uint32_t place, enum step_codec codec) {
    struct one *one = &stage->tables[place];
    *one = (struct one){.sink.record = take_record, .stage = stage, .place = place};
    struct table_config config = config_of(names[place], codec, place == 0 ? 40 : 30);
    config.max_times_sampled = place == 1 ? 1 : 0;
    one->table = make(&config);
    CHECK(place == 0 || table_share_steps(one->table, stage->tables[0].table, &error) == 0);
    CHECK(table_journal_begin(one->table, &one->sink, &error) == 0 && table_journal_tell_created(one->table));
    return one->table;
}

static void run(enum step_codec codec, uint64_t seed) {
    struct stage *stage = calloc(1, sizeof *stage);
    random_seed(&stage->random, seed);
    for (uint32_t i = 0; i < TABLES; i++) make_one(stage, i, codec);
    for (uint32_t i = 0; i < STREAMS; i++)
        CHECK(stage->streams[i] = table_stream_new(stage->tables[0].table, HISTORY, &error));
    for (uint32_t i = 0; i < 3000; i++) {
        use(stage);
        error.code = ERROR_NONE;
        apply_waiting(stage);
        if (i % 16 == 0) check(stage);
        if (i % 400 == 399) begin_anew(stage);
        if (i % 900 == 899) drop_one(stage, codec);
    }
    apply_waiting(stage);
    check(stage);
    for (uint32_t i = 0; i < TABLES; i++) table_apply_end(stage->tables[i].copy);
    for (uint32_t i = 0; i < TABLES; i++) {
        table_reset(stage->tables[i].copy);
        CHECK(i < TABLES - 1 || stage->tables[0].copy->own_steps.occupied == 0); /* no reference is left over */
    }
    for (uint32_t i = 0; i < TABLES; i++) { /* the owner first */
        table_free(stage->tables[i].table);
        table_free(stage->tables[i].copy);
    }
    free(stage);
}

static void three_tables_over_the_same_steps(void) {
    for (uint64_t seed = 1; seed <= 6; seed++) run(CODEC_NONE, seed);
}

static void three_tables_over_the_same_blocks(void) {
    for (uint64_t seed = 1; seed <= 3 && codec_available(CODEC_LZ4); seed++) run(CODEC_LZ4, seed);
}

/* ---- one at a time ------------------------------------------------------------------------------------------------- */

static void a_step_counts_once_and_stays_as_long_as_one_item_shows_it(void) {
    struct table *tables[2];
    pair(tables, 0);
    struct stream *stream = table_stream_new(tables[0], 3, &error);
    append_frames(tables[0], stream, 3);
    uint64_t first = item_at(tables[0], stream, 2), second = item_at(tables[1], stream, 2);
    append_frames(tables[0], stream, 3); /* the others leave the history */
    CHECK(info_of(tables[0]).steps == 6 && info_of(tables[0]).bytes == 6 * FRAME_BYTES + 8);
    CHECK(info_of(tables[1]).steps == 0 && info_of(tables[1]).bytes == 8);
    CHECK(table_delete(tables[0], 1, &first) == 1 && info_of(tables[0]).steps == 6);
    CHECK(info_of(tables[1]).size == 1);
    CHECK(table_delete(tables[1], 1, &second) == 1 && info_of(tables[0]).steps == 3);
    table_free(tables[0]);
    table_free(tables[1]);
}

static void shows_the_first_frames(struct table *table, uint64_t id) {
    uint8_t seen[LENGTH * FRAME_BYTES], frame[FRAME_BYTES];
    uint32_t slot;
    CHECK(table_get(table, 1, &id, 0, &slot, NULL, &error) == 0);
    table_gather(table, OBS, &slot, 1, seen);
    for (uint32_t i = 0; i < LENGTH; i++) {
        fill_frame(frame, i);
        CHECK(memcmp(seen + i * FRAME_BYTES, frame, FRAME_BYTES) == 0);
    }
    table_unpin(table, &slot, 1);
}

static void the_steps_stay_when_their_owner_goes(void) {
    struct table *tables[2];
    pair(tables, 0);
    struct stream *stream = table_stream_new(tables[0], 3, &error);
    append_frames(tables[0], stream, 3);
    uint64_t id = item_at(tables[1], stream, 2);
    table_free(tables[0]);
    shows_the_first_frames(tables[1], id);
    table_free(tables[1]);
}

static void refuses(struct table_config config, struct table *owner, const char *why) {
    struct table *table = make(&config);
    CHECK(table_share_steps(table, owner, &error) == -1 && error.code == ERROR_BADSCHEMA);
    if (!strstr(error.message, why)) printf("%s\n", error.message);
    CHECK(strstr(error.message, why));
    error.code = ERROR_NONE;
    table_free(table);
}

static void what_does_not_fit_together_is_refused(void) {
    struct table *tables[2];
    pair(tables, 0);
    struct table_config config = config_of("late", CODEC_NONE, 100);
    refuses(config, tables[1], "which shares those of 'owner'");
    config.column[OBS].length = 2;
    config.column[OBS].item_bytes = 2 * FRAME_BYTES;
    refuses(config, tables[0], "expected the signature and the compression of table 'owner'");
    config = config_of("late", CODEC_NONE, 100);
    config.durable = false;
    refuses(config, tables[0], "expected durable as table 'owner' has it, true, got false");
    refuses(config_of("late", CODEC_NONE, 1000000), tables[0], "has room for the steps of");
    CHECK(tables[0]->sharers == 1);
    CHECK(!table_reserve_steps(tables[1], 1, &error) && strstr(error.message, "append them there"));
    CHECK(!table_stream_new(tables[1], 8, &error) && strstr(error.message, "append them there"));
    error.code = ERROR_NONE;
    table_free(tables[1]);
    table_free(tables[0]);
}

static void a_dropped_table_takes_its_room_until_it_is_freed_but_not_where_records_are_applied(void) {
    struct table *owner, *sharing[3], *late;
    struct table_config config = config_of(names[0], CODEC_NONE, 100);
    owner = make(&config);
    config = config_of("late", CODEC_NONE, 100);
    for (uint32_t i = 0; i < 3; i++) {
        sharing[i] = make(&config);
        CHECK(table_share_steps(sharing[i], owner, &error) == 0);
    }
    refuses(config, owner, "each table has its capacity and 36864 slots more");
    table_share_leave(sharing[1]);
    late = make(&config);
    CHECK(table_share_steps(late, owner, &error) == -1 && error.code == ERROR_LIMIT);
    CHECK(strstr(error.message, "a dropped table still holds steps of table 'owner'"));
    error.code = ERROR_NONE;
    table_apply_begin(owner);
    CHECK(table_share_steps(late, owner, &error) == 0);
    table_apply_end(owner);
    table_share_leave(late);
    table_free(sharing[1]);
    table_free(late);
    late = make(&config);
    CHECK(table_share_steps(late, owner, &error) == 0);
    table_free(late);
    table_free(sharing[0]);
    table_free(sharing[2]);
    CHECK(owner->sharers == 0 && owner->sharing_slots == 0 && owner->leaving_slots == 0);
    table_free(owner);
}

/* Its records name the slots of the dropped table's steps for other ones, and something still refers to its copy. */
static void a_cut_of_copies_shows_what_a_dropped_table_did(void) {
    struct stage *stage = calloc(1, sizeof *stage);
    struct table *owner = make_one(stage, 0, CODEC_NONE), *queue = make_one(stage, 1, CODEC_NONE);
    struct stream *stream = table_stream_new(owner, 3, &error);
    append_frames(owner, stream, 3);
    uint64_t id = item_at(queue, stream, 2);
    table_stream_free(owner, stream);
    apply_waiting(stage);
    struct table *copies[2] = {stage->tables[0].copy, stage->tables[1].copy};
    struct memory_sink memory[2];
    for (uint32_t i = 0; i < 2; i++) begin(copies[i], &memory[i], 1 << 20);
    table_free(queue);
    table_share_leave(copies[1]);
    stream = table_stream_new(owner, 3, &error);
    append_frames(owner, stream, 3);
    item_at(owner, stream, 2);
    apply_waiting(stage);
    CHECK(copies[0]->own_steps.fresh == 3);
    struct table_restore *restores[2];
    for (uint32_t i = 0; i < 2; i++) {
        finish_cut(copies[i]);
        restores[i] = table_restore_begin(memory[i].description, memory[i].description_length, &error);
    }
    CHECK(restores[0] && restores[1] && table_restore_share(restores[1], restores[0], &error) == 0);
    for (uint32_t i = 2; i-- > 0; forget(&memory[i]))
        for (const struct kept_record *record = memory[i].first; record; record = record->next)
            CHECK(table_restore_record(restores[i], record->kind, record->body, record->length, &error) == 0);
    queue = table_restore_finish(restores[1], &error);
    table_free(table_restore_finish(restores[0], &error));
    shows_the_first_frames(queue, id);
    table_free(queue);
    table_free(copies[1]);
    CHECK(info_of(copies[0]).size == 1 && info_of(copies[0]).steps == 3);
    table_free(copies[0]);
    table_free(owner);
    free(stage);
}

static void a_snapshot_has_both_tables_and_the_steps_once(void) {
    struct table *tables[2];
    pair(tables, 0);
    struct stream *stream = table_stream_new(tables[0], 8, &error);
    append_frames(tables[0], stream, 8);
    for (uint32_t i = 2; i < 8; i++) item_at(tables[i % 2], stream, i);
    struct snapshot_options options = {.folder = ".", .name = "shared"};
    struct snapshot *snapshot = snapshot_begin(&options, tables, 2, &error);
    enum snapshot_state state = SNAPSHOT_COPYING;
    CHECK(snapshot);
    while (state != SNAPSHOT_DONE && state != SNAPSHOT_FAILED)
        state = snapshot_step(snapshot, clock_monotonic_us() + 1000, &error);
    CHECK(state == SNAPSHOT_DONE);
    snapshot_free(snapshot);
    struct snapshot_content content;
    CHECK(snapshot_read_file("shared", &content, NULL, &error) == 0 && content.count == 2);
    CHECK(table_owner_of_steps(content.tables[1]) == content.tables[0]);
    CHECK(info_of(content.tables[0]).size == 3 && info_of(content.tables[1]).size == 3);
    CHECK(info_of(content.tables[0]).steps == 8);
    snapshot_content_free(&content);
    CHECK(!table_file_load("shared", "queue", &error) && strstr(error.message, "the steps of table 'owner'"));
    struct table *alone = table_file_load("shared", "owner", &error);
    CHECK(alone && info_of(alone).steps == 7); /* its items at 2, 4 and 6 show 0 to 6 */
    table_free(alone);
    unlink("shared");
    table_free(tables[0]);
    table_free(tables[1]);
}

int main(void) {
    RUN(three_tables_over_the_same_steps);
    RUN(three_tables_over_the_same_blocks);
    RUN(a_step_counts_once_and_stays_as_long_as_one_item_shows_it);
    RUN(the_steps_stay_when_their_owner_goes);
    RUN(what_does_not_fit_together_is_refused);
    RUN(a_dropped_table_takes_its_room_until_it_is_freed_but_not_where_records_are_applied);
    RUN(a_cut_of_copies_shows_what_a_dropped_table_did);
    RUN(a_snapshot_has_both_tables_and_the_steps_once);
    return 0;
}

/* test_store_streams: ids in order, streams and their groups against plain models. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "check.h"
#include "store/t_stream.h"

#define MODEL 4000

static struct random_state chance;

static uint64_t below(uint64_t bound) {
    return random_below(&chance, bound);
}

/* ---- the index --------------------------------------------------------------------------------------------------- */

static struct xstream_id id_of(uint32_t i) {
    return (struct xstream_id){i / 7, i % 7};
}

static void check_index(const struct id_index *index, const bool *there) {
    uint64_t count = 0;
    struct id_position position = id_index_first(index), back = id_index_last(index);
    for (uint32_t i = 0; i < MODEL; i++) {
        CHECK((id_index_find(index, id_of(i)) != NULL) == there[i]);
        if (!there[i]) continue;
        count++;
        CHECK(xstream_id_compare(id_index_slot(position)->id, id_of(i)) == 0);
        position = id_index_next(position);
    }
    CHECK(!position.leaf && index->count == count);
    for (uint32_t i = MODEL; i-- > 0;) {
        if (!there[i]) continue;
        CHECK(xstream_id_compare(id_index_slot(back)->id, id_of(i)) == 0);
        back = id_index_previous(back);
    }
    CHECK(!back.leaf);
    for (int tries = 0; tries < 50; tries++) {
        uint32_t i = (uint32_t)below(MODEL), up = i, down = i + 1;
        while (up < MODEL && !there[up]) up++;
        while (down > 0 && !there[down - 1]) down--;
        struct id_position from = id_index_from(index, id_of(i)), until = id_index_until(index, id_of(i));
        CHECK(up == MODEL ? !from.leaf : xstream_id_compare(id_index_slot(from)->id, id_of(up)) == 0);
        CHECK(down == 0 ? !until.leaf : xstream_id_compare(id_index_slot(until)->id, id_of(down - 1)) == 0);
    }
}

static void an_index_keeps_ids_in_order_however_they_come_and_go(void) {
    static bool there[MODEL];
    static char value;
    struct id_index index = {0};
    memset(there, 0, sizeof there);
    for (int round = 0; round < 60; round++) {
        bool adds = round % 2 == 0, in_order = round % 4 < 2;
        for (int i = 0; i < 1500; i++) {
            uint32_t at = in_order ? (uint32_t)(round * 37 + i) % MODEL : (uint32_t)below(MODEL);
            if (adds == there[at]) continue;
            if (adds)
                CHECK(id_index_insert(&index, id_of(at), &value));
            else
                CHECK(id_index_remove(&index, id_of(at)) == &value);
            there[at] = adds;
        }
        CHECK(!id_index_remove(&index, XSTREAM_ID_LAST));
        check_index(&index, there);
    }
    size_t steps = 3;
    while (!id_index_release(&index, &steps, NULL)) steps = 3;
    CHECK(index.bytes == 0 && !index.first && !index.root);
}

static void an_index_that_is_emptied_holds_no_memory(void) {
    static char value;
    struct id_index index = {0};
    for (uint32_t i = 0; i < 3000; i++) CHECK(id_index_insert(&index, id_of(i), &value));
    CHECK(index.bytes < 3000 * 28); /* leaves are full: a slot is 24 bytes */
    for (uint32_t i = 0; i < 3000; i++) CHECK(id_index_remove(&index, id_of(i)));
    CHECK(index.bytes == 0 && index.count == 0);
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

struct model_entry {
    struct xstream_id id;
    uint32_t seed, pairs;
    bool live;
};

struct model {
    struct model_entry entries[MODEL];
    uint32_t count;
};

static void text_of(uint32_t seed, uint32_t part, char text[64]) {
    bool is_field = part % 2 == 0;
    if (is_field)
        snprintf(text, 64, "field%u", seed % 5 == 0 ? seed % 11 : part);
    else if (seed % 3 == 0)
        snprintf(text, 64, "%" PRId64, (int64_t)seed * 7919 - 4000000);
    else
        snprintf(text, 64, "value %u of %u", part, seed);
}

static void append_next(struct xstream *stream, struct model *model, const struct xstream_bounds *bounds) {
    struct model_entry *entry = &model->entries[model->count++];
    char texts[16][64];
    struct xstream_string strings[16];
    *entry = (struct model_entry){stream->last_id, (uint32_t)below(100000), 1 + (uint32_t)below(4), true};
    if (below(3) == 0)
        entry->id = (struct xstream_id){entry->id.ms + 1 + below(100000), below(5)};
    else
        xstream_id_increment(&entry->id);
    for (uint32_t i = 0; i < 2 * entry->pairs; i++) {
        text_of(entry->seed, i, texts[i]);
        strings[i] = (struct xstream_string){(const uint8_t *)texts[i], strlen(texts[i])};
    }
    CHECK(xstream_append(stream, entry->id, strings, entry->pairs, bounds));
}

static void check_entry(struct xstream_entry *entry, const struct model_entry *expected) {
    CHECK(xstream_id_compare(entry->id, expected->id) == 0 && entry->fields == expected->pairs);
    for (uint32_t i = 0; i < expected->pairs; i++) {
        struct listpack_element parts[2];
        xstream_entry_pair(entry, &parts[0], &parts[1]);
        for (uint32_t j = 0; j < 2; j++) {
            char text[64];
            text_of(expected->seed, 2 * i + j, text);
            CHECK(listpack_equals(&parts[j], (const uint8_t *)text, strlen(text)));
        }
    }
}

static void check_range(const struct xstream *stream, const struct model *model, uint32_t first, uint32_t last,
                        bool backwards) {
    struct xstream_walk walk;
    struct xstream_entry entry;
    if (first > last) return;
    xstream_walk_begin(stream, model->entries[first].id, model->entries[last].id, backwards, &walk);
    for (uint32_t i = 0; i <= last - first; i++) {
        const struct model_entry *expected = &model->entries[backwards ? last - i : first + i];
        if (!expected->live) continue;
        CHECK(xstream_walk_next(&walk, &entry));
        check_entry(&entry, expected);
    }
    CHECK(!xstream_walk_next(&walk, &entry));
}

static void check_stream(const struct xstream *stream, const struct model *model) {
    uint64_t live = 0;
    struct xstream_id first = XSTREAM_ID_FIRST;
    for (uint32_t i = 0; i < model->count; i++) {
        if (model->entries[i].live && live++ == 0) first = model->entries[i].id;
        if (below(40) == 0) CHECK(xstream_has(stream, model->entries[i].id) == model->entries[i].live);
    }
    CHECK(stream->length == live && xstream_id_compare(stream->first_id, first) == 0);
    CHECK(xstream_id_compare(xstream_edge(stream, false), first) == 0);
    if (model->count > 0) {
        check_range(stream, model, 0, model->count - 1, false);
        check_range(stream, model, 0, model->count - 1, true);
        check_range(stream, model, (uint32_t)below(model->count), (uint32_t)below(model->count), below(2));
    }
    for (struct id_position at = id_index_first(&stream->blocks); at.leaf; at = id_index_next(at)) {
        const uint8_t *listpack = id_index_slot(at)->value;
        const char *wrong = xstream_block_check(id_index_slot(at)->id, listpack, listpack_bytes(listpack));
        CHECK(!wrong);
    }
}

static void delete_some(struct xstream *stream, struct model *model) {
    for (uint64_t left = below(60); left > 0 && model->count > 0; left--) {
        struct model_entry *entry = &model->entries[below(model->count)];
        CHECK(xstream_delete(stream, entry->id) == entry->live);
        entry->live = false;
    }
}

/* What stays must be the newest, and no more than asked for; an exact trim leaves just that. */
static void trim_some(struct xstream *stream, struct model *model) {
    struct xstream_trim trim = {.approximate = below(2), .by_id = below(2), .limit = below(2) ? 0 : below(400)};
    if (!trim.approximate) trim.limit = 0;
    trim.most = below(stream->length + 10);
    if (model->count > 0) trim.least = model->entries[below(model->count)].id;
    uint64_t before = stream->length, expected = 0, gone = 0;
    for (uint32_t i = 0; i < model->count; i++)
        expected += model->entries[i].live && xstream_id_compare(model->entries[i].id, trim.least) < 0;
    if (!trim.by_id) expected = before > trim.most ? before - trim.most : 0;
    uint64_t removed = xstream_trim(stream, &trim);
    CHECK(stream->length == before - removed);
    CHECK(trim.approximate ? removed <= expected : removed == expected);
    CHECK(trim.limit == 0 || removed <= trim.limit);
    for (uint32_t i = 0; i < model->count && gone < removed; i++) {
        gone += model->entries[i].live;
        model->entries[i].live = false;
    }
}

static void a_stream_holds_what_a_list_would(void) {
    static struct model model;
    static const struct xstream_bounds all_bounds[] = {{4096, 100}, {0, 7}, {300, 0}, {1 << 20, 0}, {4096, 1000}};
    for (size_t b = 0; b < sizeof all_bounds / sizeof *all_bounds; b++) {
        struct xstream *stream = xstream_new();
        model.count = 0;
        while (model.count < MODEL - 200) {
            for (uint64_t left = below(200); left > 0; left--) append_next(stream, &model, &all_bounds[b]);
            if (below(3) == 0) trim_some(stream, &model);
            if (below(2) == 0) delete_some(stream, &model);
            check_stream(stream, &model);
            struct xstream *copy = xstream_copy(stream);
            value_free(&stream->head);
            stream = copy;
        }
        check_stream(stream, &model);
        CHECK(stream->entries_added == model.count);
        for (uint32_t i = 0; i < model.count; i++)
            if (model.entries[i].live) CHECK(xstream_delete(stream, model.entries[i].id));
        CHECK(stream->length == 0 && stream->blocks.count == 0 && stream->block_bytes == 0);
        size_t steps = 2;
        while (!value_release(&stream->head, &steps)) steps = 2;
    }
}

static void many_small_entries_take_few_bytes(void) {
    struct xstream *stream = xstream_new();
    const struct xstream_bounds bounds = {4096, 100};
    char number[16];
    for (uint32_t i = 0; i < 100000; i++) {
        snprintf(number, sizeof number, "%u", i);
        struct xstream_string strings[] = {{(const uint8_t *)"n", 1}, {(const uint8_t *)number, strlen(number)}};
        CHECK(xstream_append(stream, (struct xstream_id){1700000000000 + i, 0}, strings, 1, &bounds));
    }
    CHECK(xstream_memory_bytes(stream) < 100000 * 14);
    value_free(&stream->head);
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

#define CONSUMERS 5

static void a_group_knows_who_has_what(void) {
    struct xstream *stream = xstream_new();
    static int owner[MODEL]; /* 0: nobody */
    const uint8_t *name = (const uint8_t *)"abcde";
    struct xstream_group *group = xstream_group_add(&stream->groups, name, 2, XSTREAM_ID_FIRST, 0);
    CHECK(xstream_group_find(&stream->groups, name, 2) == group && !xstream_group_find(&stream->groups, name, 1));
    for (int c = CONSUMERS - 1; c >= 0; c--) CHECK(xstream_consumer_add(group, name + c, 1, 0));
    for (int c = 0; c < CONSUMERS; c++) CHECK(xstream_consumer_at(group, (uint32_t)c)->name.bytes[0] == name[c]);
    memset(owner, 0, sizeof owner);
    for (int round = 0; round < 20000; round++) {
        uint32_t i = (uint32_t)below(MODEL);
        int to = (int)below(CONSUMERS + 1);
        if (to > 0)
            CHECK(xstream_pending_give(group, xstream_consumer_find(group, name + to - 1, 1), id_of(i)));
        else
            CHECK(xstream_pending_remove(group, id_of(i)) == (owner[i] > 0));
        owner[i] = to;
    }
    xstream_consumer_remove(group, xstream_consumer_find(group, name + 2, 1));
    struct xstream *copy = xstream_copy(stream);
    value_free(&stream->head);
    group = xstream_group_find(&copy->groups, name, 2);
    CHECK(group->consumers.count == CONSUMERS - 1);
    uint64_t counts[CONSUMERS] = {0}, all = 0;
    for (uint32_t i = 0; i < MODEL; i++) {
        const struct xstream_pending *pending = xstream_pending_find(group, id_of(i));
        CHECK((pending != NULL) == (owner[i] > 0 && owner[i] != 3));
        if (!pending) continue;
        CHECK(pending->consumer->name.bytes[0] == name[owner[i] - 1]);
        counts[owner[i] - 1]++;
        all++;
    }
    CHECK(group->pending.count == all);
    for (int c = 0; c < CONSUMERS; c++) {
        const struct xstream_consumer *consumer = xstream_consumer_find(group, name + c, 1);
        CHECK(c == 2 ? !consumer : consumer->pending.count == counts[c]);
    }
    size_t steps = 5;
    while (!value_release(&copy->head, &steps)) steps = 5;
}

int main(void) {
    random_seed(&chance, 26);
    RUN(an_index_keeps_ids_in_order_however_they_come_and_go);
    RUN(an_index_that_is_emptied_holds_no_memory);
    RUN(a_stream_holds_what_a_list_would);
    RUN(many_small_entries_take_few_bytes);
    RUN(a_group_knows_who_has_what);
    CHECK(memory_used_bytes() == 0);
    return 0;
}

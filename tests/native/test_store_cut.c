/* store_cut: a store that changes while it is cut is handed out as it was at the cut, whatever changes and when. */
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"
#include "check.h"
#include "persist/snapshot_format.h"
#include "persist/store_cut.h"
#include "persist/store_restore.h"
#include "store/t_hash.h"
#include "store/t_list.h"
#include "store/t_set.h"
#include "store/t_string.h"
#include "store/t_zset.h"

#define KEYS 400
#define LARGE_PARTS 2000

static struct error error;
static struct random_state chance;
static struct store *store;
static struct store_cut *cut;

/* ---- what was handed out ------------------------------------------------------------------------------------------- */

struct stage {
    struct store_cut_sink sink;
    struct store_restore *restore;
    uint32_t kind, database;
    uint8_t *body;
    size_t length;
    uint64_t records, fail_at;
};

/* A body is filled after the call: it is read when the next one is asked for. */
static void settle(struct stage *stage) {
    if (!stage->body) return;
    int result =
        stage->kind == SNAPSHOT_RECORD_KEYS
            ? store_restore_keys(stage->restore, stage->database, stage->body, stage->length, &error)
            : store_restore_beside(stage->restore, SNAPSHOT_RECORD_WEIGHTS, stage->body, stage->length, &error);
    if (result) fprintf(stderr, "%s\n", error.message);
    CHECK(result == 0);
    free(stage->body);
    stage->body = NULL;
}

static uint8_t *record(struct store_cut_sink *sink, uint32_t kind, uint32_t database, size_t bytes) {
    struct stage *stage = (struct stage *)(void *)sink;
    settle(stage);
    if (++stage->records == stage->fail_at) return NULL;
    stage->kind = kind;
    stage->database = database;
    stage->length = bytes;
    stage->body = malloc(bytes);
    return stage->body;
}

/* ---- a store as text ----------------------------------------------------------------------------------------------- */

static int compare_lines(const void *left, const void *right) {
    return strcmp(*(char *const *)left, *(char *const *)right);
}

static void add_sorted(struct text *out, char **lines, size_t count) {
    qsort(lines, count, sizeof *lines, compare_lines);
    for (size_t i = 0; i < count; i++) {
        text_append(out, " %s", lines[i]);
        free(lines[i]);
    }
}

static char *line_of(const uint8_t *data, size_t length, const char *rest) {
    char *line = malloc(length + strlen(rest) + 2);
    memcpy(line, data, length);
    sprintf(line + length, "=%s", rest);
    return line;
}

static void describe_value(struct text *out, const struct value *value) {
    static char *lines[3 * LARGE_PARTS];
    size_t count = 0;
    if (value->type == VALUE_STRING) {
        struct string_view view;
        string_view(value, &view);
        text_append_bytes(out, view.data, view.length);
    } else if (value->type == VALUE_LIST) {
        struct list_position at = list_at((const struct list *)value, 0);
        do {
            struct string_view view;
            string_view(*list_element(at), &view);
            text_append(out, " %.*s", (int)view.length, (const char *)view.data);
        } while (list_step(&at, false));
    } else if (value->type == VALUE_HASH) {
        struct hash_position at = {0};
        const uint8_t *field;
        size_t length;
        struct string_view view;
        while (hash_next((const struct hash *)value, &at, &field, &length, &view)) {
            char rest[64];
            snprintf(rest, sizeof rest, "%.*s", (int)view.length, (const char *)view.data);
            lines[count++] = line_of(field, length, rest);
        }
    } else if (value->type == VALUE_SET) {
        struct set_position at = {0};
        struct set_member member;
        while (set_next(value, &at, &member)) {
            set_member_text(&member);
            lines[count++] = line_of(member.data, member.length, "");
        }
    } else {
        struct zset_position at = {0};
        struct zset_item item;
        while (zset_next((const struct zset *)value, &at, &item)) {
            char rest[64];
            snprintf(rest, sizeof rest, "%.17g", item.score);
            lines[count++] = line_of(item.member, item.length, rest);
        }
    }
    add_sorted(out, lines, count);
}

static char *describe(struct store *of) {
    static char *lines[STORE_DATABASES * KEYS];
    size_t count = 0;
    for (unsigned d = 0; d < STORE_DATABASES; d++) {
        struct dict_position at = {0};
        for (const struct dict_entry *entry; (entry = dict_next(&of->databases[d].keys, &at));) {
            struct text line = {0};
            int64_t at_ms = -1;
            store_expiry(of, d, entry, &at_ms);
            text_append(&line, "%u %.*s %lld:", d, (int)entry->key_length, (const char *)entry->key, (long long)at_ms);
            describe_value(&line, entry->value);
            CHECK(count < sizeof lines / sizeof *lines);
            lines[count++] = line.data;
        }
    }
    qsort(lines, count, sizeof *lines, compare_lines);
    struct text all = {0};
    text_append(&all, "%zu keys\n", count);
    for (size_t i = 0; i < count; i++) {
        text_append(&all, "%s\n", lines[i]);
        memory_free(lines[i]);
    }
    CHECK(!all.failed);
    return all.data;
}

/* ---- changes by chance --------------------------------------------------------------------------------------------- */

static struct value *some_value(void) {
    uint8_t bytes[64];
    uint32_t parts = random_below(&chance, 8) == 0 ? LARGE_PARTS : (uint32_t)random_below(&chance, 6) + 1;
    struct value *value = NULL;
    switch (random_below(&chance, 6)) {
    case 0: return string_new_integer((int64_t)random_below(&chance, 1000));
    case 1: {
        size_t length = random_below(&chance, 4) == 0 ? 700000 : 40;
        uint8_t *large = malloc(length);
        memset(large, 'a' + (int)random_below(&chance, 26), length);
        value = string_new(large, length, NULL);
        free(large);
        return value;
    }
    case 2: value = (struct value *)list_new(); break;
    case 3: value = (struct value *)hash_new(); break;
    case 4: value = set_new(); break;
    default: value = (struct value *)zset_new(); break;
    }
    for (uint32_t i = 0; i < parts; i++) {
        int length = snprintf((char *)bytes, sizeof bytes, "%s%u", parts > 100 ? "member:" : "", i);
        struct set_member member;
        struct zset_place place;
        if (value->type == VALUE_LIST) {
            CHECK(list_push((struct list *)value, false, string_new(bytes, (size_t)length, NULL)));
        } else if (value->type == VALUE_HASH) {
            CHECK(hash_set((struct hash *)value, bytes, (size_t)length, bytes, (size_t)length, NULL) == HASH_SET_ADDED);
        } else if (value->type == VALUE_SET) {
            set_member_of(&member, bytes, (size_t)length);
            CHECK(set_add(&value, &member) == SET_ADD_ADDED);
        } else {
            zset_find((struct zset *)value, bytes, (size_t)length, &place);
            CHECK(zset_put((struct zset *)value, &place, bytes, (size_t)length, (double)(i % 7)));
        }
    }
    return value;
}

static size_t some_key(uint8_t key[16]) {
    return (size_t)snprintf((char *)key, 16, "key:%u", (unsigned)random_below(&chance, KEYS));
}

/* In place, as commands do it. */
static void change_in_place(unsigned d, struct dict_entry *entry) {
    struct value *value = entry->value;
    struct zset_place place;
    struct set_member member;
    store_will_change(store, d, entry);
    switch ((enum value_type)value->type) {
    case VALUE_STRING: {
        size_t length = string_length(value);
        uint8_t *bytes = string_writable(&value, length + 1);
        CHECK(bytes);
        bytes[length] = '+';
        bytes[0] = '-';
        entry->value = value;
        break;
    }
    case VALUE_LIST: CHECK(list_push((struct list *)value, true, string_new_integer(-1))); break;
    case VALUE_HASH:
        CHECK(hash_set((struct hash *)value, (const uint8_t *)"5", 1, (const uint8_t *)"x", 1, NULL) >= 0);
        break;
    case VALUE_SET: {
        uint32_t expiry = value->expiry;
        set_member_of(&member, (const uint8_t *)"another", 7);
        CHECK(set_add(&value, &member) >= 0);
        entry->value = value;
        CHECK(value->expiry == expiry);
        break;
    }
    default:
        zset_find((struct zset *)value, (const uint8_t *)"another", 7, &place);
        CHECK(zset_put((struct zset *)value, &place, (const uint8_t *)"another", 7, 3.5));
    }
    store_changed(store, d, entry->key, entry->key_length);
}

static void change(bool may_flush) {
    uint8_t key[16], other[16];
    size_t length = some_key(key), other_length = some_key(other);
    unsigned d = (unsigned)random_below(&chance, 3);
    struct dict_entry *entry = store_find(store, d, key, length);
    switch (random_below(&chance, may_flush ? 400 : 397)) {
    case 398: store_exchange(store, d, (unsigned)random_below(&chance, 3)); return;
    case 397:
        if (entry && !store_find(store, (d + 1) % 3, key, length)) CHECK(store_move(store, d, entry, (d + 1) % 3));
        return;
    case 399: store_flush(store, d); return;
    case 0 ... 149: CHECK(store_put(store, d, key, length, some_value(), random_below(&chance, 2))); return;
    case 150 ... 219:
        if (entry) store_remove(store, d, entry);
        return;
    case 220 ... 259:
        if (entry && (length != other_length || memcmp(key, other, length) != 0))
            CHECK(store_rename(store, d, entry, other, other_length));
        return;
    case 260 ... 299:
        if (entry) CHECK(store_expire_at(store, d, entry, INT64_MAX / 2 + (int64_t)random_below(&chance, 100)));
        return;
    case 300 ... 319:
        if (entry) store_persist(store, d, entry);
        return;
    default:
        if (entry) change_in_place(d, entry);
    }
}

/* ---- tests --------------------------------------------------------------------------------------------------------- */

static void will_change(void *context, unsigned d, struct dict_entry *entry) {
    store_cut_will_change(context, d, entry);
}

static void changed(void *context, unsigned d, const uint8_t *key, size_t length) {
    store_cut_changed(context, d, key, length);
}

static void will_exchange(void *context, unsigned first, unsigned second) {
    store_cut_will_exchange(context, first, second);
}

static void will_flush(void *context, unsigned d) {
    store_cut_will_flush(context, d);
}

static void set_up(uint64_t seed) {
    random_seed(&chance, seed);
    store = store_new();
    cut = store_cut_new(store);
    store->events = (struct store_events){.context = cut,
                                          .will_change = will_change,
                                          .changed = changed,
                                          .will_flush = will_flush,
                                          .will_exchange = will_exchange};
    for (int i = 0; i < 600; i++) change(false);
}

static void tear_down(void) {
    store_cut_free(cut);
    store_free(store);
}

static void marks_are_gone(void) {
    for (unsigned d = 0; d < STORE_DATABASES; d++) {
        struct dict_position at = {0};
        for (const struct dict_entry *entry; (entry = dict_next(&store->databases[d].keys, &at));)
            CHECK(!((const struct value *)entry->value)->cut_mark);
    }
}

/* Cuts, and changes between one step and the next; what comes out must be what was. */
static void cut_once(uint32_t changes_a_step, bool may_flush) {
    struct stage stage = {.sink.record = record, .restore = store_restore_begin(NULL)};
    char *before = describe(store);
    struct blob *blob = blob_new(600000);
    memset(blob->data, 'w', blob->length);
    CHECK(store_cut_may_begin(cut));
    store_cut_begin(cut, &stage.sink);
    CHECK(store_cut_add_weights(cut, "policy", 6, 7, blob));
    blob_release(blob);
    while (store_cut_step(cut)) {
        for (uint32_t i = 0; i < changes_a_step; i++) change(may_flush);
        if (random_below(&chance, 4) == 0) store_step(store, clock_monotonic_us() + 20);
    }
    settle(&stage);
    CHECK(!store_cut_failed(cut));
    struct store_content content;
    CHECK(store_restore_finish(stage.restore, &content, &error) == 0);
    store_restore_free(stage.restore);
    char *after = describe(content.store);
    if (strcmp(before, after) != 0) {
        size_t at = 0;
        while (before[at] == after[at]) at++;
        fprintf(stderr, "was: %.200s\nis: %.200s\n", before + (at > 60 ? at - 60 : 0), after + (at > 60 ? at - 60 : 0));
    }
    CHECK(strcmp(before, after) == 0);
    CHECK(content.weights && content.weights->version == 7 && content.weights->blob->length == 600000);
    store_content_free(&content);
    marks_are_gone();
    memory_free(before);
    memory_free(after);
}

static void a_cut_is_the_store_as_it_was_whatever_changes(void) {
    for (uint64_t seed = 0; seed < 6; seed++) {
        set_up(seed);
        for (uint32_t round = 0; round < 4; round++) cut_once(round * 3, seed % 2 == 1);
        tear_down();
    }
}

static void a_cut_that_fails_is_cleared_away_and_the_next_succeeds(void) {
    for (uint64_t fail_at = 1; fail_at < 12; fail_at += 3) {
        set_up(fail_at);
        struct stage stage = {.sink.record = record, .restore = store_restore_begin(NULL), .fail_at = fail_at};
        store_cut_begin(cut, &stage.sink);
        for (int i = 0; i < 30 && store_cut_step(cut); i++) change(true);
        store_cut_end(cut);
        while (store_cut_step(cut)) change(true);
        marks_are_gone();
        free(stage.body);
        store_restore_free(stage.restore);
        cut_once(2, true);
        tear_down();
    }
}

int main(void) {
    RUN(a_cut_is_the_store_as_it_was_whatever_changes);
    RUN(a_cut_that_fails_is_cleared_away_and_the_next_succeeds);
    return 0;
}

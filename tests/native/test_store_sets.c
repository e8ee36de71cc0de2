/* test_store_sets: sets in all three forms against a plain model, and their borders. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "check.h"
#include "store/store.h"
#include "store/t_set.h"

#define MODEL 3000

static struct set_member *text_member(struct set_member *member, const char *text) {
    set_member_of(member, (const uint8_t *)text, strlen(text));
    return member;
}

static enum set_add_result add_text(struct value **set, const char *text) {
    struct set_member member;
    return set_add(set, text_member(&member, text));
}

static bool has_text(const struct value *set, const char *text) {
    struct set_member member;
    return set_contains(set, text_member(&member, text));
}

static bool remove_text(struct value **set, const char *text) {
    struct set_member member;
    return set_remove(set, text_member(&member, text));
}

/* ---- against a model --------------------------------------------------------------------------------------------- */

/* How member `i` is written, and the bounds of what a walk must give. */
struct kind {
    const char *format;
    int64_t factor;
};

static void write_member(const struct kind *kind, int i, char *text, size_t size) {
    snprintf(text, size, kind->format, (long long)(kind->factor * (i - MODEL / 2)));
}

static void check_walk(const struct value *set, const struct kind *kind, const bool *there, size_t count) {
    static bool seen[MODEL];
    struct set_position position = {0};
    struct set_member member;
    size_t walked = 0;
    memset(seen, 0, sizeof seen);
    while (set_next(set, &position, &member)) {
        char text[32];
        set_member_text(&member);
        CHECK(member.length < sizeof text);
        memcpy(text, member.data, member.length);
        text[member.length] = '\0';
        int64_t digits_at = strcspn(text, "-0123456789"), value;
        CHECK(number_parse_int64((const uint8_t *)text + digits_at, member.length - (size_t)digits_at, &value));
        int i = (int)(value / kind->factor) + MODEL / 2;
        CHECK(i >= 0 && i < MODEL && there[i] && !seen[i]);
        seen[i] = true;
        walked++;
    }
    CHECK(walked == count);
}

static void run_model(const struct kind *kind, int range, uint64_t seed) {
    static bool there[MODEL];
    struct random_state random;
    struct value *set = set_new();
    size_t count = 0;
    random_seed(&random, seed);
    memset(there, 0, sizeof there);
    set->expiry = 7;
    for (int step = 0; step < 20000; step++) {
        char text[32];
        int i = MODEL / 2 - range / 2 + (int)random_below(&random, (uint64_t)range);
        write_member(kind, i, text, sizeof text);
        CHECK(has_text(set, text) == there[i]);
        /* Grows for a while, then shrinks, and so on. */
        if (random_below(&random, 10) < (step / 4000 % 2 == 0 ? 7u : 3u)) {
            CHECK(add_text(&set, text) == (there[i] ? SET_ADD_PRESENT : SET_ADD_ADDED));
            count += !there[i];
            there[i] = true;
        } else {
            CHECK(remove_text(&set, text) == there[i]);
            count -= there[i];
            there[i] = false;
        }
        CHECK(set_count(set) == count && set->expiry == 7);
        if (step % 1000 == 999) {
            check_walk(set, kind, there, count);
            struct value *copy = set_copy(set);
            CHECK(copy->encoding == set->encoding);
            check_walk(copy, kind, there, count);
            value_free(copy);
        }
    }
    value_free(set);
}

static void sets_hold_what_was_added_and_not_removed(void) {
    const struct kind kinds[] = {{"%lld", 1},        {"%lld", 50},
                                 {"%lld", 3000000},  {"%lld", 6000000000000000},
                                 {"member:%lld", 1}, {"a long member:%lld", 1}};
    const int ranges[] = {20, 100, 700, MODEL};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++) run_model(&kinds[k], ranges[r], k * 10 + r);
}

/* ---- forms ------------------------------------------------------------------------------------------------------- */

static void integers_stay_in_order_whatever_their_width(void) {
    const char *const texts[] = {
        "5", "-70000",     "32767",      "-32768", "32768", "9223372036854775807", "-9223372036854775808",
        "0", "2147483648", "-2147483649"};
    struct value *set = set_new();
    size_t count = sizeof texts / sizeof *texts;
    for (size_t i = 0; i < count; i++) {
        CHECK(add_text(&set, texts[i]) == SET_ADD_ADDED);
        for (size_t j = 0; j < count; j++) CHECK(has_text(set, texts[j]) == (j <= i));
    }
    CHECK(set->encoding == ENCODING_INTEGERS);
    struct set_position position = {0};
    struct set_member member;
    int64_t before = INT64_MIN;
    for (size_t i = 0; i < count; i++) {
        CHECK(set_next(set, &position, &member) && (i == 0 || member.integer > before));
        before = member.integer;
    }
    CHECK(!set_next(set, &position, &member));
    CHECK(!has_text(set, "00") && !has_text(set, "+5") && !has_text(set, "") && !has_text(set, "9223372036854775808"));
    value_free(set);
}

static void forms_change_at_their_borders(void) {
    char text[SET_PACKED_BYTES + 2];
    struct value *set = set_new();
    for (int i = 0; i < SET_INTEGERS; i++) {
        snprintf(text, sizeof text, "%d", i);
        CHECK(add_text(&set, text) == SET_ADD_ADDED);
    }
    CHECK(set->encoding == ENCODING_INTEGERS && add_text(&set, "3") == SET_ADD_PRESENT);
    CHECK(set->encoding == ENCODING_INTEGERS && add_text(&set, "-1") == SET_ADD_ADDED);
    CHECK(set->encoding == ENCODING_DICT && set_count(set) == SET_INTEGERS + 1 && has_text(set, "-1"));
    value_free(set);
    set = set_new();
    CHECK(add_text(&set, "12") == SET_ADD_ADDED && add_text(&set, "") == SET_ADD_ADDED);
    CHECK(set->encoding == ENCODING_PACKED && has_text(set, "12") && has_text(set, ""));
    memset(text, 'x', sizeof text);
    text[SET_PACKED_BYTES] = '\0';
    CHECK(add_text(&set, text) == SET_ADD_ADDED && set->encoding == ENCODING_PACKED);
    text[SET_PACKED_BYTES] = 'x';
    text[SET_PACKED_BYTES + 1] = '\0';
    CHECK(!has_text(set, text) && add_text(&set, text) == SET_ADD_ADDED && set->encoding == ENCODING_DICT);
    CHECK(set_count(set) == 4 && has_text(set, "12") && has_text(set, "") && has_text(set, text));
    value_free(set);
    set = set_new();
    for (int i = 0; i < SET_PACKED_MEMBERS; i++) {
        snprintf(text, sizeof text, "m%d", i);
        CHECK(add_text(&set, text) == SET_ADD_ADDED && set->encoding == ENCODING_PACKED);
    }
    CHECK(add_text(&set, "m7") == SET_ADD_PRESENT && set->encoding == ENCODING_PACKED);
    CHECK(add_text(&set, "7") == SET_ADD_ADDED && set->encoding == ENCODING_DICT);
    value_free(set);
}

static void every_member_is_picked_by_chance(void) {
    struct random_state random;
    random_seed(&random, 1);
    for (int count = 1; count <= 600; count = count * 5 + 1) {
        struct value *set = set_new();
        char text[16];
        for (int i = 0; i < count; i++) {
            snprintf(text, sizeof text, "m%d", i);
            add_text(&set, text);
        }
        for (int i = count; i > 0; i--) {
            /* Copied: the member that is removed lies in the set. */
            struct set_member member, given;
            set_random(set, &random, &member);
            CHECK(member.length < sizeof text);
            memcpy(text, member.data, member.length);
            set_member_of(&given, (const uint8_t *)text, member.length);
            CHECK(set_remove(&set, &given) && set_count(set) == (size_t)i - 1);
        }
        value_free(set);
    }
}

static void members_are_found_through_both_tables_of_a_growing_dict(void) {
    struct value *set = set_new();
    char text[16];
    for (int i = 0; i < 5000; i++) {
        snprintf(text, sizeof text, "m%d", i);
        add_text(&set, text);
        snprintf(text, sizeof text, "m%d", i / 2);
        CHECK(has_text(set, text));
    }
    while (dict_is_rehashing(set_dict(set))) set_tidy(set);
    CHECK(has_text(set, "m4999") && !has_text(set, "m5000"));
    value_free(set);
}

static void a_large_set_is_freed_in_slices(void) {
    size_t before = memory_used_bytes();
    struct value *set = set_new();
    char text[16];
    for (int i = 0; i < 5000; i++) {
        snprintf(text, sizeof text, "m%d", i);
        add_text(&set, text);
    }
    size_t estimated = set_memory_bytes(set), held = memory_used_bytes() - before;
    CHECK(estimated > held / 2 && estimated < held * 2);
    CHECK(value_free_effort(set) == 5000);
    size_t slices = 0, steps = 100;
    while (!set_release(set, &steps)) {
        steps = 100;
        slices++;
    }
    CHECK(slices >= 50 && memory_used_bytes() == before);
}

int main(void) {
    dict_seed(1, 2);
    RUN(sets_hold_what_was_added_and_not_removed);
    RUN(integers_stay_in_order_whatever_their_width);
    RUN(forms_change_at_their_borders);
    RUN(every_member_is_picked_by_chance);
    RUN(members_are_found_through_both_tables_of_a_growing_dict);
    RUN(a_large_set_is_freed_in_slices);
    return 0;
}

/* test_store_zset: sorted sets against a sorted array of their members, in both forms. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "check.h"
#include "store/t_zset.h"

enum { MEMBERS = 3000 };

struct model_item {
    double score;
    char member[24];
};

static struct model_item model[MEMBERS];
static size_t model_count;

static const uint8_t *bytes_of(const char *text) {
    return (const uint8_t *)text;
}

static bool put(struct zset *zset, const char *member, double score) {
    struct zset_place place;
    zset_find(zset, bytes_of(member), strlen(member), &place);
    return zset_put(zset, &place, bytes_of(member), strlen(member), score);
}

static int compare_items(const void *left, const void *right) {
    const struct model_item *a = left, *b = right;
    if (a->score != b->score) return a->score < b->score ? -1 : 1;
    return strcmp(a->member, b->member);
}

static size_t model_find(const char *member) {
    for (size_t i = 0; i < model_count; i++)
        if (strcmp(model[i].member, member) == 0) return i;
    return model_count;
}

static void model_put(const char *member, double score) {
    size_t at = model_find(member);
    if (at == model_count) {
        snprintf(model[at].member, sizeof model[at].member, "%s", member);
        model_count++;
    }
    model[at].score = score;
    qsort(model, model_count, sizeof *model, compare_items);
}

static void model_remove(size_t at, size_t count) {
    memmove(model + at, model + at + count, (model_count - at - count) * sizeof *model);
    model_count -= count;
}

static bool is_item(const struct zset_item *item, const struct model_item *expected) {
    return item->score == expected->score && item->length == strlen(expected->member) &&
           memcmp(item->member, expected->member, item->length) == 0;
}

/* The set holds what the model does: walked in both directions, by rank, and by bounds. */
static void check_all(struct zset *zset) {
    CHECK(zset_count(zset) == model_count);
    struct zset_position position = {0};
    struct zset_item item;
    for (size_t i = 0; i < model_count; i++) CHECK(zset_next(zset, &position, &item) && is_item(&item, &model[i]));
    CHECK(!zset_next(zset, &position, &item));
    zset_seek(zset, model_count, &position);
    for (size_t i = model_count; i > 0; i--)
        CHECK(zset_previous(zset, &position, &item) && is_item(&item, &model[i - 1]));
    CHECK(!zset_previous(zset, &position, &item));
    for (size_t i = 0; i < model_count; i += 1 + model_count / 50) {
        struct zset_place place;
        CHECK(zset_find(zset, bytes_of(model[i].member), strlen(model[i].member), &place));
        CHECK(place.score == model[i].score);
        CHECK(zset_rank(zset, &place, bytes_of(model[i].member), strlen(model[i].member)) == i);
        zset_seek(zset, i, &position);
        CHECK(zset_next(zset, &position, &item) && is_item(&item, &model[i]));
    }
}

static void check_ranges(struct zset *zset, struct random_state *random, int scores) {
    for (int tries = 0; tries < 20; tries++) {
        struct zset_bound least = {.kind = ZSET_BOUND_SCORE,
                                   .score = (double)random_below(random, (uint64_t)scores),
                                   .past = random_below(random, 2)};
        struct zset_bound greatest = {.kind = ZSET_BOUND_SCORE,
                                      .score = (double)random_below(random, (uint64_t)scores),
                                      .past = random_below(random, 2)};
        uint64_t first, last, expected_first = 0, expected_last = 0;
        for (size_t i = 0; i < model_count; i++) {
            expected_first += model[i].score < least.score || (least.past && model[i].score == least.score);
            expected_last += model[i].score < greatest.score || (greatest.past && model[i].score == greatest.score);
        }
        zset_range(zset, &least, &greatest, tries % 2, &first, &last);
        if (expected_first < expected_last)
            CHECK(first == expected_first && last == expected_last);
        else
            CHECK(first == last);
    }
}

static void random_changes(int members, int scores, int steps, int check_every) {
    struct random_state random;
    random_seed(&random, (uint64_t)(members + scores));
    struct zset *zset = zset_new();
    model_count = 0;
    char member[24];
    for (int step = 0; step < steps; step++) {
        bool growing = step * 4 / steps % 2 == 0;
        uint64_t action = random_below(&random, 20);
        snprintf(member, sizeof member, "m%d", (int)random_below(&random, (uint64_t)members));
        double score = (double)random_below(&random, (uint64_t)scores);
        if (action == 0 && score > 0 && !growing) score += 0.25;
        if (action < (growing ? 17 : 8)) {
            struct zset_place place;
            bool found = zset_find(zset, bytes_of(member), strlen(member), &place);
            CHECK(found == (model_find(member) < model_count));
            if (!found || place.score != score) CHECK(zset_put(zset, &place, bytes_of(member), strlen(member), score));
            model_put(member, score);
        } else if (action < 19) {
            struct zset_place place;
            size_t at = model_find(member);
            CHECK(zset_find(zset, bytes_of(member), strlen(member), &place) == (at < model_count));
            if (at == model_count) continue;
            zset_take(zset, &place);
            model_remove(at, 1);
        } else if (model_count > 0 && !growing) {
            uint64_t at = random_below(&random, model_count);
            uint64_t count = random_below(&random, 1 + (model_count - at) / 4);
            zset_remove_range(zset, at, count);
            model_remove(at, count);
        }
        if (step % check_every != 0) continue;
        check_all(zset);
        check_ranges(zset, &random, scores);
    }
    struct zset *copy = zset_copy(zset);
    CHECK(copy->head.encoding == zset->head.encoding);
    value_free(&zset->head);
    check_all(copy);
    zset_remove_range(copy, 0, UINT64_MAX);
    CHECK(zset_count(copy) == 0);
    value_free(&copy->head);
}

static void small_sets_behave_like_a_sorted_array(void) {
    random_changes(100, 40, 6000, 20);
}

static void large_sets_behave_like_a_sorted_array(void) {
    random_changes(MEMBERS, 200, 12000, 300);
}

static void sets_of_equal_scores_behave_like_a_sorted_array(void) {
    random_changes(1000, 1, 6000, 200);
}

static uint64_t rests;

static void count_rest(void *context) {
    (void)context;
    rests++;
}

/* Filled without order, with scores that change on the way, then put in order: the same as one that always was. */
static void a_set_can_be_put_in_order_at_the_end(void) {
    char member[24];
    struct random_state random;
    random_seed(&random, 11);
    for (int members = 0; members <= 3000; members = members * 2 + 7) {
        struct zset *zset = zset_new_unordered(), *other = zset_new();
        for (int i = 0; i < members * 2; i++) {
            struct zset_place place;
            double score = (double)random_below(&random, 1 + (uint64_t)members / 3);
            snprintf(member, sizeof member, "m%d", (int)random_below(&random, (uint64_t)members));
            zset_find(zset, bytes_of(member), strlen(member), &place);
            CHECK(zset_note(zset, &place, bytes_of(member), strlen(member), score));
            CHECK(put(other, member, score));
        }
        rests = 0;
        CHECK(zset_order(zset, count_rest, NULL));
        CHECK(members < 1000 || rests > (uint64_t)members / 256);
        CHECK(zset_count(zset) == zset_count(other));
        struct zset_position position = {0}, other_position = {0};
        struct zset_item item, expected;
        while (zset_next(other, &other_position, &expected)) {
            CHECK(zset_next(zset, &position, &item) && item.score == expected.score);
            CHECK(item.length == expected.length && memcmp(item.member, expected.member, item.length) == 0);
        }
        CHECK(!zset_next(zset, &position, &item));
        CHECK(zset_pack(zset) && zset->head.encoding == other->head.encoding);
        value_free(&zset->head);
        value_free(&other->head);
    }
}

static void members_in_order_fill_what_is_allocated_for_them(void) {
    char member[24];
    for (int descending = 0; descending < 2; descending++) {
        struct zset *zset = zset_new();
        for (int i = 0; i < 20000; i++) {
            snprintf(member, sizeof member, "m%d", i);
            CHECK(put(zset, member, descending ? -i : i));
        }
        CHECK(zset->large->order.leaves <= 20000 / 63 + 2);
        value_free(&zset->head);
    }
}

static void a_set_that_has_shrunk_gives_its_memory_back(void) {
    char member[24];
    struct zset *zset = zset_new();
    struct random_state random;
    random_seed(&random, 7);
    for (int i = 0; i < 20000; i++) {
        snprintf(member, sizeof member, "m%d", i);
        CHECK(put(zset, member, random_unit(&random)));
    }
    while (zset_count(zset) > 200) zset_remove_range(zset, random_below(&random, zset_count(zset)), 1);
    CHECK(zset->large->order.leaves <= 20);
    value_free(&zset->head);
}

static void every_score_comes_back_as_it_went_in(void) {
    double scores[] = {0.0,          0.1,           0.125, -1023.75, 16777217.5, 1e-40,     1,         -1,
                       127,          128,           -128,  -129,     32767,      32768,     -32769,    2147483647,
                       2147483648.0, -2147483649.0, 0.5,   1e300,    -1e-300,    1.0 / 0.0, -1.0 / 0.0};
    for (size_t i = 0; i < sizeof scores / sizeof *scores; i++) {
        struct zset *zset = zset_new();
        CHECK(put(zset, "member", scores[i]));
        struct zset_position position = {0};
        struct zset_item item;
        CHECK(zset_next(zset, &position, &item) && memcmp(&item.score, &scores[i], sizeof item.score) == 0);
        value_free(&zset->head);
    }
}

static void a_large_set_is_freed_in_parts(void) {
    char member[24];
    struct zset *zset = zset_new();
    for (int i = 0; i < 5000; i++) {
        snprintf(member, sizeof member, "m%d", i);
        CHECK(put(zset, member, i % 100));
    }
    size_t steps, slices = 1;
    for (;; slices++) {
        steps = 64;
        if (value_release(&zset->head, &steps)) break;
        CHECK(steps == 0);
    }
    CHECK(slices > 5000 / 64);
}

int main(void) {
    RUN(small_sets_behave_like_a_sorted_array);
    RUN(large_sets_behave_like_a_sorted_array);
    RUN(sets_of_equal_scores_behave_like_a_sorted_array);
    RUN(a_set_can_be_put_in_order_at_the_end);
    RUN(members_in_order_fill_what_is_allocated_for_them);
    RUN(a_set_that_has_shrunk_gives_its_memory_back);
    RUN(every_score_comes_back_as_it_went_in);
    RUN(a_large_set_is_freed_in_parts);
    CHECK(memory_used_bytes() == 0);
    return 0;
}

/* Tests of the selectors: the order in which items are drawn and leave, and how often. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "check.h"
#include "replay/table_state.h"
#include "table_stage.h"

/* ---- heap ---------------------------------------------------------------------------------------------------------- */

#define HEAP_SLOTS 200u

struct reference {
    bool here[HEAP_SLOTS];
    uint64_t key[HEAP_SLOTS], age[HEAP_SLOTS];
};

/* The slot that comes next in order after `last`, or HEAP_SLOTS. */
static uint32_t reference_next(const struct reference *reference, const bool *taken) {
    uint32_t first = HEAP_SLOTS;
    for (uint32_t slot = 0; slot < HEAP_SLOTS; slot++) {
        if (!reference->here[slot] || taken[slot]) continue;
        if (first == HEAP_SLOTS || reference->key[slot] < reference->key[first] ||
            (reference->key[slot] == reference->key[first] && reference->age[slot] < reference->age[first])) {
            first = slot;
        }
    }
    return first;
}

static void heap_step(struct selector_heap *heap, struct reference *reference, struct random_state *random,
                      uint64_t age) {
    uint32_t slot = (uint32_t)random_below(random, HEAP_SLOTS);
    uint64_t key = random_below(random, 10); /* many are equal */
    switch (random_below(random, 3)) {
    case 0:
        if (!reference->here[slot]) {
            selector_heap_insert(heap, slot, key);
            reference->here[slot] = true;
            reference->key[slot] = key;
            reference->age[slot] = age;
        }
        break;
    case 1:
        selector_heap_update(heap, slot, key); /* one that is not here, too */
        reference->key[slot] = reference->here[slot] ? key : 0;
        break;
    default:
        selector_heap_remove(heap, slot);
        reference->here[slot] = false;
        break;
    }
}

static void a_heap_keeps_the_order_of_keys_and_ages(void) {
    struct selector_heap heap;
    struct reference reference = {0};
    struct random_state random;
    random_seed(&random, 3);
    CHECK(selector_heap_init(&heap, HEAP_SLOTS, HEAP_SLOTS) == 0);
    for (uint64_t step = 0; step < 20000; step++) {
        heap_step(&heap, &reference, &random, step);
        if (step % 50) continue;
        uint32_t slots[HEAP_SLOTS], n = heap.count ? (uint32_t)random_below(&random, heap.count + 1) : 0;
        bool taken[HEAP_SLOTS] = {false};
        if (n) selector_heap_first(&heap, n, slots);
        for (uint32_t i = 0; i < n; i++) {
            CHECK(slots[i] == reference_next(&reference, taken));
            taken[slots[i]] = true;
        }
    }
    selector_heap_free(&heap);
    CHECK(memory_mapped_bytes() == 0);
}

static void keys_are_in_the_order_of_their_numbers(void) {
    const double priorities[] = {0.0, 5e-324, 1e-300, 1e-12, 0.5, 1.0, 1.0000000000000002, 1e12, 1e290};
    const int64_t integers[] = {INT64_MIN, -5, -1, 0, 1, 1ll << 53, (1ll << 53) + 1, INT64_MAX};
    for (size_t i = 1; i < sizeof priorities / sizeof priorities[0]; i++)
        CHECK(heap_key_of_priority(priorities[i - 1]) < heap_key_of_priority(priorities[i]));
    CHECK(heap_key_of_priority(-0.0) == heap_key_of_priority(0.0));
    for (size_t i = 0; i < sizeof integers / sizeof integers[0]; i++) {
        CHECK(i == 0 || heap_key_of_integer(integers[i - 1]) < heap_key_of_integer(integers[i]));
        CHECK(heap_integer_of_key(heap_key_of_integer(integers[i])) == integers[i]);
    }
}

/* ---- samplers ------------------------------------------------------------------------------------------------------ */

/* Samples n items and checks that they are these, in this order. */
static void check_order(struct table *table, uint32_t n, const uint64_t *expected) {
    uint32_t slots[16];
    uint64_t values[16];
    double p[16];
    float w[16];
    CHECK(table_sample(table, n, 0.5, true, slots, NULL, p, w, NULL, &error) == 0);
    table_gather(table, 0, slots, n, values);
    for (uint32_t i = 0; i < n; i++) CHECK(values[i] == expected[i] && p[i] == 1 && w[i] == 1);
    table_unpin(table, slots, n);
}

static void ordered_samplers_give_the_first_items_of_their_order(void) {
    const struct {
        enum selector_kind sampler;
        uint64_t order[6];
    } cases[] = {
        {SELECTOR_FIFO, {0, 1, 2, 3, 4, 5}},
        {SELECTOR_LIFO, {5, 4, 3, 2, 1, 0}},
        {SELECTOR_MAX_HEAP, {2, 0, 3, 5, 1, 4}},
        {SELECTOR_MIN_HEAP, {4, 1, 0, 3, 5, 2}},
    };
    const double priorities[6] = {5, 0.5, 9, 5, 0, 5}; /* the three of 5 come by age; one of zero is drawn, too */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct table_config config = small_config(10, cases[i].sampler);
        struct table *table = make(&config);
        uint64_t ids[6], applied, stale;
        uint32_t slots[16];
        CHECK(add(table, 6, 0, priorities, ids) == 0);
        for (uint32_t n = 1; n <= 6; n++) check_order(table, n, cases[i].order);
        CHECK(table_sample(table, 7, 0, true, slots, NULL, NULL, NULL, NULL, &error) == -1 &&
              error.code == ERROR_TIMEOUT);
        CHECK(strstr(error.message, selector_name(cases[i].sampler)));
        CHECK(table_sample(table, 11, 0, true, slots, NULL, NULL, NULL, NULL, &error) == -1 &&
              error.code == ERROR_LIMIT);
        double hundred = 100, tenth = 0.1;
        CHECK(table_update(table, 1, &ids[4], &hundred, &applied, &stale, &error) == 0);
        CHECK(table_update(table, 1, &ids[2], &tenth, &applied, &stale, &error) == 0);
        if (cases[i].sampler == SELECTOR_MAX_HEAP)
            check_order(table, 6, (uint64_t[]){4, 0, 3, 5, 1, 2});
        else if (cases[i].sampler == SELECTOR_MIN_HEAP)
            check_order(table, 6, (uint64_t[]){2, 1, 0, 3, 5, 4});
        else
            check_order(table, 6, cases[i].order);
        table_free(table);
    }
}

/* ---- removers ------------------------------------------------------------------------------------------------------ */

static void live_values(const struct table *table, bool *live, uint32_t n) {
    memset(live, 0, n);
    for (uint32_t slot = table->order.oldest; slot != SLOT_NONE; slot = table->items.slot[slot].newer) {
        uint64_t value;
        table_gather(table, 0, &slot, 1, &value);
        CHECK(value < n);
        live[value] = true;
    }
}

static void removers_choose_who_makes_room(void) {
    const struct {
        enum selector_kind remover;
        uint64_t stays[3];
    } cases[] = {
        {SELECTOR_FIFO, {3, 4, 5}},
        {SELECTOR_LIFO, {0, 1, 5}},
        {SELECTOR_MAX_HEAP, {1, 4, 5}},
        {SELECTOR_MIN_HEAP, {2, 3, 5}},
    };
    const double priorities[6] = {5, 1, 9, 6, 2, 4}; /* three at first; each of the others takes one's place */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct table_config config = small_config(3, SELECTOR_UNIFORM);
        config.remover = cases[i].remover;
        struct table *table = make(&config);
        uint64_t ids[6];
        bool live[6];
        CHECK(add(table, 3, 0, priorities, ids) == 0);
        for (uint32_t item = 3; item < 6; item++) CHECK(add(table, 1, item, &priorities[item], &ids[item]) == 0);
        live_values(table, live, 6);
        CHECK(live[cases[i].stays[0]] && live[cases[i].stays[1]] && live[cases[i].stays[2]]);
        CHECK(info_of(table).size == 3 && info_of(table).removed == 3);
        table_free(table);
    }
}

static double chi_square(const uint32_t *counts, const double *expected, uint32_t n) {
    double statistic = 0;
    for (uint32_t i = 0; i < n; i++) statistic += (counts[i] - expected[i]) * (counts[i] - expected[i]) / expected[i];
    return statistic;
}

/* Of ten items one leaves, again and again: uniformly, or by p^0.5. Nine degrees of freedom: 45.1 is exceeded once in a
 * million seeds. */
static void random_removers_let_go_as_often_as_they_should(void) {
    const uint32_t rounds = 20000;
    for (int prioritized = 0; prioritized < 2; prioritized++) {
        struct table_config config = small_config(10, SELECTOR_FIFO);
        config.remover = prioritized ? SELECTOR_PRIORITIZED : SELECTOR_UNIFORM;
        config.remover_exponent = prioritized ? 0.5 : 0;
        config.seed = 5;
        struct table *table = make(&config);
        uint64_t ids[10], id;
        uint32_t counts[10] = {0};
        double priorities[10], expected[10], total = 0;
        for (int i = 0; i < 10; i++) {
            priorities[i] = (i + 1) * (i + 1);
            total += prioritized ? i + 1 : 1;
        }
        for (int i = 0; i < 10; i++) expected[i] = rounds * (prioritized ? i + 1 : 1) / total;
        CHECK(add(table, 10, 0, priorities, ids) == 0);
        for (uint32_t round = 0; round < rounds; round++) {
            bool live[100];
            CHECK(add(table, 1, 50, priorities, &id) == 0);
            live_values(table, live, 100);
            for (uint32_t i = 0; i < 10; i++) counts[i] += !live[i];
            CHECK(table_delete(table, 1, &id) == 1);
            for (uint32_t i = 0; i < 10; i++)  /* who left comes back */
                CHECK(live[i] || add(table, 1, i, &priorities[i], &id) == 0);
        }
        CHECK(chi_square(counts, expected, 10) < 45.1);
        table_free(table);
    }
}

static void a_prioritized_remover_among_zeros_takes_the_oldest(void) {
    struct table_config config = small_config(3, SELECTOR_UNIFORM);
    config.remover = SELECTOR_PRIORITIZED;
    config.remover_exponent = 1;
    struct table *table = make(&config);
    const double zeros[3] = {0}, mixed[3] = {0, 4, 0};
    uint64_t ids[3];
    bool live[20];
    CHECK(add(table, 3, 0, zeros, ids) == 0 && add(table, 1, 3, zeros, ids) == 0);
    live_values(table, live, 20);
    CHECK(!live[0] && live[1] && live[2] && live[3]);
    table_reset(table);
    CHECK(add(table, 3, 10, mixed, ids) == 0 && add(table, 1, 13, zeros, ids) == 0);
    live_values(table, live, 20);
    CHECK(live[10] && !live[11] && live[12] && live[13]);
    table_free(table);
}

/* Bytes that were staged need the slots of those who leave, and whoever they are, some may be pinned. */
static void staged_adds_find_slots_whoever_leaves(void) {
    for (int remover = 0; remover < SELECTOR_KINDS; remover++) {
        const uint32_t n = TABLE_RESERVED_LIMIT + 100;
        struct table_config config = small_config(n, SELECTOR_UNIFORM);
        config.remover = (enum selector_kind)remover;
        config.remover_exponent = remover == SELECTOR_PRIORITIZED ? 1 : 0;
        struct table *table = make(&config);
        uint64_t *ids = malloc(n * sizeof *ids);
        uint32_t *slots = malloc(n * sizeof *slots);
        CHECK(add(table, n, 0, NULL, ids) == 0);
        CHECK(table_sample(table, n / 2, 0, true, slots, NULL, NULL, NULL, NULL, &error) == 0);
        for (uint64_t round = 1; round <= 3; round++)
            CHECK(add(table, n, round, NULL, ids) == 0 && info_of(table).size == n);
        table_unpin(table, slots, n / 2);
        CHECK(info_of(table).size + info_of(table).free_slots == table->items.slots);
        table_free(table);
        free(ids);
        free(slots);
    }
}

int main(void) {
    RUN(a_heap_keeps_the_order_of_keys_and_ages);
    RUN(keys_are_in_the_order_of_their_numbers);
    RUN(ordered_samplers_give_the_first_items_of_their_order);
    RUN(removers_choose_who_makes_room);
    RUN(random_removers_let_go_as_often_as_they_should);
    RUN(a_prioritized_remover_among_zeros_takes_the_oldest);
    RUN(staged_adds_find_slots_whoever_leaves);
    return 0;
}

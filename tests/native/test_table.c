/* Tests of the table: ids, removal, pins, reservations, limiters. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/msgpack.h"
#include "check.h"
#include "replay/table_state.h"
#include "table_stage.h"

static void adds_and_samples(void) {
    struct table_config config = small_config(10, SELECTOR_PRIORITIZED);
    struct table *table = make(&config);
    uint64_t ids[4], drawn[64], values[64];
    uint32_t slots[64];
    double p[64];
    float w[64];
    double priorities[4] = {1, 2, 0, 5};
    CHECK(add(table, 4, 100, priorities, ids) == 0);
    CHECK(table_sample(table, 64, 0.5, true, slots, drawn, p, w, NULL, &error) == 0);
    table_gather(table, 0, slots, 64, values);
    for (int i = 0; i < 64; i++) {
        double priority = priorities[values[i] - 100];
        CHECK(priority > 0 && drawn[i] == ids[values[i] - 100]);
        CHECK(fabs(p[i] - priority / 8) < 1e-12);
        CHECK(fabsf(w[i] - (float)pow(1 / priority, 0.5)) < 1e-6f);
    }
    table_unpin(table, slots, 64);
    table_free(table);
}

/* ---- ids and slots ------------------------------------------------------------------------------------------------- */

static void check_value(struct table *table, uint64_t id, uint64_t expected) {
    uint32_t slot;
    uint64_t value;
    uint8_t pair[3];
    CHECK(table_get(table, 1, &id, 0, &slot, NULL, &error) == 0);
    table_gather(table, 0, &slot, 1, &value);
    table_gather(table, 1, &slot, 1, pair);
    CHECK(value == expected && pair[0] == (uint8_t)expected && pair[2] == (uint8_t)expected);
    table_unpin(table, &slot, 1);
}

static void an_update_to_a_replaced_item_is_stale_and_changes_nothing(void) {
    struct table_config config = small_config(3, SELECTOR_PRIORITIZED);
    struct table *table = make(&config);
    uint64_t old[3], new[3], applied, stale;
    double fives[3] = {5, 5, 5}, ones[3] = {1, 1, 1};
    /* The second batch lands in other slots; the third comes back to those of the first. */
    CHECK(add(table, 3, 0, ones, old) == 0 && add(table, 3, 10, ones, new) == 0 && add(table, 3, 20, ones, new) == 0);
    for (int i = 0; i < 3; i++) CHECK(old[i] != new[i]);
    CHECK(table_update(table, 3, old, fives, &applied, &stale, &error) == 0);
    CHECK(applied == 0 && stale == 3);
    CHECK(info_of(table).total_priority == 3 && info_of(table).max_priority == 1 && info_of(table).stale_updates == 3);
    uint64_t mixed[4] = {new[0], old[0], new[0] + (1ull << 56), UINT64_MAX};
    double values[4] = {2, 9, 9, 9};
    CHECK(table_update(table, 4, mixed, values, &applied, &stale, &error) == 0 && applied == 1 && stale == 3);
    CHECK(info_of(table).total_priority == 4 && info_of(table).max_priority == 2);
    CHECK(table_delete(table, 3, old) == 0 && table_delete(table, 1, new) == 1 && table_delete(table, 1, new) == 0);
    uint32_t slot;
    CHECK(table_get(table, 1, old, 0, &slot, NULL, &error) == -1 && error.code == ERROR_GENERIC);
    check_value(table, new[1], 21);
    table_free(table);
}

static void a_slot_whose_generation_would_wrap_is_retired(void) {
    struct table_config config = small_config(2, SELECTOR_PRIORITIZED);
    struct table *table = make(&config);
    uint64_t id, next, applied, stale;
    double one = 1;
    CHECK(add(table, 1, 1, NULL, &id) == 0);
    uint32_t slot = (uint32_t)id;
    CHECK(table_delete(table, 1, &id) == 1);
    table->items.slot[slot].generation = SLOT_MAX_GENERATION - 1;
    CHECK(add(table, 1, 2, NULL, &id) == 0);
    CHECK((uint32_t)id == slot && id >> 32 == SLOT_MAX_GENERATION); /* the shard bits stay clear */
    check_value(table, id, 2);
    CHECK(table_delete(table, 1, &id) == 1 && info_of(table).retired_slots == 1);
    for (int i = 0; i < 100; i++) CHECK(add(table, 1, 3, NULL, &next) == 0 && (uint32_t)next != slot);
    CHECK(table_update(table, 1, &id, &one, &applied, &stale, &error) == 0 && stale == 1);
    table_free(table);
}

static void a_pinned_item_keeps_its_bytes_after_removal(void) {
    struct table_config config = small_config(4, SELECTOR_PRIORITIZED);
    struct table *table = make(&config);
    uint64_t ids[4], values[8], more[4];
    uint32_t slots[8];
    CHECK(add(table, 4, 100, NULL, ids) == 0);
    CHECK(table_sample(table, 8, 0, true, slots, NULL, NULL, NULL, NULL, &error) == 0);
    uint64_t before[8];
    table_gather(table, 0, slots, 8, before);
    for (uint64_t i = 0; i < 1000; i++)  /* every slot not pinned is reused many times */
        CHECK(add(table, 4, 1000 + 4 * i, NULL, more) == 0);
    CHECK(info_of(table).size == 4 && info_of(table).pinned_slots > 0);
    table_gather(table, 0, slots, 8, values);
    CHECK(memcmp(before, values, sizeof values) == 0);
    uint64_t free_before = info_of(table).free_slots, zombies = info_of(table).pinned_slots;
    table_unpin(table, slots, 8);
    CHECK(info_of(table).pinned_slots == 0 && info_of(table).free_slots == free_before + zombies);
    CHECK(table_sample(table, 8, 0, true, slots, NULL, NULL, NULL, NULL, &error) ==
          0); /* a reset, too, leaves pinned bytes alone */
    table_gather(table, 0, slots, 8, before);
    table_reset(table);
    CHECK(info_of(table).size == 0 && info_of(table).max_priority == 0 && info_of(table).total_priority == 0);
    CHECK(add(table, 4, 7, NULL, more) == 0);
    table_gather(table, 0, slots, 8, values);
    CHECK(memcmp(before, values, sizeof values) == 0);
    table_unpin(table, slots, 8);
    table_free(table);
}

/* ---- reservations -------------------------------------------------------------------------------------------------- */

static void a_released_reservation_leaves_nothing_behind(void) {
    struct table_config config = small_config(10, SELECTOR_UNIFORM);
    struct table *table = make(&config);
    uint64_t free_slots = info_of(table).free_slots, id;
    struct reservation *reservation = table_reserve(table, 7, &error);
    CHECK(reservation && info_of(table).reserved_slots == 7 && info_of(table).free_slots == free_slots - 7);
    CHECK(info_of(table).size == 0 && info_of(table).added == 0);
    reservation_release(reservation);
    CHECK(info_of(table).reserved_slots == 0 && info_of(table).free_slots == free_slots);
    CHECK(add(table, 1, 1, NULL, &id) == 0 && info_of(table).size == 1);
    CHECK(!table_reserve(table, 11, &error) && error.code == ERROR_LIMIT);
    CHECK(!table_reserve(table, 0, &error) && error.code == ERROR_LIMIT);
    table_free(table);
}

static void bytes_land_where_the_reservation_says(void) {
    struct table_config config = small_config(10, SELECTOR_UNIFORM);
    struct table *table = make(&config);
    struct reservation *reservation = table_reserve(table, 3, &error);
    uint8_t *base;
    size_t stride;
    const uint32_t *slots;
    uint8_t pairs[9] = {1, 1, 1, 2, 2, 2, 3, 3, 3};
    reservation_landing(reservation, 0, &base, &stride, &slots);
    for (uint64_t i = 0; i < 3; i++) {
        uint64_t value = i + 1;
        memcpy(base + slots[i] * stride, &value, 8);
    }
    reservation_fill(reservation, 1, pairs);
    uint64_t ids[3];
    CHECK(table_commit(table, reservation, NULL, ids, &error) == 0);
    for (uint64_t i = 0; i < 3; i++) check_value(table, ids[i], i + 1);
    table_free(table);
}

/* More than half of the spare slots at once: bytes wait in a staging area and are copied at commit. */
static void adds_beyond_the_spare_slots_are_staged(void) {
    const uint32_t n = TABLE_RESERVED_LIMIT + 5;
    struct table_config config = small_config(n + 100, SELECTOR_PRIORITIZED);
    struct table *table = make(&config);
    uint64_t *ids = malloc(n * sizeof *ids);
    for (uint64_t round = 0; round < 5; round++) {
        CHECK(add(table, n, round * 1000000, NULL, ids) == 0);
        CHECK(info_of(table).reserved_slots == 0);
        check_value(table, ids[0], round * 1000000);
        check_value(table, ids[n - 1], round * 1000000 + n - 1);
    }
    CHECK(info_of(table).size == n + 100);
    /* Stalled adders hold what they may; others go on through staging. */
    struct reservation *stalled[4];
    for (int i = 0; i < 4; i++) {
        stalled[i] = table_reserve(table, TABLE_RESERVED_LIMIT / 2, &error);
        CHECK(stalled[i]);
    }
    CHECK(!stalled[1]->staging && stalled[2]->staging);
    for (uint64_t round = 0; round < 5; round++) {
        CHECK(add(table, n, round, NULL, ids) == 0);
        check_value(table, ids[n / 2], round + n / 2);
    }
    for (int i = 0; i < 4; i++) reservation_release(stalled[i]);
    CHECK(info_of(table).reserved_slots == 0);
    free(ids);
    table_free(table);
}

static void a_refused_commit_changes_nothing(void) {
    struct table_config config = small_config(5, SELECTOR_PRIORITIZED);
    struct table *table = make(&config);
    uint64_t ids[5];
    double good[5] = {1, 2, 3, 4, 5};
    CHECK(add(table, 5, 0, good, ids) == 0);
    const double bad[] = {NAN, INFINITY, -INFINITY, -1, -DBL_TRUE_MIN, 1e300};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        double priorities[2] = {1, bad[i]};
        uint64_t none[2], applied, stale;
        CHECK(add(table, 2, 0, priorities, none) == -1 && error.code == ERROR_BADPRIORITY);
        CHECK(table_update(table, 2, ids, priorities, &applied, &stale, &error) == -1 &&
              error.code == ERROR_BADPRIORITY);
        CHECK(strstr(error.message, "index 1"));
    }
    struct table_info info = info_of(table);
    CHECK(info.size == 5 && info.added == 5 && info.total_priority == 15 && info.reserved_slots == 0 &&
          info.stale_updates == 0);
    double fine[2] = {-0.0, DBL_TRUE_MIN};
    CHECK(add(table, 2, 0, fine, ids) == 0);
    table_free(table);
}

/* ---- priorities ---------------------------------------------------------------------------------------------------- */

static void default_priority_is_the_maximum_over_live_items(void) {
    struct table_config config = small_config(3, SELECTOR_PRIORITIZED);
    config.priority_exponent = 0.6;
    struct table *table = make(&config);
    uint64_t ids[3], id, applied, stale;
    CHECK(add(table, 1, 0, NULL, &ids[0]) == 0);
    CHECK(info_of(table).max_priority == 1); /* none were there */
    double seven = 7, two = 2;
    CHECK(table_update(table, 1, ids, &seven, &applied, &stale, &error) == 0);
    CHECK(add(table, 1, 1, NULL, &ids[1]) == 0);
    CHECK(fabs(info_of(table).total_priority - 2 * pow(7, 0.6)) < 1e-12);
    CHECK(table_delete(table, 1, &ids[0]) == 1 && table_update(table, 1, &ids[1], &two, &applied, &stale, &error) == 0);
    CHECK(info_of(table).max_priority == 2); /* the maximum falls with the items that held it */
    CHECK(add(table, 1, 2, NULL, &id) == 0 && fabs(info_of(table).total_priority - 2 * pow(2, 0.6)) < 1e-12);
    table_free(table);
}

static void all_zero_priorities_wait_and_say_so(void) {
    struct table_config config = small_config(4, SELECTOR_PRIORITIZED);
    struct table *table = make(&config);
    uint64_t ids[4], applied, stale;
    uint32_t slots[4];
    double zeros[4] = {0}, one = 1, p[4];
    float w[4];
    CHECK(add(table, 4, 0, zeros, ids) == 0);
    CHECK(table_sample(table, 1, 0, true, slots, NULL, NULL, NULL, NULL, &error) == -1 && error.code == ERROR_TIMEOUT);
    CHECK(strstr(error.message, "all priorities are zero"));
    CHECK(table_get(table, 1, ids, 0, slots, p, &error) == 0 && p[0] == 0);
    table_unpin(table, slots, 1);
    CHECK(table_update(table, 1, &ids[2], &one, &applied, &stale, &error) == 0);
    CHECK(table_sample(table, 4, 1, true, slots, ids, p, w, NULL, &error) == 0);
    for (int i = 0; i < 4; i++) CHECK(ids[i] == ids[0] && p[i] == 1 && w[i] == 1);
    table_unpin(table, slots, 4);
    table_free(table);
}

/* Powers that under- or overflow, and probabilities that do. */
static void extreme_priorities_keep_probabilities_and_weights_finite(void) {
    const double exponents[] = {0, 0.5, 0.6, 1, 2, 10, 100};
    for (size_t e = 0; e < sizeof exponents / sizeof exponents[0]; e++) {
        struct table_config config = small_config(100, SELECTOR_PRIORITIZED);
        config.priority_exponent = exponents[e];
        struct table *table = make(&config);
        double largest = table->max_priority_allowed;
        double priorities[6] = {DBL_TRUE_MIN, DBL_MIN, 1e-12, 1e12 < largest ? 1e12 : 1, largest, 0};
        uint64_t ids[6], drawn[64];
        uint32_t slots[64];
        double p[64];
        float w[64];
        CHECK(add(table, 6, 0, priorities, ids) == 0);
        CHECK(isfinite(info_of(table).total_priority));
        for (int i = 0; i < 100; i++) {
            CHECK(table_sample(table, 64, 1, true, slots, drawn, p, w, NULL, &error) == 0);
            for (int j = 0; j < 64; j++) CHECK(drawn[j] != ids[5] && p[j] >= 0 && p[j] <= 1 && w[j] >= 0 && w[j] <= 1);
            table_unpin(table, slots, 64);
        }
        CHECK(table_delete(table, 1, &ids[4]) == 1 && table_delete(table, 1, &ids[3]) == 1);
        CHECK(table_sample(table, 64, 1, true, slots, drawn, p, w, NULL, &error) ==
              0); /* small ones are drawn once they are alone */
        table_unpin(table, slots, 64);
        double too_large = largest * 2;
        if (exponents[e] > 1) CHECK(add(table, 1, 0, &too_large, ids) == -1 && error.code == ERROR_BADPRIORITY);
        table_free(table);
    }
}

static void weights_are_np_to_minus_beta_over_their_maximum(void) {
    struct table_config config = small_config(50, SELECTOR_PRIORITIZED);
    config.priority_exponent = 0.6;
    struct table *table = make(&config);
    double priorities[50], p[128];
    uint64_t ids[50];
    uint32_t slots[128];
    float w[128], again[128];
    for (int i = 0; i < 50; i++) priorities[i] = 0.01 + i * i;
    CHECK(add(table, 50, 0, priorities, ids) == 0);
    CHECK(table_sample(table, 128, 0.4, true, slots, NULL, p, w, NULL, &error) == 0);
    double largest = 0;
    for (int i = 0; i < 128; i++) largest = fmax(largest, pow(50 * p[i], -0.4));
    for (int i = 0; i < 128; i++) CHECK(fabs(w[i] - pow(50 * p[i], -0.4) / largest) < 1e-6);
    table_unpin(table, slots, 128);
    table_seed(table, 5);
    CHECK(table_sample(table, 128, 0.4, true, slots, NULL, p, w, NULL, &error) == 0);
    table_unpin(table, slots, 128);
    table_seed(table, 5); /* the same seed draws the same; weights do not depend on what else is asked for */
    CHECK(table_sample(table, 128, 0.4, true, slots, NULL, NULL, again, NULL, &error) == 0);
    table_unpin(table, slots, 128);
    CHECK(memcmp(w, again, sizeof w) == 0);
    CHECK(table_sample(table, 1, -0.1, true, slots, NULL, NULL, NULL, NULL, &error) == -1);
    CHECK(table_sample(table, 1, NAN, true, slots, NULL, NULL, NULL, NULL, &error) == -1);
    table_free(table);
}

/* ---- samplers and removers ----------------------------------------------------------------------------------------- */

static void fifo_returns_the_oldest_and_max_times_sampled_lets_them_go(void) {
    struct table_config config = small_config(10, SELECTOR_FIFO);
    config.max_times_sampled = 2;
    struct table *table = make(&config);
    uint64_t ids[6], drawn[6];
    uint32_t slots[6];
    double p[6];
    CHECK(add(table, 6, 0, NULL, ids) == 0);
    CHECK(table_sample(table, 4, 0, true, slots, drawn, p, NULL, NULL, &error) == 0 &&
          memcmp(drawn, ids, 4 * sizeof *ids) == 0 && p[0] == 1);
    table_unpin(table, slots, 4);
    CHECK(table_sample(table, 6, 0, true, slots, drawn, NULL, NULL, NULL, &error) == 0 &&
          memcmp(drawn, ids, sizeof ids) == 0);
    uint64_t values[6]; /* four have left; their bytes stay until the pin goes */
    table_gather(table, 0, slots, 6, values);
    CHECK(values[0] == 0 && values[5] == 5 && info_of(table).size == 2 && info_of(table).pinned_slots == 6);
    table_unpin(table, slots, 6);
    CHECK(table_sample(table, 3, 0, true, slots, drawn, NULL, NULL, NULL, &error) == -1 && error.code == ERROR_TIMEOUT);
    CHECK(table_sample(table, 2, 0, true, slots, drawn, NULL, NULL, NULL, &error) == 0 && drawn[0] == ids[4] &&
          drawn[1] == ids[5]);
    table_unpin(table, slots, 2);
    CHECK(info_of(table).size == 0 && info_of(table).removed == 6 && info_of(table).sampled == 12);
    CHECK(table_sample(table, 11, 0, true, slots, drawn, NULL, NULL, NULL, &error) == -1 && error.code == ERROR_LIMIT);
    table_free(table);
}

/* With replacement, but never more often than allowed, whatever a batch draws. */
static void max_times_sampled_holds_within_a_batch(void) {
    const enum selector_kind samplers[] = {SELECTOR_PRIORITIZED, SELECTOR_UNIFORM};
    for (int s = 0; s < 2; s++) {
        struct table_config config = small_config(20, samplers[s]);
        config.max_times_sampled = 3;
        struct table *table = make(&config);
        uint64_t ids[20], drawn[60];
        uint32_t slots[60];
        double p[60], priorities[20];
        float w[60];
        for (int i = 0; i < 20; i++)
            priorities[i] = i == 0 ? 1e6 : i % 4 ? 1 : 0; /* one would be drawn nearly always, some never */
        CHECK(add(table, 20, 0, priorities, ids) == 0);
        uint32_t drawable = samplers[s] == SELECTOR_UNIFORM ? 20 : 16, counts[20] = {0};
        CHECK(table_sample(table, 3 * drawable + 1, 0, true, slots, drawn, p, w, NULL, &error) == -1);
        for (uint32_t left = 3 * drawable; left;) {
            uint32_t n = left < 11 ? left : 11;
            CHECK(table_sample(table, n, 0.5, true, slots, drawn, p, w, NULL, &error) == 0);
            for (uint32_t i = 0; i < n; i++) {
                uint32_t item = 0;
                while (ids[item] != drawn[i]) item++;
                CHECK(++counts[item] <= 3 && p[i] > 0 && p[i] <= 1 && w[i] > 0 && w[i] <= 1);
            }
            table_unpin(table, slots, n);
            left -= n;
        }
        CHECK(info_of(table).size == 20 - drawable);
        CHECK(table_sample(table, 1, 0, true, slots, drawn, p, w, NULL, &error) == -1 && error.code == ERROR_TIMEOUT);
        table_free(table);
    }
}

static void uniform_draws_every_item_alike(void) {
    struct table_config config = small_config(1000, SELECTOR_UNIFORM);
    config.seed = 11;
    struct table *table = make(&config);
    uint64_t ids[1000];
    uint32_t slots[1000], seen[1000] = {0};
    CHECK(add(table, 1000, 0, NULL, ids) == 0);
    CHECK(table_delete(table, 500, ids) == 500 && add(table, 250, 1000, NULL, ids) == 0);
    for (int i = 0; i < 1000; i++) {
        uint64_t values[1000];
        CHECK(table_sample(table, 1000, 0, true, slots, NULL, NULL, NULL, NULL, &error) == 0);
        table_gather(table, 0, slots, 1000, values);
        for (int j = 0; j < 1000; j++) {
            CHECK(values[j] >= 500 && values[j] < 1250);
            seen[values[j] - 500]++;
        }
        table_unpin(table, slots, 1000);
    }
    double statistic = 0, expected = 1e6 / 750;
    for (int i = 0; i < 750; i++) statistic += (seen[i] - expected) * (seen[i] - expected) / expected;
    CHECK(statistic < 945); /* 749 degrees of freedom: exceeded once in a million seeds */
    table_free(table);
}

static void capacity_and_max_bytes_remove_the_oldest(void) {
    struct table_config config = small_config(100, SELECTOR_PRIORITIZED);
    config.max_bytes = 11 * 7 + 5; /* room for seven items of 11 bytes */
    struct table *table = make(&config);
    uint64_t ids[5], last = 0;
    for (uint64_t i = 0; i < 10; i++) {
        CHECK(add(table, 5, 5 * i, NULL, ids) == 0);
        struct table_info info = info_of(table);
        CHECK(info.size == (i ? 7 : 5) && info.bytes == info.size * 11 && info.added - info.removed == info.size);
        last = ids[4];
    }
    check_value(table, last, 49);
    uint64_t many[8];
    CHECK(add(table, 8, 0, NULL, many) == -1 && error.code == ERROR_LIMIT);
    struct msgpack_writer writer = {0};
    msgpack_write_map(&writer, 1);
    msgpack_write_string(&writer, "max_bytes", 9);
    msgpack_write_unsigned(&writer, 22);
    CHECK(table_configure(table, writer.data, writer.length, &error) == 0 && info_of(table).size == 2);
    memory_free(writer.data);
    check_value(table, last, 49);
    table_free(table);
}

/* ---- rate limiters ------------------------------------------------------------------------------------------------- */

static int try_sample(struct table *table, uint32_t n) {
    uint32_t slots[64];
    int refused = table_sample(table, n, 0, true, slots, NULL, NULL, NULL, NULL, &error);
    if (!refused) table_unpin(table, slots, n);
    return refused;
}

static void min_size_holds_sampling_back(void) {
    struct table_config config = small_config(10, SELECTOR_UNIFORM);
    config.min_size_to_sample = 5;
    struct table *table = make(&config);
    uint64_t ids[5];
    CHECK(add(table, 4, 0, NULL, ids) == 0 && try_sample(table, 1) == -1 && error.code == ERROR_TIMEOUT);
    CHECK(strstr(error.message, "holds 4") && strstr(error.message, "min_size_to_sample = 5"));
    CHECK(add(table, 1, 0, NULL, ids) == 0 && try_sample(table, 64) == 0);
    table_free(table);
}

static void ratio_keeps_samples_and_inserts_together(void) {
    struct table_config config = small_config(1000, SELECTOR_UNIFORM);
    config.limiter = LIMITER_SAMPLE_TO_INSERT_RATIO;
    config.min_size_to_sample = 10;
    config.samples_per_insert = 2;
    config.error_buffer = 8;
    struct table *table = make(&config);
    uint64_t ids[20];
    CHECK(add(table, 5, 0, NULL, ids) == 0 && try_sample(table, 1) == -1 &&
          strstr(error.message, "min_size_to_sample"));
    CHECK(add(table, 5, 0, NULL, ids) == 0); /* diff = offset = 20 */
    CHECK(try_sample(table, 17) == -1 && error.code == ERROR_LIMIT); /* more than twice the buffer */
    CHECK(try_sample(table, 8) == 0);                                /* diff = 12 = offset - error_buffer */
    CHECK(try_sample(table, 1) == -1 && error.code == ERROR_TIMEOUT && strstr(error.message, "waits for inserts"));
    CHECK(add(table, 9, 0, NULL, ids) == -1 && error.code == ERROR_LIMIT);
    CHECK(add(table, 8, 0, NULL, ids) == 0); /* diff = 28 = offset + error_buffer */
    CHECK(add(table, 1, 0, NULL, ids) == -1 && error.code == ERROR_TIMEOUT &&
          strstr(error.message, "waits for samples"));
    CHECK(try_sample(table, 16) == 0 && try_sample(table, 1) == -1);
    CHECK(add(table, 4, 0, NULL, ids) == 0 && try_sample(table, 8) == 0);
    table_reset(table);
    CHECK(add(table, 10, 0, NULL, ids) == 0 && try_sample(table, 8) == 0);
    table_free(table);
}

static void a_queue_blocks_adders_when_full_and_hands_items_out_once(void) {
    struct table_config config = small_config(8, SELECTOR_FIFO);
    config.limiter = LIMITER_QUEUE;
    config.queue_size = 4;
    config.max_times_sampled = 1;
    struct table *table = make(&config);
    uint64_t ids[5];
    CHECK(add(table, 5, 0, NULL, ids) == -1 && error.code == ERROR_LIMIT);
    CHECK(add(table, 3, 0, NULL, ids) == 0 && add(table, 2, 0, NULL, ids) == -1 && error.code == ERROR_TIMEOUT);
    CHECK(try_sample(table, 4) == -1 && error.code == ERROR_TIMEOUT && try_sample(table, 5) == -1 &&
          error.code == ERROR_LIMIT);
    CHECK(try_sample(table, 2) == 0 && info_of(table).size == 1 && add(table, 3, 0, NULL, ids) == 0);
    table_free(table);
}

/* Every way of copying items out: by size of item, and by size of the whole. */
static void items_of_every_size_come_out_as_they_went_in(void) {
    enum { ITEMS = 100, DRAWN = 3000 };
    const size_t large[] = {511, 512, 513, 1000, 4096, 7056};
    for (size_t k = 0; k < 300 + sizeof large / sizeof large[0]; k++) {
        size_t item_bytes = k < 300 ? k + 1 : large[k - 300];
        struct table_config config = small_config(ITEMS, SELECTOR_UNIFORM);
        config.columns = 1;
        config.column[0] = (struct column){
            .name = "x", .type = COLUMN_UINT8, .dimensions = 1, .shape = {item_bytes}, .item_bytes = item_bytes};
        struct table *table = make(&config);
        uint8_t *items = malloc(ITEMS * item_bytes), *out = malloc(DRAWN * item_bytes);
        for (size_t i = 0; i < ITEMS * item_bytes; i++) items[i] = (uint8_t)(i * 7 + i / 251);
        uint64_t ids[ITEMS], drawn[DRAWN];
        struct reservation *reservation = table_reserve(table, ITEMS, &error);
        reservation_fill(reservation, 0, items);
        CHECK(table_commit(table, reservation, NULL, ids, &error) == 0);
        uint32_t slots[DRAWN];
        CHECK(table_sample(table, DRAWN, 0, true, slots, drawn, NULL, NULL, NULL, &error) == 0);
        table_gather(table, 0, slots, DRAWN, out);
        for (uint32_t i = 0; i < DRAWN; i++) {
            uint32_t item = 0;
            while (ids[item] != drawn[i]) item++;
            CHECK(memcmp(out + i * item_bytes, items + item * item_bytes, item_bytes) == 0);
        }
        table_unpin(table, slots, DRAWN);
        table_free(table);
        free(items);
        free(out);
    }
}

/* Small columns share a row, the one of 100 bytes lies apart. Adds are direct, and staged where they are larger. */
static void small_columns_keep_their_values_and_alignment_side_by_side(void) {
    static const size_t sizes[] = {1, 44, 8, 3, 100, 2, 4, 63, 12};
    enum { COLUMNS = sizeof sizes / sizeof sizes[0], ITEMS = TABLE_RESERVED_LIMIT + 1, DRAWN = 500 };
    struct table_config config = small_config(ITEMS, SELECTOR_UNIFORM);
    config.columns = COLUMNS;
    for (uint32_t c = 0; c < COLUMNS; c++) {
        config.column[c] =
            (struct column){.type = COLUMN_UINT8, .dimensions = 1, .shape = {sizes[c]}, .item_bytes = sizes[c]};
        config.column[c].name[0] = (char)('a' + c);
    }
    for (uint32_t n = 50; n <= ITEMS; n += ITEMS - 50) {
        struct table *table = make(&config);
        struct reservation *reservation = table_reserve(table, n, &error);
        uint8_t *items[COLUMNS], out[DRAWN * 100];
        for (uint32_t c = 0; c < COLUMNS; c++) {
            items[c] = malloc(n * sizes[c]);
            for (size_t i = 0; i < n * sizes[c]; i++) items[c][i] = (uint8_t)(i * 7 + i / 251 + c);
            reservation_fill(reservation, c, items[c]);
        }
        uint64_t *ids = malloc(n * sizeof *ids);
        CHECK(table_commit(table, reservation, NULL, ids, &error) == 0);
        uint32_t slots[DRAWN], item[DRAWN];
        uint64_t asked[DRAWN];
        for (uint32_t i = 0; i < DRAWN; i++) {
            item[i] = i * 7919 % n;
            asked[i] = ids[item[i]];
        }
        CHECK(table_get(table, DRAWN, asked, 0, slots, NULL, &error) == 0);
        for (uint32_t c = 0; c < COLUMNS; c++) {
            const uint8_t *base;
            size_t stride, alignment = sizes[c] & -sizes[c];
            table_column_view(table, c, &base, &stride);
            CHECK((uintptr_t)base % alignment == 0 && stride % alignment == 0);
            table_gather(table, c, slots, DRAWN, out);
            for (uint32_t i = 0; i < DRAWN; i++)
                CHECK(memcmp(out + i * sizes[c], items[c] + item[i] * sizes[c], sizes[c]) == 0);
            free(items[c]);
        }
        table_unpin(table, slots, DRAWN);
        table_free(table);
        free(ids);
    }
}

int main(void) {
    RUN(adds_and_samples);
    RUN(an_update_to_a_replaced_item_is_stale_and_changes_nothing);
    RUN(a_slot_whose_generation_would_wrap_is_retired);
    RUN(a_pinned_item_keeps_its_bytes_after_removal);
    RUN(a_released_reservation_leaves_nothing_behind);
    RUN(bytes_land_where_the_reservation_says);
    RUN(adds_beyond_the_spare_slots_are_staged);
    RUN(a_refused_commit_changes_nothing);
    RUN(default_priority_is_the_maximum_over_live_items);
    RUN(all_zero_priorities_wait_and_say_so);
    RUN(extreme_priorities_keep_probabilities_and_weights_finite);
    RUN(weights_are_np_to_minus_beta_over_their_maximum);
    RUN(fifo_returns_the_oldest_and_max_times_sampled_lets_them_go);
    RUN(max_times_sampled_holds_within_a_batch);
    RUN(uniform_draws_every_item_alike);
    RUN(capacity_and_max_bytes_remove_the_oldest);
    RUN(min_size_holds_sampling_back);
    RUN(ratio_keeps_samples_and_inserts_together);
    RUN(a_queue_blocks_adders_when_full_and_hands_items_out_once);
    RUN(items_of_every_size_come_out_as_they_went_in);
    RUN(small_columns_keep_their_values_and_alignment_side_by_side);
    return 0;
}

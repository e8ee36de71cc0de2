/* test_eviction: which keys go when memory is short, and how their use is counted. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "check.h"
#include "store/store.h"
#include "store/t_string.h"

#define KEYS 200

static struct store *store;

static const uint8_t *name_of(unsigned i, size_t *length) {
    static char name[32];
    *length = (size_t)snprintf(name, sizeof name, "key:%u", i);
    return (const uint8_t *)name;
}

static struct dict_entry *find(unsigned database, unsigned i) {
    size_t length;
    const uint8_t *name = name_of(i, &length);
    return store_find(store, database, name, length);
}

static struct dict_entry *put(unsigned database, unsigned i) {
    size_t length;
    const uint8_t *name = name_of(i, &length);
    return store_put(store, database, name, length, string_new((const uint8_t *)"value", 5, NULL), false);
}

static void at_second(uint64_t second) {
    access_tell_time(&store->access, second * 1000000);
}

static void open_store(enum eviction_policy policy) {
    store = store_new();
    eviction_use(store, policy, 10);
    at_second(1000);
}

static unsigned evict(unsigned count) {
    unsigned evicted = 0;
    while (evicted < count && store_evict(store)) evicted++;
    return evicted;
}

static unsigned left(unsigned first, unsigned last) {
    unsigned count = 0;
    for (unsigned i = first; i < last; i++) count += find(0, i) != NULL;
    return count;
}

static void what_was_not_used_for_longest_goes_first(void) {
    open_store(EVICTION_ALLKEYS_LRU);
    for (unsigned i = 0; i < KEYS; i++) put(0, i);
    at_second(1100);
    for (unsigned i = 0; i < KEYS; i += 2) store_touch(store, find(0, i));
    at_second(1200);
    CHECK(access_idle_s(&store->access, store_value(find(0, 0))) == 100);
    CHECK(access_idle_s(&store->access, store_value(find(0, 1))) == 200);
    CHECK(evict(KEYS / 2) == KEYS / 2 && store->evicted_keys == KEYS / 2);
    unsigned used = 0;
    for (unsigned i = 0; i < KEYS; i += 2) used += find(0, i) != NULL;
    CHECK(used >= KEYS * 2 / 5); /* of KEYS / 2: it is an approximation */
    store_free(store);
}

static void the_one_candidate_that_was_not_used_since_goes(void) {
    open_store(EVICTION_ALLKEYS_LRU);
    for (unsigned i = 0; i < 10; i++) put(0, i);
    at_second(1050);
    store->eviction.samples = 200; /* of ten keys: all of them are looked at, but for odds of one in 10^9 */
    CHECK(evict(1) == 1 && store->eviction.count == 9);
    unsigned unused = 10;
    for (unsigned i = 0; i < 10; i++) {
        if (!find(0, i)) continue;
        if (find(0, i)->hash == store->eviction.pool[0].hash)
            unused = i; /* the last that would be taken: all others are candidates of the same age */
        else
            store_touch(store, find(0, i));
    }
    store->eviction.samples = 1;
    CHECK(evict(1) == 1 && !find(0, unused) && left(0, 10) == 8);
    store_free(store);
}

static void what_is_used_after_it_became_a_candidate_stays(void) {
    /* Each time the one key that is looked at may be the unused one, which then comes first in any case. */
    for (unsigned time = 0; time < 5; time++) the_one_candidate_that_was_not_used_since_goes();
}

static void what_is_used_seldom_goes_first(void) {
    open_store(EVICTION_VOLATILE_LFU);
    for (unsigned i = 0; i < KEYS; i++) CHECK(store_expire_at(store, 0, put(0, i), clock_unix_ms() + 1000000));
    for (unsigned i = KEYS; i < 2 * KEYS; i++) put(0, i);
    for (unsigned use = 0; use < 100; use++)
        for (unsigned i = 0; i < KEYS / 2; i++) store_touch(store, find(0, i));
    CHECK(access_frequency(&store->access, store_value(find(0, 0))) > ACCESS_COUNTER_FIRST);
    CHECK(access_frequency(&store->access, store_value(find(0, KEYS - 1))) == ACCESS_COUNTER_FIRST);
    CHECK(evict(KEYS / 2) == KEYS / 2);
    CHECK(left(0, KEYS / 2) >= KEYS * 2 / 5);
    CHECK(evict(KEYS) == KEYS / 2 && left(0, KEYS) == 0 &&
          left(KEYS, 2 * KEYS) == KEYS); /* no key without an end goes */
    store_free(store);
}

static void a_counter_grows_ever_more_slowly_and_falls_with_time(void) {
    open_store(EVICTION_ALLKEYS_LFU);
    struct value *value = store_value(put(0, 0));
    at_second(6000);
    CHECK(access_frequency(&store->access, value) == 0);
    for (unsigned use = 0; use < 5; use++) access_count(&store->access, value, &store->random);
    CHECK(access_frequency(&store->access, value) == 5); /* up to its first value it grows by each use */
    for (unsigned use = 0; use < 1000; use++) access_count(&store->access, value, &store->random);
    uint32_t thousand = access_frequency(&store->access, value);
    CHECK(thousand >= 10 && thousand <= 30); /* about 18 with a factor of 10 */
    at_second(6000 + 3 * 60);
    CHECK(access_frequency(&store->access, value) == thousand - 3);
    store->access.decay_minutes = 0;
    CHECK(access_frequency(&store->access, value) == thousand);
    store->access.log_factor = 0;
    for (unsigned use = 0; use < 300; use++) access_count(&store->access, value, &store->random);
    CHECK(access_frequency(&store->access, value) == ACCESS_COUNTER_MAX);
    store_free(store);
}

static void a_new_value_keeps_what_is_known_of_its_key(void) {
    open_store(EVICTION_ALLKEYS_LFU);
    put(0, 0);
    store->access.log_factor = 0;
    for (unsigned use = 0; use < 20; use++) store_touch(store, find(0, 0));
    CHECK(access_frequency(&store->access, store_value(put(0, 0))) == ACCESS_COUNTER_FIRST + 21);
    store_replace(store, 0, find(0, 0), string_new_integer(7));
    CHECK(access_frequency(&store->access, store_value(find(0, 0))) == ACCESS_COUNTER_FIRST + 21);
    store_free(store);
}

static void the_nearest_end_goes_first_exactly(void) {
    open_store(EVICTION_VOLATILE_TTL);
    for (unsigned i = 0; i < KEYS; i++) {
        unsigned shuffled = i * 77 % KEYS;
        CHECK(store_expire_at(store, shuffled % 3, put(shuffled % 3, shuffled),
                              clock_unix_ms() + 100000 + shuffled * 10));
    }
    for (unsigned i = 0; i < KEYS; i++) CHECK(find(i % 3, i) && evict(1) == 1 && !find(i % 3, i));
    CHECK(evict(1) == 0);
    store_free(store);
}

static void random_policies_take_every_key_they_may(void) {
    open_store(EVICTION_ALLKEYS_RANDOM);
    for (unsigned i = 0; i < KEYS; i++) put(i % STORE_DATABASES, i);
    CHECK(evict(2 * KEYS) == KEYS);
    eviction_use(store, EVICTION_VOLATILE_RANDOM, 10);
    for (unsigned i = 0; i < KEYS; i++) put(0, i);
    CHECK(evict(1) == 0);
    CHECK(store_expire_at(store, 0, find(0, 17), clock_unix_ms() + 100000));
    CHECK(evict(2) == 1 && !find(0, 17) && left(0, KEYS) == KEYS - 1);
    eviction_use(store, EVICTION_NONE, 10);
    CHECK(evict(1) == 0);
    store_free(store);
}

static void candidates_that_are_gone_are_passed_over(void) {
    open_store(EVICTION_ALLKEYS_LRU);
    for (unsigned i = 0; i < KEYS; i++) put(0, i);
    at_second(1100);
    CHECK(evict(1) == 1);
    store_flush(store, 0);
    CHECK(evict(1) == 0);
    put(2, 1);
    CHECK(evict(2) == 1);
    store_free(store);
}

int main(void) {
    size_t before = memory_used_bytes();
    RUN(what_was_not_used_for_longest_goes_first);
    RUN(what_is_used_after_it_became_a_candidate_stays);
    RUN(what_is_used_seldom_goes_first);
    RUN(a_counter_grows_ever_more_slowly_and_falls_with_time);
    RUN(a_new_value_keeps_what_is_known_of_its_key);
    RUN(the_nearest_end_goes_first_exactly);
    RUN(random_policies_take_every_key_they_may);
    RUN(candidates_that_are_gone_are_passed_over);
    CHECK(memory_used_bytes() == before);
    return 0;
}

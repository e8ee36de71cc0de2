/* test_store: databases, expiry, renaming, and work done in slices. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/memory.h"
#include "check.h"
#include "store/glob.h"
#include "store/store.h"
#include "store/t_hash.h"
#include "store/t_list.h"
#include "store/t_string.h"

static const uint8_t *bytes_of(const char *text) {
    return (const uint8_t *)text;
}

static struct value *text_value(const char *text) {
    return string_new(bytes_of(text), strlen(text), NULL);
}

static struct dict_entry *put(struct store *store, unsigned database, const char *key, struct value *value) {
    return store_put(store, database, bytes_of(key), strlen(key), value, false);
}

static struct dict_entry *find(struct store *store, unsigned database, const char *key) {
    return store_find(store, database, bytes_of(key), strlen(key));
}

static void a_key_holds_its_last_value_in_its_database_only(void) {
    struct store *store = store_new();
    CHECK(put(store, 0, "k", text_value("first")));
    CHECK(put(store, 0, "k", text_value("second")));
    struct string_view view;
    string_view(store_value(find(store, 0, "k")), &view);
    CHECK(view.length == 6 && memcmp(view.data, "second", 6) == 0);
    CHECK(!find(store, 1, "k"));
    store_remove(store, 0, find(store, 0, "k"));
    CHECK(!find(store, 0, "k"));
    store_free(store);
}

static void keys_end_when_found_and_when_nobody_looks(void) {
    struct store *store = store_new();
    CHECK(store_step(store, UINT64_MAX) == CLOCK_NEVER);
    struct dict_entry *entries[100];
    char name[32];
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "key:%d", i);
        entries[i] = put(store, 3, name, text_value("v"));
        CHECK(store_expire_at(store, 3, entries[i], clock_unix_ms() + 1000000));
    }
    CHECK(store_step(store, UINT64_MAX) != CLOCK_NEVER);
    CHECK(dict_count(&store->databases[3].keys) == 100);
    for (int i = 0; i < 100; i++) store_expire_at(store, 3, entries[i], clock_unix_ms() - 1000);
    CHECK(!find(store, 3, "key:5") && store->expired_keys == 1);
    while (store_step(store, UINT64_MAX) != CLOCK_NEVER) {
    }
    CHECK(dict_count(&store->databases[3].keys) == 0 && store->expired_keys == 100);
    store_free(store);
}

static void expiry_is_kept_cleared_and_moved_as_asked(void) {
    struct store *store = store_new();
    int64_t end_ms = clock_unix_ms() + 60000, found_ms = 0;
    struct dict_entry *entry = put(store, 0, "a", text_value("1"));
    CHECK(!store_expiry(store, 0, entry, &found_ms));
    store_expire_at(store, 0, entry, end_ms);
    entry = store_put(store, 0, bytes_of("a"), 1, text_value("2"), true);
    CHECK(store_expiry(store, 0, entry, &found_ms) && found_ms == end_ms);
    CHECK(store_expire_at(store, 0, put(store, 0, "b", text_value("3")), end_ms + 5));
    CHECK(store_rename(store, 0, entry, bytes_of("b"), 1));
    entry = find(store, 0, "b");
    CHECK(!find(store, 0, "a") && store_expiry(store, 0, entry, &found_ms) && found_ms == end_ms);
    CHECK(store->databases[0].expiry.count == 1);
    CHECK(store_move(store, 0, entry, 3) && !find(store, 0, "b") && store->databases[0].expiry.count == 0);
    CHECK(store_expiry(store, 3, find(store, 3, "b"), &found_ms) && found_ms == end_ms);
    CHECK(store_move(store, 3, find(store, 3, "b"), 0));
    entry = find(store, 0, "b");
    CHECK(store_expiry(store, 0, entry, &found_ms) && found_ms == end_ms);
    store_persist(store, 0, entry);
    CHECK(!store_expiry(store, 0, entry, &found_ms));
    CHECK(store_expire_at(store, 0, entry, end_ms));
    entry = put(store, 0, "b", text_value("4"));
    CHECK(!store_expiry(store, 0, entry, &found_ms) && store->databases[0].expiry.count == 0);
    store_free(store);
}

static void the_expiry_heap_gives_keys_in_order(void) {
    struct store *store = store_new();
    struct random_state random;
    random_seed(&random, 7);
    int64_t now_ms = clock_unix_ms();
    char name[32];
    for (int step = 0; step < 20000; step++) {
        snprintf(name, sizeof name, "%d", (int)random_below(&random, 500));
        struct dict_entry *entry = find(store, 0, name);
        if (!entry) entry = put(store, 0, name, text_value("x"));
        uint64_t action = random_below(&random, 4);
        if (action == 0)
            store_remove(store, 0, entry);
        else if (action == 1)
            store_persist(store, 0, entry);
        else
            store_expire_at(store, 0, entry, now_ms + 100000 + (int64_t)random_below(&random, 100000));
    }
    struct expire_heap *heap = &store->databases[0].expiry;
    int64_t last_ms = 0;
    CHECK(heap->count > 0);
    while (heap->count > 0) {
        CHECK(heap->items[0].at_ms >= last_ms);
        last_ms = heap->items[0].at_ms;
        store_remove(store, 0, heap->items[0].entry);
    }
    store_free(store);
}

static void large_values_and_flushed_databases_are_freed_in_slices(void) {
    struct store *store = store_new();
    size_t before = memory_used_bytes();
    struct list *list = list_new();
    for (int i = 0; i < 20000; i++) CHECK(list_push(list, i % 2, text_value("an element of the list")));
    put(store, 0, "list", &list->head);
    struct hash *hash = hash_new();
    char name[32];
    for (int i = 0; i < 20000; i++) {
        int length = snprintf(name, sizeof name, "field:%d", i);
        CHECK(hash_set(hash, bytes_of(name), (size_t)length, bytes_of("v"), 1, NULL) == HASH_SET_ADDED);
        put(store, 1, name, text_value("value"));
    }
    put(store, 1, "hash", &hash->head);
    store_remove(store, 0, find(store, 0, "list"));
    CHECK(!find(store, 0, "list") && store->discarded_count == 1);
    for (unsigned database = 0; database < STORE_DATABASES; database++) store_flush(store, database);
    CHECK(dict_count(&store->databases[1].keys) == 0 && !find(store, 1, "hash"));
    CHECK(put(store, 1, "hash", text_value("a new key beside the old database")));
    int steps = 0;
    while (store_step(store, 0) != CLOCK_NEVER) steps++;
    CHECK(steps > 100 && store->discarded_count == 0);
    CHECK(find(store, 1, "hash"));
    store_remove(store, 1, find(store, 1, "hash"));
    CHECK(memory_used_bytes() < before + 32768);
    store_free(store);
}

static void what_waits_to_be_freed_is_freed_with_the_store(void) {
    size_t before = memory_used_bytes();
    struct store *store = store_new();
    char name[32];
    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "key:%d", i);
        put(store, 0, name, text_value("value"));
    }
    store_flush(store, 0);
    store_step(store, 0);
    store_free(store);
    CHECK(memory_used_bytes() == before);
}

static void random_keys_are_live_and_spread(void) {
    struct store *store = store_new();
    CHECK(!store_random(store, 0));
    unsigned seen[8] = {0};
    char name[2] = "0";
    for (int i = 0; i < 8; i++) {
        name[0] = (char)('0' + i);
        put(store, 0, name, text_value("v"));
    }
    for (int i = 0; i < 4000; i++) seen[store_random(store, 0)->key[0] - '0']++;
    for (int i = 0; i < 8; i++) CHECK(seen[i] > 100);
    store_free(store);
}

static bool matches(const char *pattern, const char *text) {
    return glob_match(bytes_of(pattern), strlen(pattern), bytes_of(text), strlen(text));
}

static void patterns_match_as_in_redis(void) {
    CHECK(!matches("*", "") && !matches("**", "") && matches("*", "anything") && matches("", "") && !matches("", "a"));
    CHECK(matches("h?llo", "hello") && !matches("h?llo", "hllo"));
    CHECK(matches("h*llo", "heeeello") && matches("*a*b*c", "xxaxxbxxc") && !matches("*a*b*c", "xxaxxbxxcx"));
    CHECK(matches("h[ae]llo", "hallo") && !matches("h[ae]llo", "hillo") && matches("h[^e]llo", "hbllo"));
    CHECK(matches("[a-c]", "b") && matches("[c-a]", "b") && !matches("[a-c]", "d") && matches("[]", "]") == false);
    CHECK(matches("\\*", "*") && !matches("\\*", "a") && matches("a\\", "a\\") && matches("[ab", "b"));
    CHECK(matches("[\\]]", "]") && matches("user:*:name", "user:12:name"));
    /* Exponential in a backtracking matcher. */
    char text[2001];
    memset(text, 'a', 2000);
    text[2000] = '\0';
    CHECK(!matches("*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b", text));
}

int main(void) {
    RUN(a_key_holds_its_last_value_in_its_database_only);
    RUN(keys_end_when_found_and_when_nobody_looks);
    RUN(expiry_is_kept_cleared_and_moved_as_asked);
    RUN(the_expiry_heap_gives_keys_in_order);
    RUN(large_values_and_flushed_databases_are_freed_in_slices);
    RUN(what_waits_to_be_freed_is_freed_with_the_store);
    RUN(random_keys_are_live_and_spread);
    RUN(patterns_match_as_in_redis);
    return 0;
}

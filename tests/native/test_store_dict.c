/* test_store_dict: the hash table while it grows and shrinks, and scans across it. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "check.h"
#include "store/dict.h"

#define KEYS 5000

static struct dict_entry *find(struct dict *dict, int number) {
    char name[32];
    size_t length = (size_t)snprintf(name, sizeof name, "key:%d", number);
    return dict_find(dict, dict_hash(name, length), name, length);
}

static void add(struct dict *dict, int number) {
    char name[32];
    size_t length = (size_t)snprintf(name, sizeof name, "key:%d", number);
    struct dict_entry *entry = dict_add(dict, dict_hash(name, length), name, length);
    CHECK(entry != NULL && entry->value == NULL);
    entry->value = (void *)(uintptr_t)(number + 1);
}

static void take_out(struct dict *dict, int number) {
    struct dict_entry *entry = find(dict, number);
    CHECK(entry != NULL);
    dict_unlink(dict, entry);
    dict_entry_free(entry);
}

static void drop_nothing(void *context, void *value) {
    (void)context;
    (void)value;
}

static void release(struct dict *dict) {
    size_t steps = SIZE_MAX;
    CHECK(dict_release(dict, &steps, drop_nothing, NULL));
}

static void finds_what_was_added_while_growing_and_shrinking(void) {
    struct dict dict;
    dict_init(&dict);
    CHECK(find(&dict, 0) == NULL);
    bool rehashed = false;
    for (int i = 0; i < KEYS; i++) {
        add(&dict, i);
        rehashed |= dict_is_rehashing(&dict);
        CHECK(find(&dict, i)->value == (void *)(uintptr_t)(i + 1));
        CHECK(find(&dict, i / 2) != NULL && find(&dict, i + 1) == NULL);
    }
    CHECK(rehashed && dict_count(&dict) == KEYS);
    uint64_t largest = dict.tables[0].size;
    for (int i = 0; i < KEYS - 10; i++) {
        take_out(&dict, i);
        CHECK(find(&dict, i) == NULL && find(&dict, KEYS - 1) != NULL);
    }
    while (dict_rehash(&dict, 16)) {
    }
    CHECK(dict_count(&dict) == 10 && dict.tables[0].size < largest / 8);
    release(&dict);
}

static void walks_every_entry_once(void) {
    struct dict dict;
    dict_init(&dict);
    static unsigned seen[KEYS];
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < KEYS; i++) add(&dict, i);
    struct dict_position position = {0};
    struct dict_entry *entry;
    while ((entry = dict_next(&dict, &position)) != NULL) seen[(uintptr_t)entry->value - 1]++;
    for (int i = 0; i < KEYS; i++) CHECK(seen[i] == 1);
    release(&dict);
}

static unsigned scanned[KEYS * 20];

static void count_scanned(void *context, struct dict_entry *entry) {
    (void)context;
    scanned[(uintptr_t)entry->value - 1]++;
}

/* Scans with `change` done between the steps; the keys 0 .. KEYS-1 are there throughout. */
static void scan_across(struct dict *dict, void (*change)(struct dict *dict, int step)) {
    memset(scanned, 0, sizeof scanned);
    uint64_t cursor = 0;
    int step = 0;
    do {
        cursor = dict_scan(dict, cursor, count_scanned, NULL);
        change(dict, step++);
    } while (cursor != 0);
    for (int i = 0; i < KEYS; i++) CHECK(scanned[i] >= 1);
}

static void change_nothing(struct dict *dict, int step) {
    (void)dict;
    (void)step;
}

static void grow(struct dict *dict, int step) {
    for (int i = 0; i < 10 && KEYS + step * 10 + i < KEYS * 20; i++) add(dict, KEYS + step * 10 + i);
}

static void shrink(struct dict *dict, int step) {
    for (int i = 0; i < 40; i++) {
        int number = KEYS + step * 40 + i;
        if (number < KEYS * 20 && find(dict, number) != NULL) take_out(dict, number);
    }
}

static void a_scan_reports_every_key_that_stays_even_while_the_table_changes_its_size(void) {
    struct dict dict;
    dict_init(&dict);
    CHECK(dict_scan(&dict, 0, count_scanned, NULL) == 0);
    for (int i = 0; i < KEYS; i++) add(&dict, i);
    while (dict_rehash(&dict, 16)) {
    }
    scan_across(&dict, change_nothing);
    for (int i = 0; i < KEYS; i++) CHECK(scanned[i] == 1);
    scan_across(&dict, grow);
    for (int i = KEYS; i < KEYS * 20; i++)
        if (find(&dict, i) == NULL) add(&dict, i);
    scan_across(&dict, shrink);
    scan_across(&dict, change_nothing);
    release(&dict);
}

static void is_released_in_slices(void) {
    struct dict dict;
    dict_init(&dict);
    size_t before = memory_used_bytes();
    for (int i = 0; i < KEYS; i++) add(&dict, i);
    int slices = 0;
    for (size_t steps = 100; !dict_release(&dict, &steps, drop_nothing, NULL); steps = 100) slices++;
    CHECK(slices > KEYS / 100 && memory_used_bytes() == before && dict_count(&dict) == 0);
    add(&dict, 1);
    release(&dict);
}

int main(void) {
    dict_seed(1, 2);
    RUN(finds_what_was_added_while_growing_and_shrinking);
    RUN(walks_every_entry_once);
    RUN(a_scan_reports_every_key_that_stays_even_while_the_table_changes_its_size);
    RUN(is_released_in_slices);
    return 0;
}

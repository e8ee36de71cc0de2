/* server_content: what the files of a server have to keep, as numbers that two servers agree on where they hold the same. */
#ifndef REPLAY_TESTS_SERVER_CONTENT_H
#define REPLAY_TESTS_SERVER_CONTENT_H

#include <stdio.h>

#include "base/sha1.h"
#include "replay/table_ragged.h"
#include "replay/table_state.h"
#include "server/replay/gradients_registry.h"
#include "server/replay/replay_registry.h"
#include "server/replay/replay_subsystem.h"
#include "server/replay/weights_registry.h"
#include "server_stage.h"
#include "store/digest.h"
#include "store/store.h"

static bool tracing; /* requests, replies and contents are printed */

static inline void trace_bytes(const uint8_t *bytes, size_t length) {
    for (size_t i = 0; i < length && i < 200; i++)
        fprintf(stderr, bytes[i] > ' ' && bytes[i] < 127 ? "%c" : "\\x%02x", bytes[i]);
    if (length > 200) fprintf(stderr, "… (%zu bytes)", length);
}

/* Weights, gradients, tables, and keys; but for keys whose time may be over after a restart. */
struct content {
    struct digest keys;
    uint64_t blobs, tables;
};

static inline void mix(uint64_t *sum, const void *bytes, size_t length) {
    const uint8_t *at = bytes;
    for (size_t i = 0; i < length; i++) *sum = (*sum ^ at[i]) * 0x100000001b3ull;
}

static inline void mix_number(uint64_t *sum, uint64_t number) {
    mix(sum, &number, sizeof number);
}

/* Kept from one value to the next, and as large as the largest so far. */
static inline uint8_t *room_for_value(size_t length) {
    static uint8_t *room;
    static size_t room_bytes;
    if (length > room_bytes) {
        free(room);
        room = malloc(length);
        CHECK(room);
        room_bytes = length;
    }
    return room;
}

static inline void mix_item(uint64_t *sum, const struct table *table, uint32_t slot) {
    double priority = max_tree_value(&table->priorities, slot);
    mix_number(sum, table_id(table, slot));
    mix(sum, &priority, sizeof priority);
    if (table->config.max_times_sampled) mix_number(sum, table->items.slot[slot].times_sampled);
    for (uint32_t i = 0; i < table->config.columns; i++) {
        const struct column *column = &table->config.column[i];
        if (column->kind == COLUMN_STEP) continue;
        size_t length =
            column_is_ragged(column) ? table_ragged_rows(table, i, &slot, 1) * column->row_bytes : column->item_bytes;
        uint8_t *value = room_for_value(length);
        if (column_is_ragged(column))
            table_ragged_gather(table, i, &slot, 1, value);
        else
            table_gather(table, i, &slot, 1, value);
        mix_number(sum, length);
        mix(sum, value, length);
    }
}

static inline void trace_table(const struct table *table) {
    struct table_info info;
    table_info(table, &info);
    fprintf(stderr, "table %s: %llu items of %llu, sampled %llu, removed %llu, updates %llu, closed %d\n",
            table->config.name, (unsigned long long)info.size, (unsigned long long)info.added,
            (unsigned long long)info.sampled, (unsigned long long)info.removed,
            (unsigned long long)info.updates_applied, info.closed);
}

/* Settings and counters, one of which changes with every change of an item. */
static inline uint64_t sum_of_counters(const struct table *table) {
    struct table_info info;
    uint64_t sum = 0xcbf29ce484222325ull;
    table_info(table, &info);
    mix(&sum, table->config.name, strlen(table->config.name));
    mix_number(&sum, (uint64_t)table->config.sampler << 8 | (uint64_t)table->config.remover);
    mix_number(&sum, table->config.max_times_sampled);
    mix_number(&sum, info.size);
    mix_number(&sum, info.added);
    mix_number(&sum, info.sampled);
    mix_number(&sum, info.removed);
    mix_number(&sum, info.updates_applied);
    mix_number(&sum, info.closed);
    mix(&sum, &table->random, sizeof table->random);
    return sum;
}

/* And items, in their order. */
static inline uint64_t sum_of_table(const struct table *table) {
    uint64_t sum = sum_of_counters(table);
    if (tracing) trace_table(table);
    uint32_t slot = table->order.oldest;
    for (; slot != SLOT_NONE; slot = table->items.slot[slot].newer) mix_item(&sum, table, slot);
    return sum;
}

static inline bool add_blob(void *context, const void *key, size_t length, int64_t version, struct blob *blob) {
    struct content *content = context;
    char sha[SHA1_HEX_BYTES];
    uint64_t sum = (uint64_t)version;
    for (size_t i = 0; i < length; i++) sum = sum * 31 + ((const uint8_t *)key)[i];
    sha1_hex(blob->data, blob->length, sha);
    for (size_t i = 0; i < sizeof sha; i++) sum = sum * 0x100000001b3ull + (uint8_t)sha[i];
    content->blobs += sum;
    if (tracing) {
        fprintf(stderr, "weights or gradients ");
        trace_bytes(key, length);
        fprintf(stderr, " of version %lld: %zu bytes ", (long long)version, blob->length);
        trace_bytes(blob->data, blob->length);
        fprintf(stderr, "\n");
    }
    return true;
}

static inline void trace_key(unsigned database, const struct dict_entry *entry) {
    struct digest digest = {0};
    digest_add_key(server->store, database, entry, &digest);
    fprintf(stderr, "key %.*s of database %u: %02x%02x%02x\n", (int)entry->key_length, (const char *)entry->key,
            database, digest.bytes[0], digest.bytes[1], digest.bytes[2]);
}

static inline uint64_t sum_of_tables(uint64_t (*sum_of)(const struct table *table)) {
    uint64_t sum = 0;
    for (const struct replay_entry *entry = server->replay->tables->entries; entry; entry = entry->next)
        if (entry->table->config.durable) sum += sum_of(entry->table);
    return sum;
}

static inline void take_content(struct content *content) {
    *content = (struct content){.tables = sum_of_tables(sum_of_table)};
    for (unsigned database = 0; database < STORE_DATABASES; database++) {
        struct dict_position position = {0};
        int64_t at_ms;
        for (struct dict_entry *entry; (entry = dict_next(&server->store->databases[database].keys, &position));)
            if (!store_expiry(server->store, database, entry, &at_ms)) {
                digest_add_key(server->store, database, entry, &content->keys);
                if (tracing) trace_key(database, entry);
            }
    }
    for (const struct weights_entry *entry = server->replay->weights->entries; entry; entry = entry->next)
        add_blob(content, entry->key, entry->key_length, entry->version, entry->blob);
    CHECK(gradients_registry_save(server->replay->gradients, add_blob, content));
}

#endif

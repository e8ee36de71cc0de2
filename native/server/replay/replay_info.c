/* replay_info: REPLAY.INFO, one table in full, and the section of INFO on all tables. */
#include <inttypes.h>
#include <string.h>

#include "server/core/client.h"
#include "server/core/server.h"
#include "server/core/upcalls.h"
#include "server/replay/cmd_replay.h"
#include "server/replay/replay_arguments.h"
#include "server/replay/replay_subsystem.h"

void replay_waiting_reason(const struct replay_entry *entry, bool sampling, struct error *error) {
    const struct wait_queue *queue = sampling ? &entry->samplers : &entry->adders;
    const struct replay_request *head = queue->head ? client_state(queue->head) : NULL;
    uint32_t n = head ? head->n : 1;
    error->message[0] = 0;
    if (sampling) {
        if (table_can_sample(entry->table, n, true, error) && head && entry->lacks_pins)
            error_set(error, ERROR_TIMEOUT, "replies in flight hold as many items as they may; read them faster");
    } else {
        table_can_add(entry->table, n, error);
    }
}

static void describe_limiter(const struct table_config *config, struct text *text) {
    switch (config->limiter) {
    case LIMITER_MIN_SIZE:
        text_append(text, "min_size(min_size_to_sample=%" PRIu64 ")", config->min_size_to_sample);
        break;
    case LIMITER_SAMPLE_TO_INSERT_RATIO:
        text_append(text,
                    "sample_to_insert_ratio(samples_per_insert=%g,min_size_to_sample=%" PRIu64 ",error_buffer=%g)",
                    config->samples_per_insert, config->min_size_to_sample, config->error_buffer);
        break;
    case LIMITER_QUEUE: text_append(text, "queue(size=%" PRIu64 ")", config->queue_size); break;
    }
}

static void describe_selector(enum selector_kind kind, double exponent, bool independent, struct text *text) {
    text_append(text, "%s", selector_name(kind));
    if (kind == SELECTOR_PRIORITIZED)
        text_append(text, "(priority_exponent=%g%s)", exponent, independent ? ",stratified=false" : "");
}

static void describe_sampler(const struct table_config *config, struct text *text) {
    describe_selector(config->sampler, config->priority_exponent, config->independent, text);
}

static void describe_remover(const struct table_config *config, struct text *text) {
    describe_selector(config->remover, config->remover_exponent, false, text);
}

static void describe_signature(const struct table_config *config, struct text *text) {
    for (uint32_t i = 0; i < config->columns; i++) {
        text_append(text, "%s%s: ", i ? "; " : "", config->column[i].name);
        replay_describe_shape(&config->column[i], text);
    }
}

static void reply_described(struct client *client, const char *key, const struct table_config *config,
                            void (*describe)(const struct table_config *, struct text *)) {
    struct text text = {0};
    describe(config, &text);
    reply_bulk_string(client, key);
    reply_bulk(client, text.data ? text.data : "", text.length);
    text_free(&text);
}

/* [[exponent, items], …] of those that there are. */
static void reply_priorities(struct client *client, const struct table *table) {
    uint64_t counts[TABLE_PRIORITY_BUCKETS];
    table_priorities(table, counts);
    uint32_t used = 0;
    for (uint32_t i = 1; i < TABLE_PRIORITY_BUCKETS; i++) used += counts[i] > 0;
    reply_bulk_string(client, "zero_priorities");
    reply_integer(client, (int64_t)counts[0]);
    reply_bulk_string(client, "priorities");
    reply_array(client, used);
    for (uint32_t i = 1; i < TABLE_PRIORITY_BUCKETS; i++) {
        if (counts[i] == 0) continue;
        reply_array(client, 2);
        reply_integer(client, TABLE_PRIORITY_LEAST + (int64_t)i - 1);
        reply_integer(client, (int64_t)counts[i]);
    }
}

void replay_info_command(struct client *client) {
    const struct replay_entry *entry = replay_entry_or_reply(client);
    if (!entry) return;
    const struct table_config *config = table_config(entry->table);
    struct table_info info;
    table_info(entry->table, &info);
    struct error reason, reason_add;
    replay_waiting_reason(entry, true, &reason);
    replay_waiting_reason(entry, false, &reason_add);
    const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {
        {"size", info.size},
        {"capacity", info.capacity},
        {"bytes", info.bytes},
        {"item_bytes", info.item_bytes},
        {"steps", info.steps},
        {"step_bytes", info.step_bytes},
        {"streams", info.streams},
        {"disk_bytes", info.disk_bytes},
        {"cold_pages", info.cold_pages},
        {"added", info.added},
        {"sampled", info.sampled},
        {"unused", info.unused},
        {"removed", info.removed},
        {"stale_updates", info.stale_updates},
        {"stale_items", info.stale_items},
        {"updates_applied", info.updates_applied},
        {"waiting", entry->adders.length + entry->samplers.length},
        {"waiting_add", entry->adders.length},
        {"waiting_sample", entry->samplers.length},
        {"pinned_slots", info.pinned_slots},
        {"reserved_slots", info.reserved_slots},
        {"free_slots", info.free_slots},
        {"retired_slots", info.retired_slots},
        {"max_times_sampled", config->max_times_sampled},
        {"max_bytes", config->max_bytes},
        {"incarnation", entry->incarnation},
        {"closed", info.closed},
        {"shard", (uint64_t)client->server->config.shard},
    };
    const size_t count = sizeof numbers / sizeof numbers[0];
    reply_map(client, count + 14);
    for (size_t i = 0; i < count; i++) {
        reply_bulk_string(client, numbers[i].key);
        reply_integer(client, (int64_t)numbers[i].value);
    }
    reply_bulk_string(client, "max_staleness");
    reply_integer(client, config->max_staleness);
    reply_bulk_string(client, "policy_version");
    if (info.newest_version == INT64_MIN)
        reply_null(client);
    else
        reply_integer(client, info.newest_version);
    reply_bulk_string(client, "max_priority");
    reply_double(client, info.max_priority);
    reply_bulk_string(client, "total_priority");
    reply_double(client, info.total_priority);
    reply_priorities(client, entry->table);
    reply_bulk_string(client, "reason");
    reply_bulk_string(client, reason.message);
    reply_bulk_string(client, "reason_add");
    reply_bulk_string(client, reason_add.message);
    reply_bulk_string(client, "closed_reason");
    reply_bulk_string(client, info.closed_reason);
    reply_bulk_string(client, "storage");
    reply_bulk_string(client, table_storage_name(config->storage));
    reply_described(client, "sampler", config, describe_sampler);
    reply_described(client, "remover", config, describe_remover);
    reply_described(client, "rate_limiter", config, describe_limiter);
    reply_described(client, "signature", config, describe_signature);
}

bool replay_may_be_told(const struct client *client, const struct replay_entry *entry) {
    const char *name = table_config(entry->table)->name;
    const struct resp_argument key = {.data = (const uint8_t *)name, .length = strlen(name)};
    return upcalls.acl_may_access_key(client, &key, KEY_READ | KEY_WRITE);
}

void replay_info(const struct client *client, struct text *out) {
    const struct replay_registry *registry = client->server->replay->tables;
    text_append(out, "# Replay\r\nshard:%" PRId64 "\r\ntables:%" PRIu32 "\r\n", client->server->config.shard,
                registry->count);
    text_append(out,
                "replay_max_tables:%u\r\nreplay_max_batch:%u\r\nreplay_table_pinned_limit:%u\r\nreplay_client_pinned_"
                "limit:%u\r\n",
                REPLAY_MAX_TABLES, TABLE_MAX_BATCH, REPLAY_TABLE_PINNED_LIMIT, REPLAY_CLIENT_PINNED_LIMIT);
    for (const struct replay_entry *entry = registry->entries; entry; entry = entry->next) {
        struct table_info info;
        if (!replay_may_be_told(client, entry)) continue;
        table_info(entry->table, &info);
        text_append(out,
                    "table_%s:size=%" PRIu64 ",capacity=%" PRIu64 ",bytes=%" PRIu64 ",added=%" PRIu64
                    ",sampled=%" PRIu64 ",removed=%" PRIu64 ",stale_updates=%" PRIu64 ",waiting_add=%" PRIu32
                    ",waiting_sample=%" PRIu32 ",pinned_slots=%" PRIu64 ",reserved_slots=%" PRIu64
                    ",closed=%d,disk_bytes=%" PRIu64 ",cold_pages=%" PRIu64 "\r\n",
                    table_config(entry->table)->name, info.size, info.capacity, info.bytes, info.added, info.sampled,
                    info.removed, info.stale_updates, entry->adders.length, entry->samplers.length, info.pinned_slots,
                    info.reserved_slots, info.closed, info.disk_bytes, info.cold_pages);
    }
}

/* families_tables: tables of experience. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "server/core/server.h"
#include "server/metrics/families.h"
#include "server/replay/replay_registry.h"

#define READ(name, expression)                           \
    static double name(const struct metric_item *item) { \
        const struct table_info *info = &item->table;    \
        const struct replay_entry *entry = item->what;   \
        (void)info, (void)entry;                         \
        return (double)(expression);                     \
    }

READ(size, info->size)
READ(capacity, info->capacity)
READ(bytes, info->bytes)
READ(limit_bytes, table_config(entry->table)->max_bytes)
READ(item_bytes, info->item_bytes)
READ(added, info->added)
READ(sampled, info->sampled)
READ(removed, info->removed)
READ(stale_items, info->stale_items)
READ(updates, info->updates_applied)
READ(stale_updates, info->stale_updates)
READ(steps, info->steps)
READ(step_bytes, info->step_bytes)
READ(streams, info->streams)
READ(disk_bytes, info->disk_bytes)
READ(cold_pages, info->cold_pages)
READ(max_priority, info->max_priority)
READ(total_priority, info->total_priority)
READ(version, info->newest_version == INT64_MIN ? NAN : (double)info->newest_version)

struct named {
    const char *name;
    uint64_t value;
};

static void write_each(struct exposition *exposition, const struct family *family, const struct metric_item *item,
                       const char *label, const struct named *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const struct label labels[] = {item->labels[0], {label, values[i].name, strlen(values[i].name)}, {0}};
        exposition_sample(exposition, family->name, labels, (double)values[i].value);
    }
}

static void write_table(struct exposition *exposition, const struct family *family, struct metric_item *item) {
    static const char *const limiters[] = {"min_size", "sample_to_insert_ratio", "queue"};
    const struct replay_entry *entry = item->what;
    const struct table_config *config = table_config(entry->table);
    metric_item_label(item, "sampler", selector_name(config->sampler));
    metric_item_label(item, "remover", selector_name(config->remover));
    metric_item_label(item, "rate_limiter", limiters[config->limiter]);
    exposition_sample(exposition, family->name, item->labels, 1);
}

static void write_slots(struct exposition *exposition, const struct family *family, struct metric_item *item) {
    const struct named values[] = {{"free", item->table.free_slots},
                                   {"pinned", item->table.pinned_slots},
                                   {"reserved", item->table.reserved_slots},
                                   {"retired", item->table.retired_slots}};
    write_each(exposition, family, item, "state", values, sizeof values / sizeof *values);
}

static void write_waiting(struct exposition *exposition, const struct family *family, struct metric_item *item) {
    const struct replay_entry *entry = item->what;
    const struct named values[] = {{"add", entry->adders.length}, {"sample", entry->samplers.length}};
    write_each(exposition, family, item, "operation", values, sizeof values / sizeof *values);
}

/* One of these is 1 where somebody would have to wait. */
static const char *const reasons[] = {"rate_limiter", "too_few_items", "zero_priorities", "other"};
static const char *const beginnings[] = {"rate limiter", "too few items", "all priorities", ""};

static void write_reason(struct exposition *exposition, const struct family *family, const struct metric_item *item,
                         bool sampling) {
    struct error why;
    replay_waiting_reason(item->what, sampling, &why);
    bool told = why.message[0] == '\0';
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
        bool holds = !told && strncmp(why.message, beginnings[i], strlen(beginnings[i])) == 0;
        told |= holds;
        const char *operation = sampling ? "sample" : "add";
        const struct label labels[] = {item->labels[0],
                                       {"operation", operation, strlen(operation)},
                                       {"reason", reasons[i], strlen(reasons[i])},
                                       {0}};
        exposition_sample(exposition, family->name, labels, holds);
    }
}

static void write_reasons(struct exposition *exposition, const struct family *family, struct metric_item *item) {
    write_reason(exposition, family, item, false);
    write_reason(exposition, family, item, true);
}

static void write_priorities(struct exposition *exposition, const struct family *family, struct metric_item *item) {
    const struct replay_entry *entry = item->what;
    uint64_t counts[TABLE_PRIORITY_BUCKETS];
    table_priorities(entry->table, counts);
    for (uint32_t i = 0; i < TABLE_PRIORITY_BUCKETS; i++) {
        if (i > 0 && counts[i] == 0) continue;
        char from[32];
        snprintf(from, sizeof from, "%.9g", i == 0 ? 0.0 : ldexp(1, TABLE_PRIORITY_LEAST + (int)i - 1));
        const struct label labels[] = {item->labels[0], {"at_least", from, strlen(from)}, {0}};
        exposition_sample(exposition, family->name, labels, (double)counts[i]);
    }
}

const struct family families_tables[] = {
    {"replay_server_table_info", METRIC_INFO, EACH_TABLE, "A table with its sampler, remover and rate limiter.",
     .write = write_table},
    {"replay_server_table_items", METRIC_GAUGE, EACH_TABLE, "Live items.", size},
    {"replay_server_table_capacity_items", METRIC_GAUGE, EACH_TABLE, "The most items that there may be.", capacity},
    {"replay_server_table_bytes", METRIC_GAUGE, EACH_TABLE, "Payload of live items and steps.", bytes},
    {"replay_server_table_limit_bytes", METRIC_GAUGE, EACH_TABLE, "The table's max_bytes; 0: no limit.", limit_bytes},
    {"replay_server_table_item_bytes", METRIC_GAUGE, EACH_TABLE, "Payload of one item.", item_bytes},
    {"replay_server_table_steps", METRIC_GAUGE, EACH_TABLE, "Steps in memory.", steps},
    {"replay_server_table_step_bytes", METRIC_GAUGE, EACH_TABLE, "Payload of the steps in memory.", step_bytes},
    {"replay_server_table_streams", METRIC_GAUGE, EACH_TABLE, "Open streams of all connections.", streams},
    {"replay_server_table_disk_bytes", METRIC_GAUGE, EACH_TABLE,
     "Space on disk that the table's file takes; 0: the table is in memory.", disk_bytes},
    {"replay_server_table_cold_pages_total", METRIC_COUNTER, EACH_TABLE,
     "Pages that were read from disk before a reply could be made.", cold_pages},
    {"replay_server_table_slots", METRIC_GAUGE, EACH_TABLE,
     "Slots without a live item: free, pinned by replies, reserved by adds, or used up.", .write = write_slots},
    {"replay_server_table_added_items_total", METRIC_COUNTER, EACH_TABLE, "Items added.", added},
    {"replay_server_table_sampled_items_total", METRIC_COUNTER, EACH_TABLE, "Items sampled.", sampled},
    {"replay_server_table_removed_items_total", METRIC_COUNTER, EACH_TABLE, "Items removed, for whatever reason.",
     removed},
    {"replay_server_table_stale_items_total", METRIC_COUNTER, EACH_TABLE,
     "Items removed because they were too old (max_staleness).", stale_items},
    {"replay_server_table_updates_total", METRIC_COUNTER, EACH_TABLE, "Priorities set.", updates},
    {"replay_server_table_stale_updates_total", METRIC_COUNTER, EACH_TABLE, "Priorities for items that had left.",
     stale_updates},
    {"replay_server_table_waiting_clients", METRIC_GAUGE, EACH_TABLE, "Clients that wait to add or to sample.",
     .write = write_waiting},
    {"replay_server_table_would_wait", METRIC_GAUGE, EACH_TABLE,
     "1: an add or a sample would have to wait now, for this reason.", .write = write_reasons},
    {"replay_server_table_max_priority", METRIC_GAUGE, EACH_TABLE, "The largest raw priority; 0: there are no items.",
     max_priority},
    {"replay_server_table_total_priority", METRIC_GAUGE, EACH_TABLE,
     "Sum of priorities, each to the power of priority_exponent; 0 where sampling is not by priority.", total_priority},
    {"replay_server_table_priority_items", METRIC_GAUGE, EACH_TABLE,
     "Live items whose raw priority is at least so much and below twice that; 0: priority zero.",
     .write = write_priorities},
    {"replay_server_table_policy_version", METRIC_GAUGE, EACH_TABLE,
     "The newest policy version seen in a column policy_version.", version},
    {0},
};

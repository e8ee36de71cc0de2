/* items: what there are metrics of: tables, commands, keys of weights and gradients, one after the other. */
#include <string.h>

#include "server/core/command_table.h"
#include "server/core/server.h"
#include "server/metrics/families.h"
#include "server/replay/gradients_registry.h"
#include "server/replay/replay_registry.h"
#include "server/replay/replay_subsystem.h"
#include "server/replay/weights_registry.h"
#include "store/store.h"

static struct label label_of(const char *name, const char *value, size_t length) {
    return (struct label){.name = name, .value = value, .length = length};
}

void metric_item_label(struct metric_item *item, const char *name, const char *value) {
    int i = 0;
    while (i < LABELS_MOST && item->labels[i].name) i++;
    if (i == LABELS_MOST) return;
    item->labels[i] = label_of(name, value, strlen(value));
    item->labels[i + 1].name = NULL;
}

/* Of a list in order of sequence numbers: the entry behind the one that was told of last, or the first beyond
 * `after`. */
#define NEXT_OF(type, first)                                                          \
    const struct type *entry = item->what;                                            \
    for (entry = entry ? entry->next : (first); entry && entry->sequence <= after;) { \
        entry = entry->next;                                                          \
    }                                                                                 \
    item->what = entry;                                                               \
    item->sequence = entry ? entry->sequence : 0

static bool next_table(const struct server *server, uint64_t after, struct metric_item *item) {
    NEXT_OF(replay_entry, server->replay->tables->entries);
    if (!entry) return false;
    table_info(entry->table, &item->table);
    metric_item_label(item, "table", table_config(entry->table)->name);
    return true;
}

/* Subcommands are counted with those that they belong to. */
static bool command_at(const struct server *server, uint64_t index, struct metric_item *item, bool *is_there) {
    if (index >= command_table_count(server->commands)) return false;
    const struct command_entry *entry = command_table_at(server->commands, index);
    item->what = entry;
    *is_there = entry->stats.calls > 0 || entry->stats.rejected > 0;
    for (size_t part = 0; part < entry->subcommand_count; part++)
        *is_there |= entry->subcommands[part].stats.calls > 0 || entry->subcommands[part].stats.rejected > 0;
    metric_item_label(item, "command", entry->command->name);
    return true;
}

static bool next_weights(const struct server *server, uint64_t after, struct metric_item *item) {
    NEXT_OF(weights_entry, server->replay->weights->entries);
    if (!entry) return false;
    item->labels[0] = label_of("key", entry->key, entry->key_length);
    return true;
}

static bool next_gradients(const struct server *server, uint64_t after, struct metric_item *item, bool *is_there) {
    NEXT_OF(gradients_entry, server->replay->gradients->entries);
    if (!entry) return false;
    *is_there = entry->queue;
    item->labels[0] = label_of("key", entry->key, entry->key_length);
    return true;
}

static bool database_at(const struct server *server, uint64_t index, struct metric_item *item, bool *is_there) {
    static const char *const numbers[STORE_DATABASES] = {"0", "1", "2",  "3",  "4",  "5",  "6",  "7",
                                                         "8", "9", "10", "11", "12", "13", "14", "15"};
    if (index >= STORE_DATABASES) return false;
    item->what = &server->store->databases[index];
    *is_there = dict_count(&server->store->databases[index].keys) > 0;
    metric_item_label(item, "database", numbers[index]);
    return true;
}

static bool error_at(const struct server *server, uint64_t index, struct metric_item *item) {
    if (index >= server->error_stats.used) return false;
    metric_item_label(item, "code", server->error_stats.codes[index].code);
    return true;
}

static bool transport_at(const struct server *server, uint64_t index, struct metric_item *item) {
    if (index >= (uint64_t)server->transports.count) return false;
    item->what = server->transports.all[index];
    metric_item_label(item, "transport", server->transports.all[index]->operations->name);
    return true;
}

bool metric_item_after(const struct server *server, enum metric_each each, uint64_t after, struct metric_item *item,
                       bool *is_there) {
    item->server = server;
    item->sequence = after + 1;
    memset(item->labels, 0, sizeof item->labels);
    *is_there = true;
    switch (each) {
    case EACH_SERVER: return after == 0;
    case EACH_TABLE: return next_table(server, after, item);
    case EACH_COMMAND: return command_at(server, after, item, is_there);
    case EACH_WEIGHTS: return next_weights(server, after, item);
    case EACH_GRADIENTS: return next_gradients(server, after, item, is_there);
    case EACH_DATABASE: return database_at(server, after, item, is_there);
    case EACH_ERROR: return error_at(server, after, item);
    case EACH_TRANSPORT: return transport_at(server, after, item);
    case EACH_KINDS: break;
    }
    return false;
}

uint64_t metric_items_until(const struct server *server, enum metric_each each) {
    switch (each) {
    case EACH_TABLE: return server->replay->tables->entered;
    case EACH_WEIGHTS: return server->replay->weights->entered;
    case EACH_GRADIENTS: return server->replay->gradients->entered;
    case EACH_ERROR: return server->error_stats.used;
    default: return UINT64_MAX;
    }
}

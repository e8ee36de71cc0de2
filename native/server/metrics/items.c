/* items: what there are metrics of: tables, commands, keys of weights and gradients, by number. */
#include <stdio.h>
#include <string.h>

#include "server/command/command_table.h"
#include "server/gradients/gradients_registry.h"
#include "server/metrics/families.h"
#include "server/replay/replay_registry.h"
#include "server/replay/weights_registry.h"
#include "server/server.h"
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

static bool table_at(const struct server *server, struct metric_item *item) {
    const struct replay_entry *entry = server->replay->entries;
    for (uint32_t i = 0; entry && i < item->index; i++) entry = entry->next;
    if (!entry) return false;
    item->what = entry;
    table_info(entry->table, &item->table);
    metric_item_label(item, "table", table_config(entry->table)->name);
    return true;
}

/* Subcommands are counted with those that they belong to. */
static bool command_at(const struct server *server, struct metric_item *item, bool *is_there) {
    if (item->index >= command_table_count(server->commands)) return false;
    const struct command_entry *entry = command_table_at(server->commands, item->index);
    item->what = entry;
    *is_there = entry->stats.calls > 0 || entry->stats.rejected > 0;
    for (size_t part = 0; part < entry->subcommand_count; part++)
        *is_there |= entry->subcommands[part].stats.calls > 0 || entry->subcommands[part].stats.rejected > 0;
    metric_item_label(item, "command", entry->command->name);
    return true;
}

static bool weights_at(const struct server *server, struct metric_item *item) {
    const struct weights_entry *entry = server->weights->entries;
    for (uint32_t i = 0; entry && i < item->index; i++) entry = entry->next;
    if (!entry) return false;
    item->what = entry;
    item->labels[0] = label_of("key", entry->key, entry->key_length);
    return true;
}

static bool gradients_at(const struct server *server, struct metric_item *item, bool *is_there) {
    const struct gradients_entry *entry = server->gradients->entries;
    for (uint32_t i = 0; entry && i < item->index; i++) entry = entry->next;
    if (!entry) return false;
    item->what = entry;
    *is_there = entry->queue != NULL;
    item->labels[0] = label_of("key", entry->key, entry->key_length);
    return true;
}

static bool database_at(const struct server *server, struct metric_item *item, bool *is_there) {
    static const char *const numbers[STORE_DATABASES] = {"0", "1", "2",  "3",  "4",  "5",  "6",  "7",
                                                         "8", "9", "10", "11", "12", "13", "14", "15"};
    if (item->index >= STORE_DATABASES) return false;
    item->what = &server->store->databases[item->index];
    *is_there = dict_count(&server->store->databases[item->index].keys) > 0;
    metric_item_label(item, "database", numbers[item->index]);
    return true;
}

static bool error_at(const struct server *server, struct metric_item *item) {
    if (item->index >= server->error_stats.used) return false;
    metric_item_label(item, "code", server->error_stats.codes[item->index].code);
    return true;
}

static bool transport_at(const struct server *server, struct metric_item *item) {
    if ((int)item->index >= server->transport_count) return false;
    item->what = server->transports[item->index];
    metric_item_label(item, "transport", server->transports[item->index]->operations->name);
    return true;
}

bool metric_item_at(const struct server *server, enum metric_each each, uint32_t index, struct metric_item *item,
                    bool *is_there) {
    item->server = server;
    item->index = index;
    item->what = NULL;
    memset(item->labels, 0, sizeof item->labels);
    *is_there = true;
    switch (each) {
    case EACH_SERVER: return index == 0;
    case EACH_TABLE: return table_at(server, item);
    case EACH_COMMAND: return command_at(server, item, is_there);
    case EACH_WEIGHTS: return weights_at(server, item);
    case EACH_GRADIENTS: return gradients_at(server, item, is_there);
    case EACH_DATABASE: return database_at(server, item, is_there);
    case EACH_ERROR: return error_at(server, item);
    case EACH_TRANSPORT: return transport_at(server, item);
    case EACH_KINDS: break;
    }
    return false;
}

/* unsaved: counters now, less those that are on the disk. */
#include "server/durability/unsaved.h"

#include <inttypes.h>
#include <string.h>

#include "base/memory.h"
#include "server/core/client.h"
#include "server/core/server.h"
#include "server/replay/cmd_replay.h"
#include "server/replay/replay_registry.h"
#include "server/replay/replay_subsystem.h"

struct saved_table *saved_tables_note(const struct replay_registry *registry) {
    struct saved_table *saved = NULL;
    for (const struct replay_entry *entry = registry->entries; entry; entry = entry->next) {
        struct saved_table *table = memory_calloc(1, sizeof *table);
        struct table_info info;
        if (!table) break;
        table_info(entry->table, &info);
        table->next = saved;
        table->added = info.added;
        table->updated = info.updates_applied;
        table->removed = info.removed;
        strcpy(table->name, table_config(entry->table)->name);
        saved = table;
    }
    return saved;
}

void saved_tables_free(struct saved_table *saved) {
    while (saved) {
        struct saved_table *next = saved->next;
        memory_free(saved);
        saved = next;
    }
}

/* A table that was made anew since then counts from the beginning. */
static uint64_t since(uint64_t now, uint64_t then) {
    return now >= then ? now - then : now;
}

void unsaved_info(const struct client *client, const struct saved_table *saved, struct text *out) {
    unsigned number = 0;
    for (const struct replay_entry *entry = client->server->replay->tables->entries; entry; entry = entry->next) {
        if (!replay_may_be_told(client, entry)) continue;
        static const struct saved_table nothing;
        const char *name = table_config(entry->table)->name;
        const struct saved_table *then = saved;
        while (then && strcmp(then->name, name) != 0) then = then->next;
        if (!then) then = &nothing;
        struct table_info info;
        table_info(entry->table, &info);
        text_append(out,
                    "unsaved_table%u:name=%s,added=%" PRIu64 ",updated=%" PRIu64 ",removed=%" PRIu64 ",size=%" PRIu64
                    "\r\n",
                    number++, name, since(info.added, then->added), since(info.updates_applied, then->updated),
                    since(info.removed, then->removed), info.size);
    }
}

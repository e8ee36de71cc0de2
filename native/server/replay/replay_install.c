/* replay_install: restored tables take the places of those of their names; the settings that are in force go on. */
#include <string.h>

#include "base/memory.h"
#include "replay/table_adopt.h"
#include "server/core/server.h"
#include "server/core/upcalls.h"
#include "server/replay/replay_log.h"
#include "server/replay/replay_registry.h"

int replay_registry_adopt(struct table *table, const struct table_config *given, struct text *said,
                          struct error *error) {
    bool changed;
    if (table_adopt(table, given, &changed, error)) return -1;
    if (changed) text_append(said, "table '%s': its settings are those given now, not those saved\n", given->name);
    return 0;
}

/* ---- into service -------------------------------------------------------------------------------------------------- */

/* What goes on sharing steps must not lose their owner. */
static int check_sharers(const struct replay_registry *registry, struct table *const *tables, uint32_t count,
                         struct error *error) {
    for (const struct replay_entry *entry = registry->entries; entry; entry = entry->next) {
        const struct table_config *config = table_config(entry->table);
        bool loses = false, comes = false;
        for (uint32_t i = 0; i < count; i++) {
            loses |= strcmp(table_config(tables[i])->name, config->steps_of) == 0;
            comes |= strcmp(table_config(tables[i])->name, config->name) == 0;
        }
        if (loses && !comes)
            return error_set(
                error, ERROR_EXISTS,
                "table '%s' shares the steps of table '%s', which the snapshot has without it; drop '%s' first",
                config->name, config->steps_of, config->name);
    }
    return 0;
}

static int check(struct replay_registry *registry, struct table *const *tables, uint32_t count, struct text *said,
                 struct error *error) {
    uint32_t total = registry->count;
    uint64_t new_bytes = 0; /* of tables that are not there yet, when they are full */
    if (check_sharers(registry, tables, count, error)) return -1;
    for (uint32_t i = 0; i < count; i++) {
        const struct table_config *config = table_config(tables[i]);
        const struct replay_entry *there = replay_registry_named(registry, config->name);
        if (there ? replay_registry_adopt(tables[i], table_config(there->table), said, error)
                  : replay_registry_check_memory(registry, config, new_bytes, error))
            return -1;
        total += !there;
        new_bytes += there ? 0 : table_full_memory_bytes(config);
    }
    return total <= REPLAY_MAX_TABLES
               ? 0
               : error_set(error, ERROR_LIMIT,
                           "with those of the snapshot there would be %u tables, and %u is the most", total,
                           REPLAY_MAX_TABLES);
}

int replay_registry_install(struct replay_registry *registry, struct table *const *tables, uint32_t count,
                            struct text *said, struct error *error) {
    struct replay_entry **entries = memory_calloc(count + 1, sizeof *entries);
    int failed = entries ? check(registry, tables, count, said, error)
                         : error_set(error, ERROR_GENERIC, "out of memory for %u tables", count);
    if (!failed && count > 0 && registry->server->place.follows_tables)
        failed = error_set(error, ERROR_GENERIC,
                           "this replica has its primary's tables: restore them there, or send REPLICAOF NO ONE first");
    for (uint32_t i = 0; i < count && !failed; i++) {
        entries[i] = replay_registry_entry_new(registry, tables[i]);
        if (!entries[i]) failed = error_set(error, ERROR_GENERIC, "out of memory for %u tables", count);
    }
    for (uint32_t i = 0; entries && i < count; i++) {
        struct replay_entry *there = failed ? NULL : replay_registry_named(registry, table_config(tables[i])->name);
        if (there) replay_log_replaced(there, entries[i]);
    }
    for (uint32_t i = entries ? count : 0; i-- > 0;) { /* those that share steps before the owners of these */
        struct replay_entry *there = failed ? NULL : replay_registry_named(registry, table_config(tables[i])->name);
        if (there) there->replaced = true;
        if (there) replay_registry_drop(registry, there);
    }
    for (uint32_t i = 0; entries && i < count; i++) {
        if (failed) {
            memory_free(entries[i]);
            continue;
        }
        replay_registry_enter(registry, entries[i]);
        replay_log_restored(entries[i]);
    }
    /* Records cannot tell what was restored: replicas are sent everything again. */
    if (!failed && count > 0 && registry->server->place.streams_tables) upcalls.replication_lost(registry->server);
    memory_free(entries);
    return failed;
}

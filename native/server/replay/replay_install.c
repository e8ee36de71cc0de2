/* replay_install: restored tables take the places of those of their names; the settings that are in force go on. */
#include <string.h>

#include "base/memory.h"
#include "server/core/server.h"
#include "server/replay/replay_registry.h"

/* Same spec, byte by byte. -1 with `error`: out of memory. */
static int compare(const struct table_config *left, const struct table_config *right, bool *same, struct error *error) {
    uint8_t *a = NULL, *b = NULL;
    size_t a_length = 0, b_length = 0;
    int failed = table_config_write(left, &a, &a_length, error) || table_config_write(right, &b, &b_length, error);
    *same = !failed && a_length == b_length && memcmp(a, b, a_length) == 0;
    memory_free(a);
    memory_free(b);
    return failed ? -1 : 0;
}

/* Whether the settings of `given` can be put over those of a table: what a live table cannot change must not differ.
 * `*differ`: something else does. */
static int compare_but_settings(const struct table *table, const struct table_config *given, bool *differ,
                                struct error *error) {
    struct table_config *mixed = memory_alloc(sizeof *mixed);
    bool same_but_settings = false, same = false;
    if (!mixed) return error_set(error, ERROR_GENERIC, "out of memory for a table's spec");
    *mixed = *table_config(table);
    table_config_take_changeable(mixed, given);
    mixed->seed = given->seed; /* of a table made anew; this one goes on with its random state */
    int failed = compare(mixed, given, &same_but_settings, error);
    mixed->seed = table_config(table)->seed;
    failed = failed || compare(mixed, table_config(table), &same, error);
    memory_free(mixed);
    if (failed) return -1;
    *differ = !same;
    return same_but_settings ? 0
                             : error_set(error, ERROR_EXISTS,
                                         "table '%s' of the snapshot differs from the one here in more than can be "
                                         "changed in a live table; give it the same signature and capacity, or drop it "
                                         "first",
                                         given->name);
}

int replay_registry_adopt(struct table *table, const struct table_config *given, struct text *said,
                          struct error *error) {
    bool differ;
    uint8_t *settings;
    size_t length;
    if (compare_but_settings(table, given, &differ, error)) return -1;
    if (!differ) return 0;
    if (table_config_write_changeable(given, &settings, &length, error)) return -1;
    int failed = table_begin_configure(table, settings, length, error);
    memory_free(settings);
    if (!failed) text_append(said, "table '%s': its settings are those given now, not those saved\n", given->name);
    return failed;
}

/* ---- into service -------------------------------------------------------------------------------------------------- */

static struct replay_entry *entry_of_name(struct replay_registry *registry, const char *name) {
    struct error error;
    return replay_registry_find(registry, name, strlen(name), &error);
}

static int check(struct replay_registry *registry, struct table *const *tables, uint32_t count, struct text *said,
                 struct error *error) {
    uint32_t total = registry->count;
    uint64_t new_bytes = 0; /* of tables that are not there yet, when they are full */
    for (uint32_t i = 0; i < count; i++) {
        const struct table_config *config = table_config(tables[i]);
        const struct replay_entry *there = entry_of_name(registry, config->name);
        if (there ? replay_registry_adopt(tables[i], table_config(there->table), said, error)
                  : replay_registry_check_memory(registry, config, new_bytes, error))
            return -1;
        total += !there;
        new_bytes += there ? 0 : table_full_bytes(config);
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
    for (uint32_t i = 0; i < count && !failed; i++) {
        entries[i] = replay_registry_entry_new(registry, tables[i]);
        if (!entries[i]) failed = error_set(error, ERROR_GENERIC, "out of memory for %u tables", count);
    }
    for (uint32_t i = 0; entries && i < count; i++) {
        if (failed) {
            memory_free(entries[i]);
            continue;
        }
        struct replay_entry *there = entry_of_name(registry, table_config(tables[i])->name);
        if (there) {
            there->replaced = true;
            replay_registry_drop(registry, there);
        }
        replay_registry_enter(registry, entries[i]);
    }
    memory_free(entries);
    return failed;
}

/* replay_follow: tables made of what a primary sends. */
#include "server/replay/replay_follow.h"

#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "replay/table_apply.h"
#include "server/core/propagate.h"
#include "server/core/server.h"
#include "server/core/upcalls.h"
#include "server/replay/replay_log.h"

#define FIRST_SLICE_US 200u /* of a reset, of new settings, or of the end: enough for small tables */

static const char *name_of(const struct table *table) {
    return table_config(table)->name;
}

static void take_out(struct replay_registry *registry, struct replay_entry *entry, bool is_replaced) {
    entry->replaced = is_replaced;
    replay_registry_drop(registry, entry);
}

static void enter(struct replay_registry *registry, struct replay_entry *entry) {
    struct replay_entry *there = replay_registry_named(registry, name_of(entry->table));
    if (there) take_out(registry, there, true);
    table_apply_begin(entry->table);
    entry->followed = true;
    replay_registry_enter(registry, entry);
    replay_log_recount(registry);
}

/* ---- all of them --------------------------------------------------------------------------------------------------- */

static bool is_among(const char *name, struct table *const *tables, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(name_of(tables[i]), name) == 0) return true;
    return false;
}

static struct replay_entry *first_to_go(const struct replay_registry *registry, struct table *const *tables,
                                        uint32_t count) {
    struct replay_entry *entry = registry->entries;
    while (entry && (!table_config(entry->table)->durable || is_among(name_of(entry->table), tables, count)))
        entry = entry->next;
    return entry;
}

static int check_count(const struct replay_registry *registry, struct table *const *tables, uint32_t count,
                       struct error *error) {
    uint32_t total = count;
    for (const struct replay_entry *entry = registry->entries; entry; entry = entry->next)
        total += !table_config(entry->table)->durable && !is_among(name_of(entry->table), tables, count);
    if (total <= REPLAY_MAX_TABLES) return 0;
    return error_set(error, ERROR_LIMIT, "with those of the primary there would be %u tables, and %u is the most",
                     total, REPLAY_MAX_TABLES);
}

int replay_follow_adopt(struct replay_registry *registry, struct table *const *tables, uint32_t count,
                        struct error *error) {
    struct replay_entry **entries = memory_calloc(count + 1, sizeof *entries), *entry;
    int failed = entries ? check_count(registry, tables, count, error)
                         : error_set(error, ERROR_GENERIC, "out of memory for %u tables", count);
    for (uint32_t i = 0; i < count && !failed; i++) {
        entries[i] = replay_registry_entry_new(registry, tables[i]);
        if (!entries[i]) failed = error_set(error, ERROR_GENERIC, "out of memory for %u tables", count);
    }
    while (!failed && (entry = first_to_go(registry, tables, count))) take_out(registry, entry, false);
    for (uint32_t i = 0; entries && i < count; i++)
        if (failed)
            memory_free(entries[i]);
        else
            enter(registry, entries[i]);
    memory_free(entries);
    return failed;
}

/* ---- record by record ---------------------------------------------------------------------------------------------- */

/* The append-only file of this server has the same records. That the primary has begun a base of its own file is none for
 * this one: only the record's number counts. */
static void tell_file(struct replay_entry *entry, uint32_t kind, const uint8_t *record, size_t length) {
    struct {
        struct table_journal_head head;
        struct table_journal_counts counts;
    } nothing = {.counts = {0}};
    if (!entry->logged) return;
    if (kind == TABLE_JOURNAL_IN_BASE) {
        memcpy(&nothing.head, record, sizeof nothing.head);
        nothing.head.kind = TABLE_JOURNAL_CHANGE;
        record = (const uint8_t *)&nothing;
        length = sizeof nothing;
    }
    uint8_t *to = propagate_record(entry->registry->server, name_of(entry->table), length, 1u << CHANGES_FOR_FILE);
    if (to) memcpy(to, record, length);
}

static int create(struct replay_registry *registry, const char *name, const uint8_t *record, size_t length,
                  struct error *error) {
    const struct replay_entry *there = replay_registry_named(registry, name);
    if (there && there->followed)
        return error_set(error, ERROR_EXISTS, "the table '%s' begins, although it is there", name);
    struct replay_entry *entry = replay_log_make(registry, name, record, length, NULL, error);
    if (!entry) return -1;
    entry->logged = replay_log_takes_new(entry);
    tell_file(entry, TABLE_JOURNAL_CREATE, record, length);
    enter(registry, entry);
    return 0;
}

int replay_follow_apply(struct replay_registry *registry, const char *name, const uint8_t *record, size_t length,
                        struct error *error) {
    uint32_t kind = table_apply_kind(record, length);
    struct replay_entry *entry = replay_registry_named(registry, name);
    if (kind == TABLE_JOURNAL_CREATE) return create(registry, name, record, length, error);
    if (!entry || !entry->followed)
        return error_set(error, ERROR_NOTABLE, "a change of the table '%s', which is not there", name);
    if (kind != TABLE_JOURNAL_DROP && table_apply(entry->table, record, length, error)) {
        /* Half of the record may be in the steps, which other tables show as well: they all go. */
        take_out(registry, replay_registry_named(registry, name_of(table_owner_of_steps(entry->table))), false);
        return -1;
    }
    tell_file(entry, kind, record, length);
    if (kind == TABLE_JOURNAL_DROP) {
        take_out(registry, entry, false);
        return 0;
    }
    if (table_has_work(entry->table)) table_step(entry->table, clock_monotonic_us() + FIRST_SLICE_US);
    wait_queue_wake(registry->server, &entry->watchers);
    return 0;
}

bool replay_follow_step(struct replay_registry *registry) {
    bool left = false;
    for (struct replay_entry *entry = registry->entries; entry; entry = entry->next)
        if (entry->followed && table_has_work(entry->table)) left |= table_step(entry->table, 0);
    return left;
}

/* ---- the end ------------------------------------------------------------------------------------------------------- */

bool replay_follow_end(struct replay_registry *registry, bool streams) {
    bool all = true;
    uint64_t until_us = clock_monotonic_us() + FIRST_SLICE_US; /* of all tables: there may be hundreds */
    for (struct replay_entry *entry = registry->entries; entry; entry = entry->next) {
        if (!entry->followed) continue;
        table_apply_stop(entry->table);
        entry->followed = false;
        if (streams || registry->logs) all &= replay_log_open(entry);
        entry->streamed = streams && table_has_journal(entry->table);
        table_apply_begin_to_settle(entry->table);
        table_step(entry->table, until_us);
    }
    replay_log_recount(registry);
    return all;
}

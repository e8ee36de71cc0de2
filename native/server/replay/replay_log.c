/* replay_log: journals of tables, for a file and for replicas, and tables made out of them. */
#include "server/replay/replay_log.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "replay/table_apply.h"
#include "server/core/propagate.h"
#include "server/core/server.h"
#include "server/core/upcalls.h"

static bool is_durable(const struct replay_entry *entry) {
    return table_config(entry->table)->durable;
}

static const char *name_of(const struct replay_entry *entry) {
    return table_config(entry->table)->name;
}

/* ---- writing ------------------------------------------------------------------------------------------------------- */

static uint8_t *record(struct table_journal_sink *sink, size_t bytes) {
    struct replay_entry *entry = (struct replay_entry *)(void *)((char *)sink - offsetof(struct replay_entry, journal));
    unsigned readers = (unsigned)entry->logged << CHANGES_FOR_FILE | (unsigned)entry->streamed << CHANGES_FOR_REPLICAS;
    return propagate_record(entry->registry->server, name_of(entry), bytes, readers);
}

static int open_journal(struct replay_entry *entry, struct error *error) {
    entry->journal.record = record;
    return table_journal_begin(entry->table, &entry->journal, error);
}

/* Without memory for its journal the table stays out of the file, as one that is not durable. */
bool replay_log_open(struct replay_entry *entry) {
    struct error error;
    if (open_journal(entry, &error) == 0) return true;
    log_event(LOG_WARNING, "table_not_logged", LOG_FIELDS({"table", .text = name_of(entry)}),
              "%s; what happens to it is neither in the append-only file nor sent to replicas", error.message);
    return false;
}

bool replay_log_has(const struct replay_entry *entry) {
    return table_has_journal(entry->table) || entry->followed;
}

void replay_log_recount(struct replay_registry *registry) {
    registry->unlogged = 0;
    for (const struct replay_entry *entry = registry->entries; entry && registry->logs; entry = entry->next)
        registry->unlogged += replay_log_has(entry) && !entry->logged;
}

int replay_log_begin(struct replay_entry *entry, struct error *error) {
    const struct replay_registry *registry = entry->registry;
    return (registry->logs || registry->server->place.streams_tables) && is_durable(entry) ? open_journal(entry, error)
                                                                                           : 0;
}

/* Else the next base has it: with the steps that it shares, if the file lacks those. */
bool replay_log_takes_new(const struct replay_entry *entry) {
    const struct replay_registry *registry = entry->registry;
    const struct replay_entry *other = registry->entries;
    while (other && other->table != table_owner_of_steps(entry->table)) other = other->next;
    bool has_steps = !*table_config(entry->table)->steps_of || (other && other->logged);
    return registry->logs && has_steps && upcalls.append_log_buffer(registry->server);
}

void replay_log_created(struct replay_entry *entry) {
    if (!table_has_journal(entry->table)) return;
    struct replay_registry *registry = entry->registry;
    struct server *server = registry->server;
    entry->logged = replay_log_takes_new(entry);
    entry->streamed = server->place.streams_tables;
    if (!table_journal_tell_created(entry->table)) { /* there was no memory to write its spec */
        if (entry->logged) upcalls.append_log_lost(server);
        if (entry->streamed) upcalls.replication_lost(server);
        entry->logged = entry->streamed = false;
    }
    replay_log_recount(registry);
}

void replay_log_restored(struct replay_entry *entry) {
    struct replay_registry *registry = entry->registry;
    bool has_replaced = table_has_journal(entry->table);
    if (!has_replaced && registry->logs && is_durable(entry)) replay_log_open(entry);
    replay_log_recount(registry);
}

/* The file keeps the former table until a base has the new one, so that a kill before that brings it back. */
void replay_log_replaced(struct replay_entry *former, struct replay_entry *entry) {
    if (!table_has_journal(former->table) || !is_durable(entry) || !replay_log_open(entry)) return;
    entry->former_logged = former->logged || former->former_logged;
    former->logged = former->streamed = false;
    table_journal_end(former->table);
}

void replay_log_dropped(struct replay_entry *entry) {
    if (!table_has_journal(entry->table)) return;
    if (!entry->logged) {
        table_journal_write(entry->table); /* not in the file: there only its end may be told */
        entry->logged = entry->former_logged;
    }
    table_journal_tell(entry->table, TABLE_JOURNAL_DROP, NULL, 0);
    table_journal_end(entry->table);
    entry->logged = entry->streamed = false;
    replay_log_recount(entry->registry);
}

void replay_log_on(struct replay_registry *registry) {
    registry->logs = true;
    for (struct replay_entry *entry = registry->entries; entry; entry = entry->next) {
        if (!is_durable(entry) || replay_log_has(entry) || !replay_log_open(entry)) continue;
        if (entry->logged) table_apply_settle(entry->table);
    }
    replay_log_recount(registry);
}

void replay_log_off(struct replay_registry *registry) {
    registry->logs = false;
    registry->unlogged = 0;
    for (struct replay_entry *entry = registry->entries; entry; entry = entry->next) {
        if (!entry->streamed) table_journal_end(entry->table);
        entry->logged = entry->former_logged = false;
    }
}

bool replay_log_begin_stream(struct replay_registry *registry) {
    bool all = true;
    for (struct replay_entry *entry = registry->entries; entry; entry = entry->next)
        if (is_durable(entry) && !replay_log_has(entry)) all &= replay_log_open(entry);
    replay_log_recount(registry);
    return all;
}

void replay_log_stream(struct replay_registry *registry) {
    for (struct replay_entry *entry = registry->entries; entry; entry = entry->next)
        entry->streamed = table_has_journal(entry->table);
}

void replay_log_end_stream(struct replay_registry *registry) {
    for (struct replay_entry *entry = registry->entries; entry; entry = entry->next) {
        entry->streamed = false;
        if (!registry->logs) table_journal_end(entry->table);
    }
}

bool replay_log_holds_something(const struct replay_registry *registry) {
    for (const struct replay_entry *entry = registry->entries; entry; entry = entry->next)
        if (is_durable(entry)) return true;
    return false;
}

bool replay_log_lacks_tables(const struct replay_registry *registry) {
    return registry->unlogged > 0;
}

bool replay_log_awaits_base(const struct replay_registry *registry, uint64_t base) {
    for (const struct replay_entry *entry = registry->entries; entry; entry = entry->next)
        if (replay_log_has(entry) && (!entry->logged || (base && entry->logged_from == base))) return true;
    return false;
}

bool replay_log_is_whole(const struct replay_registry *registry) {
    for (const struct replay_entry *entry = registry->entries; entry; entry = entry->next)
        if (is_durable(entry) && table_has_work(entry->table)) return false;
    return true;
}

void replay_log_cut(struct replay_registry *registry, uint64_t base) {
    for (struct replay_entry *entry = registry->entries; entry; entry = entry->next) {
        if (entry->logged || !replay_log_has(entry)) continue;
        entry->logged = true;
        entry->logged_from = base;
        /* Where there are followed tables that the file lacks, its increments count only with this base. */
        if (!entry->followed) table_journal_tell(entry->table, TABLE_JOURNAL_IN_BASE, &base, sizeof base);
    }
    replay_log_recount(registry);
}

void replay_log_cut_failed(struct replay_registry *registry, uint64_t base) {
    for (struct replay_entry *entry = registry->entries; entry; entry = entry->next) {
        if (!entry->logged || entry->logged_from != base) continue;
        entry->logged = false;
    }
    replay_log_recount(registry);
}

/* ---- reading ------------------------------------------------------------------------------------------------------- */

void replay_log_adopt(struct replay_registry *registry, struct replay_entry *entry) {
    struct replay_entry *there =
        replay_registry_named(registry, name_of(entry)); /* out of a snapshot: the file has what came later */
    if (there) replay_registry_drop(registry, there);
    table_apply_begin(entry->table);
    entry->logged = true;
    replay_registry_enter(registry, entry);
}

/* Whether records of a table are passed over: they follow a base that is not there. */
static bool is_skipped(const struct text *skipped, const char *name) {
    char line[TABLE_MAX_NAME + 3];
    snprintf(line, sizeof line, "\n%s\n", name);
    return skipped->data && strstr(skipped->data, line);
}

/* Of a new table: ERROR_NOTABLE where it shares steps of a table whose own records are passed over. One of that name that is
 * there then is another. */
static int check_steps(struct replay_registry *registry, const struct text *skipped, const struct table *table,
                       struct error *error) {
    const char *steps_of = table_config(table)->steps_of;
    const struct replay_entry *owner = *steps_of && skipped ? replay_registry_named(registry, steps_of) : NULL;
    if (!owner || (owner->logged && !is_skipped(skipped, steps_of))) return 0;
    return error_set(error, ERROR_NOTABLE, "table '%s' is not in the file", steps_of);
}

struct replay_entry *replay_log_make(struct replay_registry *registry, const char *name, const uint8_t *record,
                                     size_t length, const struct text *skipped, struct error *error) {
    if (registry->count == REPLAY_MAX_TABLES && !replay_registry_named(registry, name)) {
        error_set(error, ERROR_LIMIT, "there would be more than %u tables", REPLAY_MAX_TABLES);
        return NULL;
    }
    struct table *table = table_apply_create(record, length, name, error);
    if (!table) return NULL;
    struct replay_entry *entry = NULL;
    if (check_steps(registry, skipped, table, error) == 0 && replay_registry_share_steps(registry, table, error) == 0 &&
        !(entry = replay_registry_entry_new(registry, table))) {
        error_set(error, ERROR_GENERIC, "out of memory for a table");
    }
    if (!entry) table_free(table);
    return entry;
}

/* Its own record, of a base, or of a new table of its name, ends that. */
static void unskip(struct text *skipped, const char *name) {
    char line[TABLE_MAX_NAME + 3];
    snprintf(line, sizeof line, "\n%s\n", name);
    for (char *at; skipped->data && (at = strstr(skipped->data, line));) memset(at + 1, '\n', strlen(name));
}

int replay_log_apply(struct replay_registry *registry, const char *name, const uint8_t *record, size_t length,
                     uint64_t base, struct text *skipped, struct error *error) {
    uint32_t kind = table_apply_kind(record, length);
    struct replay_entry *entry = replay_registry_named(registry, name);
    if (kind == TABLE_JOURNAL_CREATE) {
        unskip(skipped, name);
        while (replay_registry_sweep_dropped(registry)) continue; /* nothing else does before the server runs */
        struct replay_entry *made = replay_log_make(registry, name, record, length, skipped, error);
        if (!made && error->code != ERROR_NOTABLE) return -1;
        if (made)
            replay_log_adopt(registry, made);
        else
            text_append(skipped, "\n%s\n", name);
        return 0;
    }
    if (kind == TABLE_JOURNAL_IN_BASE) {
        size_t body_length;
        uint64_t number = 0;
        const uint8_t *body = table_apply_body(record, length, &body_length);
        if (body_length == sizeof number) memcpy(&number, body, sizeof number);
        unskip(skipped, name);
        if (number != base) text_append(skipped, "\n%s\n", name);
    }
    if (is_skipped(skipped, name)) {
        if (kind != TABLE_JOURNAL_DROP) return 0;
        unskip(skipped, name);
        if (entry && entry->logged) replay_registry_drop(registry, entry); /* the one that it had replaced */
        return 0;
    }
    if (!entry || !entry->logged)
        return error_set(error, ERROR_NOTABLE, "a change of the table '%s', which is not there", name);
    if (kind != TABLE_JOURNAL_DROP) {
        if (table_apply(entry->table, record, length, error)) return -1;
        table_step(entry->table, CLOCK_NEVER);
        return 0;
    }
    replay_registry_drop(registry, entry);
    return 0;
}

static void say(const struct replay_entry *entry, struct text *said) {
    struct table_info info;
    table_info(entry->table, &info);
    text_append(said, "table '%s': %" PRIu64 " items of %" PRIu64 " added, %" PRIu64 " sampled", name_of(entry),
                info.size, info.added, info.sampled);
    uint64_t newest = table_newest_id(entry->table);
    if (newest) text_append(said, ", the newest id %" PRIu64, newest);
    if (info.newest_version != INT64_MIN) text_append(said, ", policy version %" PRId64, info.newest_version);
    text_append(said, "\n");
}

void replay_log_loaded(struct replay_registry *registry, struct text *said) {
    for (struct replay_entry *entry = registry->entries; entry; entry = entry->next) {
        if (!entry->logged) continue;
        table_apply_end(entry->table);
        say(entry, said);
    }
}

/* snapshots: one snapshot after the other, whose clients wait for it; its slices; what INFO says. */
#include "server/durability/snapshots.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/worker.h"
#include "persist/rdb_file.h"
#include "persist/store_cut.h"
#include "server/core/client.h"
#include "server/core/long_work.h"
#include "server/core/server.h"
#include "server/durability/append_log.h"
#include "server/durability/append_rewrite.h"
#include "server/durability/cmd_snapshot.h"
#include "server/durability/durability_subsystem.h"
#include "server/durability/restore.h"
#include "server/durability/unsaved.h"
#include "server/redis/script/functions.h"
#include "server/replay/gradients_registry.h"
#include "server/replay/replay_log.h"
#include "server/replay/replay_registry.h"
#include "server/replay/replay_subsystem.h"
#include "server/replay/weights_registry.h"
#include "store/store.h"

#define LOOK_AGAIN_US 500u /* while the disk writes */
#define RETRY_US 5000000u /* after one has failed, before a rule begins another */

static uint64_t known_origin(struct server *server) {
    return server->place.origin;
}

struct snapshots *snapshots_new(struct server *server) {
    struct snapshots *snapshots = memory_calloc(1, sizeof *snapshots);
    if (!snapshots) return NULL;
    snapshots->server = server;
    snapshots->origin = known_origin;
    snapshots->cut = store_cut_new(server->store);
    if (snapshots->cut) return snapshots;
    memory_free(snapshots);
    return NULL;
}

static void let_go(struct snapshots *snapshots) {
    if (snapshots->running) snapshot_free(snapshots->running);
    snapshots->running = NULL;
    snapshots->base_ended = NULL;
    for (uint32_t i = 0; i < snapshots->entry_count; i++) replay_entry_release(snapshots->entries[i]);
    memory_free(snapshots->entries);
    snapshots->entries = NULL;
    snapshots->entry_count = 0;
}

void snapshots_free(struct snapshots *snapshots) {
    if (!snapshots) return;
    restore_give_up(snapshots);
    let_go(snapshots);
    worker_free(snapshots->worker);
    store_cut_free(snapshots->cut);
    saved_tables_free(snapshots->cut_tables);
    saved_tables_free(snapshots->saved_tables);
    memory_free(snapshots);
}

void snapshots_note_restored(struct snapshots *snapshots) {
    saved_tables_free(snapshots->saved_tables);
    snapshots->saved_tables = saved_tables_note(snapshots->server->replay->tables);
}

/* ---- one snapshot -------------------------------------------------------------------------------------------------- */

/* All of them, or those that an append-only file has. */
static int retain_tables(struct snapshots *snapshots, struct table **tables, bool durable, struct error *error) {
    struct replay_registry *registry = snapshots->server->replay->tables;
    snapshots->entries = memory_alloc((registry->count + 1) * sizeof *snapshots->entries);
    if (!tables || !snapshots->entries) return error_set(error, ERROR_GENERIC, "out of memory for a snapshot");
    for (struct replay_entry *entry = registry->entries; entry; entry = entry->next) {
        if (durable && !replay_log_has(entry)) continue;
        tables[snapshots->entry_count] = entry->table;
        snapshots->entries[snapshots->entry_count++] = entry;
        replay_entry_retain(entry); /* it may be dropped meanwhile */
    }
    return 0;
}

static int add_weights(struct snapshots *snapshots, struct error *error) {
    const struct weights_entry *entry = snapshots->server->replay->weights->entries;
    for (; entry; entry = entry->next)
        if (!store_cut_add_weights(snapshots->cut, entry->key, entry->key_length, entry->version, entry->blob))
            return error_set(error, ERROR_GENERIC, "out of memory for a snapshot");
    return 0;
}

static bool add_gradient(void *context, const void *key, size_t length, int64_t version, struct blob *blob) {
    return store_cut_add_gradients(context, key, length, version, blob);
}

static int add_gradients(struct snapshots *snapshots, struct error *error) {
    if (gradients_registry_save(snapshots->server->replay->gradients, add_gradient, snapshots->cut)) return 0;
    return error_set(error, ERROR_GENERIC, "out of memory for a snapshot");
}

static bool add_library(void *context, const void *name, size_t length, struct blob *code) {
    return store_cut_add_library(context, name, length, code);
}

static int add_libraries(struct snapshots *snapshots, struct error *error) {
    if (functions_save(snapshots->server, add_library, snapshots->cut)) return 0;
    return error_set(error, ERROR_GENERIC, "out of memory for a snapshot");
}

static int begin_cut(struct snapshots *snapshots, const struct snapshot_options *options, struct table **tables,
                     struct error *error) {
    snapshots->running = snapshot_begin(options, tables, snapshots->entry_count, error);
    if (!snapshots->running) return -1;
    snapshots->cut_changes = snapshots->server->store->changes;
    if (add_weights(snapshots, error) || add_gradients(snapshots, error)) return -1;
    return add_libraries(snapshots, error);
}

static struct snapshot_options options_of(struct snapshots *snapshots, const char *folder, const char *name) {
    if (!snapshots->worker) snapshots->worker = worker_new();
    return (struct snapshot_options){
        .folder = folder,
        .name = name,
        .run_id = snapshots->server->start.run_id,
        .worker = snapshots->worker,
        .store = snapshots->cut,
        .store_bytes = memory_used_bytes(),
        .epoch = snapshots->server->place.epoch,
        .newest_epoch = snapshots->server->place.newest_epoch,
        .origin = snapshots->origin(snapshots->server),
        .is_copy = snapshots->server->place.is_copy,
    };
}

static int begin(struct snapshots *snapshots, struct error *error) {
    struct table **tables = memory_alloc((snapshots->server->replay->tables->count + 1) * sizeof *tables);
    struct snapshot_options options = options_of(snapshots, ".", snapshots->name);
    options.keep = (uint32_t)snapshots->server->config.snapshot_keep;
    saved_tables_free(snapshots->cut_tables);
    snapshots->cut_tables = saved_tables_note(snapshots->server->replay->tables);
    int result = retain_tables(snapshots, tables, false, error) || begin_cut(snapshots, &options, tables, error);
    memory_free(tables);
    return result ? -1 : 0;
}

bool snapshots_may_begin(const struct snapshots *snapshots) {
    return !snapshots->running && store_cut_may_begin(snapshots->cut);
}

int snapshots_begin_base(struct snapshots *snapshots, const struct snapshot_base *base, struct error *error) {
    struct table **tables = memory_alloc((snapshots->server->replay->tables->count + 1) * sizeof *tables);
    struct snapshot_options options = options_of(snapshots, base->folder, base->name);
    options.is_passing = base->is_passing;
    int failed = base->with_tables && retain_tables(snapshots, tables, true, error);
    failed = failed || begin_cut(snapshots, &options, tables, error);
    memory_free(tables);
    if (failed) {
        let_go(snapshots);
        return -1;
    }
    snapshots->base_ended = base->ended;
    return 0;
}

uint64_t snapshots_base_written(const struct snapshots *snapshots) {
    struct snapshot_progress progress = {0};
    if (snapshots->running && snapshots->base_ended) snapshot_progress(snapshots->running, &progress);
    return progress.written;
}

void snapshots_give_up_base(struct snapshots *snapshots, snapshot_base_ended ended) {
    if (snapshots->base_ended == ended) let_go(snapshots);
}

/* Remembers how it ended and answers who waited for it. */
static void finish(struct snapshots *snapshots, const struct error *error) {
    struct snapshot_progress progress = {0};
    if (snapshots->running) snapshot_progress(snapshots->running, &progress);
    let_go(snapshots);
    snapshots->outcome = *error;
    snapshots->done_number = snapshots->number;
    snapshots->took_us = clock_monotonic_us() - snapshots->began_us;
    snapshots->most_waiting_bytes = progress.most_waiting_bytes;
    if (error->code == ERROR_NONE) {
        char folder[PATH_MAX];
        if (!getcwd(folder, sizeof folder)) snprintf(folder, sizeof folder, ".");
        if (snprintf(snapshots->path, sizeof snapshots->path, "%s/%s", folder, snapshots->name) >= PATH_MAX)
            snprintf(snapshots->path, sizeof snapshots->path, "%s", snapshots->name);
        snapshots->saved_unix_ms = progress.cut_unix_ms;
        snapshots->saved_us = snapshots->server->now_us;
        snapshots->saved_bytes = progress.bytes;
        snapshots->saved++;
        log_event(LOG_INFO, "snapshot_saved", LOG_FIELDS({"file", .text = snapshots->path}), "the snapshot %s is saved",
                  snapshots->path);
        snapshots->saved_changes = snapshots->cut_changes;
        saved_tables_free(snapshots->saved_tables);
        snapshots->saved_tables = snapshots->cut_tables;
        snapshots->cut_tables = NULL;
    } else {
        snapshots->retry_us = snapshots->server->now_us + RETRY_US;
        log_event(LOG_WARNING, "snapshot_failed", LOG_FIELDS({"file", .text = snapshots->name}),
                  "the snapshot %s failed: %s", snapshots->name, error->message);
        snapshots->failed++;
    }
    for (struct client *client = snapshots->savers.head; client;) {
        struct client *next = client->wait_next;
        client_retry(client); /* those who wait for a later one stay */
        client = next;
    }
    stop_snapshot_ended(snapshots->server, snapshots->number, error->code == ERROR_NONE);
}

/* A reset or a change of settings is finished first: a snapshot shows a table before it or after it. So is a batch that
 * is amid its parts, where nothing comes after the snapshot. */
static bool tables_are_ready(struct snapshots *snapshots) {
    if (stop_wants_snapshot(snapshots->server) && replay_registry_is_amid(snapshots->server->replay->tables))
        return false;
    for (struct replay_entry *entry = snapshots->server->replay->tables->entries; entry; entry = entry->next)
        if (table_has_work(entry->table)) return false;
    return true;
}

/* ---- rules --------------------------------------------------------------------------------------------------------- */

/* The next pair of the rules; false at their end, or, with *malformed, where there is none. */
static bool next_rule(const char **rules, uint64_t *seconds, uint64_t *changes, bool *malformed) {
    char *end;
    *rules += strspn(*rules, " ");
    if (**rules == '\0') return false;
    *malformed = true;
    if (**rules < '0' || **rules > '9') return false;
    *seconds = strtoull(*rules, &end, 10);
    end += strspn(end, " ");
    if (*end < '0' || *end > '9' || *seconds < 1 || *seconds > INT32_MAX) return false;
    *rules = end;
    *changes = strtoull(*rules, &end, 10);
    if (*end != ' ' && *end != '\0') return false;
    *rules = end;
    *malformed = false;
    return true;
}

bool snapshots_rules_are_valid(const char *rules) {
    uint64_t seconds, changes;
    bool malformed = false;
    while (next_rule(&rules, &seconds, &changes, &malformed)) continue;
    return !malformed;
}

/* When one of the rules applies; CLOCK_NEVER: none does until something changes. */
static uint64_t rule_due(const struct snapshots *snapshots) {
    const struct server *server = snapshots->server;
    const char *rules = server->config.save;
    uint64_t seconds, changes, due_us = CLOCK_NEVER, made = server->store->changes - snapshots->saved_changes;
    bool malformed = false;
    uint64_t since_us = snapshots->saved_us > 0 ? snapshots->saved_us : server->stats.started_us;
    while (next_rule(&rules, &seconds, &changes, &malformed)) {
        if (made == 0 || made < changes) continue;
        uint64_t at_us = since_us + seconds * 1000000u;
        if (at_us < snapshots->retry_us) at_us = snapshots->retry_us;
        if (at_us < due_us) due_us = at_us;
    }
    return due_us;
}

bool snapshots_refuse_writes(const struct snapshots *snapshots) {
    const struct server_config *config = &snapshots->server->config;
    return config->stop_writes_on_bgsave_error && config->save[0] != '\0' && snapshots->outcome.code != ERROR_NONE;
}

static bool is_wanted(struct snapshots *snapshots, uint64_t *due_us) {
    if (snapshots->savers.length > 0 || snapshots->wanted || stop_wants_snapshot(snapshots->server)) return true;
    uint64_t rule_us = rule_due(snapshots);
    if (rule_us <= snapshots->server->now_us) return true;
    if (rule_us < *due_us) *due_us = rule_us;
    return false;
}

void snapshots_note_change_of_part(struct snapshots *snapshots) {
    const struct server *server = snapshots->server;
    bool was_one_restored = snapshots->restored[0] != '\0' && !rdb_file_is(snapshots->restored);
    bool are_kept = snapshots->number > 0 || was_one_restored || server->config.save[0] != '\0';
    if (are_kept && !append_log_is_on(server->durability->append_log)) snapshots->wanted = true;
}

/* Begins the snapshot that the client at the head of the queue waits for, and that everyone else of the same wish gets. */
static void begin_next(struct snapshots *snapshots) {
    if (snapshots->server->ending.begun || !tables_are_ready(snapshots)) return;
    if (snapshots->server->changes.depth > 0) return; /* in the midst of a script */
    uint64_t due_us = CLOCK_NEVER;
    snapshots_refuse_names(snapshots);
    if (!is_wanted(snapshots, &due_us)) return;
    struct error error = {.code = ERROR_NONE};
    snapshots->number++;
    snapshots->began_us = clock_monotonic_us();
    snapshots->origin(snapshots->server); /* where it is drawn now, it asks for a snapshot, which this one is */
    snapshots->wanted = false;
    snapshots_take_name(snapshots);
    if (begin(snapshots, &error) < 0) finish(snapshots, &error);
}

uint64_t snapshots_step(struct snapshots *snapshots) {
    uint64_t due_us = restore_step(snapshots), now_us = clock_monotonic_us();
    if (!snapshots->running && !store_cut_may_begin(snapshots->cut)) { /* one that failed is cleared away */
        while (store_cut_step(snapshots->cut) && clock_monotonic_us() < long_work_until(snapshots->server)) continue;
        return now_us;
    }
    if (!snapshots->running && is_wanted(snapshots, &due_us)) {
        begin_next(snapshots);
        if (!snapshots->running) return is_wanted(snapshots, &due_us) ? now_us + LOOK_AGAIN_US : due_us;
    }
    if (!snapshots->running) return due_us;
    struct error error = {.code = ERROR_NONE};
    switch (snapshot_step(snapshots->running, long_work_until(snapshots->server), &error)) {
    case SNAPSHOT_COPYING: return now_us;
    case SNAPSHOT_WRITING: return now_us + LOOK_AGAIN_US < due_us ? now_us + LOOK_AGAIN_US : due_us;
    case SNAPSHOT_DONE:
    case SNAPSHOT_FAILED: break;
    }
    if (snapshots->base_ended) {
        struct snapshot_progress progress;
        snapshot_base_ended ended = snapshots->base_ended;
        snapshot_progress(snapshots->running, &progress);
        let_go(snapshots);
        ended(snapshots->server, progress.bytes, &error);
    } else {
        finish(snapshots, &error);
    }
    return now_us;
}

int64_t snapshots_last_save_s(const struct snapshots *snapshots) {
    return (snapshots->saved_unix_ms > 0 ? snapshots->saved_unix_ms : snapshots->server->start.unix_ms) / 1000;
}

void snapshots_info(const struct client *client, struct text *out) {
    const struct snapshots *snapshots = client->server->durability->snapshots;
    struct snapshot_progress progress = {0};
    uint64_t keys, passed;
    if (snapshots->running) snapshot_progress(snapshots->running, &progress);
    store_cut_progress(snapshots->cut, &keys, &passed);
    text_append(out,
                "loading:0\r\nasync_loading:0\r\ncurrent_save_keys_processed:%" PRIu64
                "\r\ncurrent_save_keys_total:%" PRIu64 "\r\nrdb_changes_since_last_save:%" PRIu64
                "\r\nrdb_bgsave_in_progress:%d\r\nrdb_last_save_time:%" PRId64 "\r\nrdb_last_bgsave_status:%s\r\n",
                passed, keys, snapshots->server->store->changes - snapshots->saved_changes,
                snapshots->running && !snapshots->base_ended, snapshots_last_save_s(snapshots),
                snapshots->outcome.code == ERROR_NONE ? "ok" : "err");
    text_append(out,
                "snapshots_saved:%" PRIu64 "\r\nsnapshots_failed:%" PRIu64 "\r\nsnapshot_last_path:%s\r\n"
                "snapshot_last_bytes:%" PRIu64 "\r\nsnapshot_last_us:%" PRIu64
                "\r\nsnapshot_last_most_waiting_bytes:%" PRIu64 "\r\nsnapshot_last_error:%s\r\n",
                snapshots->saved, snapshots->failed, snapshots->path, snapshots->saved_bytes, snapshots->took_us,
                snapshots->most_waiting_bytes, snapshots->outcome.code == ERROR_NONE ? "" : snapshots->outcome.message);
    text_append(out,
                "snapshot_waiting_bytes:%" PRIu64 "\r\nsnapshot_keep:%" PRId64 "\r\nsnapshot_named_limit:%" PRId64
                "\r\nrestore_in_progress:%d\r\n"
                "restored_from:%s\r\nrestored_cut_time:%" PRId64 "\r\n",
                progress.waiting_bytes, snapshots->server->config.snapshot_keep,
                snapshots->server->config.snapshot_named_limit, snapshots->restoring != NULL, snapshots->restored,
                snapshots->restored_cut_unix_ms / 1000);
    unsaved_info(client, snapshots->saved_tables, out);
}

/* restore: a thread reads; the loop puts what was read into service at once, or refuses all of it. */
#include "server/durability/restore.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/worker.h"
#include "persist/rdb_file.h"
#include "persist/snapshot_folder.h"
#include "persist/snapshot_reader.h"
#include "server/core/client.h"
#include "server/core/server.h"
#include "server/durability/append_load.h"
#include "server/durability/append_log.h"
#include "server/durability/durability_subsystem.h"
#include "server/redis/acl/acl.h"
#include "server/redis/script/functions.h"
#include "server/replay/gradients_registry.h"
#include "server/replay/replay_follow.h"
#include "server/replay/replay_registry.h"
#include "server/replay/replay_subsystem.h"
#include "server/replay/weights_registry.h"
#include "store/store.h"

#define LOOK_AGAIN_US 5000u /* while the thread reads */

struct restore_job {
    struct worker_job job;
    struct worker *worker;
    char path[PATH_MAX];
    struct snapshot_content content;
    uint64_t left_out; /* keys */
    uint64_t client; /* its id: who asked, and must be allowed to write what it replaces */
    atomic_bool stop;
    int failed;
    struct error error;
    bool installed;             /* the append-only file is to have the tables yet … */
    uint64_t rewrites_failed;   /* … and so many rewrites had failed before */
};

/* Where others tell more, keys and weights stay as they are. Returns how many keys were left out. */
static uint64_t leave_out_store(struct store_content *content) {
    uint64_t keys = content->keys;
    store_content_free(content);
    return keys;
}

/* A snapshot, or a file of Redis, which holds keys and libraries of functions alone. */
static int read_file(const char *path, struct snapshot_content *content, const atomic_bool *stop, struct error *error) {
    if (!rdb_file_is(path)) return snapshot_read_file(path, content, stop, error);
    struct rdb_content rdb;
    *content = (struct snapshot_content){0};
    if (rdb_file_read(path, &rdb, stop, error)) return -1;
    content->store = rdb.store;
    content->cut_unix_ms = rdb.written_unix_ms;
    return 0;
}

static void run(struct worker_job *base) {
    struct restore_job *job = (struct restore_job *)(void *)base;
    job->failed = read_file(job->path, &job->content, &job->stop, &job->error);
    job->left_out = leave_out_store(&job->content.store); /* here, since it may take long */
}

/* ---- into service -------------------------------------------------------------------------------------------------- */

static void say_when(int64_t unix_ms, struct text *said) {
    time_t seconds = (time_t)(unix_ms / 1000);
    struct tm utc;
    gmtime_r(&seconds, &utc);
    double ago_s = (double)(clock_unix_ms() - unix_ms) / 1000;
    text_append(said, "%04d-%02d-%02d %02d:%02d:%02d UTC, %.0f s %s", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                utc.tm_hour, utc.tm_min, utc.tm_sec, ago_s < 0 ? -ago_s : ago_s,
                ago_s < -1 ? "in the future of this clock, which was set back or is wrong" : "ago");
}

static void say_tables(const struct snapshot_content *content, const char *path, struct text *said) {
    text_append(said, "restored %s, cut at ", path);
    if (content->cut_unix_ms > 0)
        say_when(content->cut_unix_ms, said);
    else
        text_append(said, "an unknown time");
    text_append(said, "; what was added, sampled and updated after that is lost\n");
    for (uint32_t i = 0; i < content->count; i++) {
        struct table_info info;
        table_info(content->tables[i], &info);
        text_append(said, "table '%s': %" PRIu64 " items of %" PRIu64 " added, %" PRIu64 " sampled\n",
                    table_config(content->tables[i])->name, info.size, info.added, info.sampled);
    }
    if (content->store.keys > 0) text_append(said, "%" PRIu64 " keys\n", content->store.keys);
    for (const struct store_weights *weights = content->store.weights; weights; weights = weights->next)
        text_append(said, "weights '%.*s': version %" PRId64 "\n", (int)weights->key_length, (const char *)weights->key,
                    weights->version);
}

int restore_adopt_libraries(struct server *server, const struct store_content *content, struct error *error) {
    for (const struct store_weights *library = content->libraries; library; library = library->next) {
        struct error why;
        if (functions_adopt(server, library->blob, &why))
            return error_set(error, ERROR_GENERIC, "a library of functions that was saved: %s", why.message);
    }
    return 0;
}

static int adopt_beside(struct server *server, const struct store_content *content, struct error *error) {
    for (const struct store_weights *weights = content->weights; weights; weights = weights->next)
        if (!weights_registry_adopt(server->replay->weights, weights->key, weights->key_length, weights->version,
                                    weights->blob))
            return error_set(error, ERROR_GENERIC, "no memory for weights");
    for (const struct store_weights *saved = content->gradients; saved; saved = saved->next)
        if (gradients_registry_adopt(server->replay->gradients, saved->key, saved->key_length, saved->version,
                                     saved->blob, error))
            return -1;
    return 0;
}

int restore_adopt_store(struct server *server, struct store_content *content, struct error *error) {
    if (adopt_beside(server, content, error)) return -1;
    if (restore_adopt_libraries(server, content, error)) return -1;
    store_adopt(server->store, content->store);
    server->durability->snapshots->loaded_keys = content->keys;
    return 0;
}

void restore_adopt_epochs(struct server *server, const struct snapshot_content *content) {
    server->place.epoch = content->epoch < INT64_MAX ? content->epoch : 0;
    server->place.newest_epoch = content->newest_epoch < INT64_MAX ? content->newest_epoch : 0;
    if (server->place.newest_epoch < server->place.epoch) server->place.newest_epoch = server->place.epoch;
    server->place.origin = content->origin;
    server->place.is_copy = content->is_copy;
}

int restore_replace_keys(struct server *server, struct store_content *content, struct error *error) {
    struct snapshots *snapshots = server->durability->snapshots;
    functions_clear(server);
    if (restore_adopt_libraries(server, content, error)) return -1;
    for (unsigned d = 0; d < STORE_DATABASES; d++) store_flush(server->store, d);
    store_adopt(server->store, content->store);
    server->store->changes += content->keys;
    snapshots->loaded_keys = content->keys;
    append_log_replaced(server->durability->append_log);
    return 0;
}

int restore_replace_all(struct server *server, struct snapshot_content *content, struct error *error) {
    struct replay_subsystem *replay = server->replay;
    if (replay_follow_adopt(replay->tables, content->tables, content->count, error)) return -1;
    content->count = 0; /* they are the registry's */
    weights_registry_clear(replay->weights);
    gradients_registry_clear(replay->gradients);
    if (adopt_beside(server, &content->store, error)) return -1;
    return restore_replace_keys(server, &content->store, error);
}

static void say_left_out(uint64_t keys, const char *why, struct text *said) {
    if (keys > 0) text_append(said, "its %" PRIu64 " keys were left out: %s\n", keys, why);
}

/* A snapshot is read before its tables are known, and whoever asked may have gone by then: its rights with it. */
static int check_rights(struct server *server, uint64_t id, const struct snapshot_content *content,
                        struct error *error) {
    struct client *client = server_client_by_id(server, id);
    if (!client || client->closing)
        return error_set(error, ERROR_GENERIC,
                         "the client that asked for the restore has disconnected, and nothing was restored");
    for (uint32_t i = 0; i < content->count; i++) {
        const char *name = table_config(content->tables[i])->name;
        const struct resp_argument key = {.data = (const uint8_t *)name, .length = strlen(name)};
        if (acl_may_access_key(client, &key, KEY_WRITE)) continue;
        acl_log_add(client, ACL_DENIED_KEY, "toplevel", name, key.length, client->user->name);
        return error_set(error, ERROR_NOPERM,
                         "this user has no permissions to write all tables of the snapshot, and nothing was restored; "
                         "ACL LOG names the table");
    }
    return 0;
}

/* All tables or none. */
static int install(struct snapshots *snapshots, struct snapshot_content *content, const char *path, struct text *said,
                   struct error *error) {
    struct replay_registry *registry = snapshots->server->replay->tables;
    struct text settings = {0};
    say_tables(content, path, &settings);
    int failed = replay_registry_install(registry, content->tables, content->count, &settings, error);
    if (!failed) {
        text_append_bytes(said, settings.data ? settings.data : "", settings.length);
        content->count = 0; /* they are the registry's */
        snprintf(snapshots->restored, sizeof snapshots->restored, "%s", path);
        snapshots->restored_cut_unix_ms = content->cut_unix_ms;
    }
    text_free(&settings);
    return failed;
}

/* ---- while serving ------------------------------------------------------------------------------------------------- */

int restore_begin(struct snapshots *snapshots, const struct client *client, const char *name, struct error *error) {
    if (snapshots->restoring) return error_set(error, ERROR_GENERIC, "another restore is under way; wait for its end");
    struct restore_job *job = memory_calloc(1, sizeof *job);
    if (job) job->worker = worker_new();
    if (!job || !job->worker) {
        memory_free(job);
        return error_set(error, ERROR_GENERIC, "out of memory or threads for a restore");
    }
    snprintf(job->path, sizeof job->path, "%s", name);
    job->client = client->id;
    job->job.run = run;
    snapshots->restoring = job;
    worker_give(job->worker, &job->job);
    return 0;
}

static void forget(struct snapshots *snapshots) {
    struct restore_job *job = snapshots->restoring;
    snapshots->restoring = NULL;
    worker_free(job->worker);
    snapshot_content_free(&job->content);
    memory_free(job);
}

static void finish(struct snapshots *snapshots) {
    forget(snapshots);
    wait_queue_wake(snapshots->server, &snapshots->restorers);
}

/* Whoever asked is answered once a kill would no longer bring back the former tables, or when that has failed. */
static uint64_t wait_for_file(struct snapshots *snapshots) {
    const struct restore_job *job = snapshots->restoring;
    const struct append_log *log = snapshots->server->durability->append_log;
    bool lacks = append_log_lacks_restored(log);
    if (lacks && log->rewrites_failed == job->rewrites_failed) return snapshots->server->now_us + LOOK_AGAIN_US;
    if (lacks)
        error_set(&snapshots->restore_outcome, ERROR_GENERIC,
                  "the tables were restored, but are not in the append-only file, since it could not be rewritten: %s. "
                  "Writes to tables are refused until it is; a kill before that brings back the former tables",
                  log->rewrite_error.message);
    finish(snapshots);
    return snapshots->server->now_us;
}

uint64_t restore_step(struct snapshots *snapshots) {
    struct restore_job *job = snapshots->restoring;
    if (!job) return CLOCK_NEVER;
    if (job->installed) return wait_for_file(snapshots);
    if (!worker_finished(job->worker)) return snapshots->server->now_us + LOOK_AGAIN_US;
    text_free(&snapshots->restore_said);
    snapshots->restore_outcome = (struct error){.code = ERROR_NONE};
    if (job->failed) {
        snapshots->restore_outcome = job->error;
    } else if (!check_rights(snapshots->server, job->client, &job->content, &snapshots->restore_outcome)) {
        job->installed =
            !install(snapshots, &job->content, job->path, &snapshots->restore_said, &snapshots->restore_outcome);
        say_left_out(job->left_out, "those that are here stay", &snapshots->restore_said);
        job->rewrites_failed = snapshots->server->durability->append_log->rewrites_failed;
    }
    if (job->installed) return wait_for_file(snapshots);
    finish(snapshots);
    return snapshots->server->now_us;
}

void restore_give_up(struct snapshots *snapshots) {
    if (snapshots->restoring) {
        atomic_store(&snapshots->restoring->stop, true);
        forget(snapshots);
    }
    text_free(&snapshots->restore_said);
}

/* ---- at the start -------------------------------------------------------------------------------------------------- */

int snapshots_restore_at_start(struct snapshots *snapshots, const char *file, struct text *said, struct error *error) {
    char path[PATH_MAX], newest[NAME_MAX + 1], partial[NAME_MAX + 1];
    if (snapshot_remove_partial(".", partial) > 0)
        text_append(said, "%s was not finished when its server ended, and was removed\n", partial);
    snprintf(path, sizeof path, "%s", file);
    if (strcmp(file, "latest") == 0) {
        if (snapshot_newest(".", newest, error)) return -1;
        if (newest[0] == '\0') {
            text_append(said, "there is no snapshot in %s: the server starts empty\n", snapshots->server->config.dir);
            return 0;
        }
        snprintf(path, sizeof path, "%s", newest);
    }
    struct snapshot_content content;
    if (read_file(path, &content, NULL, error)) return -1;
    const struct server_config *config = &snapshots->server->config;
    uint64_t left_out = 0;
    if (config->appendonly && append_load_exists(config->appenddirname, config->appendfilename))
        left_out = leave_out_store(&content.store);
    int failed = install(snapshots, &content, path, said, error);
    say_left_out(left_out, "the append-only file has what came later", said);
    if (!failed) snapshots_note_restored(snapshots);
    if (!failed && content.store.store) failed = restore_adopt_store(snapshots->server, &content.store, error);
    restore_adopt_epochs(snapshots->server, &content);
    snapshot_content_free(&content);
    return failed;
}

/* ---- once more ------------------------------------------------------------------------------------------------------- */

int restore_again(struct snapshots *snapshots, const char *path, struct error *error) {
    struct snapshot_content content;
    if (snapshot_read_file(path, &content, NULL, error)) return -1;
    struct text said = {0};
    struct store *store = snapshots->server->store;
    int failed = install(snapshots, &content, path, &said, error);
    text_free(&said);
    if (!failed) {
        functions_clear(snapshots->server);
        failed = restore_adopt_libraries(snapshots->server, &content.store, error);
    }
    if (!failed) {
        for (unsigned d = 0; d < STORE_DATABASES; d++) store_flush(store, d);
        if (content.store.store) store_adopt(store, content.store.store);
        snapshots->loaded_keys = content.store.keys;
        snapshots->saved_changes = store->changes;
        snapshots_note_restored(snapshots);
    }
    snapshot_content_free(&content);
    return failed;
}

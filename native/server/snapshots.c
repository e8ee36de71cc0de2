/* snapshots: one snapshot after the other, whose clients wait for it; its slices; what INFO says. */
#include "server/snapshots.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "server/client.h"
#include "server/cmd_snapshot.h"
#include "server/replay_registry.h"
#include "server/restore.h"
#include "server/server.h"

#define LOOK_AGAIN_US 500u /* while the disk writes */

struct snapshots *snapshots_new(struct server *server) {
    struct snapshots *snapshots = memory_calloc(1, sizeof *snapshots);
    if (snapshots) snapshots->server = server;
    return snapshots;
}

static void let_go(struct snapshots *snapshots) {
    if (snapshots->running) snapshot_free(snapshots->running);
    snapshots->running = NULL;
    for (uint32_t i = 0; i < snapshots->entry_count; i++) replay_entry_release(snapshots->entries[i]);
    memory_free(snapshots->entries);
    snapshots->entries = NULL;
    snapshots->entry_count = 0;
}

void snapshots_free(struct snapshots *snapshots) {
    if (!snapshots) return;
    restore_give_up(snapshots);
    let_go(snapshots);
    memory_free(snapshots);
}

/* ---- one snapshot -------------------------------------------------------------------------------------------------- */

static int begin(struct snapshots *snapshots, struct error *error) {
    struct replay_registry *registry = snapshots->server->replay;
    struct table **tables = memory_alloc((registry->count + 1) * sizeof *tables);
    snapshots->entries = memory_alloc((registry->count + 1) * sizeof *snapshots->entries);
    if (!tables || !snapshots->entries) {
        memory_free(tables);
        return error_set(error, ERROR_GENERIC, "out of memory for a snapshot");
    }
    for (struct replay_entry *entry = registry->entries; entry; entry = entry->next) {
        tables[snapshots->entry_count] = entry->table;
        snapshots->entries[snapshots->entry_count++] = entry;
        replay_entry_retain(entry); /* it may be dropped meanwhile */
    }
    struct snapshot_options options = {
        .folder = ".",
        .name = snapshots->name,
        .run_id = snapshots->server->run_id,
        .keep = (uint32_t)snapshots->server->config.snapshot_keep,
    };
    snapshots->running = snapshot_begin(&options, tables, snapshots->entry_count, error);
    memory_free(tables);
    return snapshots->running ? 0 : -1;
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
        snapshots->saved_bytes = progress.bytes;
        snapshots->saved++;
    } else {
        fprintf(stderr, "replay-server: the snapshot %s failed: %s\n", snapshots->name, error->message);
        snapshots->failed++;
    }
    for (struct client *client = snapshots->savers.head; client;) {
        struct client *next = client->wait_next;
        client_retry(client); /* those who wait for a later one stay */
        client = next;
    }
}

/* A reset or a change of settings is finished first: a snapshot shows a table before it or after it. */
static bool tables_are_ready(struct snapshots *snapshots) {
    for (struct replay_entry *entry = snapshots->server->replay->entries; entry; entry = entry->next) {
        if (table_has_work(entry->table)) return false;
    }
    return true;
}

/* Begins the snapshot that the client at the head of the queue waits for, and that everyone else of the same wish gets. */
static void begin_next(struct snapshots *snapshots) {
    if (snapshots->server->stopping || !tables_are_ready(snapshots)) return;
    struct error error = {.code = ERROR_NONE};
    snapshots->number++;
    snapshots->began_us = clock_monotonic_us();
    snapshots_take_name(snapshots);
    if (begin(snapshots, &error) < 0) finish(snapshots, &error);
}

uint64_t snapshots_step(struct snapshots *snapshots) {
    uint64_t due_us = restore_step(snapshots);
    if (!snapshots->running && snapshots->savers.length > 0) begin_next(snapshots);
    if (!snapshots->running) return snapshots->savers.length > 0 ? clock_monotonic_us() : due_us;
    struct error error = {.code = ERROR_NONE};
    uint64_t now_us = clock_monotonic_us();
    switch (snapshot_step(snapshots->running, now_us + LIMIT_TURN_SNAPSHOT_US, &error)) {
    case SNAPSHOT_COPYING: return now_us;
    case SNAPSHOT_WRITING: return now_us + LOOK_AGAIN_US < due_us ? now_us + LOOK_AGAIN_US : due_us;
    case SNAPSHOT_DONE:
    case SNAPSHOT_FAILED: break;
    }
    finish(snapshots, &error);
    return now_us;
}

void snapshots_info(const struct snapshots *snapshots, struct text *out) {
    struct snapshot_progress progress = {0};
    if (snapshots->running) snapshot_progress(snapshots->running, &progress);
    text_append(out,
                "loading:0\r\nrdb_bgsave_in_progress:%d\r\nrdb_last_save_time:%" PRId64
                "\r\nrdb_last_bgsave_status:%s\r\n",
                snapshots->running != NULL, snapshots->saved_unix_ms / 1000,
                snapshots->outcome.code == ERROR_NONE ? "ok" : "err");
    text_append(out,
                "snapshots_saved:%" PRIu64 "\r\nsnapshots_failed:%" PRIu64 "\r\nsnapshot_last_path:%s\r\n"
                "snapshot_last_bytes:%" PRIu64 "\r\nsnapshot_last_us:%" PRIu64
                "\r\nsnapshot_last_most_waiting_bytes:%" PRIu64 "\r\nsnapshot_last_error:%s\r\n",
                snapshots->saved, snapshots->failed, snapshots->path, snapshots->saved_bytes, snapshots->took_us,
                snapshots->most_waiting_bytes, snapshots->outcome.code == ERROR_NONE ? "" : snapshots->outcome.message);
    text_append(out,
                "snapshot_waiting_bytes:%" PRIu64 "\r\nsnapshot_keep:%" PRId64 "\r\nrestore_in_progress:%d\r\n"
                "restored_from:%s\r\nrestored_cut_time:%" PRId64 "\r\n",
                progress.waiting_bytes, snapshots->server->config.snapshot_keep, snapshots->restoring != NULL,
                snapshots->restored, snapshots->restored_cut_unix_ms / 1000);
}

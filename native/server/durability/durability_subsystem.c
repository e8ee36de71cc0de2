#include "server/durability/durability_subsystem.h"

#include <inttypes.h>

#include "base/memory.h"
#include "server/durability/append_log.h"
#include "server/durability/copy_first.h"
#include "server/durability/export.h"
#include "server/durability/keyspace_events.h"
#include "server/durability/snapshots.h"

#define SAVE_REFUSAL                                                                                                  \
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk. Commands that " \
    "may modify the data set are disabled, because this instance is configured to report errors during writes if "    \
    "RDB snapshotting fails (stop-writes-on-bgsave-error option). Please check the Redis logs for details about the " \
    "RDB error."

static bool create(struct server *server) {
    struct durability_subsystem *durability = server->durability = memory_calloc(1, sizeof *durability);
    if (!durability) return false;
    durability->snapshots = snapshots_new(server);
    durability->append_log = append_log_new(server);
    durability->export = export_new(server);
    if (!durability->snapshots || !durability->append_log || !durability->export) return false;
    keyspace_listen(server);
    return true;
}

static void free_subsystem(struct server *server) {
    struct durability_subsystem *durability = server->durability;
    if (!durability) return;
    export_free(durability->export);
    append_log_free(durability->append_log);
    snapshots_free(durability->snapshots); /* it holds tables */
    memory_free(durability);
}

const char *durability_refuses_writes(const struct server *server, bool of_tables, char *text, size_t size) {
    if (!of_tables && snapshots_refuse_writes(server->durability->snapshots)) return SAVE_REFUSAL;
    const struct append_log *log = server->durability->append_log;
    if (of_tables && append_log_refuses_tables(log, text, size)) return text;
    return append_log_refuses(log, text, size) ? text : NULL;
}

static uint64_t append_work(struct server *server) {
    return append_log_step(server->durability->append_log);
}

static uint64_t snapshot_work(struct server *server) {
    uint64_t again_us = snapshots_step(server->durability->snapshots);
    copy_first_step(server);
    return again_us;
}

/* Nothing forks: what a child would take is zero. */
static void persistence_info(const struct client *client, struct text *out) {
    const struct server *server = client->server;
    text_append(out, "# Persistence\r\n");
    snapshots_info(client, out);
    append_log_info(server->durability->append_log, out);
    const struct snapshots *snapshots = server->durability->snapshots;
    bool runs = snapshots->running && !snapshots->base_ended;
    int64_t running_s = runs ? (int64_t)((server->now_us - snapshots->began_us) / 1000000) : -1;
    int64_t took_s = snapshots->done_number > 0 ? (int64_t)(snapshots->took_us / 1000000) : -1;
    text_append(out,
                "rdb_saves:%" PRIu64 "\r\nrdb_last_bgsave_time_sec:%" PRId64 "\r\nrdb_current_bgsave_time_sec:%" PRId64
                "\r\nrdb_last_load_keys_expired:0\r\nrdb_last_load_keys_loaded:%" PRIu64 "\r\n",
                snapshots->saved, took_s, running_s, snapshots->loaded_keys);
    text_append(out, "aof_rewrites_consecutive_failures:%" PRIu64 "\r\n",
                server->durability->append_log->rewrites_failed_in_a_row);
    text_append(out, "rdb_last_cow_size:0\r\naof_last_cow_size:0\r\ncurrent_cow_size:0\r\ncurrent_cow_peak:0\r\n"
                     "current_cow_size_age:0\r\ncurrent_fork_perc:0.00\r\nmodule_fork_in_progress:0\r\n"
                     "module_fork_last_cow_size:0\r\n");
}

static const struct info_section info[] = {{"persistence", 50, persistence_info}, {0}};

static uint64_t export_work(struct server *server) {
    return export_step(server->durability->export);
}

static const struct long_task tasks[] = {
    {snapshot_work, .waits_for_exclusive = true}, {export_work, .waits_for_exclusive = true}, {.run = NULL}};

static const struct command *const commands[] = {commands_snapshot, NULL};

const struct subsystem durability_subsystem = {
    .name = "durability",
    .commands = commands,
    .info = info,
    .tasks = tasks,
    .before_write = append_work,
    .create = create,
    .free = free_subsystem,
};

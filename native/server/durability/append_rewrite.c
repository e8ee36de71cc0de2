/* append_rewrite: a cut of the store, new files at the same moment, and the manifest that makes them count.
 *
 * At the cut what was added before goes to the old increment, what comes after it to a new one. Where the old files are
 * whole the manifest names them and the new increment until the base is there, so that nothing is lost whenever the server
 * ends. Where they are not, since something could not be written, it names nothing new until then. */
#include "server/durability/append_rewrite.h"

#include <inttypes.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/core/server.h"
#include "server/durability/append_log.h"
#include "server/durability/durability_subsystem.h"
#include "server/durability/snapshots.h"
#include "server/replay/replay_log.h"
#include "server/replay/replay_subsystem.h"

#define RETRY_US 10000000u /* after one has failed */
#define LOOK_AGAIN_US 1000u

enum rewrite_state {
    REWRITE_NONE,
    REWRITE_OPENING,   /* the cut was made; the new increment comes once what was before it is written */
    REWRITE_SWITCHING, /* the writer makes it */
    REWRITE_COPYING,   /* the snapshot goes on, or is there */
    REWRITE_ENDING     /* the writer writes the manifest */
};

enum base_outcome { BASE_COMING, BASE_THERE, BASE_FAILED };

static void base_ended(struct server *server, uint64_t bytes, const struct error *error) {
    struct append_log *log = server->durability->append_log;
    log->next_base_bytes = bytes;
    log->base_outcome = error->code == ERROR_NONE ? BASE_THERE : BASE_FAILED;
    if (error->code != ERROR_NONE) log->rewrite_error = *error;
}

void append_rewrite_want(struct append_log *log) {
    log->rewrite_wanted = true;
}

bool append_rewrite_is_running(const struct append_log *log) {
    return log->rewrite != REWRITE_NONE;
}

void append_rewrite_give_up(struct append_log *log) {
    if (log->rewrite != REWRITE_NONE) replay_log_cut_failed(log->server->replay->tables, log->next.base);
    log->rewrite = REWRITE_NONE;
    snapshots_give_up_base(log->server->durability->snapshots, base_ended);
}

static void failed(struct append_log *log) {
    log->rewrites_failed++;
    log->rewrites_failed_in_a_row++;
    log->rewrite_retry_us = log->server->now_us + RETRY_US;
    log_event(LOG_WARNING, "append_only_rewrite_failed", NULL, "the append-only file could not be rewritten: %s",
              log->rewrite_error.message);
    append_rewrite_give_up(log);
    /* What was recorded since the cut is of no use without the base. */
    if (log->renewing) append_log_break(log, "%s", log->rewrite_error.message);
}

/* ---- when ---------------------------------------------------------------------------------------------------------- */

static bool has_grown(const struct append_log *log) {
    const struct server_config *config = &log->server->config;
    uint64_t bytes = append_log_bytes(log), from = log->grown_from_bytes;
    if (config->auto_aof_rewrite_percentage == 0 || bytes < (uint64_t)config->auto_aof_rewrite_min_size) return false;
    return bytes >= from + from / 100 * (uint64_t)config->auto_aof_rewrite_percentage;
}

/* Not in the midst of what is to be loaded whole or not at all, nor of a command that is recorded at its end: the base would have
 * a part of what it changes, and the new increment the whole. Nor with something that could not be written yet. */
static bool may_cut(const struct append_log *log) {
    return log->server->changes.depth == 0 && !log->server->exclusive.on && !log->writer->retry && !log->failing &&
           snapshots_may_begin(log->server->durability->snapshots) &&
           replay_log_is_whole(log->server->replay->tables) && !log->server->ending.begun &&
           log->server->now_us >= log->rewrite_retry_us &&
           (log->broken || log->manifest.count < APPEND_MOST_INCREMENTS);
}

/* ---- step by step -------------------------------------------------------------------------------------------------- */

/* Numbers of the new base, and of the increment that follows it. */
static void number(struct append_log *log) {
    log->next = log->manifest;
    log->next.base = ++log->newest_base;
    /* Whole files go on in the next number; others must not be taken for more of what they are. */
    log->next.first = log->broken ? log->newest_increment + 1 : log->manifest.first + log->manifest.count;
    log->next.count = 1;
    if (log->newest_increment < log->next.first) log->newest_increment = log->next.first;
}

static void begin(struct append_log *log) {
    char name[NAME_MAX + 1];
    const struct snapshot_base base = {
        .folder = log->server->config.appenddirname, .name = name, .with_tables = true, .ended = base_ended};
    number(log);
    append_base_name(&log->next, log->next.base, name);
    log->rewrite_wanted = false;
    log->rewrite_began_us = log->server->now_us;
    log->base_outcome = BASE_COMING;
    if (log->broken) log->renewing = true;
    if (snapshots_begin_base(log->server->durability->snapshots, &base, &log->rewrite_error) < 0) {
        failed(log);
        return;
    }
    log->server->changes.told[CHANGES_FOR_FILE].database = -1; /* the new file knows of none */
    log->rewrite = REWRITE_OPENING;
    const struct append_writer *writer = log->writer;
    if (!log->broken && (writer->open.total > 0 || writer->synced < writer->handed)) append_log_hand_over(log, true);
    replay_log_cut(log->server->replay->tables, log->next.base);
}

/* The old increments, if they are whole, and the new one. */
static void open_increment(struct append_log *log) {
    struct append_manifest manifest = log->renewing ? log->next : log->manifest;
    if (!log->renewing) manifest.count++;
    log->rewrite = REWRITE_SWITCHING;
    log->switched_bytes = log->writer->file_bytes;
    append_writer_switch(log->writer, &manifest,
                         log->renewing ? APPEND_SWITCH_OPEN : APPEND_SWITCH_OPEN | APPEND_SWITCH_MANIFEST);
}

static void opened(struct append_log *log) {
    log->rewrite = REWRITE_COPYING;
    log->earlier_bytes += log->switched_bytes;
}

static void ended(struct append_log *log) {
    log->rewrite = REWRITE_NONE;
    log->rewrites++;
    log->rewrites_failed_in_a_row = 0;
    log->rewrite_error.code = ERROR_NONE;
    log->rewrite_took_us = log->server->now_us - log->rewrite_began_us;
    log->base_bytes = log->next_base_bytes;
    log->earlier_bytes = 0;
    log->grown_from_bytes = append_log_bytes(log);
    if (log->broken && !log->beginning)
        log_event(LOG_NOTICE, "append_only_whole", NULL, "the append-only file is whole again");
    else
        log_event(LOG_INFO, "append_only_rewritten", NULL, "the append-only file is rewritten");
    log->broken = log->renewing = log->beginning = false;
}

/* A rewrite that was given up meanwhile has been switched to as well: the manifest on the disk is the one of the job. */
void append_rewrite_switched(struct append_log *log) {
    const struct append_job *job = &log->writer->job;
    bool done = job->error.code == ERROR_NONE;
    if (done && (job->switches & APPEND_SWITCH_MANIFEST)) log->manifest = job->manifest;
    if (!done) log->rewrite_error = job->error;
    switch ((enum rewrite_state)log->rewrite) {
    case REWRITE_SWITCHING:
        if (done) opened(log);
        break;
    case REWRITE_ENDING:
        if (done) ended(log);
        break;
    default: return;
    }
    if (!done) failed(log);
    if (job->broken) append_log_break(log, "%s", log->rewrite_error.message);
}

static void go_on(struct append_log *log) {
    if (log->base_outcome == BASE_FAILED) {
        failed(log);
    } else if (log->base_outcome == BASE_THERE) {
        log->rewrite = REWRITE_ENDING;
        append_writer_switch(log->writer, &log->next, APPEND_SWITCH_MANIFEST);
    }
}

uint64_t append_rewrite_step(struct append_log *log) {
    if (log->rewrite == REWRITE_NONE) {
        bool lacks = replay_log_lacks_tables(log->server->replay->tables);
        if (!log->rewrite_wanted && !lacks && (log->broken || !has_grown(log))) return CLOCK_NEVER;
        uint64_t again_us = log->server->now_us + LOOK_AGAIN_US;
        if (!may_cut(log)) return again_us > log->rewrite_retry_us ? again_us : log->rewrite_retry_us;
        begin(log);
    }
    if (log->rewrite == REWRITE_OPENING && !log->writer->busy && !log->writer->retry) open_increment(log);
    if (log->rewrite == REWRITE_COPYING) go_on(log);
    return CLOCK_NEVER;
}

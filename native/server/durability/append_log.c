/* append_log: when the file is written and brought to the disk, and who waits for it. */
#include "server/durability/append_log.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "server/core/client.h"
#include "server/core/notifier.h"
#include "server/core/server.h"
#include "server/durability/append_load.h"
#include "server/durability/append_rewrite.h"
#include "server/durability/durability_subsystem.h"
#include "server/redis/redis_subsystem.h"
#include "server/redis/script/functions.h"
#include "server/replay/replay_log.h"
#include "server/replay/replay_subsystem.h"
#include "store/store.h"

#define GATHER_US 5000u             /* unless replies wait for it, so much is gathered into one write */
#define GATHER_BYTES (256u << 10)
#define SYNC_US 500000u             /* everysec: brought to the disk when the oldest change is that old, so that … */
#define LATE_US 1000000u            /* … it is there before it is that old; else replies wait */
#define MOST_WAITING_BYTES (64u << 20) /* handed over or waiting: then replies wait, so that clients do */
#define RETRY_US 200000u
#define LOOK_AGAIN_US 500u          /* where nothing wakes the loop */

struct append_log *append_log_new(struct server *server) {
    struct append_log *log = memory_calloc(1, sizeof *log);
    if (!log) return NULL;
    log->server = server;
    log->notifier = -1;
    log->server->changes.told[CHANGES_FOR_FILE].database = -1;
    return log;
}

/* ---- replies that wait --------------------------------------------------------------------------------------------- */

static enum append_policy policy_of(const struct append_log *log) {
    return (enum append_policy)log->server->config.appendfsync;
}

/* How far the file has come, as far as replies care. */
static uint64_t come_to(const struct append_log *log) {
    return policy_of(log) == APPEND_SYNC_NO ? log->writer->written : log->writer->synced;
}

static bool has_much_waiting(const struct append_log *log) {
    return log->writer->appended - log->writer->written > MOST_WAITING_BYTES;
}

static bool is_late(const struct append_log *log) {
    if (has_much_waiting(log)) return true;
    return policy_of(log) == APPEND_SYNC_EVERYSEC && log->unsynced_us > 0 &&
           log->server->now_us > log->unsynced_us + LATE_US;
}

/* What only the connection knows is not in the file. Of the server's own commands some change databases as a whole, or tell
 * how large they are, or which primary is the newest. */
static bool may_show_changes(const struct command *command) {
    return (command->flags & (COMMAND_WRITE | COMMAND_READONLY | COMMAND_TELLS_PART)) ||
           command->group->data != DATA_SERVER;
}

static bool tells_of_changes(const struct client *client) {
    return client->connection && !client->closing && client->command && may_show_changes(client->command);
}

/* By append_log_rests, or for the step that closes it. */
static bool waits_for_end(const struct client *client) {
    return client->held && client->held_until == UINT64_MAX;
}

void append_log_replied(struct client *client) {
    struct append_log *log = client->server->durability->append_log;
    if (log->server->changes.lost && policy_of(log) == APPEND_SYNC_ALWAYS && tells_of_changes(client)) {
        client_hold(client, UINT64_MAX); /* until the next step, which closes it */
        return;
    }
    if (!append_log_takes(log) || log->failing || log->broken || log->beginning) return;
    if (log->writer->appended == come_to(log)) return;
    if (!tells_of_changes(client) || waits_for_end(client)) return;
    if (policy_of(log) != APPEND_SYNC_ALWAYS) {
        if (!is_late(log)) return;
        if (!client->held) log->delayed_fsyncs++;
    }
    client_hold(client, log->writer->appended);
}

void append_log_rests(struct client *client, bool changed) {
    const struct append_log *log = client->server->durability->append_log;
    const struct changes *changes = &client->server->changes;
    if (!client->connection || client->closing || policy_of(log) != APPEND_SYNC_ALWAYS) return;
    bool lacks_some = changed || changes->told[CHANGES_FOR_FILE].in_transaction;
    if ((lacks_some && append_log_takes(log) && !log->failing) || changes->lost) client_hold(client, UINT64_MAX);
}

static void release(struct append_log *log) {
    uint64_t to = come_to(log);
    for (struct client *client = log->server->clients.held.head; client;) {
        struct client *next = client->held_next;
        if (client->held_until <= to) client_let_go(client);
        client = next;
    }
}

/* What they were told is not so: that it is on the disk. They are told nothing, and see their connection end. */
static void close_held(struct append_log *log) {
    while (log->server->clients.held.head) {
        struct client *client = log->server->clients.held.head;
        if (policy_of(log) == APPEND_SYNC_ALWAYS)
            client_close(client);
        else
            client_let_go(client);
    }
}

/* ---- handing over, taking back ------------------------------------------------------------------------------------- */

struct append_buffer *append_log_buffer(const struct server *server) {
    struct append_log *log = server->durability->append_log;
    return log && append_log_takes(log) && !server->loading ? &log->writer->open : NULL;
}

bool append_log_is_behind(const struct server *server) {
    const struct append_log *log = server->durability->append_log;
    return append_log_takes(log) && !log->failing && has_much_waiting(log);
}

void append_log_added(struct server *server) {
    struct append_log *log = server->durability->append_log;
    struct append_writer *writer = log->writer;
    writer->appended = writer->handed + writer->open.total;
    if (log->waiting_us == 0) log->waiting_us = log->server->now_us;
    if (log->unsynced_us == 0) log->unsynced_us = log->server->now_us;
}

void append_log_lost(struct server *server) {
    server->changes.lost = true;
    append_log_break(server->durability->append_log, "out of memory for a change");
}

static void say_failure(const struct append_log *log, const char *what) {
    log_event(LOG_WARNING, "append_only_failed", NULL, "the append-only file: %s; %s", log->error.message, what);
}

/* What the file may lack from here on is for the next base to hold: no reply waits for it any more. */
static void drop_changes(struct append_log *log) {
    struct append_writer *writer = log->writer;
    log->broken = true;
    log->renewing = false;
    append_rewrite_give_up(log);
    append_buffer_clear(&writer->open);
    writer->appended = writer->written = writer->synced = writer->handed;
    log->failing = false; /* nothing is tried again for its sake */
    if (!writer->busy) append_writer_drop(writer);
    log->unsynced_us = log->waiting_us = 0;
}

void append_log_break(struct append_log *log, const char *format, ...) {
    if (log->broken && !log->renewing) return;
    va_list arguments;
    va_start(arguments, format);
    log->error.code = ERROR_GENERIC;
    vsnprintf(log->error.message, sizeof log->error.message, format, arguments);
    va_end(arguments);
    drop_changes(log);
    say_failure(log, log->beginning ? "it is tried again" : "writes are refused until it is rewritten");
    close_held(log);
    append_rewrite_want(log);
}

static void failed(struct append_log *log) {
    const struct append_job *job = &log->writer->job;
    if (job->broken) {
        char message[sizeof log->error.message];
        snprintf(message, sizeof message, "%s", job->error.message);
        append_log_break(log, "%s", message);
        return;
    }
    if (log->broken && !log->renewing) {
        append_writer_drop(log->writer);
        return;
    }
    if (!log->failing) {
        log->error = job->error;
        say_failure(log, "writes are refused until that succeeds");
    }
    log->failing = true;
    log->retry_us = log->server->now_us + RETRY_US;
    close_held(log);
}

static void succeeded(struct append_log *log) {
    const struct append_writer *writer = log->writer;
    if (log->failing)
        log_event(LOG_NOTICE, "append_only_written_again", NULL, "the append-only file can be written again");
    log->failing = false;
    /* What came after this was handed over is no older than that. */
    if (writer->synced == writer->handed) log->unsynced_us = writer->appended > writer->synced ? log->handed_us : 0;
    release(log);
}

static void take_back(struct append_log *log) {
    if (!append_writer_collect(log->writer)) return;
    if (log->writer->job.kind == APPEND_SWITCH)
        append_rewrite_switched(log);
    else if (log->writer->job.error.code == ERROR_NONE)
        succeeded(log);
    else
        failed(log);
}

/* When what there is is to be handed over, and whether it is to be brought to the disk. CLOCK_NEVER: there is nothing. */
static uint64_t due(const struct append_log *log, bool *sync) {
    const struct append_writer *writer = log->writer;
    enum append_policy policy = policy_of(log);
    uint64_t at = CLOCK_NEVER;
    *sync = policy == APPEND_SYNC_ALWAYS;
    if (log->failing) {
        /* A file that another is to follow is on the disk as a whole, whatever the policy (append_rewrite.c). */
        *sync = policy != APPEND_SYNC_NO || append_rewrite_is_running(log);
        return log->retry_us;
    }
    if (writer->open.total > 0) {
        bool now = policy == APPEND_SYNC_ALWAYS || writer->open.total >= GATHER_BYTES;
        at = now ? log->server->now_us : log->waiting_us + GATHER_US;
    }
    if (policy == APPEND_SYNC_NO || log->unsynced_us == 0) return at;
    uint64_t sync_us = policy == APPEND_SYNC_ALWAYS ? log->server->now_us : log->unsynced_us + SYNC_US;
    if (sync_us <= log->server->now_us) *sync = true;
    return sync_us < at ? sync_us : at;
}

void append_log_hand_over(struct append_log *log, bool sync) {
    if (log->writer->open.total == 0 || log->writer->retry) {
        append_writer_hand_over(log->writer, sync);
        return;
    }
    log->handed_us = log->server->now_us;
    log->waiting_us = 0;
    append_writer_hand_over(log->writer, sync);
}

uint64_t append_log_step(struct append_log *log) {
    if (!log->writer) return CLOCK_NEVER;
    if (log->server->changes.lost) {
        log->server->changes.lost = false;
        close_held(log);
    }
    take_back(log);
    if (log->server->clients.held.head) release(log); /* another policy may hold now */
    uint64_t look_us = log->notifier >= 0 ? CLOCK_NEVER : log->server->now_us + LOOK_AGAIN_US;
    if (log->writer->busy) return look_us;
    uint64_t rewrite_us = append_rewrite_step(log);
    if (log->writer->busy) return look_us;
    if (!append_log_takes(log)) return rewrite_us;
    bool sync;
    uint64_t at = due(log, &sync);
    if (at > log->server->now_us) return at < rewrite_us ? at : rewrite_us;
    append_log_hand_over(log, sync);
    return look_us;
}

bool append_log_refuses(const struct append_log *log, char *text, size_t size) {
    if (!log->writer || (!log->failing && (!log->broken || log->beginning))) return false;
    snprintf(text, size, "MISCONF Errors writing to the AOF file: %s", log->error.message);
    return true;
}

bool append_log_lacks_restored(const struct append_log *log) {
    return log->writer && !log->beginning &&
           replay_log_awaits_base(log->server->replay->tables, append_rewrite_is_running(log) ? log->next.base : 0);
}

bool append_log_refuses_tables(const struct append_log *log, char *text, size_t size) {
    if (log->rewrites_failed_in_a_row == 0 || !append_log_lacks_restored(log)) return false;
    snprintf(text, size, "MISCONF Restored tables are not in the AOF file, since it could not be rewritten: %s",
             log->rewrite_error.message);
    return true;
}

/* ---- start and end ------------------------------------------------------------------------------------------------- */

static void notify(void *context) {
    const struct append_log *log = context;
    notifier_tell(log->notifier);
}

static void notified(void *context, int descriptor) {
    (void)context; /* the step that follows looks */
    notifier_take(descriptor);
}

int append_log_watch(struct append_log *log, struct transport *transport, struct error *error) {
    log->notifier = notifier_new(transport, notified, log, error);
    return log->notifier < 0 ? -1 : 0;
}

/* A first increment after nothing: an empty store. */
static int begin_empty(struct append_log *log, struct error *error) {
    log->manifest.count = log->newest_increment = 1;
    append_writer_switch(log->writer, &log->manifest, APPEND_SWITCH_OPEN | APPEND_SWITCH_MANIFEST);
    append_writer_wait(log->writer);
    if (log->writer->job.error.code == ERROR_NONE) return 0;
    *error = log->writer->job.error;
    return -1;
}

static int open_writer(struct append_log *log, int folder, struct error *error) {
    log->server->changes.told[CHANGES_FOR_FILE].database = -1;
    log->newest_base = log->manifest.base;
    log->newest_increment = log->manifest.first + log->manifest.count - 1;
    log->writer = append_writer_new(folder, notify, log);
    if (log->writer) return 0;
    close(folder);
    return error_set(error, ERROR_GENERIC, "no memory or thread for the append-only file");
}

/* The store as it is comes first, as a base. */
static void begin_with_base(struct append_log *log) {
    log->broken = log->beginning = true;
    error_set(&log->error, ERROR_GENERIC, "its base is not on the disk yet");
    append_rewrite_want(log);
}

void append_log_replaced(struct append_log *log) {
    if (!log->writer) return;
    while (log->server->clients.held.head) client_let_go(log->server->clients.held.head);
    drop_changes(log);
    begin_with_base(log);
}

int append_log_start(struct append_log *log, struct text *said, struct error *error) {
    const struct server_config *config = &log->server->config;
    if (!config->appendonly) return 0;
    struct append_loaded loaded;
    int folder = append_load_folder(config->appenddirname, error);
    if (folder < 0) return -1;
    int found =
        append_load(log->server, folder, config->appendfilename, APPEND_LOAD_ALL, &log->manifest, &loaded, said, error);
    if (found < 0) {
        close(folder);
        return -1;
    }
    if (open_writer(log, folder, error) < 0) return -1;
    replay_log_on(log->server->replay->tables);
    if (found == 0 && append_load_holds_something(log->server)) {
        text_append(said, "what was restored is being written to the append-only file\n");
        begin_with_base(log);
        return 0;
    }
    if (found == 0) return begin_empty(log, error);
    log->base_bytes = loaded.base_bytes;
    log->earlier_bytes = loaded.earlier_bytes;
    log->grown_from_bytes = loaded.base_bytes + loaded.earlier_bytes + loaded.end.size;
    if (append_writer_continue(log->writer, loaded.name, &loaded.end, error) < 0) return -1;
    append_manifest_tidy(folder, &log->manifest); /* once the disk has the manifest that names none of those */
    return 0;
}

bool append_log_write_all(struct append_log *log) {
    struct append_writer *writer = log->writer;
    if (log->broken || append_rewrite_is_running(log) || log->rewrite_wanted || writer->busy) return false;
    if (writer->open.total > 0 || writer->retry) append_log_hand_over(log, false);
    return !writer->busy;
}

int append_log_load_again(struct append_log *log, struct error *error) {
    struct server *server = log->server;
    const struct server_config *config = &server->config;
    struct append_manifest manifest;
    struct append_loaded loaded;
    struct text said = {0};
    int folder = append_load_folder(config->appenddirname, error), events = server->redis->notify.flags;
    if (folder < 0) return -1;
    server->redis->notify.flags = 0;
    for (unsigned d = 0; d < STORE_DATABASES; d++) store_flush(server->store, d);
    functions_clear(server);
    int found = append_load(server, folder, config->appendfilename, APPEND_LOAD_KEYS, &manifest, &loaded, &said, error);
    server->redis->notify.flags = events;
    text_free(&said);
    close(folder);
    return found == 0 ? error_set(error, ERROR_GENERIC, "there is no append-only file in %s", config->appenddirname)
                      : found;
}

static int turn_on(struct append_log *log, struct error *error) {
    const struct server_config *config = &log->server->config;
    if (log->writer) return 0;
    int folder = append_load_folder(config->appenddirname, error);
    if (folder < 0) return -1;
    /* Numbers go on from those of files that are there, which stay until there is a new base. */
    if (append_manifest_read(folder, config->appendfilename, &log->manifest, error) < 0) {
        close(folder);
        return -1;
    }
    if (open_writer(log, folder, error) < 0) return -1;
    replay_log_on(log->server->replay->tables);
    begin_with_base(log);
    return 0;
}

/* What is left is written and brought to the disk, or has failed. */
static void finish(struct append_log *log) {
    struct append_writer *writer = log->writer;
    append_writer_wait(writer);
    for (int tries = 0; tries < 2 && append_log_takes(log); tries++) { /* one may be a second try of what had failed */
        append_writer_hand_over(writer, true);
        append_writer_wait(writer);
        if (writer->job.error.code != ERROR_NONE) {
            log->error = writer->job.error;
            say_failure(log, "the last changes are lost");
            break;
        }
        if (writer->open.total == 0) break;
    }
}

static void turn_off(struct append_log *log) {
    if (!log->writer) return;
    append_rewrite_give_up(log);
    replay_log_off(log->server->replay->tables);
    finish(log);
    while (log->server->clients.held.head) client_let_go(log->server->clients.held.head);
    append_writer_free(log->writer);
    log->writer = NULL;
    log->failing = log->broken = log->renewing = log->beginning = log->rewrite_wanted = false;
    log->server->changes.told[CHANGES_FOR_FILE].in_transaction = false;
    log->unsynced_us = log->waiting_us = log->base_bytes = log->earlier_bytes = log->grown_from_bytes = 0;
}

int append_log_configure(struct append_log *log, bool on, struct error *error) {
    if (on) return turn_on(log, error);
    turn_off(log);
    return 0;
}

void append_log_free(struct append_log *log) {
    if (!log) return;
    if (log->writer) {
        finish(log);
        append_writer_free(log->writer);
    }
    if (log->notifier >= 0) close(log->notifier);
    memory_free(log);
}

uint64_t append_log_bytes(const struct append_log *log) {
    return log->base_bytes + log->earlier_bytes + log->writer->file_bytes;
}

/* ---- INFO ---------------------------------------------------------------------------------------------------------- */

void append_log_info(const struct append_log *log, struct text *out) {
    const struct append_writer *writer = log->writer;
    bool running = append_rewrite_is_running(log), is_bad = log->failing || (log->broken && !log->beginning);
    uint64_t running_us = running ? log->server->now_us - log->rewrite_began_us : 0;
    text_append(out,
                "aof_enabled:%d\r\naof_rewrite_in_progress:%d\r\naof_rewrite_scheduled:%d\r\n"
                "aof_last_rewrite_time_sec:%lld\r\naof_current_rewrite_time_sec:%lld\r\n"
                "aof_last_bgrewrite_status:%s\r\naof_rewrites:%" PRIu64 "\r\naof_last_write_status:%s\r\n",
                writer != NULL, running, log->rewrite_wanted && !running,
                log->rewrites > 0 ? (long long)(log->rewrite_took_us / 1000000) : -1,
                running ? (long long)(running_us / 1000000) : -1, log->rewrite_error.code == ERROR_NONE ? "ok" : "err",
                log->rewrites, is_bad ? "err" : "ok");
    if (!writer) return;
    text_append(out,
                "aof_current_size:%" PRIu64 "\r\naof_base_size:%" PRIu64 "\r\naof_pending_rewrite:%d\r\n"
                "aof_buffer_length:%zu\r\naof_pending_bio_fsync:%d\r\naof_delayed_fsync:%" PRIu64
                "\r\naof_fsyncs:%" PRIu64 "\r\naof_held_clients:%u\r\naof_last_write_error:%s\r\n"
                "aof_last_rewrite_error:%s\r\n",
                append_log_bytes(log), log->grown_from_bytes, log->beginning, writer->open.total,
                writer->busy && writer->job.sync, log->delayed_fsyncs, writer->fsyncs, log->server->clients.held.count,
                is_bad ? log->error.message : "",
                log->rewrite_error.code != ERROR_NONE ? log->rewrite_error.message : "");
}

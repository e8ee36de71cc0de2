/* cmd_snapshot: REPLAY.SAVE, REPLAY.RESTORE, SAVE, BGSAVE, BGREWRITEAOF and LASTSAVE. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "persist/snapshot_file.h"
#include "persist/snapshot_folder.h"
#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/core/server.h"
#include "server/durability/append_log.h"
#include "server/durability/append_rewrite.h"
#include "server/durability/cmd_snapshot.h"
#include "server/durability/durability_subsystem.h"
#include "server/durability/restore.h"
#include "server/durability/snapshots.h"
#include "server/replay/replay_rows.h"

/* A client that waits for a snapshot. */
struct save_request {
    uint64_t number;          /* of the snapshot that will do; 0: one that has not begun yet */
    char name[NAME_MAX + 1];  /* "": any */
    bool says_ok;             /* as SAVE does, not its path */
    bool refused;             /* the folder has no room for its name */
};

static bool ends_as_snapshot(const char *name) {
    size_t length = strlen(name), suffix = strlen(SNAPSHOT_SUFFIX);
    return length >= suffix && strcmp(name + length - suffix, SNAPSHOT_SUFFIX) == 0;
}

/* Files lie in the server's folder: a name is no path. All end as snapshots do, so that a start finds each of them, and no
 * file that is something else is replaced. False when the error was replied. */
static bool take_name(struct client *client, const struct resp_argument *argument, char name[NAME_MAX + 1]) {
    size_t length = argument->length < NAME_MAX ? argument->length : NAME_MAX;
    if (length) memcpy(name, argument->data, length);
    name[length] = '\0';
    if (argument->length == length && strlen(name) == length && snapshot_name_is_valid(name)) {
        if (ends_as_snapshot(name)) return true;
        if (length + strlen(SNAPSHOT_SUFFIX) <= NAME_MAX) {
            strcpy(name + length, SNAPSHOT_SUFFIX);
            if (snapshot_name_is_valid(name)) return true; /* not too long now */
        }
    }
    reply_error(
        client,
        "ERR expected the name of a file in the server's folder (--dir): no slash, no blank, not beginning with "
        "a dot or a dash, not ending in %s",
        SNAPSHOT_PARTIAL_SUFFIX);
    return false;
}

/* ---- SAVE ---------------------------------------------------------------------------------------------------------- */

static bool save_attempt(struct client *client) {
    const struct snapshots *snapshots = client->server->durability->snapshots;
    const struct save_request *request = client_state(client);
    if (request->refused) {
        reply_error(client,
                    "LIMIT the folder has %" PRId64
                    " snapshots that clients have named, as many as snapshot-named-limit allows: "
                    "remove one, save under one of their names or without a name, or raise the limit",
                    client->server->config.snapshot_named_limit);
        return true;
    }
    if (request->number == 0 || request->number != snapshots->done_number) return false;
    if (snapshots->outcome.code == ERROR_NONE && request->says_ok)
        reply_status(client, "OK");
    else if (snapshots->outcome.code == ERROR_NONE)
        reply_bulk_string(client, snapshots->path);
    else
        reply_failure(client, &snapshots->outcome);
    return true;
}

static void save_expired(struct client *client) {
    if (client->has_begun && !client->server->ending.begun)
        reply_error(client, "ERR the client was unblocked, but the snapshot continues unless the server stops");
    else
        reply_error(client, "ERR the snapshot was cancelled: the server is stopping, or the client was unblocked");
}

/* Everyone who waits for a snapshot that has not begun, and wants the same name as the first, or none, gets this one. */
void snapshots_take_name(struct snapshots *snapshots) {
    const struct save_request *first = snapshots->savers.head ? client_state(snapshots->savers.head) : NULL;
    if (first && first->name[0])
        memcpy(snapshots->name, first->name, sizeof snapshots->name);
    else
        snapshot_name_new(snapshots->name, clock_unix_ms());
    for (struct client *client = snapshots->savers.head; client; client = client->wait_next) {
        struct save_request *request = client_state(client);
        if (request->name[0] && strcmp(request->name, snapshots->name) != 0) continue;
        request->number = snapshots->number;
        client->has_begun = true;
    }
    stop_snapshot_begins(snapshots->server, snapshots->number);
}

void snapshots_refuse_names(struct snapshots *snapshots) {
    uint32_t most = (uint32_t)snapshots->server->config.snapshot_named_limit;
    for (struct client *client; (client = snapshots->savers.head);) {
        struct save_request *request = client_state(client);
        if (!request->name[0] || snapshot_has_room(AT_FDCWD, request->name, most)) return;
        request->refused = true;
        client_retry(client);
    }
}

static void wait_for_snapshot(struct client *client, const char *name, bool says_ok) {
    struct save_request *request = memory_calloc(1, sizeof *request);
    if (!request) {
        reply_error(client, "ERR out of memory");
        return;
    }
    snprintf(request->name, sizeof request->name, "%s", name);
    request->says_ok = says_ok;
    client_set_state(client, request, client_free_state);
    client_block(client, &client->server->durability->snapshots->savers, CLOCK_NEVER, save_attempt, save_expired);
}

static void replay_save_command(struct client *client) {
    char name[NAME_MAX + 1] = "";
    if (client->argc > 2) {
        reply_arity_error(client);
        return;
    }
    if (client->argc == 2 && !take_name(client, &client->argv[1], name)) return;
    wait_for_snapshot(client, name, false);
}

static bool refuse_second(struct client *client) {
    const struct snapshots *snapshots = client->server->durability->snapshots;
    bool saves = (snapshots->running && !snapshots->base_ended) || snapshots->wanted || snapshots->savers.length > 0;
    if (saves) reply_error(client, "ERR Background save already in progress");
    return saves;
}

/* SAVE: others are served meanwhile. */
static void save_command(struct client *client) {
    if (!refuse_second(client)) wait_for_snapshot(client, "", true);
}

/* BGSAVE [SCHEDULE] */
static void bgsave_command(struct client *client) {
    struct snapshots *snapshots = client->server->durability->snapshots;
    bool schedules = client->argc == 2 && argument_is(&client->argv[1], "schedule");
    if (client->argc > 2 || (client->argc == 2 && !schedules)) {
        reply_syntax_error(client);
        return;
    }
    if (refuse_second(client)) return;
    if (snapshots->base_ended && !schedules) {
        reply_error(client,
                    "ERR Another child process is active (AOF?): can't BGSAVE right now. Use BGSAVE SCHEDULE in "
                    "order to schedule a BGSAVE whenever possible.");
        return;
    }
    snapshots->wanted = true;
    reply_status(client, snapshots->base_ended ? "Background saving scheduled" : "Background saving started");
}

static void bgrewriteaof_command(struct client *client) {
    struct append_log *log = client->server->durability->append_log;
    if (append_rewrite_is_running(log)) {
        reply_error(client, "ERR Background append only file rewriting already in progress");
        return;
    }
    if (!append_log_is_on(log)) {
        reply_error(client, "ERR there is no append-only file to rewrite: CONFIG SET appendonly yes starts one");
        return;
    }
    append_rewrite_want(log);
    reply_status(client, client->server->durability->snapshots->running
                             ? "Background append only file rewriting scheduled"
                             : "Background append only file rewriting started");
}

/* ---- RESTORE ------------------------------------------------------------------------------------------------------- */

static bool restore_attempt(struct client *client) {
    const struct snapshots *snapshots = client->server->durability->snapshots;
    if (snapshots->restoring) return false;
    if (snapshots->restore_outcome.code != ERROR_NONE) {
        reply_failure(client, &snapshots->restore_outcome);
        return true;
    }
    const char *line = snapshots->restore_said.data ? snapshots->restore_said.data : "";
    size_t mark = reply_array_deferred(client), count = 0;
    for (const char *end; (end = strchr(line, '\n')); line = end + 1, count++)
        reply_bulk(client, line, (size_t)(end - line));
    reply_set_array_length(client, mark, count);
    return true;
}

static void restore_expired(struct client *client) {
    reply_error(
        client,
        "ERR the client was unblocked, but the restore continues unless the server stops or this connection closes");
}

static void restore_command(struct client *client) {
    char name[NAME_MAX + 1];
    struct error error;
    struct snapshots *snapshots = client->server->durability->snapshots;
    if (!take_name(client, &client->argv[1], name)) return;
    if (restore_begin(snapshots, client, name, &error)) {
        reply_failure(client, &error);
        return;
    }
    client->has_begun = true;
    client_block(client, &snapshots->restorers, CLOCK_NEVER, restore_attempt, restore_expired);
}

/* ---- LASTSAVE ------------------------------------------------------------------------------------------------------ */

static void lastsave_command(struct client *client) {
    reply_integer(client, snapshots_last_save_s(client->server->durability->snapshots));
}

const struct command commands_snapshot[] = {
    {"bgrewriteaof", bgrewriteaof_command, 1, COMMAND_ADMIN | COMMAND_NOSCRIPT | COMMAND_NO_ASYNC_LOADING,
     &group_server, "Writes the append-only file anew, in the background.", "1.0.0"},
    {"bgsave", bgsave_command, -1, COMMAND_ADMIN | COMMAND_NOSCRIPT | COMMAND_NO_ASYNC_LOADING, &group_server,
     "Saves all keys and tables to a file of the server's folder, in the background.", "1.0.0"},
    {"save", save_command, 1, COMMAND_ADMIN | COMMAND_NOSCRIPT | COMMAND_NO_ASYNC_LOADING | COMMAND_NO_MULTI,
     &group_server, "Saves all keys and tables to a file of the server's folder.", "1.0.0"},
    {"lastsave", lastsave_command, 1, COMMAND_LOADING | COMMAND_STALE | COMMAND_FAST, &group_server,
     "Returns the time of the last snapshot in Unix seconds; before the first, of the start.", "1.0.0",
     .tips = "nondeterministic_output", .categories = ACL_ADMIN | ACL_FAST | ACL_DANGEROUS},
    {"replay.restore", restore_command, 2,
     COMMAND_WRITE | COMMAND_ADMIN | COMMAND_BLOCKING | COMMAND_NO_MULTI | COMMAND_NOSCRIPT, &group_replay,
     "Puts the tables of a snapshot in the place of those of the same names."},
    {"replay.save", replay_save_command, -1, COMMAND_ADMIN | COMMAND_BLOCKING | COMMAND_NO_MULTI | COMMAND_NOSCRIPT,
     &group_replay, "Saves all tables to a file of the server's folder and returns its path once it is on the disk."},
    {0},
};

/* export: one file at a time, for all clients that asked before its cut. */
#include "server/durability/export.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/worker.h"
#include "persist/rdb_file_writer.h"
#include "server/core/command_table.h"
#include "server/durability/append_log.h"
#include "server/durability/durability_part.h"
#include "server/durability/snapshots.h"

#define CUT_NAME "sync.cut"
#define LOOK_AGAIN_US 2000u /* while the thread works, or another snapshot runs */

enum export_state { EXPORT_NONE, EXPORT_CUTTING, EXPORT_CONVERTING };

/* The file, for as long as someone is sent it. */
struct exported {
    uint32_t references;
    size_t length;
    uint8_t *data;
};

struct conversion {
    struct worker_job job;
    bool compresses;
    atomic_bool stop;
    int out; /* −1: it failed */
    uint64_t bytes;
    struct error error;
};

struct export {
    struct server *server;
    struct wait_queue waiting;
    enum export_state state;
    uint64_t number, done_number; /* of the file that is made, of the last that was */
    struct exported *exported;    /* of that, while clients are told; NULL: it failed */
    struct error error;
    struct worker *worker;
    struct conversion conversion;
};

/* A client that waits. */
struct sync_request {
    uint64_t number; /* of the file that will do; 0: one that has not been begun */
};

/* ---- sending --------------------------------------------------------------------------------------------------------- */

static void release(struct exported *exported) {
    if (--exported->references > 0) return;
    memory_unmap_file(exported->data, exported->length);
    memory_free(exported);
}

struct sending {
    struct reply_source source;
    struct exported *exported;
};

static int vectors(struct reply_source *source, size_t offset, struct iovec *vector, int max) {
    const struct sending *sending = (const struct sending *)(const void *)source;
    (void)max;
    *vector = (struct iovec){sending->exported->data + offset, sending->exported->length - offset};
    return 1;
}

static void released(struct reply_source *source) {
    struct sending *sending = (struct sending *)(void *)source;
    release(sending->exported);
    memory_free(sending);
}

static void send_exported(struct client *client, struct exported *exported) {
    struct sending *sending = memory_alloc(sizeof *sending);
    if (!sending) {
        reply_error(client, "ERR out of memory");
        return;
    }
    exported->references++;
    *sending = (struct sending){{exported->length, vectors, released}, exported};
    reply_source(client, &sending->source);
}

/* Afterwards a replica would be sent every change: here the connection ends. */
static bool attempt(struct client *client) {
    struct export *export = client->server->durability->export;
    const struct sync_request *request = client_state(client);
    if (request->number == 0 || request->number != export->done_number) return false;
    if (export->exported)
        send_exported(client, export->exported);
    else
        reply_failure(client, &export->error);
    client->close_after_reply = true;
    return true;
}

static void expired(struct client *client) {
    reply_error(client, "ERR the file was given up: the server stops, or the wait was ended");
}

static void drop(struct client *client, void *state) {
    (void)client;
    memory_free(state);
}

/* ---- making the file ------------------------------------------------------------------------------------------------- */

static void tell_waiting(struct export *export, const struct error *error) {
    export->state = EXPORT_NONE;
    export->done_number = export->number;
    export->error = *error;
    for (struct client *client = export->waiting.head; client;) {
        struct client *next = client->wait_next;
        client_retry(client); /* those who wait for a later one stay */
        client = next;
    }
    if (export->exported) release(export->exported);
    export->exported = NULL;
}

static int open_unnamed(struct error *error) {
    char name[] = "sync-XXXXXX";
    int descriptor = mkostemp(name, O_CLOEXEC);
    if (descriptor < 0) return error_set(error, ERROR_GENERIC, "cannot make a file: %s", strerror(errno));
    unlink(name);
    return descriptor;
}

/* On the worker's thread. */
static void convert(struct worker_job *job) {
    struct conversion *conversion = (struct conversion *)(void *)job;
    int cut = open(CUT_NAME, O_RDONLY | O_CLOEXEC);
    unlink(CUT_NAME);
    conversion->out = -1;
    if (cut < 0) {
        error_set(&conversion->error, ERROR_GENERIC, "cannot read the cut: %s", strerror(errno));
        return;
    }
    int out = open_unnamed(&conversion->error);
    if (out >= 0 && rdb_file_from_snapshot(cut, out, conversion->compresses, &conversion->stop, &conversion->bytes,
                                           &conversion->error)) {
        close(out);
        out = -1;
    }
    close(cut);
    conversion->out = out;
}

static void cut_ended(struct server *server, uint64_t bytes, const struct error *error) {
    struct export *export = server->durability->export;
    (void)bytes;
    if (error->code != ERROR_NONE) {
        tell_waiting(export, error);
        return;
    }
    export->state = EXPORT_CONVERTING;
    export->conversion = (struct conversion){.job = {.run = convert}, .compresses = server->config.rdbcompression != 0};
    worker_give(export->worker, &export->conversion.job);
}

static void begin(struct export *export) {
    struct error error = {.code = ERROR_NONE};
    struct snapshots *snapshots = export->server->durability->snapshots;
    if (!export->worker) export->worker = worker_new();
    export->number++;
    for (struct client *client = export->waiting.head; client; client = client->wait_next)
        ((struct sync_request *)client_state(client))->number = export->number;
    export->state = EXPORT_CUTTING;
    if (!export->worker)
        error_set(&error, ERROR_GENERIC, "out of memory or threads");
    else
        snapshots_begin_base(snapshots, ".", CUT_NAME, cut_ended, &error);
    if (error.code != ERROR_NONE) tell_waiting(export, &error);
}

static void converted(struct export *export) {
    struct conversion *conversion = &export->conversion;
    struct exported *exported = conversion->out >= 0 ? memory_alloc(sizeof *exported) : NULL;
    if (exported) {
        *exported = (struct exported){.references = 1, .length = (size_t)conversion->bytes};
        exported->data = memory_map_file(conversion->out, exported->length);
        if (!exported->data) {
            memory_free(exported);
            exported = NULL;
        }
    }
    if (conversion->out >= 0) close(conversion->out);
    if (!exported && conversion->error.code == ERROR_NONE)
        error_set(&conversion->error, ERROR_GENERIC, "no memory for the file");
    export->exported = exported;
    tell_waiting(export, &conversion->error);
}

uint64_t export_step(struct export *export) {
    struct server *server = export->server;
    switch (export->state) {
    case EXPORT_NONE:
        if (export->waiting.length == 0 || server->ending.begun) return CLOCK_NEVER;
        if (snapshots_may_begin(server->durability->snapshots) && server->changes.depth == 0) begin(export);
        return server->now_us + LOOK_AGAIN_US;
    case EXPORT_CUTTING: return CLOCK_NEVER; /* the snapshots tell */
    default: break;
    }
    if (worker_finished(export->worker)) converted(export);
    return server->now_us + LOOK_AGAIN_US;
}

struct export *export_new(struct server *server) {
    struct export *export = memory_calloc(1, sizeof *export);
    if (export) export->server = server;
    return export;
}

void export_free(struct export *export) {
    if (!export) return;
    atomic_store(&export->conversion.stop, true);
    worker_free(export->worker);
    if (export->state == EXPORT_CONVERTING && export->conversion.out > 0) close(export->conversion.out);
    memory_free(export);
}

/* ---- commands -------------------------------------------------------------------------------------------------------- */

static void sync_command(struct client *client) {
    struct sync_request *request = memory_calloc(1, sizeof *request);
    if (!request) {
        reply_error(client, "ERR out of memory");
        return;
    }
    client_set_state(client, request, drop);
    client_block(client, &client->server->durability->export->waiting, CLOCK_NEVER, attempt, expired);
}

/* What a client says of itself before SYNC. None of it matters here. */
static void replconf_command(struct client *client) {
    static const char *const known[] = {"capa", "ip-address", "listening-port", "rdb-only", NULL};
    if (client->argc % 2 == 0) {
        reply_syntax_error(client);
        return;
    }
    for (uint32_t i = 1; i < client->argc; i += 2) {
        const struct resp_argument *word = &client->argv[i];
        const char *const *name = known;
        while (*name && !argument_is(word, *name)) name++;
        if (*name) continue;
        reply_error(client, "ERR Unrecognized REPLCONF option: %.*s", word->length < 400 ? (int)word->length : 400,
                    (const char *)word->data);
        return;
    }
    reply_status(client, "OK");
}

const struct command commands_export[] = {
    {"replconf", replconf_command, -1,
     COMMAND_ADMIN | COMMAND_NOSCRIPT | COMMAND_LOADING | COMMAND_STALE | COMMAND_ALLOW_BUSY, &group_server,
     "Accepts what is said before SYNC.", "3.0.0"},
    {"sync", sync_command, 1, COMMAND_ADMIN | COMMAND_NOSCRIPT | COMMAND_NO_ASYNC_LOADING | COMMAND_NO_MULTI,
     &group_server, "Sends all keys as a file for Redis, and closes the connection.", "1.0.0"},
    {0},
};

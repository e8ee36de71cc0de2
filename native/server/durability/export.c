/* export: one file at a time, for all who asked before its cut. */
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
#include "server/core/server.h"
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
    int database; /* of the changes that follow the file */
    atomic_bool stop;
    int out; /* −1: it failed */
    uint64_t bytes;
    struct error error;
};

struct export {
    struct server *server;
    struct export_request *waiting;
    enum export_state state;
    uint64_t number; /* of the file that is made, or was last */
    struct worker *worker;
    struct conversion conversion;
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

struct reply_source *export_source(struct exported *exported) {
    struct sending *sending = memory_alloc(sizeof *sending);
    if (!sending) return NULL;
    exported->references++;
    *sending = (struct sending){{exported->length, vectors, released}, exported};
    return &sending->source;
}

/* ---- who waits ------------------------------------------------------------------------------------------------------- */

void export_ask(struct export *export, struct export_request *request) {
    request->number = 0;
    request->next = export->waiting;
    export->waiting = request;
}

void export_forget(struct export *export, struct export_request *request) {
    for (struct export_request **link = &export->waiting; *link; link = &(*link)->next) {
        if (*link != request) continue;
        *link = request->next;
        return;
    }
}

/* ---- making the file ------------------------------------------------------------------------------------------------- */

/* Those who wait for a later one stay. */
static void tell_made(struct export *export, struct exported *exported, const struct error *error) {
    struct export_request **link = &export->waiting;
    export->state = EXPORT_NONE;
    while (*link) {
        struct export_request *request = *link;
        if (request->number != export->number) {
            link = &request->next;
            continue;
        }
        *link = request->next;
        request->made(request, exported, error);
    }
    if (exported) release(exported);
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
    if (out >= 0 && rdb_file_from_snapshot(cut, out, conversion->compresses, conversion->database, &conversion->stop,
                                           &conversion->bytes, &conversion->error)) {
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
        tell_made(export, NULL, error);
        return;
    }
    export->state = EXPORT_CONVERTING;
    worker_give(export->worker, &export->conversion.job);
}

static void begin(struct export *export) {
    struct error error = {.code = ERROR_NONE};
    struct snapshots *snapshots = export->server->durability->snapshots;
    if (!export->worker) export->worker = worker_new();
    export->number++;
    export->state = EXPORT_CUTTING;
    export->conversion =
        (struct conversion){.job = {.run = convert}, .compresses = export->server->config.rdbcompression != 0};
    for (struct export_request *request = export->waiting; request; request = request->next)
        request->number = export->number;
    if (!export->worker)
        error_set(&error, ERROR_GENERIC, "out of memory or threads");
    else
        snapshots_begin_base(snapshots, ".", CUT_NAME, false, cut_ended, &error);
    if (error.code != ERROR_NONE) {
        tell_made(export, NULL, &error);
        return;
    }
    for (struct export_request *request = export->waiting; request; request = request->next)
        export->conversion.database = request->begun(request);
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
    tell_made(export, exported, &conversion->error);
}

uint64_t export_step(struct export *export) {
    struct server *server = export->server;
    switch (export->state) {
    case EXPORT_NONE:
        if (!export->waiting || server->ending.begun) return CLOCK_NEVER;
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

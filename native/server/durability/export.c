/* export: one cut at a time, for all who asked before it. */
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
#include "server/durability/durability_subsystem.h"
#include "server/durability/snapshots.h"
#include "server/replay/replay_log.h"
#include "server/replay/replay_subsystem.h"

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
    bool converts, keeps_cut; /* somebody waits for Redis's format, for the snapshot itself */
    int database; /* of the changes that follow the file */
    atomic_bool stop;
    int cut, out; /* −1: it failed, or nobody waits for it */
    uint64_t cut_bytes, bytes;
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
static void tell_made(struct export *export, struct exported *keys, struct exported *all, const struct error *error) {
    struct export_request **link = &export->waiting;
    export->state = EXPORT_NONE;
    while (*link) {
        struct export_request *request = *link;
        if (request->number != export->number) {
            link = &request->next;
            continue;
        }
        *link = request->next;
        request->made(request, request->with_tables ? all : keys, error);
    }
    if (keys) release(keys);
    if (all) release(all);
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
    if (cut < 0) {
        error_set(&conversion->error, ERROR_GENERIC, "cannot read the cut: %s", strerror(errno));
        return;
    }
    int out = conversion->converts ? open_unnamed(&conversion->error) : -1;
    if (out >= 0 && rdb_file_from_snapshot(cut, out, conversion->compresses, conversion->database, &conversion->stop,
                                           &conversion->bytes, &conversion->error)) {
        close(out);
        out = -1;
    }
    conversion->out = out;
    conversion->cut = conversion->keeps_cut ? cut : -1;
    if (!conversion->keeps_cut) close(cut);
}

static void cut_ended(struct server *server, uint64_t bytes, const struct error *error) {
    struct export *export = server->durability->export;
    if (error->code != ERROR_NONE) {
        tell_made(export, NULL, NULL, error);
        return;
    }
    export->conversion.cut_bytes = bytes;
    export->state = EXPORT_CONVERTING;
    worker_give(export->worker, &export->conversion.job);
}

/* What is sent to replicas tells of tables, or can from now on. */
static bool may_have_tables(const struct server *server) {
    return !server->place.is_replica || server->place.follows_tables;
}

static bool someone_takes_tables(const struct export *export) {
    const struct export_request *request = export->waiting;
    while (request && !request->takes_tables) request = request->next;
    return request && may_have_tables(export->server);
}

static void begin(struct export *export) {
    struct error error = {.code = ERROR_NONE};
    struct server *server = export->server;
    struct snapshots *snapshots = server->durability->snapshots;
    bool with_tables = someone_takes_tables(export);
    const struct snapshot_base base = {
        .folder = ".", .name = CUT_NAME, .with_tables = with_tables, .is_passing = true, .ended = cut_ended};
    if (!export->worker) export->worker = worker_new();
    export->number++;
    export->state = EXPORT_CUTTING;
    export->conversion = (struct conversion){
        .job = {.run = convert}, .compresses = server->config.rdbcompression != 0, .cut = -1, .out = -1};
    for (struct export_request *request = export->waiting; request; request = request->next) {
        request->number = export->number;
        request->with_tables = request->takes_tables && with_tables;
        export->conversion.keeps_cut |= request->with_tables;
        export->conversion.converts |= !request->with_tables;
    }
    if (!export->worker || (with_tables && !replay_log_begin_stream(server->replay->tables)))
        error_set(&error, ERROR_GENERIC, "out of memory or threads");
    else
        snapshots_begin_base(snapshots, &base, &error);
    if (error.code != ERROR_NONE) {
        tell_made(export, NULL, NULL, &error);
        return;
    }
    for (struct export_request *request = export->waiting; request; request = request->next)
        export->conversion.database = request->begun(request);
}

/* The descriptor is closed. NULL: there is none, or no memory. */
static struct exported *map(int descriptor, uint64_t bytes) {
    struct exported *exported = descriptor >= 0 ? memory_alloc(sizeof *exported) : NULL;
    if (exported) {
        *exported = (struct exported){.references = 1, .length = (size_t)bytes};
        exported->data = memory_map_file(descriptor, exported->length);
        if (!exported->data) {
            memory_free(exported);
            exported = NULL;
        }
    }
    if (descriptor >= 0) close(descriptor);
    return exported;
}

static void converted(struct export *export) {
    struct conversion *conversion = &export->conversion;
    struct exported *keys = map(conversion->out, conversion->bytes);
    struct exported *all = map(conversion->cut, conversion->cut_bytes);
    bool lacks = (conversion->converts && !keys) || (conversion->keeps_cut && !all);
    if (lacks && conversion->error.code == ERROR_NONE)
        error_set(&conversion->error, ERROR_GENERIC, "no memory for the file");
    tell_made(export, keys, all, &conversion->error);
}

uint64_t export_step(struct export *export) {
    struct server *server = export->server;
    switch (export->state) {
    case EXPORT_NONE:
        if (!export->waiting || server->ending.begun) return CLOCK_NEVER;
        if (snapshots_may_begin(server->durability->snapshots) && server->changes.depth == 0 &&
            (!someone_takes_tables(export) || replay_log_is_whole(server->replay->tables)))
            begin(export);
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
    if (export->state == EXPORT_CONVERTING && export->conversion.cut > 0) close(export->conversion.cut);
    memory_free(export);
}

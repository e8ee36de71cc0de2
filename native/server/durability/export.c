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

#include "base/arithmetic.h"
#include "base/memory.h"
#include "base/worker.h"
#include "persist/rdb_file_writer.h"
#include "persist/snapshot_file.h"
#include "server/core/server.h"
#include "server/durability/durability_subsystem.h"
#include "server/durability/snapshots.h"
#include "server/replay/replay_log.h"
#include "server/replay/replay_subsystem.h"

#define CUT_NAME "sync.cut"
#define LOOK_AGAIN_US 2000u /* while the thread works, or another snapshot runs */
#define PART_BYTES (4u << 20) /* a multiple of any page's size … */
#define PARTS 64u /* … until there are so many: then each has that share of what came before, in multiples of that */

enum export_state { EXPORT_NONE, EXPORT_CUTTING, EXPORT_CONVERTING };

/* A file, or part of one, for as long as someone is sent it. */
struct exported {
    uint32_t references;
    size_t length;
    uint8_t *data;
};

struct conversion {
    struct worker_job job;
    bool compresses;
    bool converts, hands_out; /* somebody waits for Redis's format, for the snapshot itself */
    int database; /* of the changes that follow the file */
    int given_up; /* the snapshot, where it failed and is only to be closed */
    atomic_bool stop;
    int out; /* −1: it failed, or nobody waits for it */
    uint64_t bytes;
    struct error error;
};

struct export {
    struct server *server;
    struct export_request *waiting;
    enum export_state state;
    uint64_t number; /* of the file that is made, or was last */
    int growing; /* the snapshot, where it is handed out in parts; −1: there is none, or no part yet */
    uint64_t handed; /* bytes of it that were */
    struct worker *worker;
    struct conversion conversion;
};

/* ---- sending --------------------------------------------------------------------------------------------------------- */

/* The descriptor stays the caller's. NULL: there is none, or no memory. */
static struct exported *map(int descriptor, uint64_t from, uint64_t to) {
    struct exported *exported = descriptor >= 0 ? memory_alloc(sizeof *exported) : NULL;
    if (!exported) return NULL;
    *exported = (struct exported){.references = 1, .length = (size_t)(to - from)};
    exported->data = memory_map_file(descriptor, from, exported->length);
    if (exported->data) return exported;
    memory_free(exported);
    return NULL;
}

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

/* Those who wait for the snapshot, or for Redis's format; who waits for a later one stays. */
static void tell_made(struct export *export, bool with_tables, struct exported *exported, const struct error *error) {
    struct export_request **link = &export->waiting;
    while (*link) {
        struct export_request *request = *link;
        if (request->number != export->number || request->with_tables != with_tables) {
            link = &request->next;
            continue;
        }
        *link = request->next;
        request->made(request, exported, error);
    }
}

static void close_growing(struct export *export) {
    if (export->growing >= 0) close(export->growing);
    export->growing = -1;
}

static void close_given_up(struct worker_job *job) {
    close(((struct conversion *)(void *)job)->given_up);
}

/* The snapshot has no name any more, and giving up its pages may take long: its last descriptor is closed by the worker. */
static void fail(struct export *export, const struct error *error) {
    export->state = EXPORT_NONE;
    if (export->growing >= 0) {
        export->state = EXPORT_CONVERTING;
        export->conversion.job.run = close_given_up;
        export->conversion.given_up = export->growing;
        export->growing = -1;
        worker_give(export->worker, &export->conversion.job);
    }
    tell_made(export, true, NULL, error);
    tell_made(export, false, NULL, error);
}

static int hand_out_part(struct export *export, uint64_t until) {
    struct exported *part = map(export->growing, export->handed, until);
    if (!part) return -1;
    export->handed = until;
    for (struct export_request *request = export->waiting, *next; request; request = next) {
        next = request->next;
        if (request->number == export->number && request->with_tables) request->grown(request, part);
    }
    release(part);
    return 0;
}

/* Each part is a mapping until it is sent, and a process may have only some ten thousands: a slow line may leave all of a
 * file waiting, and files have hundreds of gigabytes. */
static uint64_t next_part_bytes(const struct export *export) {
    return PART_BYTES + export->handed / PARTS / PART_BYTES * PART_BYTES;
}

/* What is written by now, in whole parts, and at the file's end the rest. */
static int hand_out(struct export *export, uint64_t written, bool is_all, struct error *error) {
    while (export->handed < written) {
        uint64_t left = written - export->handed, part = next_part_bytes(export);
        if (left < part && !is_all) return 0;
        if (export->growing < 0) export->growing = open(CUT_NAME SNAPSHOT_PARTIAL_SUFFIX, O_RDONLY | O_CLOEXEC);
        if (export->growing < 0) export->growing = open(CUT_NAME, O_RDONLY | O_CLOEXEC); /* it has its name by now */
        if (export->growing < 0) return error_set(error, ERROR_GENERIC, "cannot read the cut: %s", strerror(errno));
        if (hand_out_part(export, export->handed + at_most(left, part)))
            return error_set(error, ERROR_GENERIC, "no memory for a part of the cut");
    }
    return 0;
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
    close(cut);
}

static void cut_ended(struct server *server, uint64_t bytes, const struct error *error) {
    struct export *export = server->durability->export;
    struct error why = *error;
    if (why.code == ERROR_NONE && export->conversion.hands_out && hand_out(export, bytes, true, &why)) unlink(CUT_NAME);
    if (why.code != ERROR_NONE) {
        fail(export, &why);
        return;
    }
    tell_made(export, true, NULL, &why);
    close_growing(export);
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
    export->conversion =
        (struct conversion){.job = {.run = convert}, .compresses = server->config.rdbcompression != 0, .out = -1};
    export->handed = 0;
    for (struct export_request *request = export->waiting; request; request = request->next) {
        request->number = export->number;
        request->with_tables = request->takes_tables && with_tables;
        export->conversion.hands_out |= request->with_tables;
        export->conversion.converts |= !request->with_tables;
    }
    if (!export->worker || (with_tables && !replay_log_begin_stream(server->replay->tables)))
        error_set(&error, ERROR_GENERIC, "out of memory or threads");
    else
        snapshots_begin_base(snapshots, &base, &error);
    if (error.code != ERROR_NONE) {
        fail(export, &error);
        return;
    }
    for (struct export_request *request = export->waiting; request; request = request->next)
        export->conversion.database = request->begun(request);
}

static void converted(struct export *export) {
    struct conversion *conversion = &export->conversion;
    struct exported *keys = map(conversion->out, 0, conversion->bytes);
    if (conversion->out >= 0) close(conversion->out);
    if (conversion->converts && !keys && conversion->error.code == ERROR_NONE)
        error_set(&conversion->error, ERROR_GENERIC, "no memory for the file");
    export->state = EXPORT_NONE;
    tell_made(export, false, keys, &conversion->error);
    if (keys) release(keys);
}

/* Where a part cannot be handed out the cut is given up, whose end nobody tells then. */
static uint64_t cutting(struct export *export) {
    struct snapshots *snapshots = export->server->durability->snapshots;
    struct error error = {.code = ERROR_NONE};
    if (!export->conversion.hands_out) return CLOCK_NEVER; /* the snapshots tell */
    if (hand_out(export, snapshots_base_written(snapshots), false, &error)) {
        snapshots_give_up_base(snapshots, cut_ended);
        fail(export, &error);
    }
    return export->server->now_us + LOOK_AGAIN_US;
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
    case EXPORT_CUTTING: return cutting(export);
    default: break;
    }
    if (worker_finished(export->worker)) converted(export);
    return server->now_us + LOOK_AGAIN_US;
}

struct export *export_new(struct server *server) {
    struct export *export = memory_calloc(1, sizeof *export);
    if (!export) return NULL;
    export->server = server;
    export->growing = -1;
    return export;
}

void export_free(struct export *export) {
    if (!export) return;
    atomic_store(&export->conversion.stop, true);
    worker_free(export->worker);
    if (export->state == EXPORT_CONVERTING && export->conversion.out > 0) close(export->conversion.out);
    close_growing(export);
    memory_free(export);
}

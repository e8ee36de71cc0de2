/* replay_cold: reads in parts, one for each reader, and the requests that wait for them, as commands in slices do.
 *
 * Why nothing is left behind: a read retains its table until the last of its parts has come back, however the request ends,
 * and a request's batch is unpinned when the request ends. What a reader does to pages of slots that are given out again
 * meanwhile is of no consequence, since it brings them into memory and does not use what is in them. */
#include "server/replay/replay_cold.h"

#include <assert.h>
#include <unistd.h>

#include "base/disk_memory.h"
#include "base/memory.h"
#include "base/worker.h"
#include "net/transport.h"
#include "replay/table_pages.h"
#include "server/core/client.h"
#include "server/core/notifier.h"
#include "server/core/server.h"
#include "server/core/slices.h"
#include "server/replay/replay_subsystem.h"

#define READERS 4u         /* each asks for all of its part at once, so that few keep a disk busy */
#define LEAST_PART 16u     /* runs; fewer are not worth another reader */
#define LOOK_AGAIN_US 500u /* where nothing wakes the loop */

struct cold_part {
    struct worker_job job; /* first: it is what comes back */
    struct cold_read *read;
    struct page_run *runs;
    uint32_t count;
    uint64_t absent;
    bool failed;
};

struct cold_read {
    struct cold_readers *readers;
    struct replay_entry *entry; /* retained */
    struct page_runs runs;
    uint32_t parts_out; /* that readers have */
    bool dropped, failed;
    struct cold_part part[READERS];
};

struct cold_readers {
    struct worker *worker[READERS]; /* NULL: not started yet */
    uint32_t given[READERS];        /* parts that it has */
    uint32_t parts_out;             /* of all */
    int notifier;                   /* an eventfd; −1: none */
};

/* ---- on the readers' threads --------------------------------------------------------------------------------------- */

static void run_part(struct worker_job *job) {
    struct cold_part *part = (struct cold_part *)(void *)job;
    part->failed = !page_runs_read(part->runs, part->count, &part->absent);
}

static void notify(void *context) {
    const struct cold_readers *readers = context;
    notifier_tell(readers->notifier);
}

/* ---- reads --------------------------------------------------------------------------------------------------------- */

static void free_read(struct cold_read *read) {
    replay_entry_release(read->entry);
    page_runs_free(&read->runs);
    memory_free(read);
}

static void part_came_back(struct cold_readers *readers, struct cold_part *part) {
    struct cold_read *read = part->read;
    disk_memory_count_cold(table_disk(read->entry->table), part->absent);
    read->failed |= part->failed;
    readers->parts_out--;
    if (--read->parts_out > 0) return;
    if (read->dropped) free_read(read); /* else whoever waits looks in this turn, as slices do in each */
}

static void take_back(struct cold_readers *readers, uint32_t reader, struct worker_job *job) {
    while (job) {
        struct worker_job *next = job->next; /* the part may be freed with its read */
        readers->given[reader]--;
        part_came_back(readers, (struct cold_part *)(void *)job);
        job = next;
    }
}

static void collect(struct cold_readers *readers) {
    for (uint32_t i = 0; i < READERS; i++)
        if (readers->given[i]) take_back(readers, i, worker_finished(readers->worker[i]));
}

/* Its reader has the part, or, if no thread can be started, another. False: there is none at all. */
static bool give(struct cold_readers *readers, uint32_t reader, struct cold_part *part) {
    if (!readers->worker[reader]) readers->worker[reader] = worker_new_patient(notify, readers);
    while (!readers->worker[reader] && reader > 0) reader--;
    if (!readers->worker[reader]) return false;
    part->read->parts_out++;
    readers->parts_out++;
    readers->given[reader]++;
    worker_give(readers->worker[reader], &part->job);
    return true;
}

/* The runs from `first` on, some to each reader; to the one that has the least to do, if they are few. */
static void give_parts(struct cold_readers *readers, struct cold_read *read, uint32_t first) {
    uint32_t left = read->runs.count - first, parts = left / LEAST_PART, least = 0;
    parts = parts < 1 ? 1 : parts > READERS ? READERS : parts;
    for (uint32_t i = 1; i < READERS; i++)
        if (readers->given[i] < readers->given[least]) least = i;
    for (uint32_t i = 0, at = first; i < parts; i++) {
        uint32_t count = (read->runs.count - at) / (parts - i);
        read->part[i] =
            (struct cold_part){.job = {.run = run_part}, .read = read, .runs = read->runs.runs + at, .count = count};
        if (!give(readers, (least + i) % READERS, &read->part[i])) return;
        at += count;
    }
}

struct cold_read *cold_read_begin(struct client *client, struct replay_entry *entry, const uint8_t *columns,
                                  uint32_t column_count, const uint32_t *slots, uint32_t n) {
    if (!table_disk(entry->table) || !client_may_block(client) || entry->followed) return NULL;
    struct cold_read *read = memory_calloc(1, sizeof *read);
    if (!read) return NULL;
    read->readers = client->server->replay->cold;
    read->entry = entry;
    replay_entry_retain(entry);
    uint32_t first = 0;
    if (table_list_pages(entry->table, columns, column_count, slots, n, &read->runs) == 0 &&
        (first = page_runs_first_absent(&read->runs)) < read->runs.count)
        give_parts(read->readers, read, first);
    if (read->parts_out > 0) return read;
    free_read(read);
    return NULL;
}

bool cold_read_is_over(const struct cold_read *read) {
    return read->parts_out == 0;
}

void cold_read_drop(struct cold_read *read) {
    if (!read) return;
    read->dropped = true;
    if (read->parts_out == 0) free_read(read);
}

bool cold_read_failed(const struct cold_read *read, struct error *error) {
    if (!read->failed) return false;
    error_set(error, ERROR_GENERIC, "the disk that table '%s' lies on cannot be read; see the system's log",
              table_config(read->entry->table)->name);
    return true;
}

/* ---- requests that wait -------------------------------------------------------------------------------------------- */

/* The request is done with them: the batch is the caller's. */
static struct replay_batch *take_batch(struct replay_request *request) {
    struct replay_batch *batch = request->cold.batch;
    cold_read_drop(request->cold.read);
    request->cold.batch = NULL;
    request->cold.read = NULL;
    return batch;
}

static bool retry(struct client *client) {
    struct replay_request *request = client_state(client);
    struct error error;
    client->pinned_us = client->server->now_us; /* it is not the client that is slow */
    if (!cold_read_is_over(request->cold.read)) {
        slices_not_now(client);
        return false;
    }
    bool failed = cold_read_failed(request->cold.read, &error);
    struct replay_batch *batch = take_batch(request);
    if (!failed) {
        request->cold.ways->finish(client, request, batch);
        return client->retry == retry; /* else it has begun with slices of another kind, and is not done */
    }
    reply_failure(client, &error);
    replay_batch_release(batch);
    return true;
}

static void expired(struct client *client) {
    struct replay_request *request = client_state(client);
    const struct replay_cold_ways *ways = request->cold.ways;
    ways->at_once(client, request, take_batch(request));
}

bool replay_cold_wait(struct client *client, struct replay_request *request, struct replay_batch *batch,
                      const struct replay_cold_ways *ways) {
    struct cold_read *read =
        cold_read_begin(client, request->entry, request->columns, request->column_count, batch->slots, batch->n);
    if (!read) return false;
    replay_batch_pin(batch);
    request->cold = (struct replay_cold){.read = read, .batch = batch, .ways = ways};
    slices_begin(client, retry, expired);
    return true;
}

void replay_cold_drop(struct replay_request *request) {
    if (request->cold.batch) replay_batch_release(take_batch(request));
}

/* ---- start and end ------------------------------------------------------------------------------------------------- */

struct cold_readers *cold_readers_new(void) {
    struct cold_readers *readers = memory_calloc(1, sizeof *readers);
    if (!readers) return NULL;
    readers->notifier = -1;
    return readers;
}

void cold_readers_free(struct cold_readers *readers) {
    if (!readers) return;
    for (uint32_t i = 0; i < READERS; i++) {
        while (readers->given[i]) take_back(readers, i, worker_wait(readers->worker[i]));
        worker_free(readers->worker[i]);
    }
    if (readers->notifier >= 0) close(readers->notifier);
    memory_free(readers);
}

static void notified(void *context, int descriptor) {
    notifier_take(descriptor);
    collect(context);
}

int cold_readers_watch(struct cold_readers *readers, struct transport *transport, struct error *error) {
    readers->notifier = notifier_new(transport, notified, readers, error);
    return readers->notifier < 0 ? -1 : 0;
}

uint64_t cold_readers_step(struct server *server) {
    struct cold_readers *readers = server->replay->cold;
    if (readers->parts_out == 0) return CLOCK_NEVER;
    collect(readers);
    return readers->parts_out && readers->notifier < 0 ? server->now_us + LOOK_AGAIN_US : CLOCK_NEVER;
}

/* cmd_replay_update: REPLAY.UPDATE and REPLAY.DEL, in parts where they name many items. Other requests are served between
 * two parts, and may see that some of the items are done. */
#include <inttypes.h>
#include <string.h>

#include "server/core/client.h"
#include "server/core/server.h"
#include "server/core/slices.h"
#include "server/replay/cmd_replay.h"
#include "server/replay/replay_arguments.h"
#include "server/replay/replay_columns.h"
#include "server/replay/replay_subsystem.h"

#define PART_ITEMS REPLAY_AT_ONCE_ITEMS

static const struct resp_argument *ids_of(const struct client *client) {
    return &client->argv[2];
}

static const struct resp_argument *priorities_of(const struct client *client) {
    return &client->argv[3];
}

static uint32_t next_part(const struct replay_request *request, uint32_t done) {
    return request->n - done < PART_ITEMS ? request->n - done : PART_ITEMS;
}

/* The numbers, of 8 bytes each, of a part of an argument, aligned. */
static void copy_part(const struct resp_argument *argument, uint32_t first, uint32_t count, void *to) {
    if (count) memcpy(to, argument->data + (size_t)first * sizeof(uint64_t), count * sizeof(uint64_t));
}

static int update_part(struct client *client, struct replay_request *request, struct error *error) {
    uint64_t ids[PART_ITEMS], applied, stale;
    double priorities[PART_ITEMS];
    uint32_t part = next_part(request, request->done);
    copy_part(ids_of(client), request->done, part, ids);
    copy_part(priorities_of(client), request->done, part, priorities);
    if (table_update(request->entry->table, part, ids, priorities, &applied, &stale, error)) return -1;
    request->done += part;
    request->applied += applied;
    request->stale += stale;
    return 0;
}

/* All priorities are looked at before the first of many is set, so that one that is bad changes nothing. */
static int check_part(struct client *client, struct replay_request *request, struct error *error) {
    uint32_t part = next_part(request, request->checked);
    const struct table *table = request->entry->table;
    if (replay_check_priorities(table, priorities_of(client), request->checked, part, error)) return -1;
    request->checked += part;
    return 0;
}

static bool update_some(struct client *client) {
    struct replay_request *request = client_state(client);
    struct error error = {.code = ERROR_NONE};
    do {
        int (*const next)(struct client *, struct replay_request *, struct error *) =
            request->checked < request->n ? check_part : update_part;
        if (replay_entry_missing(request->entry, &error) || next(client, request, &error)) {
            reply_failure(client, &error);
            return true;
        }
        if (request->done == request->n) {
            wait_queue_wake(client->server, &request->entry->samplers); /* where all priorities were zero */
            reply_array(client, 2);
            reply_integer(client, (int64_t)request->applied);
            reply_integer(client, (int64_t)request->stale);
            return true;
        }
    } while (slices_have_time(client));
    return false;
}

static bool delete_some(struct client *client) {
    struct replay_request *request = client_state(client);
    struct error error = {.code = ERROR_NONE};
    do {
        uint64_t ids[PART_ITEMS];
        uint32_t part = next_part(request, request->done);
        if (replay_entry_missing(request->entry, &error)) {
            reply_failure(client, &error);
            return true;
        }
        copy_part(ids_of(client), request->done, part, ids);
        request->applied += table_delete(request->entry->table, part, ids);
        request->done += part;
        if (request->done == request->n) {
            wait_queue_wake(client->server, &request->entry->adders);
            wait_queue_wake(client->server, &request->entry->samplers);
            reply_integer(client, (int64_t)request->applied);
            return true;
        }
    } while (slices_have_time(client));
    return false;
}

/* A request for the ids of argv[2]; NULL after replying an error. */
static struct replay_request *request_or_reply(struct client *client, enum replay_request_kind kind) {
    struct error error = {.code = ERROR_NONE};
    struct replay_request *request = replay_request_or_reply(client, kind);
    if (!request) return NULL;
    if (replay_parse_ids(ids_of(client), &request->n, &error) == 0) return request;
    reply_failure(client, &error);
    return NULL;
}

static void run(struct client *client, struct replay_request *request, bool (*some)(struct client *client)) {
    if (request->n <= PART_ITEMS) {
        some(client);
        return;
    }
    replay_request_begin_parts(request);
    slices_run(client, some);
}

void replay_update_command(struct client *client) {
    struct replay_request *request = request_or_reply(client, REPLAY_REQUEST_UPDATE);
    if (!request) return;
    uint32_t n = request->n;
    if (priorities_of(client)->length != n * sizeof(double)) {
        reply_error(client,
                    "BADPRIORITY expected %" PRIu32 " priorities as float64, %zu bytes, one for each id, got %zu bytes",
                    n, n * sizeof(double), priorities_of(client)->length);
        return;
    }
    if (n <= PART_ITEMS) request->checked = n; /* the table looks at them by itself */
    run(client, request, update_some);
}

void replay_del_command(struct client *client) {
    struct replay_request *request = request_or_reply(client, REPLAY_REQUEST_DEL);
    if (request) run(client, request, delete_some);
}

/* cmd_replay_add: REPLAY.ADD: its columns land in the slots they are for, it commits, or waits until it may. */
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "server/core/client.h"
#include "server/core/long_work.h"
#include "server/core/server.h"
#include "server/core/slices.h"
#include "server/core/upcalls.h"
#include "server/replay/cmd_replay.h"
#include "server/replay/replay_arguments.h"
#include "server/replay/replay_columns.h"
#include "server/replay/replay_subsystem.h"

#define ADD_PRIORITIES 3
#define PRIORITIES_OF_A_PIECE 65536u /* looked at in one go */
#define FILLING_SLICE_US 200u        /* for copying rows, between two looks at what a turn may still take */

static int check(struct replay_request *request, const struct resp_argument *arguments, struct error *error) {
    const struct table *table = request->entry->table;
    const struct table_config *config = table_config(table);
    if (table_has_windows(table)) {
        return error_set(error, ERROR_BADSCHEMA,
                         "table '%s' has windows: append steps with REPLAY.APPEND, and make items of them with "
                         "REPLAY.ITEM",
                         config->name);
    }
    for (uint32_t i = 0; i < config->columns; i++) column_set_add(&request->expected, i);
    return replay_check_initial_priorities(request, &arguments[ADD_PRIORITIES], error);
}

int replay_reserve_items(struct replay_request *request, struct error *error) {
    struct table *table = request->entry->table;
    if (!request->partial && !table_can_add(table, request->n, error)) {
        if (error->code != ERROR_TIMEOUT) return -1;
        error->code = ERROR_NONE; /* it may have to wait, which is for the commit to find */
    }
    request->reservation = table_reserve(table, request->n, error);
    return request->reservation ? 0 : -1;
}

/* ---- entering ------------------------------------------------------------------------------------------------------ */

/* With PARTIAL the others are given up as soon as one is admitted: whoever sent them is told how many entered, and sends
 * the rest at any time. */
static int shorten(struct replay_request *request, struct error *error) {
    struct table *table = request->entry->table;
    uint32_t admitted = table_admits(table, request->n);
    if (admitted == 0) {
        if (!table_can_add(table, 1, error)) return -1;
        admitted = 1;
    }
    reservation_shorten(request->reservation, admitted);
    request->n = admitted;
    return 0;
}

/* All that may refuse the items, once their priorities are found good. 1: not now. */
static int begin(const struct client *client, struct replay_request *request, struct error *error) {
    struct replay_entry *entry = request->entry;
    if (replay_request_is_held_back(client))
        return request->blocks ? error_set(error, ERROR_TIMEOUT, REPLAY_HELD_BACK) : 1;
    if (request->partial && shorten(request, error)) return -1;
    bool in_parts = reservation_part(request->reservation) < request->n;
    if (in_parts && entry->changers.length)
        return error_set(error, ERROR_TIMEOUT, "waits behind a change of table '%s'", table_config(entry->table)->name);
    if (in_parts && !request->ids && !(request->ids = blob_new(request->n * sizeof(uint64_t))))
        return error_set(error, ERROR_GENERIC, "out of memory for the ids of %" PRIu32 " items", request->n);
    if (table_begin_commit(entry->table, request->reservation, error)) return -1;
    request->begun = true;
    if (in_parts) replay_request_begin_parts(request);
    return 0;
}

/* Enters the next part, whose priorities and ids go through the scratch. 1: there are no slots for it now, or the
 * append-only file is behind. */
static int enter_part(struct client *client, struct replay_request *request, struct error *error) {
    struct table *table = request->entry->table;
    const struct resp_argument *given = &client->argv[request->priorities];
    uint32_t n = reservation_part(request->reservation);
    double *priorities = replay_registry_scratch(client->server->replay->tables, 2 * n * sizeof *priorities);
    if (!priorities) return error_set(error, ERROR_GENERIC, "out of memory for %" PRIu32 " priorities", n);
    if (request->entered > 0 && client_may_block(client) && upcalls.append_log_is_behind(client->server)) return 1;
    uint64_t *ids = (uint64_t *)(void *)(priorities + n);
    if (given->length) memcpy(priorities, given->data + request->entered * sizeof *priorities, n * sizeof *priorities);
    int entered = table_commit_part(table, request->reservation, given->length ? priorities : NULL, ids);
    if (entered < 0) {
        return client_may_block(client)
                   ? 1
                   : error_set(error, ERROR_LIMIT,
                               "%" PRIu32 " of %" PRIu32 " items were added; there are no slots for the others",
                               request->entered, request->n);
    }
    if (entered == 0) return 0; /* old items leave first */
    if (request->ids) memcpy(request->ids->data + request->entered * sizeof *ids, ids, n * sizeof *ids);
    request->entered += n;
    if (request->entered == request->n) request->reservation = NULL;
    if (!request->ids) reply_bulk(client, ids, n * sizeof *ids);
    return 0;
}

static void have_entered(struct client *client, struct replay_request *request) {
    struct replay_entry *entry = request->entry;
    wait_queue_wake(client->server, &entry->samplers);
    wait_queue_wake(client->server, &entry->watchers);
}

/* The next piece of the work: items are bound to their steps, rows are copied, priorities are looked at, the items are let
 * through, parts enter. 1: not now; -1: refused. */
static int next_piece(struct client *client, struct replay_request *request, struct error *error) {
    const struct resp_argument *priorities = &client->argv[request->priorities];
    if (request->begun) return enter_part(client, request, error);
    if (request->kind == REPLAY_REQUEST_ITEM && request->done < request->n) {
        if (replay_resolve_part(client, request, error)) return -1;
        if (request->done < request->n) return 0;
    }
    if (request->ragged) {
        int left = replay_columns_fill_ragged(client, request, clock_monotonic_us() + FILLING_SLICE_US, error);
        if (left) return left < 0 ? -1 : 0;
    }
    double limit = table_priority_limit(request->entry->table);
    if (request->checked_limit != limit) request->checked = 0; /* settings have changed while it waited */
    request->checked_limit = limit;
    if (request->checked < request->n) {
        uint32_t left = request->n - request->checked;
        uint32_t count = left < PRIORITIES_OF_A_PIECE ? left : PRIORITIES_OF_A_PIECE;
        if (replay_check_priorities(request->entry->table, priorities, request->checked, count, error)) return -1;
        request->checked += count;
        if (request->checked < request->n) return 0;
    }
    int left = begin(client, request, error);
    return left ? left : enter_part(client, request, error);
}

static void expired(struct client *client);

/* Replies when all items have entered; false when it must wait. A batch that enters in parts does so in slices, and is
 * made ready in slices. The first of those that wait is made ready where it stands: it keeps its place. */
static bool attempt(struct client *client) {
    struct replay_request *request = client_state(client);
    struct replay_entry *entry = request->entry;
    struct error error = {.code = ERROR_NONE};
    bool slicing = slices_is_going_on(client);
    for (;;) {
        int piece = replay_entry_missing(entry, &error) ? -1 : next_piece(client, request, &error);
        if (piece < 0) {
            bool waits = error.code == ERROR_TIMEOUT && request->blocks;
            if (waits && slicing)
                client_block_next(client, &entry->adders, request->deadline_us, attempt, expired);
            else if (!waits)
                reply_failure(client, &error);
            return slicing || !waits;
        }
        if (request->entered == request->n) break;
        if (slicing ? piece == 0 && slices_have_time(client) : !client_may_block(client)) {
            exclusive_rest(client->server);
            continue;
        }
        if (request->begun) have_entered(client, request);
        if (piece > 0) slices_not_now(client);
        if (!request->begun && client->queue == &entry->adders) {
            entry->adder_has_work = true;
            return false;
        }
        if (!slicing) slices_begin(client, attempt, NULL);
        return !slicing;
    }
    have_entered(client, request);
    if (request->ids) reply_blob(client, request->ids);
    return true;
}

static void expired(struct client *client) {
    const struct replay_request *request = client_state(client);
    struct error error;
    uint32_t n = request->partial ? 1 : request->n;
    if (!replay_entry_missing(request->entry, &error) && table_can_add(request->entry->table, n, &error))
        replay_request_say_wait(client, "ADDs", &error);
    reply_failure(client, &error);
}

/* The table behind the one that was served last whose batch has work left, or else the first of them. */
static struct replay_entry *next_with_work(const struct replay_registry *registry) {
    struct replay_entry *first = NULL;
    bool passed = false;
    for (struct replay_entry *entry = registry->entries; entry; entry = entry->next) {
        if (entry->adder_has_work && passed) return entry;
        if (entry->adder_has_work && !first) first = entry;
        passed |= entry->sequence == registry->adder_served;
    }
    return first;
}

bool replay_adders_step(struct server *server) {
    struct replay_registry *registry = server->replay->tables;
    for (struct replay_entry *entry; (entry = next_with_work(registry));) {
        uint64_t until_us = long_work_until(server);
        struct wait_queue *queue = &entry->adders;
        registry->adder_served = entry->sequence;
        entry->adder_has_work = false;
        if (queue->head && client_retry(queue->head)) wait_queue_wake(server, queue);
        if (clock_monotonic_us() >= until_us) return true;
    }
    return false;
}

void replay_commit_or_wait(struct client *client, struct replay_request *request, uint32_t priorities) {
    request->priorities = priorities;
    request->deadline_us = request->blocks ? replay_block_deadline(request) : CLOCK_NEVER;
    struct wait_queue *queue = &request->entry->adders;
    if ((request->blocks && queue->length) || !attempt(client))  /* those who wait already go first */
        client_block(client, queue, request->deadline_us, attempt, expired);
}

static const struct replay_form form = {
    .kind = REPLAY_REQUEST_ADD,
    .usage = "REPLAY.ADD table n priorities [BLOCK ms] [PARTIAL] [INCARNATION i] COLUMNS k name bytes …",
    .options = 4,
    .check = check,
    .reserve = replay_reserve_items,
};

void replay_add_land(void *context, const struct resp_argument *arguments, uint32_t index, uint32_t count,
                     size_t length, struct resp_landing *landing) {
    replay_columns_land(context, &form, arguments, index, count, length, landing);
}

void replay_add_command(struct client *client) {
    struct replay_request *request = replay_columns_or_reply(client, &form);
    if (request) replay_commit_or_wait(client, request, ADD_PRIORITIES);
}

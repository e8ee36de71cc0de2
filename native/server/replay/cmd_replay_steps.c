/* cmd_replay_steps: REPLAY.APPEND, which appends steps to streams of the connection; REPLAY.ITEM, which makes items that
 * see them through windows; REPLAY.END and REPLAY.CLOSE, which end episodes and streams. */
#include <inttypes.h>
#include <string.h>

#include "server/core/client.h"
#include "server/core/server.h"
#include "server/replay/cmd_replay.h"
#include "server/replay/replay_arguments.h"
#include "server/replay/replay_columns.h"
#include "server/replay/replay_streams.h"
#include "server/replay/replay_subsystem.h"

#define CODING_SLICE_US 300u /* of one turn, for compressing what is appended */
#define STREAMS 3
#define APPEND_FLAGS 4
#define ITEM_STEPS 4
#define ITEM_PRIORITIES 5

static int check_windows(const struct table *table, struct error *error) {
    return table_has_windows(table)
               ? 0
               : error_set(error, ERROR_BADSCHEMA,
                           "table '%s' has no windows, and so no steps: items go there with REPLAY.ADD",
                           table_config(table)->name);
}

/* ---- APPEND -------------------------------------------------------------------------------------------------------- */

static int check_flags(const struct resp_argument *flags, uint32_t n, struct error *error) {
    if (flags->length && flags->length != n) {
        return error_set(error, ERROR_BADSHAPE, "expected %" PRIu32 " flags as uint8, or none, got %zu bytes", n,
                         flags->length);
    }
    for (size_t i = 0; i < flags->length; i++) {
        if (flags->data[i] & ~(STEP_FIRST | STEP_LAST)) {
            return error_set(error, ERROR_GENERIC,
                             "expected flags of 1 (first step of an episode) and 2 (last), got %u at index %zu",
                             flags->data[i], i);
        }
    }
    return 0;
}

static int append_check(struct replay_request *request, const struct resp_argument *arguments, struct error *error) {
    const struct table_config *config = table_config(request->entry->table);
    if (check_windows(request->entry->table, error) || replay_streams_check(&arguments[STREAMS], request->n, error) ||
        check_flags(&arguments[APPEND_FLAGS], request->n, error)) {
        return -1;
    }
    for (uint32_t i = 0; i < config->columns; i++)
        if (config->column[i].in_steps) column_set_add(&request->expected, i);
    request->history = REPLAY_DEFAULT_HISTORY;
    return 0;
}

static int append_reserve(struct replay_request *request, struct error *error) {
    request->reservation = table_reserve_steps(request->entry->table, request->n, error);
    return request->reservation ? 0 : -1;
}

static const struct replay_form append_form = {
    .kind = REPLAY_REQUEST_APPEND,
    .usage = "REPLAY.APPEND table n streams flags [HISTORY h] [CODED] [INCARNATION i] COLUMNS k name bytes …",
    .options = 5,
    .check = append_check,
    .reserve = append_reserve,
};

void replay_append_land(void *context, const struct resp_argument *arguments, uint32_t index, uint32_t count,
                        size_t length, struct resp_landing *landing) {
    replay_columns_land(context, &append_form, arguments, index, count, length, landing);
}

static int append(struct client *client, struct replay_request *request, struct error *error) {
    struct replay_entry *entry = request->entry;
    const struct resp_argument *numbers = &client->argv[STREAMS], *flags = &client->argv[APPEND_FLAGS];
    uint32_t n = request->n;
    struct stream **streams = replay_registry_scratch(client->server->replay->tables, n * sizeof *streams);
    if (!streams) return error_set(error, ERROR_GENERIC, "out of memory for %" PRIu32 " steps", n);
    if (replay_streams_open(client, entry, numbers, n, request->history, streams, error)) return -1;
    if (table_append(entry->table, request->reservation, streams, flags->length ? flags->data : NULL, error)) {
        replay_streams_close_empty(client, entry, numbers, n);
        return -1;
    }
    request->reservation = NULL;
    return 0;
}

/* Replies when the steps are appended; false while some are still to be compressed or looked into. */
static bool append_attempt(struct client *client) {
    struct replay_request *request = client_state(client);
    const struct replay_registry *registry = client->server->replay->tables;
    struct error error = {.code = ERROR_NONE};
    if (request->behind_streams && registry->closed_count && !replay_entry_missing(request->entry, &error))
        return false;
    request->behind_streams = false;
    uint64_t deadline_us = clock_monotonic_us() + CODING_SLICE_US;
    int left = replay_entry_missing(request->entry, &error) ? -1 : 0;
    if (left == 0) left = replay_columns_fill_coded(client, request, deadline_us, &error);
    if (left == 0) left = reservation_code(request->reservation, deadline_us, &error);
    if (left > 0) return false;
    if (left == 0 && append(client, request, &error)) {
        /* Streams that were closed may still be giving back what these need. */
        if (error.code == ERROR_LIMIT && registry->closed_count) {
            request->behind_streams = true;
            return false;
        }
        left = -1;
    }
    if (left < 0) {
        reply_failure(client, &error);
        return true;
    }
    wait_queue_wake(client->server, &request->entry->adders); /* items may have left to make room */
    reply_integer(client, request->n);
    return true;
}

static void append_expired(struct client *client) { /* only where its table is dropped */
    struct error error = {.code = ERROR_NONE};
    replay_entry_missing(((const struct replay_request *)client_state(client))->entry, &error);
    reply_failure(client, &error);
}

void replay_append_command(struct client *client) {
    struct replay_request *request = replay_columns_or_reply(client, &append_form);
    if (request && (request->entry->coders.length || !append_attempt(client)))
        client_block(client, &request->entry->coders, CLOCK_NEVER, append_attempt, append_expired);
}

/* ---- ITEM ---------------------------------------------------------------------------------------------------------- */

static int item_check(struct replay_request *request, const struct resp_argument *arguments, struct error *error) {
    const struct table_config *config = table_config(request->entry->table);
    const struct resp_argument *steps = &arguments[ITEM_STEPS];
    if (check_windows(request->entry->table, error) || replay_streams_check(&arguments[STREAMS], request->n, error))
        return -1;
    if (steps->length != request->n * sizeof(uint64_t)) {
        return error_set(error, ERROR_BADSHAPE,
                         "expected %" PRIu32 " numbers of steps as uint64, %zu bytes, got %zu bytes", request->n,
                         request->n * sizeof(uint64_t), steps->length);
    }
    for (uint32_t i = 0; i < config->columns; i++)
        if (config->column[i].kind == COLUMN_ITEM || column_is_ragged_window(&config->column[i]))
            column_set_add(&request->expected, i);
    return replay_check_initial_priorities(request, &arguments[ITEM_PRIORITIES], error);
}

static const struct replay_form item_form = {
    .kind = REPLAY_REQUEST_ITEM,
    .usage = "REPLAY.ITEM table n streams steps priorities [BLOCK ms] [PARTIAL] [INCARNATION i] COLUMNS k name bytes …",
    .options = 6,
    .check = item_check,
    .reserve = replay_reserve_items,
};

void replay_item_land(void *context, const struct resp_argument *arguments, uint32_t index, uint32_t count,
                      size_t length, struct resp_landing *landing) {
    replay_columns_land(context, &item_form, arguments, index, count, length, landing);
}

/* Binds the items to the steps that they see, which then stay for them however long they wait. */
static int resolve(struct client *client, struct replay_request *request, struct error *error) {
    uint32_t n = request->n;
    uint64_t *steps =
        replay_registry_scratch(client->server->replay->tables, n * (sizeof *steps + sizeof(struct stream *)));
    if (!steps) return error_set(error, ERROR_GENERIC, "out of memory for %" PRIu32 " items", n);
    struct stream **streams = (struct stream **)(void *)(steps + n);
    memcpy(steps, client->argv[ITEM_STEPS].data, n * sizeof *steps);
    struct table_spans spans;
    if (replay_streams_find(client, request->entry, &client->argv[STREAMS], n, streams, error) ||
        replay_columns_spans(client, request, &spans, error))
        return -1;
    return table_resolve(request->entry->table, request->reservation, streams, steps, &spans, error);
}

void replay_item_command(struct client *client) {
    struct error error = {.code = ERROR_NONE};
    struct replay_request *request = replay_columns_or_reply(client, &item_form);
    if (!request) return;
    if (resolve(client, request, &error)) {
        reply_failure(client, &error);
        return;
    }
    replay_commit_or_wait(client, request, ITEM_PRIORITIES);
}

/* ---- END, CLOSE ---------------------------------------------------------------------------------------------------- */

/* The streams of argv[2]; false after replying an error. */
static bool streams_or_reply(struct client *client, uint32_t *n) {
    struct error error = {.code = ERROR_NONE};
    const struct resp_argument *numbers = &client->argv[2];
    *n = (uint32_t)(numbers->length / sizeof(uint32_t));
    if (numbers->length > REPLAY_STREAM_NUMBERS * sizeof(uint32_t)) {
        error_set(&error, ERROR_LIMIT, "expected at most %u streams, got %zu bytes", REPLAY_STREAM_NUMBERS,
                  numbers->length);
    } else if (replay_streams_check(numbers, *n, &error) == 0) {
        return true;
    }
    reply_failure(client, &error);
    return false;
}

void replay_end_command(struct client *client) {
    struct error error = {.code = ERROR_NONE};
    struct replay_entry *entry = replay_entry_or_reply(client);
    uint32_t n;
    if (!entry || !streams_or_reply(client, &n)) return;
    struct stream **streams = replay_registry_scratch(client->server->replay->tables, n * sizeof *streams + 1);
    if (!streams) {
        reply_error(client, "ERR out of memory for %" PRIu32 " streams", n);
        return;
    }
    if (replay_streams_find(client, entry, &client->argv[2], n, streams, &error)) {
        reply_failure(client, &error);
        return;
    }
    for (uint32_t i = 0; i < n; i++) stream_end_episode(streams[i]);
    reply_integer(client, n);
}

void replay_close_command(struct client *client) {
    struct replay_entry *entry = replay_entry_or_reply(client);
    uint32_t n;
    if (entry && streams_or_reply(client, &n))
        reply_integer(client, replay_streams_close(client, entry, &client->argv[2], n));
}

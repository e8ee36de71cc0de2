/* cmd_replay_steps: REPLAY.APPEND, which appends steps to streams of the connection; REPLAY.ITEM, which makes items that
 * see them through windows; REPLAY.END and REPLAY.CLOSE, which end episodes and streams.
 *
 * Many steps are appended in slices, and many items bound in slices to the steps that they see. Why nobody can tell:
 *   - Streams are their connection's own, which waits for the reply: nothing else happens to them in between. Others see steps
 *     only through items, and a file or a replica is told of steps with the first item that sees them.
 *   - All that may refuse an APPEND comes before its first step enters: blocks are looked into, streams opened, and max_bytes
 *     is held against all that the streams will keep, which counts from then on (table_begin_append). Closing the table,
 *     or a pause of writes, stops only what had not begun.
 *   - An item holds the steps that it is bound to, however many turns go by before it enters.
 *   - A client that goes in the midst gives back what had not entered. Its streams end, and with them the steps that had. */
#include <inttypes.h>
#include <string.h>

#include "server/core/client.h"
#include "server/core/server.h"
#include "server/core/slices.h"
#include "server/replay/cmd_replay.h"
#include "server/replay/replay_arguments.h"
#include "server/replay/replay_columns.h"
#include "server/replay/replay_streams.h"
#include "server/replay/replay_subsystem.h"

#define PART_STEPS 256u /* in one go: each may open a stream, which touches a page of its own */
#define AT_ONCE_BYTES (64u << 10) /* compressed, or looked into, by the command itself */
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
    uint8_t all = 0;
    for (size_t i = 0; i < flags->length; i++) all |= flags->data[i]; /* a million in some ten microseconds */
    if (!(all & ~(STEP_FIRST | STEP_LAST))) return 0;
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

/* The part of an argument, of so many bytes a step, that is about steps from `first` on. */
static struct resp_argument part_of(const struct resp_argument *argument, size_t bytes, uint32_t first,
                                    uint32_t count) {
    return (struct resp_argument){.data = argument->data + first * bytes, .length = count * bytes};
}

static uint32_t next_part(const struct replay_request *request, uint32_t done) {
    return request->n - done < PART_STEPS ? request->n - done : PART_STEPS;
}

static int open_part(struct client *client, struct replay_request *request, struct error *error) {
    struct stream *streams[PART_STEPS];
    uint32_t count = next_part(request, request->opened);
    struct resp_argument numbers = part_of(&client->argv[STREAMS], sizeof(uint32_t), request->opened, count);
    if (replay_streams_open(client, request->entry, &numbers, count, request->history, streams, error)) return -1;
    reservation_expect(request->reservation, count, streams);
    request->opened += count;
    return 0;
}

static int append_part(struct client *client, struct replay_request *request, struct error *error) {
    struct stream *streams[PART_STEPS];
    uint32_t first = request->entered, count = next_part(request, first);
    const struct resp_argument *flags = &client->argv[APPEND_FLAGS];
    struct resp_argument numbers = part_of(&client->argv[STREAMS], sizeof(uint32_t), first, count);
    if (replay_streams_find(client, request->entry, &numbers, count, streams, error)) return -1;
    table_append_part(request->entry->table, request->reservation, count, streams,
                      flags->length ? flags->data + first : NULL);
    request->entered += count;
    if (request->entered == request->n) request->reservation = NULL;
    return 0;
}

static void take_back(struct client *client, struct replay_request *request) {
    replay_streams_close_empty(client, request->entry);
    reservation_expect_nothing(request->reservation);
    request->opened = 0;
}

/* Whether items have still to leave, for steps that have entered or are to. */
static bool must_await_room(const struct client *client, const struct replay_request *request) {
    return client_may_block(client) && table_is_shrinking(request->entry->table);
}

/* What comes when all steps are in their places: streams are opened, the append begins, and the first part enters. As
 * next_piece. */
static int open_and_begin(struct client *client, struct replay_request *request, struct error *error) {
    bool in_parts = request->n > PART_STEPS;
    if (request->opened < request->n && open_part(client, request, error)) return -1;
    if (request->opened < request->n) return 0;
    if ((in_parts && request->entry->changers.length > 0) || replay_request_is_held_back(client)) return 1;
    int left = table_begin_append(request->entry->table, request->reservation, error);
    if (left) return left < 0 ? -1 : 0;
    request->begun = true;
    if (in_parts) replay_request_begin_parts(request);
    return append_part(client, request, error);
}

/* The next piece of the work: steps get slots, blocks are put into place, looked into, or made, streams are opened; then steps
 * enter. 1: not now; -1: refused. */
static int next_piece(struct client *client, struct replay_request *request, uint64_t deadline_us,
                      struct error *error) {
    const struct replay_registry *registry = client->server->replay->tables;
    if (replay_entry_missing(request->entry, error)) return -1;
    if (must_await_room(client, request)) return 1;
    if (request->begun) return request->entered < request->n ? append_part(client, request, error) : 0;
    if (request->behind_streams && registry->closed_count) return 1;
    request->behind_streams = false;
    int left = reservation_place_steps(request->reservation, error);
    if (left == 0) left = replay_columns_fill_coded(client, request, deadline_us, error);
    if (left == 0) left = reservation_code(request->reservation, deadline_us, error);
    if (left) return left < 0 ? -1 : 0;
    left = open_and_begin(client, request, error);
    if (left >= 0 || request->begun) return left;
    take_back(client, request);
    if (error->code != ERROR_LIMIT || registry->closed_count == 0) return -1;
    request->behind_streams = true; /* those that were closed may still be giving back what these need */
    return 1;
}

/* Replies when all steps have entered; false while there is more to do. */
static bool append_some(struct client *client, uint64_t deadline_us) {
    struct replay_request *request = client_state(client);
    struct error error = {.code = ERROR_NONE};
    int left = next_piece(client, request, deadline_us, &error);
    if (left > 0) slices_not_now(client);
    if (left < 0) {
        reply_failure(client, &error);
        return true;
    }
    if (request->begun) wait_queue_wake(client->server, &request->entry->adders); /* items may have left to make room */
    if (request->entered < request->n || must_await_room(client, request)) return false;
    reply_integer(client, request->n);
    return true;
}

static bool go_on(struct client *client) {
    do {
        if (append_some(client, 0)) return true;
    } while (!client->server->slices.not_now && slices_have_time(client));
    return false;
}

static bool is_small(const struct replay_request *request) {
    const struct table_config *config = table_config(request->entry->table);
    size_t step_bytes = 0;
    for (uint32_t i = 0; i < config->columns; i++)
        if (config->column[i].in_steps) step_bytes += config->column[i].item_bytes;
    bool codes = request->coded || config->codec != CODEC_NONE;
    return request->n <= PART_STEPS && (!codes || request->n * step_bytes <= AT_ONCE_BYTES);
}

void replay_append_command(struct client *client) {
    struct replay_request *request = replay_columns_or_reply(client, &append_form);
    if (request && (!is_small(request) || !append_some(client, CLOCK_NEVER))) slices_begin(client, go_on, NULL);
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

int replay_resolve_part(struct client *client, struct replay_request *request, struct error *error) {
    uint64_t steps[PART_STEPS];
    struct stream *streams[PART_STEPS];
    uint32_t first = request->done, count = next_part(request, first);
    struct resp_argument numbers = part_of(&client->argv[STREAMS], sizeof(uint32_t), first, count);
    memcpy(steps, client->argv[ITEM_STEPS].data + first * sizeof *steps, count * sizeof *steps);
    struct table_spans spans;
    if (replay_streams_find(client, request->entry, &numbers, count, streams, error) ||
        replay_columns_spans(client, request, &spans, error))
        return -1;
    int resolved =
        table_resolve_part(request->entry->table, request->reservation, count, streams, steps, &spans, error);
    if (resolved < 0) return -1;
    request->done += (uint32_t)resolved;
    return 0;
}

void replay_item_command(struct client *client) {
    struct error error = {.code = ERROR_NONE};
    struct replay_request *request = replay_columns_or_reply(client, &item_form);
    if (!request) return;
    if (replay_resolve_part(client, request, &error)) {
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

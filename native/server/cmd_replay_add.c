/* cmd_replay_add: REPLAY.ADD: its columns land in the slots they are for, it commits, or waits until it may. */
#include <inttypes.h>
#include <string.h>

#include "server/client.h"
#include "server/cmd_replay.h"
#include "server/replay_arguments.h"
#include "server/server.h"

static int bad_shape(const struct column *column, uint32_t n, size_t length, struct error *error) {
    struct text shape = {0};
    replay_describe_shape(column, &shape);
    error_set(error, ERROR_BADSHAPE,
              "column '%s': expected %" PRIu32 " items of %s, %zu bytes in all, got %zu bytes; nothing was "
              "stored",
              column->name, n, shape.data ? shape.data : "", column->item_bytes * n, length);
    text_free(&shape);
    return -1;
}

/* Copies priorities out of their argument, where they need not be aligned. NULL: none were given, or out of memory. */
static int copy_priorities(struct client *client, const struct resp_argument *argument, uint32_t n, size_t spare_bytes,
                           uint8_t **spare, double **priorities, struct error *error) {
    size_t bytes = (size_t)n * sizeof(double);
    if (argument->length && argument->length != bytes) {
        return error_set(error, ERROR_BADPRIORITY,
                         "expected %" PRIu32 " priorities as float64, %zu bytes, or none, got %zu bytes", n, bytes,
                         argument->length);
    }
    uint8_t *scratch = replay_registry_scratch(client->server->replay, bytes + spare_bytes);
    if (!scratch) {
        return error_set(error, ERROR_GENERIC, "out of memory for %" PRIu32 " priorities", n);
    }
    *priorities = NULL;
    if (argument->length) {
        memcpy(scratch, argument->data, bytes);
        *priorities = (double *)(void *)scratch;
    }
    *spare = scratch + bytes;
    return 0;
}

/* ---- header -------------------------------------------------------------------------------------------------------- */

static int add_syntax_error(struct error *error) {
    return error_set(error, ERROR_GENERIC,
                     "syntax error; expected REPLAY.ADD table n priorities [BLOCK ms] [INCARNATION i] COLUMNS k name "
                     "bytes …");
}

/* An option and its value. */
static int add_option(struct replay_request *request, const struct resp_argument *option, struct error *error) {
    if (argument_is(option, "block")) {
        return replay_parse_block(option + 1, request, error);
    }
    if (argument_is(option, "incarnation")) {
        return replay_check_incarnation(request->entry, option + 1, error);
    }
    return add_syntax_error(error);
}

/* table n priorities [BLOCK ms] [INCARNATION i] COLUMNS k …: everything before the first column's name. `arguments` holds the first
 * `available` of `count`; finding them all is the caller's business. Reserves the slots. */
static int add_header(struct client *client, struct replay_request *request, const struct resp_argument *arguments,
                      uint32_t available, uint32_t count, struct error *error) {
    struct replay_entry *entry = replay_find_entry(client, &arguments[1], error);
    if (!entry || replay_parse_count(&arguments[2], &request->n, error)) {
        return -1;
    }
    replay_request_set_entry(request, entry);
    if (table_has_windows(entry->table)) {
        return error_set(error, ERROR_BADSCHEMA,
                         "table '%s' has windows: its items are made from steps; use REPLAY.APPEND, then REPLAY.ITEM",
                         table_config(entry->table)->name);
    }
    double *priorities = NULL;
    uint8_t *spare = NULL;
    if (copy_priorities(client, &arguments[3], request->n, 0, &spare, &priorities, error) ||
        (priorities && table_check_priorities(entry->table, priorities, request->n, error))) {
        return -1;
    }
    uint32_t at = 4;
    for (; available > at + 1 && !argument_is(&arguments[at], "columns"); at += 2) {
        if (add_option(request, &arguments[at], error)) {
            return -1;
        }
    }
    int64_t columns;
    if (available < at + 2 || !argument_is(&arguments[at], "columns") ||
        !argument_int64(&arguments[at + 1], &columns)) {
        return add_syntax_error(error);
    }
    uint32_t expected = table_config(entry->table)->columns;
    if (columns != expected) {
        return error_set(error, ERROR_BADSCHEMA,
                         "table '%s' has %" PRIu32 " columns, and an ADD must give all of them; got %" PRId64,
                         table_config(entry->table)->name, expected, columns);
    }
    request->first_column = at + 2;
    if (count != request->first_column + 2 * expected) {
        return error_set(error, ERROR_GENERIC,
                         "syntax error; expected %" PRIu32 " names, each followed by its bytes, after COLUMNS",
                         expected);
    }
    if (table_can_add(entry->table, request->n, error)) {
        if (error->code == ERROR_LIMIT) {
            return -1;
        }
        error->code = ERROR_NONE; /* it may have to wait, which is for the commit to find */
    }
    request->reservation = table_reserve(entry->table, request->n, error);
    return request->reservation ? 0 : -1;
}

/* ---- landing ------------------------------------------------------------------------------------------------------- */

/* The column that the blob at argument `index` belongs to, if its size fits. */
static int add_column(const struct replay_request *request, const struct resp_argument *arguments, uint32_t index,
                      size_t length, uint32_t *column, struct error *error) {
    const struct table *table = request->entry->table;
    if (replay_find_column(table, &arguments[index - 1], column, error)) {
        return -1;
    }
    const struct column *expected = &table_config(table)->column[*column];
    if (request->landed & 1ull << *column) {
        return error_set(error, ERROR_BADSCHEMA, "column '%s' is given twice", expected->name);
    }
    return length == expected->item_bytes * request->n ? 0 : bad_shape(expected, request->n, length, error);
}

/* Puts the columns that came as ordinary arguments, from `from` up to `to`, into place. */
static int add_fill(struct replay_request *request, const struct resp_argument *arguments, uint32_t to,
                    struct error *error) {
    for (uint32_t index = request->first_column + 1; index < to; index += 2) {
        uint32_t column;
        if (!arguments[index].data) {
            continue; /* landed in its slots */
        }
        if (replay_find_column(request->entry->table, &arguments[index - 1], &column, error)) {
            return -1;
        }
        if (add_column(request, arguments, index, arguments[index].length, &column, error)) {
            return -1;
        }
        reservation_fill(request->reservation, column, arguments[index].data);
        request->landed |= 1ull << column;
    }
    uint32_t columns = table_config(request->entry->table)->columns;
    uint64_t all = UINT64_MAX >> (64 - columns);
    return request->landed == all ? 0
                                  : error_set(error, ERROR_GENERIC,
                                              "out of memory while a column's bytes came; nothing was "
                                              "stored, send the items again");
}

static int add_landing(struct replay_request *request, const struct resp_argument *arguments, uint32_t index,
                       size_t length, struct resp_landing *landing, struct error *error) {
    static const uint32_t one_piece[1] = {0};
    uint32_t column;
    if (index <= request->first_column || (index - request->first_column) % 2 == 0) {
        return error_set(error, ERROR_BADSCHEMA, "a column's name is expected where %zu bytes came", length);
    }
    if (replay_entry_missing(request->entry, error) || add_column(request, arguments, index, length, &column, error)) {
        return -1;
    }
    landing->kind = RESP_LAND_SCATTER;
    landing->item_bytes = table_config(request->entry->table)->column[column].item_bytes;
    reservation_landing(request->reservation, column, &landing->base, &landing->stride, &landing->slots);
    if (!landing->slots) { /* the staging area takes all items in one piece */
        landing->slots = one_piece;
        landing->item_bytes = landing->stride = length;
    }
    request->landed |= 1ull << column;
    return 0;
}

/* Asked where a large argument shall land. The header is checked when the first large column begins; whatever is wrong,
 * from there on the bytes are read and dropped, and the handler replies the error. */
void replay_add_land(void *context, const struct resp_argument *arguments, uint32_t index, uint32_t count,
                     size_t length, struct resp_landing *landing) {
    struct client *client = context;
    if (index < 4) {
        return; /* priorities of many items; anything else is refused by the handler */
    }
    struct replay_request *request = client_state(client);
    if (!request) {
        request = replay_request_new(client, client->server->replay, REPLAY_REQUEST_ADD);
        if (!request) {
            landing->kind = RESP_LAND_DISCARD; /* the handler finds bytes missing and says so */
            return;
        }
        request->error.code = ERROR_NONE;
        struct error error = {.code = ERROR_NONE};
        if (add_header(client, request, arguments, index, count, &error)) {
            request->error = error;
        }
    }
    struct error error = {.code = ERROR_NONE};
    if (request->error.code == ERROR_NONE && add_landing(request, arguments, index, length, landing, &error)) {
        request->error = error;
    }
    if (request->error.code != ERROR_NONE) {
        landing->kind = RESP_LAND_DISCARD;
        if (request->reservation) {
            reservation_release(request->reservation);
            request->reservation = NULL;
        }
    }
}

/* ---- committing and waiting ---------------------------------------------------------------------------------------- */

/* Commits and replies; false when it must wait. */
static bool add_attempt(struct client *client) {
    struct replay_request *request = client_state(client);
    struct replay_entry *entry = request->entry;
    uint32_t n = request->n;
    struct error error = {.code = ERROR_NONE};
    double *priorities = NULL;
    uint8_t *spare = NULL;
    if (replay_entry_missing(entry, &error) ||
        copy_priorities(client, &client->argv[3], n, n * sizeof(uint64_t), &spare, &priorities, &error)) {
        reply_failure(client, &error);
        return true;
    }
    uint64_t *ids = (uint64_t *)(void *)spare;
    if (table_commit(entry->table, request->reservation, priorities, ids, &error)) {
        if (error.code == ERROR_TIMEOUT && request->blocks) {
            return false;
        }
        reply_failure(client, &error);
        return true;
    }
    request->reservation = NULL;
    wait_queue_wake(client->server, &entry->samplers);
    reply_bulk(client, ids, n * sizeof *ids);
    return true;
}

static void add_expired(struct client *client) {
    const struct replay_request *request = client_state(client);
    struct error error;
    if (!replay_entry_missing(request->entry, &error) && !table_can_add(request->entry->table, request->n, &error)) {
        error_set(&error, ERROR_TIMEOUT, "waits behind other ADDs of table '%s'",
                  table_config(request->entry->table)->name);
    }
    reply_failure(client, &error);
}

void replay_add_command(struct client *client) {
    struct replay_request *request = client_state(client);
    struct error error = {.code = ERROR_NONE};
    if (!request) {
        request = replay_request_new(client, client->server->replay, REPLAY_REQUEST_ADD);
        if (!request) {
            reply_error(client, "ERR out of memory");
            return;
        }
        add_header(client, request, client->argv, client->argc, client->argc, &error);
    } else {
        error = request->error;
    }
    if (error.code == ERROR_NONE) {
        add_fill(request, client->argv, client->argc, &error);
    }
    if (error.code != ERROR_NONE) {
        reply_failure(client, &error);
        return;
    }
    struct wait_queue *queue = &request->entry->adders;
    if ((request->blocks && queue->length) || !add_attempt(client)) { /* those who wait already go first */
        client_block(client, queue, replay_block_deadline(request), add_attempt, add_expired);
    }
}

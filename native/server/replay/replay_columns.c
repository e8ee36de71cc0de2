/* replay_columns: checks the header of a request that brings columns, and lands them in the slots that they are for. */
#include "server/replay/replay_columns.h"

#include <inttypes.h>
#include <string.h>

#include "server/core/client.h"
#include "server/core/server.h"
#include "server/replay/replay_arguments.h"
#include "server/replay/replay_subsystem.h"

static const char *thing(const struct replay_request *request) {
    return request->kind == REPLAY_REQUEST_APPEND ? "steps" : "items";
}

#define PRIORITIES_AT_ONCE 256u

/* ---- priorities ---------------------------------------------------------------------------------------------------- */

static int replay_parse_priorities(const struct resp_argument *argument, uint32_t n, struct error *error) {
    size_t bytes = (size_t)n * sizeof(double);
    return argument->length == 0 || argument->length == bytes
               ? 0
               : error_set(error, ERROR_BADPRIORITY,
                           "expected %" PRIu32 " priorities as float64, %zu bytes, or none, got %zu bytes", n, bytes,
                           argument->length);
}

int replay_check_priorities(const struct table *table, const struct resp_argument *argument, uint32_t first,
                            uint32_t count, struct error *error) {
    double priorities[PRIORITIES_AT_ONCE];
    for (uint32_t done = 0, some; argument->length && done < count; done += some) {
        some = count - done < PRIORITIES_AT_ONCE ? count - done : PRIORITIES_AT_ONCE;
        memcpy(priorities, argument->data + (size_t)(first + done) * sizeof(double), some * sizeof(double));
        if (table_check_priorities(table, priorities, some, first + done, error)) return -1;
    }
    return 0;
}

int replay_check_initial_priorities(const struct replay_request *request, const struct resp_argument *argument,
                                    struct error *error) {
    uint32_t first = request->n < REPLAY_AT_ONCE_ITEMS ? request->n : REPLAY_AT_ONCE_ITEMS;
    if (replay_parse_priorities(argument, request->n, error)) return -1;
    return replay_check_priorities(request->entry->table, argument, 0, first, error);
}

/* ---- header -------------------------------------------------------------------------------------------------------- */

static int usage_error(const struct replay_form *form, struct error *error) {
    return error_set(error, ERROR_GENERIC, "syntax error; expected %s", form->usage);
}

static int take_history(struct replay_request *request, const struct resp_argument *argument, struct error *error) {
    int64_t history;
    if (!argument_int64(argument, &history) || history < 1 || history > STREAM_MAX_HISTORY) {
        return error_set(error, ERROR_GENERIC, "expected HISTORY with a number of steps from 1 to %u",
                         STREAM_MAX_HISTORY);
    }
    request->history = (uint32_t)history;
    return 0;
}

/* The option that stands at the first of `available` arguments; `taken`: how many belong to it. */
static int take_option(const struct replay_form *form, struct replay_request *request,
                       const struct resp_argument *option, uint32_t available, uint32_t *taken, struct error *error) {
    bool steps = form->kind == REPLAY_REQUEST_APPEND;
    *taken = 1;
    if (steps && argument_is(option, "coded")) {
        request->coded = true;
        return 0;
    }
    if (!steps && argument_is(option, "partial")) {
        request->partial = true;
        return 0;
    }
    *taken = 2;
    if (available < 2) return usage_error(form, error);
    if (argument_is(option, "incarnation")) return replay_check_incarnation(request->entry, option + 1, error);
    if (steps && argument_is(option, "history")) return take_history(request, option + 1, error);
    if (!steps && argument_is(option, "block")) return replay_parse_block(option + 1, request, error);
    return usage_error(form, error);
}

static int wrong_columns(const struct replay_form *form, const struct replay_request *request, int64_t columns,
                         struct error *error) {
    const struct table_config *config = table_config(request->entry->table);
    struct text names = {0};
    for (uint32_t i = 0; i < config->columns && names.length < 200; i++)
        if (column_set_has(&request->expected, i))
            text_append(&names, "%s%s", names.length ? ", " : "", config->column[i].name);
    static const char *const commands[] = {
        [REPLAY_REQUEST_ADD] = "an ADD", [REPLAY_REQUEST_APPEND] = "an APPEND", [REPLAY_REQUEST_ITEM] = "an ITEM"};
    error_set(error, ERROR_BADSCHEMA, "%s to table '%s' must give %" PRIu32 " columns (%s), got %" PRId64,
              commands[form->kind], config->name, column_set_count(&request->expected),
              names.data ? names.data : "none", columns);
    text_free(&names);
    return -1;
}

/* Everything before the first column's name. `arguments` holds the first `available` of `count`; finding them all is
 * the caller's business. Reserves the slots. */
static int take_header(struct client *client, const struct replay_form *form, struct replay_request *request,
                       const struct resp_argument *arguments, uint32_t available, uint32_t count, struct error *error) {
    struct replay_entry *entry = replay_find_entry(client, &arguments[1], error);
    if (!entry || replay_parse_count(&arguments[2], &request->n, error)) return -1;
    replay_request_set_entry(request, entry);
    if (form->check(request, arguments, error)) return -1;
    uint32_t at = form->options, taken = 0;
    for (; at < available && !argument_is(&arguments[at], "columns"); at += taken)
        if (take_option(form, request, &arguments[at], available - at, &taken, error)) return -1;
    int64_t columns;
    if (available < at + 2 || !argument_int64(&arguments[at + 1], &columns)) return usage_error(form, error);
    uint32_t expected = column_set_count(&request->expected);
    if (columns != expected) return wrong_columns(form, request, columns, error);
    request->first_column = at + 2;
    if (count != request->first_column + 2 * expected) {
        return error_set(error, ERROR_GENERIC,
                         "syntax error; expected %" PRIu32 " names, each followed by its bytes, after COLUMNS",
                         expected);
    }
    return form->reserve(request, error);
}

/* ---- columns ------------------------------------------------------------------------------------------------------- */

static int bad_shape(const struct replay_request *request, const struct column *column, size_t length,
                     struct error *error) {
    struct text shape = {0};
    replay_describe_shape(column, &shape);
    error_set(error, ERROR_BADSHAPE,
              "column '%s': expected %" PRIu32 " %s of %s, %zu bytes in all, got %zu bytes; nothing was "
              "stored",
              column->name, request->n, thing(request), shape.data ? shape.data : "", column->item_bytes * request->n,
              length);
    text_free(&shape);
    return -1;
}

static int misplaced(const struct replay_request *request, const struct column *column, struct error *error) {
    const char *place = column->kind == COLUMN_WINDOW
                            ? column_is_ragged(column) ? "is a ragged window: say which steps it shows with REPLAY.ITEM"
                                                       : "is a window: append its steps with REPLAY.APPEND"
                        : column->kind == COLUMN_STEP ? "belongs to steps: send it with REPLAY.APPEND"
                                                      : "belongs to items: send it with REPLAY.ITEM";
    return error_set(error, ERROR_BADSCHEMA, "column '%s' %s, and not with these %s", column->name, place,
                     thing(request));
}

/* int64 offsets[n + 1], then the rows. */
static int check_ragged(const struct replay_request *request, const struct column *column, size_t length,
                        struct error *error) {
    size_t head = (request->n + (size_t)1) * sizeof(int64_t);
    if (length >= head && (length - head) % column->row_bytes == 0) return 0;
    struct text shape = {0};
    replay_describe_shape(column, &shape);
    error_set(error, ERROR_BADSHAPE,
              "column '%s', %" PRIu32 " %s of %s: expected %" PRIu32 " offsets as int64, %zu bytes, and rows of %zu "
              "bytes behind them, got %zu bytes; nothing was stored",
              column->name, request->n, thing(request), shape.data ? shape.data : "", request->n + 1, head,
              column->row_bytes, length);
    text_free(&shape);
    return -1;
}

static int check_spans(const struct replay_request *request, const struct column *column, size_t length,
                       struct error *error) {
    size_t expected = request->n * sizeof(struct table_span);
    return length == expected
               ? 0
               : error_set(
                     error, ERROR_BADSHAPE,
                     "ragged window '%s' of %" PRIu32
                     " items: expected the first step and the number of steps of each as uint64, %zu bytes in all, "
                     "got %zu bytes; nothing was stored",
                     column->name, request->n, expected, length);
}

int replay_columns_spans(struct client *client, const struct replay_request *request, struct table_spans *spans,
                         struct error *error) {
    const struct table *table = request->entry->table;
    memset(spans, 0, sizeof *spans);
    for (uint32_t index = request->first_column; index + 1 < client->argc; index += 2) {
        uint32_t column;
        if (replay_find_column(table, &client->argv[index], &column, error)) return -1;
        if (column_is_ragged_window(&table_config(table)->column[column]))
            spans->of[column] = client->argv[index + 1].data;
    }
    return 0;
}

/* The column that the bytes at argument `index` belong to, if they are as many as they should be. */
static int take_column(const struct replay_request *request, const struct resp_argument *arguments, uint32_t index,
                       size_t length, uint32_t *column, struct error *error) {
    const struct table *table = request->entry->table;
    if (replay_find_column(table, &arguments[index - 1], column, error)) return -1;
    const struct column *given = &table_config(table)->column[*column];
    if (!column_set_has(&request->expected, *column)) return misplaced(request, given, error);
    if (column_set_has(&request->landed, *column))
        return error_set(error, ERROR_BADSCHEMA, "column '%s' is given twice", given->name);
    if (request->coded) return 0;
    if (column_is_ragged_window(given)) return check_spans(request, given, length, error);
    if (column_is_ragged(given)) return check_ragged(request, given, length, error);
    return length == given->item_bytes * request->n ? 0 : bad_shape(request, given, length, error);
}

/* uint32 sizes[n], then the blocks. */
static int check_coded(const struct replay_request *request, uint32_t column, const struct resp_argument *argument,
                       struct error *error) {
    size_t head = request->n * sizeof(uint32_t);
    return argument->length >= head
               ? 0
               : error_set(error, ERROR_BADSHAPE,
                           "column '%s': expected %" PRIu32
                           " sizes as uint32, %zu bytes, and the blocks behind them, got %zu bytes",
                           table_config(request->entry->table)->column[column].name, request->n, head,
                           argument->length);
}

int replay_columns_fill_coded(struct client *client, struct replay_request *request, uint64_t deadline_us,
                              struct error *error) {
    const struct table *table = request->entry->table;
    size_t head = request->n * sizeof(uint32_t);
    while (request->coded && request->to_fill < client->argc) {
        const struct resp_argument *argument = &client->argv[request->to_fill];
        uint32_t column;
        if (replay_find_column(table, argument - 1, &column, error)) return -1;
        int left = reservation_fill_coded(request->reservation, column, argument->data, argument->data + head,
                                          argument->length - head, deadline_us, error);
        if (left) return left;
        request->to_fill += 2;
        if (request->to_fill < client->argc && clock_monotonic_us() >= deadline_us) return 1;
    }
    return 0;
}

int replay_columns_fill_ragged(struct client *client, struct replay_request *request, uint64_t deadline_us,
                               struct error *error) {
    const struct table *table = request->entry->table;
    size_t head = (request->n + (size_t)1) * sizeof(int64_t);
    for (; request->to_fill < client->argc; request->to_fill += 2) {
        const struct resp_argument *argument = &client->argv[request->to_fill];
        uint32_t column;
        if (replay_find_column(table, argument - 1, &column, error)) return -1;
        const struct column *given = &table_config(table)->column[column];
        if (!column_is_ragged(given) || column_is_ragged_window(given)) continue;
        int left = reservation_fill_ragged(request->reservation, column, argument->data, argument->data + head,
                                           argument->length - head, deadline_us, error);
        if (left) return left;
    }
    request->ragged = false;
    return 0;
}

/* Puts the columns that came as ordinary arguments into place, but for blocks and rows, whose places depend on their sizes. */
static int fill(struct client *client, struct replay_request *request, struct error *error) {
    if (replay_entry_missing(request->entry, error)) return -1;
    request->to_fill = request->first_column + 1;
    for (uint32_t index = request->to_fill; index < client->argc; index += 2) {
        const struct resp_argument *argument = &client->argv[index];
        uint32_t column;
        if (!argument->data) continue; /* landed in its slots */
        if (take_column(request, client->argv, index, argument->length, &column, error) ||
            (request->coded && check_coded(request, column, argument, error))) {
            return -1;
        }
        const struct column *given = &table_config(request->entry->table)->column[column];
        bool ragged = column_is_ragged(given);
        request->ragged |= ragged && !column_is_ragged_window(given);
        if (!request->coded && !ragged) reservation_fill(request->reservation, column, argument->data);
        column_set_add(&request->landed, column);
    }
    return column_set_equals(&request->landed, &request->expected)
               ? 0
               : error_set(error, ERROR_GENERIC,
                           "out of memory while a column's bytes came; nothing was stored, send the %s again",
                           thing(request));
}

/* ---- landing ------------------------------------------------------------------------------------------------------- */

static int land(struct replay_request *request, const struct resp_argument *arguments, uint32_t index, size_t length,
                struct resp_landing *landing, struct error *error) {
    static const uint32_t one_piece[1] = {0};
    uint32_t column;
    if (index <= request->first_column || (index - request->first_column) % 2 == 0)
        return error_set(error, ERROR_BADSCHEMA, "expected the name of a column, got %zu bytes", length);
    if (replay_entry_missing(request->entry, error) || take_column(request, arguments, index, length, &column, error))
        return -1;
    const struct column *given = &table_config(request->entry->table)->column[column];
    if (request->coded || column_is_ragged(given))
        return 0; /* their places depend on their sizes: kept in one piece until all are here */
    landing->kind = RESP_LAND_SCATTER;
    landing->item_bytes = given->item_bytes;
    reservation_landing(request->reservation, column, &landing->base, &landing->stride, &landing->slots);
    if (!landing->slots) { /* the staging area takes all items in one piece */
        landing->slots = one_piece;
        landing->item_bytes = landing->stride = length;
    }
    column_set_add(&request->landed, column);
    return 0;
}

/* The header is checked when the first large column begins. */
void replay_columns_land(struct client *client, const struct replay_form *form, const struct resp_argument *arguments,
                         uint32_t index, uint32_t count, size_t length, struct resp_landing *landing) {
    if (index < form->options) return; /* numbers for many items; anything else is refused by the handler */
    struct replay_request *request = client_state(client);
    if (!request) {
        request = replay_request_new(client, client->server->replay->tables, form->kind);
        if (!request) {
            landing->kind = RESP_LAND_DISCARD; /* the handler finds bytes missing and says so */
            return;
        }
        request->error.code = ERROR_NONE;
        struct error error = {.code = ERROR_NONE};
        if (take_header(client, form, request, arguments, index, count, &error)) request->error = error;
    }
    struct error error = {.code = ERROR_NONE};
    if (request->error.code == ERROR_NONE && land(request, arguments, index, length, landing, &error))
        request->error = error;
    if (request->error.code != ERROR_NONE) {
        landing->kind = RESP_LAND_DISCARD;
        replay_request_release(request);
    }
}

struct replay_request *replay_columns_or_reply(struct client *client, const struct replay_form *form) {
    struct replay_request *request = client_state(client);
    struct error error = {.code = ERROR_NONE};
    if (!request) {
        request = replay_request_new(client, client->server->replay->tables, form->kind);
        if (!request) {
            reply_error(client, "ERR out of memory");
            return NULL;
        }
        take_header(client, form, request, client->argv, client->argc, client->argc, &error);
    } else {
        error = request->error;
    }
    if (error.code == ERROR_NONE && fill(client, request, &error) == 0) return request;
    reply_failure(client, &error);
    return NULL;
}

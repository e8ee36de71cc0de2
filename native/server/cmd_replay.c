/* cmd_replay: REPLAY.*: tables of experience. The protocol is written down in docs/protocol.md. */
#include <inttypes.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "server/client.h"
#include "server/command_table.h"
#include "server/replay_registry.h"
#include "server/server.h"

/* ---- arguments ----------------------------------------------------------------------------------------------------- */

static struct replay_entry *find_entry(struct client *client, const struct resp_argument *argument,
                                       struct error *error) {
    return replay_registry_find(client->server->replay, argument->data, argument->length, error);
}

/* The table named by argv[1], or NULL after replying the error. */
static struct replay_entry *entry_or_reply(struct client *client) {
    struct error error;
    struct replay_entry *entry = find_entry(client, &client->argv[1], &error);
    if (!entry) {
        reply_failure(client, &error);
    }
    return entry;
}

static int parse_count(const struct resp_argument *argument, uint32_t *n, struct error *error) {
    int64_t value;
    if (!argument_int64(argument, &value) || value < 1) {
        return error_set(error, ERROR_GENERIC, "expected a count of items, an integer of at least 1");
    }
    if (value > TABLE_MAX_BATCH) {
        return error_set(error, ERROR_LIMIT, "expected at most %u items at once, got %" PRId64, TABLE_MAX_BATCH, value);
    }
    *n = (uint32_t)value;
    return 0;
}

static int parse_block(const struct resp_argument *argument, struct replay_request *request, struct error *error) {
    int64_t value;
    if (!argument_int64(argument, &value) || value < 0 || value > INT64_MAX / 1000000) {
        return error_set(error, ERROR_GENERIC, "expected BLOCK with milliseconds, an integer >= 0 (0 = wait for ever)");
    }
    request->blocks = true;
    request->block_ms = value;
    return 0;
}

/* ids as uint64[n] in one argument; n from its length. The copy is aligned, and valid until the next use of scratch. */
static int parse_ids(const struct resp_argument *argument, uint32_t *n, struct error *error) {
    size_t count = argument->length / sizeof(uint64_t);
    if (argument->length % sizeof(uint64_t)) {
        return error_set(error, ERROR_BADSHAPE, "expected ids as uint64, 8 bytes each, got %zu bytes",
                         argument->length);
    }
    if (count > TABLE_MAX_BATCH) {
        return error_set(error, ERROR_LIMIT, "expected at most %u ids at once, got %zu", TABLE_MAX_BATCH, count);
    }
    *n = (uint32_t)count;
    return 0;
}

static void describe_shape(const struct column *column, struct text *text) {
    text_append(text, "%s [", column_type_name(column->type));
    for (uint32_t i = 0; i < column->dimensions; i++) {
        text_append(text, "%s%" PRIu64, i ? "," : "", column->shape[i]);
    }
    text_append(text, "]");
}

static int bad_shape(const struct column *column, uint32_t n, size_t length, struct error *error) {
    struct text shape = {0};
    describe_shape(column, &shape);
    error_set(error, ERROR_BADSHAPE,
              "column '%s': expected %" PRIu32 " items of %s, %zu bytes in all, got %zu bytes; nothing was "
              "stored",
              column->name, n, shape.data ? shape.data : "", column->item_bytes * n, length);
    text_free(&shape);
    return -1;
}

static int no_column(const struct table *table, const struct resp_argument *name, struct error *error) {
    struct text names = {0};
    const struct table_config *config = table_config(table);
    for (uint32_t i = 0; i < config->columns && names.length < 200; i++) {
        text_append(&names, "%s%s", i ? ", " : "", config->column[i].name);
    }
    int shown = name->length < 64 ? (int)name->length : 64;
    error_set(error, ERROR_BADSCHEMA, "table '%s' has no column '%.*s'; its columns are: %s", config->name,
              name->data ? shown : 0, name->data ? (const char *)name->data : "", names.data ? names.data : "");
    text_free(&names);
    return -1;
}

static int find_column(const struct table *table, const struct resp_argument *name, uint32_t *column,
                       struct error *error) {
    int index = name->data ? table_column_index(table, (const char *)name->data, name->length) : -1;
    *column = (uint32_t)index;
    return index < 0 ? no_column(table, name, error) : 0;
}

static uint64_t block_deadline(const struct replay_request *request) {
    return request->block_ms ? clock_monotonic_us() + (uint64_t)request->block_ms * 1000 : CLOCK_NEVER;
}

static void wake(struct client *client, struct wait_queue *queue) {
    if (queue->length) {
        wait_queue_wake(client->server, queue);
    }
}

/* ---- ADD ----------------------------------------------------------------------------------------------------------- */

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

/* table n priorities [BLOCK ms] COLUMNS k …: everything before the first column's name. `arguments` holds the first
 * `available` of `count`; finding them all is the caller's business. Reserves the slots. */
static int add_header(struct client *client, struct replay_request *request, const struct resp_argument *arguments,
                      uint32_t available, uint32_t count, struct error *error) {
    struct replay_entry *entry = find_entry(client, &arguments[1], error);
    if (!entry || parse_count(&arguments[2], &request->n, error)) {
        return -1;
    }
    replay_request_set_entry(request, entry);
    double *priorities = NULL;
    uint8_t *spare = NULL;
    if (copy_priorities(client, &arguments[3], request->n, 0, &spare, &priorities, error) ||
        (priorities && table_check_priorities(entry->table, priorities, request->n, error))) {
        return -1;
    }
    uint32_t at = 4;
    if (available > at + 1 && argument_is(&arguments[at], "block")) {
        if (parse_block(&arguments[at + 1], request, error)) {
            return -1;
        }
        at += 2;
    }
    int64_t columns;
    if (available < at + 2 || !argument_is(&arguments[at], "columns") ||
        !argument_int64(&arguments[at + 1], &columns)) {
        return error_set(error, ERROR_GENERIC,
                         "syntax error; expected REPLAY.ADD table n priorities [BLOCK ms] COLUMNS k name bytes …");
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

/* The column that the blob at argument `index` belongs to, if its size fits. */
static int add_column(const struct replay_request *request, const struct resp_argument *arguments, uint32_t index,
                      size_t length, uint32_t *column, struct error *error) {
    const struct table *table = request->entry->table;
    if (find_column(table, &arguments[index - 1], column, error)) {
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
        if (find_column(request->entry->table, &arguments[index - 1], &column, error)) {
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
static void add_land(void *context, const struct resp_argument *arguments, uint32_t index, uint32_t count,
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
    wake(client, &entry->samplers);
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

static void add_command(struct client *client) {
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
        client_block(client, queue, block_deadline(request), add_attempt, add_expired);
    }
}

/* ---- SAMPLE, GET --------------------------------------------------------------------------------------------------- */

/* COLUMNS k name …, the last option; without it all columns in the order of the signature. */
static int parse_columns(struct client *client, uint32_t at, struct replay_request *request, struct error *error) {
    const struct table *table = request->entry->table;
    int64_t count;
    if (client->argc < at + 2 || !argument_int64(&client->argv[at + 1], &count) || count != client->argc - at - 2) {
        return error_set(error, ERROR_GENERIC, "syntax error; expected COLUMNS k and k names at the end");
    }
    if (count > TABLE_MAX_COLUMNS) {
        return error_set(error, ERROR_LIMIT, "expected at most %d columns, got %" PRId64, TABLE_MAX_COLUMNS, count);
    }
    for (uint32_t i = 0; i < (uint32_t)count; i++) {
        uint32_t column;
        if (find_column(table, &client->argv[at + 2 + i], &column, error)) {
            return -1;
        }
        request->columns[i] = (uint8_t)column;
    }
    request->column_count = (uint32_t)count;
    return 0;
}

static void all_columns(struct replay_request *request) {
    request->column_count = table_config(request->entry->table)->columns;
    for (uint32_t i = 0; i < request->column_count; i++) {
        request->columns[i] = (uint8_t)i;
    }
}

/* Options of SAMPLE from argument 3 on. */
static int sample_options(struct client *client, struct replay_request *request, struct error *error) {
    all_columns(request);
    for (uint32_t at = 3; at < client->argc; at += 2) {
        const struct resp_argument *option = &client->argv[at];
        if (argument_is(option, "columns")) {
            return parse_columns(client, at, request, error);
        }
        if (at + 1 == client->argc) {
            return error_set(error, ERROR_GENERIC, "syntax error; expected [BETA b] [BLOCK ms] [COLUMNS k name …]");
        }
        if (argument_is(option, "beta")) {
            double beta;
            if (!argument_double(option + 1, &beta) || !(beta >= 0 && beta <= TABLE_MAX_EXPONENT)) {
                return error_set(error, ERROR_GENERIC, "expected BETA from 0 to %g", TABLE_MAX_EXPONENT);
            }
            request->beta = beta;
        } else if (argument_is(option, "block")) {
            if (parse_block(option + 1, request, error)) {
                return -1;
            }
        } else {
            return error_set(error, ERROR_GENERIC, "syntax error; expected [BETA b] [BLOCK ms] [COLUMNS k name …]");
        }
    }
    return 0;
}

/* Draws and replies; false when it must wait. Once a reply is being written the request may be gone (the client can be
 * closed for having too much output), so nothing of it is read from there on. */
static bool sample_attempt(struct client *client) {
    struct replay_request *request = client_state(client);
    struct replay_entry *entry = request->entry;
    struct error error = {.code = ERROR_NONE};
    if (replay_entry_missing(entry, &error) || table_can_sample(entry->table, request->n, &error)) {
        if (error.code == ERROR_TIMEOUT && request->blocks) {
            return false;
        }
        reply_failure(client, &error);
        return true;
    }
    if (replay_batch_allowed(entry, client, request->n, request->columns, request->column_count, &error)) {
        reply_failure(client, &error);
        return true;
    }
    struct replay_batch *batch = replay_batch_new(entry, client, request->n);
    if (!batch) {
        reply_error(client, "ERR out of memory for a batch of %" PRIu32, request->n);
        return true;
    }
    if (table_sample(entry->table, request->n, request->beta, batch->slots, batch->ids, batch->probabilities,
                     batch->weights, &error)) {
        reply_failure(client, &error);
        replay_batch_release(batch);
        return true;
    }
    uint8_t columns[TABLE_MAX_COLUMNS];
    memcpy(columns, request->columns, sizeof columns);
    wake(client, &entry->adders);
    replay_batch_reply(client, batch, columns, request->column_count);
    replay_batch_release(batch);
    return true;
}

static void sample_expired(struct client *client) {
    const struct replay_request *request = client_state(client);
    struct error error;
    if (!replay_entry_missing(request->entry, &error) && !table_can_sample(request->entry->table, request->n, &error)) {
        error_set(&error, ERROR_TIMEOUT, "waits behind other SAMPLEs of table '%s'",
                  table_config(request->entry->table)->name);
    }
    reply_failure(client, &error);
}

static void sample_command(struct client *client) {
    struct error error = {.code = ERROR_NONE};
    struct replay_entry *entry = entry_or_reply(client);
    if (!entry) {
        return;
    }
    struct replay_request *request = replay_request_new(client, client->server->replay, REPLAY_REQUEST_SAMPLE);
    if (!request) {
        reply_error(client, "ERR out of memory");
        return;
    }
    replay_request_set_entry(request, entry);
    if (parse_count(&client->argv[2], &request->n, &error) || sample_options(client, request, &error)) {
        reply_failure(client, &error);
        return;
    }
    if ((request->blocks && entry->samplers.length) || !sample_attempt(client)) {
        client_block(client, &entry->samplers, block_deadline(request), sample_attempt, sample_expired);
    }
}

/* The ids, aligned, in the registry's scratch; NULL after replying an error. */
static uint64_t *ids_or_reply(struct client *client, uint32_t *n, size_t spare_bytes) {
    struct error error;
    const struct resp_argument *argument = &client->argv[2];
    if (parse_ids(argument, n, &error)) {
        reply_failure(client, &error);
        return NULL;
    }
    uint64_t *ids = replay_registry_scratch(client->server->replay, argument->length + spare_bytes + 1);
    if (!ids) {
        reply_error(client, "ERR out of memory for %" PRIu32 " ids", *n);
        return NULL;
    }
    if (*n) {
        memcpy(ids, argument->data, argument->length);
    }
    return ids;
}

static void get_command(struct client *client) {
    struct error error = {.code = ERROR_NONE};
    struct replay_entry *entry = entry_or_reply(client);
    uint32_t n;
    uint64_t *ids = entry ? ids_or_reply(client, &n, 0) : NULL;
    if (!ids) {
        return;
    }
    struct replay_request request = {.entry = entry};
    all_columns(&request);
    if (client->argc > 3 && !argument_is(&client->argv[3], "columns")) {
        reply_syntax_error(client);
        return;
    }
    if ((client->argc > 3 && parse_columns(client, 3, &request, &error)) ||
        replay_batch_allowed(entry, client, n, request.columns, request.column_count, &error)) {
        reply_failure(client, &error);
        return;
    }
    struct replay_batch *batch = replay_batch_new(entry, client, n);
    if (!batch) {
        reply_error(client, "ERR out of memory for a batch of %" PRIu32, n);
        return;
    }
    if (table_get(entry->table, n, ids, batch->slots, batch->probabilities, &error)) {
        reply_failure(client, &error);
    } else {
        for (uint32_t i = 0; i < n; i++) {
            batch->ids[i] = ids[i];
            batch->weights[i] = 1;
        }
        replay_batch_reply(client, batch, request.columns, request.column_count);
    }
    replay_batch_release(batch);
}

/* ---- UPDATE, DEL --------------------------------------------------------------------------------------------------- */

static void update_command(struct client *client) {
    struct error error;
    struct replay_entry *entry = entry_or_reply(client);
    uint32_t n;
    uint64_t *ids = entry ? ids_or_reply(client, &n, client->argv[3].length) : NULL;
    if (!ids) {
        return;
    }
    if (client->argv[3].length != n * sizeof(double)) {
        reply_error(client,
                    "BADPRIORITY expected %" PRIu32 " priorities as float64, %zu bytes, one for each id, got %zu bytes",
                    n, n * sizeof(double), client->argv[3].length);
        return;
    }
    double *priorities = (double *)(void *)(ids + n);
    if (n) {
        memcpy(priorities, client->argv[3].data, n * sizeof(double));
    }
    uint64_t applied, stale;
    if (table_update(entry->table, n, ids, priorities, &applied, &stale, &error)) {
        reply_failure(client, &error);
        return;
    }
    wake(client, &entry->samplers); /* where all priorities were zero */
    reply_array(client, 2);
    reply_integer(client, (int64_t)applied);
    reply_integer(client, (int64_t)stale);
}

static void del_command(struct client *client) {
    struct replay_entry *entry = entry_or_reply(client);
    uint32_t n;
    uint64_t *ids = entry ? ids_or_reply(client, &n, 0) : NULL;
    if (!ids) {
        return;
    }
    uint64_t count = table_delete(entry->table, n, ids);
    wake(client, &entry->adders);
    wake(client, &entry->samplers);
    reply_integer(client, (int64_t)count);
}

/* ---- tables -------------------------------------------------------------------------------------------------------- */

static void create_command(struct client *client) {
    char name[TABLE_MAX_NAME + 1];
    struct error error;
    const struct resp_argument *argument = &client->argv[1], *spec = &client->argv[2];
    if (argument->length > TABLE_MAX_NAME || memchr(argument->data, 0, argument->length)) {
        reply_error(client, "BADSCHEMA name: expected 1 to %d bytes without blanks or control characters",
                    TABLE_MAX_NAME);
        return;
    }
    memcpy(name, argument->data, argument->length);
    name[argument->length] = 0;
    if (replay_registry_create_named(client->server->replay, name, spec->data, spec->length, &error)) {
        reply_failure(client, &error);
        return;
    }
    reply_status(client, "OK");
}

static void drop_command(struct client *client) {
    struct replay_entry *entry = entry_or_reply(client);
    if (entry) {
        replay_registry_drop(client->server->replay, entry);
        reply_status(client, "OK");
    }
}

static void reset_command(struct client *client) {
    struct replay_entry *entry = entry_or_reply(client);
    if (entry) {
        table_reset(entry->table);
        wake(client, &entry->adders);
        wake(client, &entry->samplers);
        reply_status(client, "OK");
    }
}

static void config_command(struct client *client) {
    struct error error;
    struct replay_entry *entry = entry_or_reply(client);
    if (!entry) {
        return;
    }
    if (table_configure(entry->table, client->argv[2].data, client->argv[2].length, &error)) {
        reply_failure(client, &error);
        return;
    }
    wake(client, &entry->adders);
    wake(client, &entry->samplers);
    reply_status(client, "OK");
}

static void spec_command(struct client *client) {
    struct error error;
    struct replay_entry *entry = entry_or_reply(client);
    if (!entry) {
        return;
    }
    uint8_t *spec;
    size_t length;
    if (table_config_write(table_config(entry->table), &spec, &length, &error)) {
        reply_failure(client, &error);
        return;
    }
    reply_bulk(client, spec, length);
    memory_free(spec);
}

static void list_command(struct client *client) {
    const struct replay_registry *registry = client->server->replay;
    reply_array(client, registry->count);
    for (const struct replay_entry *entry = registry->entries; entry; entry = entry->next) {
        reply_bulk_string(client, table_config(entry->table)->name);
    }
}

static void save_command(struct client *client) {
    reply_error(client, "ERR snapshots are not available in this version");
}

/* ---- INFO ---------------------------------------------------------------------------------------------------------- */

/* Why the client that waits longest waits, or why a single item would have to. Empty: it would not. */
static void waiting_reason(const struct replay_entry *entry, bool sampling, struct error *error) {
    const struct wait_queue *queue = sampling ? &entry->samplers : &entry->adders;
    const struct replay_request *head = queue->head ? client_state(queue->head) : NULL;
    uint32_t n = head ? head->n : 1;
    error->message[0] = 0;
    if (sampling) {
        table_can_sample(entry->table, n, error);
    } else {
        table_can_add(entry->table, n, error);
    }
}

static void describe_limiter(const struct table_config *config, struct text *text) {
    switch (config->limiter) {
    case LIMITER_MIN_SIZE:
        text_append(text, "min_size(min_size_to_sample=%" PRIu64 ")", config->min_size_to_sample);
        break;
    case LIMITER_SAMPLE_TO_INSERT_RATIO:
        text_append(text,
                    "sample_to_insert_ratio(samples_per_insert=%g,min_size_to_sample=%" PRIu64 ",error_buffer=%g)",
                    config->samples_per_insert, config->min_size_to_sample, config->error_buffer);
        break;
    case LIMITER_QUEUE: text_append(text, "queue(size=%" PRIu64 ")", config->queue_size); break;
    }
}

static void describe_sampler(const struct table_config *config, struct text *text) {
    static const char *const names[] = {"prioritized", "uniform", "fifo"};
    text_append(text, "%s", names[config->sampler]);
    if (config->sampler == SAMPLER_PRIORITIZED) {
        text_append(text, "(priority_exponent=%g)", config->priority_exponent);
    }
}

static void describe_signature(const struct table_config *config, struct text *text) {
    for (uint32_t i = 0; i < config->columns; i++) {
        text_append(text, "%s%s: ", i ? "; " : "", config->column[i].name);
        describe_shape(&config->column[i], text);
    }
}

static void reply_described(struct client *client, const char *key, const struct table_config *config,
                            void (*describe)(const struct table_config *, struct text *)) {
    struct text text = {0};
    describe(config, &text);
    reply_bulk_string(client, key);
    reply_bulk(client, text.data ? text.data : "", text.length);
    text_free(&text);
}

static void info_command(struct client *client) {
    const struct replay_entry *entry = entry_or_reply(client);
    if (!entry) {
        return;
    }
    const struct table_config *config = table_config(entry->table);
    struct table_info info;
    table_info(entry->table, &info);
    struct error reason, reason_add;
    waiting_reason(entry, true, &reason);
    waiting_reason(entry, false, &reason_add);
    const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {
        {"size", info.size},
        {"capacity", info.capacity},
        {"bytes", info.bytes},
        {"item_bytes", info.item_bytes},
        {"added", info.added},
        {"sampled", info.sampled},
        {"removed", info.removed},
        {"stale_updates", info.stale_updates},
        {"updates_applied", info.updates_applied},
        {"waiting", entry->adders.length + entry->samplers.length},
        {"waiting_add", entry->adders.length},
        {"waiting_sample", entry->samplers.length},
        {"pinned_slots", info.pinned_slots},
        {"reserved_slots", info.reserved_slots},
        {"free_slots", info.free_slots},
        {"retired_slots", info.retired_slots},
        {"max_times_sampled", config->max_times_sampled},
        {"max_bytes", config->max_bytes},
    };
    const size_t count = sizeof numbers / sizeof numbers[0];
    reply_map(client, count + 8);
    for (size_t i = 0; i < count; i++) {
        reply_bulk_string(client, numbers[i].key);
        reply_integer(client, (int64_t)numbers[i].value);
    }
    reply_bulk_string(client, "max_priority");
    reply_double(client, info.max_priority);
    reply_bulk_string(client, "total_priority");
    reply_double(client, info.total_priority);
    reply_bulk_string(client, "reason");
    reply_bulk_string(client, reason.message);
    reply_bulk_string(client, "reason_add");
    reply_bulk_string(client, reason_add.message);
    reply_described(client, "sampler", config, describe_sampler);
    reply_bulk_string(client, "remover");
    reply_bulk_string(client, "fifo");
    reply_described(client, "rate_limiter", config, describe_limiter);
    reply_described(client, "signature", config, describe_signature);
}

void replay_info(struct server *server, struct text *out) {
    const struct replay_registry *registry = server->replay;
    text_append(out, "# Replay\r\ntables:%" PRIu32 "\r\n", registry->count);
    text_append(out,
                "replay_max_tables:%u\r\nreplay_max_batch:%u\r\nreplay_table_pinned_limit:%u\r\nreplay_client_pinned_"
                "limit:%u\r\n",
                REPLAY_MAX_TABLES, TABLE_MAX_BATCH, REPLAY_TABLE_PINNED_LIMIT, REPLAY_CLIENT_PINNED_LIMIT);
    for (const struct replay_entry *entry = registry->entries; entry; entry = entry->next) {
        struct table_info info;
        table_info(entry->table, &info);
        text_append(out,
                    "table_%s:size=%" PRIu64 ",capacity=%" PRIu64 ",bytes=%" PRIu64 ",added=%" PRIu64
                    ",sampled=%" PRIu64 ",removed=%" PRIu64 ",stale_updates=%" PRIu64 ",waiting_add=%" PRIu32
                    ",waiting_sample=%" PRIu32 ",pinned_slots=%" PRIu64 ",reserved_slots=%" PRIu64 "\r\n",
                    table_config(entry->table)->name, info.size, info.capacity, info.bytes, info.added, info.sampled,
                    info.removed, info.stale_updates, entry->adders.length, entry->samplers.length, info.pinned_slots,
                    info.reserved_slots);
    }
}

const struct command commands_replay[] = {
    {"replay.create", create_command, 3, COMMAND_WRITE | COMMAND_DENYOOM, 0, 0, 0, "replay",
     "Creates a table from a msgpack spec; an identical one that exists is success.", NULL},
    {"replay.add", add_command, -8, COMMAND_WRITE | COMMAND_BLOCKING, 0, 0, 0, "replay",
     "Adds items column by column and returns their ids.", add_land},
    {"replay.sample", sample_command, -3, COMMAND_WRITE | COMMAND_BLOCKING, 0, 0, 0, "replay",
     "Draws items and returns ids, probabilities, weights and columns.", NULL},
    {"replay.update", update_command, 4, COMMAND_WRITE, 0, 0, 0, "replay",
     "Sets priorities by id; returns how many were applied and how many ids had left.", NULL},
    {"replay.get", get_command, -3, COMMAND_READONLY, 0, 0, 0, "replay",
     "Returns items by id, in the form of REPLAY.SAMPLE.", NULL},
    {"replay.del", del_command, 3, COMMAND_WRITE, 0, 0, 0, "replay",
     "Removes items by id and returns how many there were.", NULL},
    {"replay.info", info_command, 2, COMMAND_READONLY | COMMAND_FAST, 0, 0, 0, "replay",
     "Returns a table's state and why a client would have to wait.", NULL},
    {"replay.spec", spec_command, 2, COMMAND_READONLY | COMMAND_FAST, 0, 0, 0, "replay",
     "Returns a table's spec as msgpack.", NULL},
    {"replay.list", list_command, 1, COMMAND_READONLY | COMMAND_FAST, 0, 0, 0, "replay",
     "Returns the names of all tables.", NULL},
    {"replay.config", config_command, 3, COMMAND_WRITE, 0, 0, 0, "replay",
     "Changes rate_limiter, max_times_sampled or max_bytes of a table.", NULL},
    {"replay.reset", reset_command, 2, COMMAND_WRITE, 0, 0, 0, "replay", "Removes all items of a table.", NULL},
    {"replay.drop", drop_command, 2, COMMAND_WRITE, 0, 0, 0, "replay", "Removes a table; its waiters are told so.",
     NULL},
    {"replay.save", save_command, -1, COMMAND_WRITE | COMMAND_ADMIN, 0, 0, 0, "replay",
     "Not available in this version.", NULL},
    {0},
};

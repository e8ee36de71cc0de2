#include <inttypes.h>

#include "server/core/client.h"
#include "server/core/server.h"
#include "server/replay/replay_arguments.h"
#include "server/replay/replay_subsystem.h"

struct replay_entry *replay_find_entry(struct client *client, const struct resp_argument *argument,
                                       struct error *error) {
    return replay_registry_find(client->server->replay->tables, argument->data, argument->length, error);
}

struct replay_entry *replay_entry_or_reply(struct client *client) {
    struct error error;
    struct replay_entry *entry = replay_find_entry(client, &client->argv[1], &error);
    if (!entry) reply_failure(client, &error);
    return entry;
}

struct replay_request *replay_request_or_reply(struct client *client, enum replay_request_kind kind) {
    struct replay_entry *entry = replay_entry_or_reply(client);
    if (!entry) return NULL;
    struct replay_request *request = replay_request_new(client, client->server->replay->tables, kind);
    if (!request) {
        reply_error(client, "ERR out of memory");
        return NULL;
    }
    replay_request_set_entry(request, entry);
    return request;
}

int replay_parse_count(const struct resp_argument *argument, uint32_t *n, struct error *error) {
    int64_t value;
    if (!argument_int64(argument, &value) || value < 1)
        return error_set(error, ERROR_GENERIC, "expected a count of items, an integer of at least 1");
    if (value > TABLE_MAX_BATCH)
        return error_set(error, ERROR_LIMIT, "expected at most %u items at once, got %" PRId64, TABLE_MAX_BATCH, value);
    *n = (uint32_t)value;
    return 0;
}

int replay_parse_block(const struct resp_argument *argument, struct replay_request *request, struct error *error) {
    int64_t value;
    if (!argument_int64(argument, &value) || value < 0 || value > INT64_MAX / 1000000)
        return error_set(error, ERROR_GENERIC, "expected BLOCK with milliseconds, an integer >= 0 (0 = wait for ever)");
    request->blocks = true;
    request->block_ms = value;
    return 0;
}

int replay_check_incarnation(const struct replay_entry *entry, const struct resp_argument *argument,
                             struct error *error) {
    int64_t value;
    if (!argument_int64(argument, &value))
        return error_set(error, ERROR_GENERIC, "expected INCARNATION with the integer that REPLAY.SPEC shows");
    return (uint64_t)value == entry->incarnation
               ? 0
               : error_set(error, ERROR_BADSCHEMA,
                           "table '%s' was created again: expected INCARNATION %" PRIu64 ", got %" PRId64
                           "; read REPLAY.SPEC again",
                           table_config(entry->table)->name, entry->incarnation, value);
}

uint64_t replay_block_deadline(const struct replay_request *request) {
    return request->block_ms ? clock_monotonic_us() + (uint64_t)request->block_ms * 1000 : CLOCK_NEVER;
}

int replay_parse_ids(const struct resp_argument *argument, uint32_t *n, struct error *error) {
    size_t count = argument->length / sizeof(uint64_t);
    if (argument->length % sizeof(uint64_t)) {
        return error_set(error, ERROR_BADSHAPE, "expected ids as uint64, 8 bytes each, got %zu bytes",
                         argument->length);
    }
    if (count > TABLE_MAX_BATCH)
        return error_set(error, ERROR_LIMIT, "expected at most %u ids at once, got %zu", TABLE_MAX_BATCH, count);
    *n = (uint32_t)count;
    return 0;
}

bool names_within_or_reply(struct client *client, uint32_t first, uint32_t most, const char *what) {
    uint32_t count = client->argc - first;
    if (count <= most || client->server->loading || client->is_primary) return true;
    reply_error(client, "LIMIT expected at most %" PRIu32 " %s in one request, got %" PRIu32, most, what, count);
    return false;
}

void replay_describe_shape(const struct column *column, struct text *text) {
    char dtype[COLUMN_DTYPE_ROOM];
    text_append(text, "%s [", column_dtype(column, dtype));
    bool ragged = column_is_ragged(column);
    if (ragged) text_append(text, "0..%" PRIu32, column->max_length);
    for (uint32_t i = ragged; i < column->dimensions; i++)
        text_append(text, "%s%" PRIu64, i ? "," : "", column->shape[i]);
    text_append(text, "]");
}

static int no_column(const struct table *table, const struct resp_argument *name, struct error *error) {
    struct text names = {0};
    const struct table_config *config = table_config(table);
    for (uint32_t i = 0; i < config->columns && names.length < 200; i++)
        text_append(&names, "%s%s", i ? ", " : "", config->column[i].name);
    int shown = name->length < 64 ? (int)name->length : 64;
    error_set(error, ERROR_BADSCHEMA, "table '%s' has no column '%.*s'; its columns are: %s", config->name,
              name->data ? shown : 0, name->data ? (const char *)name->data : "", names.data ? names.data : "");
    text_free(&names);
    return -1;
}

int replay_find_column(const struct table *table, const struct resp_argument *name, uint32_t *column,
                       struct error *error) {
    int index = name->data ? table_column_index(table, (const char *)name->data, name->length) : -1;
    *column = (uint32_t)index;
    return index < 0 ? no_column(table, name, error) : 0;
}

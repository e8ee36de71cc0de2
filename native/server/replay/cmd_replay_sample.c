/* cmd_replay_sample: REPLAY.SAMPLE, which draws items or waits until it may, and REPLAY.GET, which names them by id. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "server/core/client.h"
#include "server/core/server.h"
#include "server/replay/cmd_replay.h"
#include "server/replay/replay_arguments.h"
#include "server/replay/replay_coded.h"
#include "server/replay/replay_cold.h"
#include "server/replay/replay_large_batch.h"
#include "server/replay/replay_subsystem.h"

/* ---- columns ------------------------------------------------------------------------------------------------------- */

/* COLUMNS k name …, the last option; without it all columns in the order of the signature. */
static int parse_columns(struct client *client, uint32_t at, struct replay_request *request, struct error *error) {
    const struct table *table = request->entry->table;
    int64_t count;
    if (client->argc < at + 2 || !argument_int64(&client->argv[at + 1], &count) || count != client->argc - at - 2)
        return error_set(error, ERROR_GENERIC, "syntax error; expected COLUMNS k and k names at the end");
    if (count > TABLE_MAX_COLUMNS)
        return error_set(error, ERROR_LIMIT, "expected at most %d columns, got %" PRId64, TABLE_MAX_COLUMNS, count);
    for (uint32_t i = 0; i < (uint32_t)count; i++) {
        uint32_t column;
        if (replay_find_column(table, &client->argv[at + 2 + i], &column, error)) return -1;
        if (table_config(table)->column[column].kind == COLUMN_STEP) {
            return error_set(error, ERROR_BADSCHEMA, "column '%s' belongs to steps; items show it only through windows",
                             table_config(table)->column[column].name);
        }
        request->columns[i] = (uint8_t)column;
    }
    request->column_count = (uint32_t)count;
    return 0;
}

static void all_columns(struct replay_request *request) {
    const struct table_config *config = table_config(request->entry->table);
    request->column_count = 0;
    for (uint32_t i = 0; i < config->columns; i++)
        if (config->column[i].kind != COLUMN_STEP) request->columns[request->column_count++] = (uint8_t)i;
}

/* Once a reply is being written the request may be gone (the client can be closed for having too much output): nothing of
 * it is read from there on. */
static void reply(struct client *client, const struct replay_request *request, struct replay_batch *batch) {
    uint8_t columns[TABLE_MAX_COLUMNS];
    uint32_t column_count = request->column_count;
    memcpy(columns, request->columns, sizeof columns);
    if (!request->coded) {
        replay_batch_reply(client, batch, columns, column_count, NULL, NULL);
        return;
    }
    struct replay_coded coded;
    replay_batch_pin(batch);
    if (!replay_coded_begin(&coded, batch, columns, column_count)) {
        reply_error(client, "ERR out of memory for a batch of %" PRIu32, batch->n);
        return;
    }
    while (replay_coded_find_some(&coded)) {
    }
    replay_coded_reply(client, &coded, NULL);
}

/* Options that stand alone. */
static bool take_flag(struct replay_request *request, const struct resp_argument *option) {
    bool coded = argument_is(option, "coded"), shared = argument_is(option, "shared");
    bool detailed = argument_is(option, "details");
    request->coded |= coded;
    request->shared |= shared;
    request->detailed |= detailed;
    return coded || shared || detailed;
}

/* ---- SAMPLE -------------------------------------------------------------------------------------------------------- */

static const char sample_usage[] =
    "syntax error; expected [BETA b] [BLOCK ms] [REPLACE 0|1] [POLICY_VERSION v] [INCARNATION i] [SHARED] "
    "[CODED] [DETAILS] [TIMED t0 t1] [UNUSED u] [COLUMNS k name …]";

/* Items that are too old for it leave even if the sample is refused. */
static int see_version(struct replay_entry *entry, const struct resp_argument *argument, struct error *error) {
    int64_t version;
    if (!argument_int64(argument, &version))
        return error_set(error, ERROR_GENERIC, "expected POLICY_VERSION with an integer of 64 bits");
    if (table_see_version(entry->table, version, error)) return -1;
    wait_queue_wake(entry->registry->server, &entry->adders);
    return 0;
}

/* An option of SAMPLE and its value. */
static int sample_option(struct replay_request *request, const struct resp_argument *option, struct error *error) {
    if (argument_is(option, "beta")) {
        double beta;
        if (!argument_double(option + 1, &beta) || !(beta >= 0 && beta <= TABLE_MAX_EXPONENT))
            return error_set(error, ERROR_GENERIC, "expected BETA from 0 to %g", TABLE_MAX_EXPONENT);
        request->beta = beta;
        return 0;
    }
    if (argument_is(option, "block")) return replay_parse_block(option + 1, request, error);
    if (argument_is(option, "replace")) {
        int64_t replace;
        if (!argument_int64(option + 1, &replace) || (replace != 0 && replace != 1))
            return error_set(error, ERROR_GENERIC, "expected REPLACE 0 (no item twice in the batch) or 1");
        request->replace = replace;
        return 0;
    }
    if (argument_is(option, "unused")) {
        if (!argument_int64(option + 1, &request->unused) || request->unused < 0)
            return error_set(error, ERROR_GENERIC, "expected UNUSED with how many draws were left over");
        if (request->unused > REPLAY_MOST_UNUSED)
            return error_set(error, ERROR_LIMIT, "UNUSED: expected at most %u draws that were left over, got %" PRId64,
                             REPLAY_MOST_UNUSED, request->unused);
        return 0;
    }
    if (argument_is(option, "policy_version")) return see_version(request->entry, option + 1, error);
    if (argument_is(option, "incarnation")) return replay_check_incarnation(request->entry, option + 1, error);
    return error_set(error, ERROR_GENERIC, "%s", sample_usage);
}

/* TIMED and its two times. */
static int parse_times(struct client *client, uint32_t at, struct replay_request *request, struct error *error) {
    if (at + 2 >= client->argc || !argument_double(&client->argv[at + 1], &request->from) ||
        !argument_double(&client->argv[at + 2], &request->to) || !isfinite(request->to) ||
        !(request->from >= 0 && request->from < request->to)) {
        return error_set(error, ERROR_GENERIC, "expected TIMED with two finite times, 0 <= t0 < t1");
    }
    request->timed = true;
    return 0;
}

/* What TIMED does not go with. */
static int check_timed(const struct replay_request *request, struct error *error) {
    if (!request->timed)
        return request->unused ? error_set(error, ERROR_GENERIC, "expected UNUSED beside TIMED alone") : 0;
    if (request->beta > 0)
        return error_set(
            error, ERROR_GENERIC,
            "TIMED: expected no BETA: weights depend on the samples of all shards, so the client that merges "
            "them computes the weights");
    if (request->n > REPLAY_CLIENT_PINNED_LIMIT)
        return error_set(error, ERROR_LIMIT,
                         "TIMED: expected at most %u items at once, got %" PRIu32
                         "; ask again from where the answer is complete",
                         REPLAY_CLIENT_PINNED_LIMIT, request->n);
    return 0;
}

/* Options of SAMPLE from argument 3 on. */
static int sample_options(struct client *client, struct replay_request *request, struct error *error) {
    all_columns(request);
    request->replace = true;
    for (uint32_t at = 3; at < client->argc; at += 2) {
        if (take_flag(request, &client->argv[at])) {
            at--;
            continue;
        }
        if (argument_is(&client->argv[at], "timed")) {
            if (parse_times(client, at++, request, error)) return -1;
            continue;
        }
        if (argument_is(&client->argv[at], "columns"))
            return parse_columns(client, at, request, error) ? -1 : check_timed(request, error);
        if (at + 1 == client->argc) return error_set(error, ERROR_GENERIC, "%s", sample_usage);
        if (sample_option(request, &client->argv[at], error)) return -1;
    }
    return check_timed(request, error);
}

static bool can_sample(const struct replay_request *request, struct error *error) {
    const struct table *table = request->entry->table;
    return request->timed ? table_can_sample_timed(table, request->n, error)
                          : table_can_sample(table, request->n, request->replace, error);
}

/* As many items as the request asks for or, where they are timed, as have come. */
static int draw(struct replay_request *request, struct replay_batch *batch, struct error *error) {
    struct table *table = request->entry->table;
    if (!request->timed) {
        return table_sample(table, request->n, request->beta, request->replace, batch->slots, batch->ids,
                            batch->probabilities, batch->weights, batch->details, error);
    }
    if (request->unused) table_not_used(table, (uint64_t)request->unused);
    batch->timed = true;
    batch->n = table_sample_timed(table, request->n, request->from, request->to, request->replace, batch->slots,
                                  batch->ids, batch->probabilities, batch->times, batch->details, &batch->arrivals);
    request->n = batch->n;
    return 0;
}

/* Whether so many items are drawn in parts. Others are not drawn in parts, but their columns may be copied so. */
static bool is_drawn_in_parts(const struct replay_request *request) {
    return request->n > REPLAY_CLIENT_PINNED_LIMIT && !request->coded && !request->timed &&
           table_samples_in_parts(request->entry->table, request->replace);
}

/* A batch of a table on disk stays pinned while what it lacks is read, and one that is not drawn in parts as a whole. */
static bool may_wait_for_disk(const struct replay_request *request, struct error *error) {
    const struct table_config *config = table_config(request->entry->table);
    return config->storage == STORAGE_DISK && request->n > REPLAY_CLIENT_PINNED_LIMIT && !is_drawn_in_parts(request)
               ? error_because(error, ERROR_LIMIT,
                               "expected a sample of at most %u items of table '%s', which is on disk, got %" PRIu32
                               "; sample fewer at once, or with replacement",
                               REPLAY_CLIENT_PINNED_LIMIT, config->name, request->n)
               : true;
}

/* A change that waits until no batch is amid its parts goes first. */
static bool lets_change_first(const struct replay_request *request, struct error *error) {
    const struct replay_entry *entry = request->entry;
    return is_drawn_in_parts(request) && entry->changers.length
               ? error_because(error, ERROR_TIMEOUT, "waits behind a change of table '%s'",
                               table_config(entry->table)->name)
               : true;
}

/* Its items stay pinned meanwhile: where too many are, all is copied at once. */
static bool is_made_in_parts(const struct replay_request *request, const struct client *client) {
    bool is_long = replay_copied_bytes(request, request->n) > REPLAY_PART_BYTES ||
                   (request->coded && replay_coded_places(request) > REPLAY_CODED_AT_ONCE);
    return is_long && request->n <= REPLAY_CLIENT_PINNED_LIMIT && replay_may_stay_pinned(request, client);
}

/* What a batch that was drawn comes to: a reply, or slices that make one. Takes the batch over. */
static void finish(struct client *client, struct replay_request *request, struct replay_batch *batch) {
    if (request->shared && !request->coded && replay_share_batch(client, request, batch)) return;
    if (!request->entry->followed && is_made_in_parts(request, client)) {
        replay_make_in_parts(client, request, batch);
        return;
    }
    reply(client, request, batch);
    replay_batch_release(batch);
}

static void reply_at_once(struct client *client, struct replay_request *request, struct replay_batch *batch) {
    reply(client, request, batch);
    replay_batch_release(batch);
}

static const struct replay_cold_ways ways = {.finish = finish, .at_once = reply_at_once};

/* Draws and replies; false when it must wait. */
static bool sample_attempt(struct client *client) {
    struct replay_request *request = client_state(client);
    struct replay_entry *entry = request->entry;
    struct error error = {.code = ERROR_NONE};
    if (replay_entry_missing(entry, &error) || !may_wait_for_disk(request, &error) || !can_sample(request, &error) ||
        !replay_batch_allowed(request, client, &error) || !lets_change_first(request, &error)) {
        if (error.code == ERROR_TIMEOUT && request->blocks) return false;
        reply_failure(client, &error);
        return true;
    }
    if (replay_request_is_held_back(client)) return false;
    if (is_drawn_in_parts(request)) {
        replay_sample_in_parts(client, request);
        return true;
    }
    struct replay_batch *batch = replay_batch_new(request, client);
    if (!batch) {
        reply_error(client, "ERR out of memory for a batch of %" PRIu32, request->n);
        return true;
    }
    if (draw(request, batch, &error)) {
        reply_failure(client, &error);
        replay_batch_release(batch);
        return true;
    }
    wait_queue_wake(client->server, &entry->adders);
    if (!replay_cold_wait(client, request, batch, &ways)) finish(client, request, batch);
    return true;
}

static void sample_expired(struct client *client) {
    const struct replay_request *request = client_state(client);
    struct error error;
    if (!replay_entry_missing(request->entry, &error) && can_sample(request, &error) &&
        replay_batch_allowed(request, client, &error)) {
        replay_request_say_wait(client, "SAMPLEs", &error);
    }
    reply_failure(client, &error);
}

void replay_sample_command(struct client *client) {
    struct error error = {.code = ERROR_NONE};
    struct replay_request *request = replay_request_or_reply(client, REPLAY_REQUEST_SAMPLE);
    if (!request) return;
    if (replay_parse_count(&client->argv[2], &request->n, &error) || sample_options(client, request, &error)) {
        reply_failure(client, &error);
        return;
    }
    struct wait_queue *queue = &request->entry->samplers;
    if ((request->blocks && queue->length) || !sample_attempt(client))
        client_block(client, queue, replay_block_deadline(request), sample_attempt, sample_expired);
}

/* ---- GET ----------------------------------------------------------------------------------------------------------- */

/* Options of GET from argument 3 on. */
static int get_options(struct client *client, struct replay_request *request, struct error *error) {
    all_columns(request);
    for (uint32_t at = 3; at < client->argc; at += 2) {
        const struct resp_argument *option = &client->argv[at];
        if (argument_is(option, "coded")) {
            request->coded = true;
            at--;
            continue;
        }
        if (argument_is(option, "columns")) return parse_columns(client, at, request, error);
        if (at + 1 == client->argc || !argument_is(option, "incarnation"))
            return error_set(error, ERROR_GENERIC, "syntax error; expected [INCARNATION i] [CODED] [COLUMNS k name …]");
        if (replay_check_incarnation(request->entry, option + 1, error)) return -1;
    }
    return 0;
}

static void get_at_once(struct client *client, struct replay_request *request) {
    struct replay_entry *entry = request->entry;
    struct error error = {.code = ERROR_NONE};
    uint32_t n = request->n;
    struct replay_batch *batch = replay_batch_new(request, client);
    if (!batch) {
        reply_error(client, "ERR out of memory for a batch of %" PRIu32, n);
        return;
    }
    if (n) memcpy(batch->ids, client->argv[2].data, n * sizeof *batch->ids);
    if (table_get(entry->table, n, batch->ids, 0, batch->slots, batch->probabilities, &error)) {
        reply_failure(client, &error);
        replay_batch_release(batch);
        return;
    }
    if (replay_follower_copies_many_rows(request, batch)) {
        table_unpin(entry->table, batch->slots, n);
        replay_batch_release(batch);
        replay_get_in_parts(client, request);
        return;
    }
    for (uint32_t i = 0; i < n; i++) batch->weights[i] = 1;
    if (!replay_cold_wait(client, request, batch, &ways)) finish(client, request, batch);
}

/* The items of a table that follows a primary's are copied: none may stay pinned. */
static bool may_get(const struct replay_request *request, struct error *error) {
    if (!request->coded || !request->entry->followed) return true;
    error_set(error, ERROR_GENERIC, "a replica does not answer GET with CODED; leave CODED out, or ask the primary");
    return false;
}

void replay_get_command(struct client *client) {
    struct error error = {.code = ERROR_NONE};
    struct replay_request *request = replay_request_or_reply(client, REPLAY_REQUEST_GET);
    if (!request) return;
    if (replay_parse_ids(&client->argv[2], &request->n, &error) || get_options(client, request, &error) ||
        !replay_batch_allowed(request, client, &error) || !may_get(request, &error))
        reply_failure(client, &error);
    else if ((request->n > REPLAY_CLIENT_PINNED_LIMIT && !request->coded) || replay_follower_gets_in_parts(request))
        replay_get_in_parts(client, request);
    else
        get_at_once(client, request);
}

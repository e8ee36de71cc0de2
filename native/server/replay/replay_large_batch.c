/* replay_large_batch: large batches, drawn and copied out in parts.
 *
 * Why a batch may be drawn in parts: each part is sampled from the table as it is at that time, with its probabilities.
 * Importance weights use these probabilities, and the least over all parts. The limiter counts all draws before the first
 * part, so nobody else is let through in their place. Others may remove items between two parts. If too few are left, the
 * sample is refused, and the draws that were not made are given back. */
#include "server/replay/replay_large_batch.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "server/core/client.h"
#include "server/core/server.h"
#include "server/core/slices.h"
#include "server/replay/replay_coded.h"
#include "server/replay/replay_cold.h"
#include "server/replay/replay_ragged.h"
#include "server/replay/replay_source.h"

#define PART_ITEMS REPLAY_AT_ONCE_ITEMS

struct replay_parts {
    struct replay_batch *batch; /* was drawn before, and is pinned; NULL: parts are drawn, or found by id */
    struct replay_coded *coded; /* of such a batch, whose windows go as compressed steps; NULL: they do not */
    bool by_id;
    uint32_t done; /* items that are copied */
    uint32_t counted; /* items whose rows are, of ragged columns that are copied */
    int64_t *offsets[TABLE_MAX_COLUMNS]; /* of such columns: where the rows of each item begin, and the last end */
    uint32_t taken; /* of a part whose items are pinned and not copied */
    uint32_t slots[PART_ITEMS]; /* theirs */
    struct cold_read *read; /* brings them into memory; NULL: they are there */
    uint32_t weighed;
    double least; /* probability of those that were drawn */
    struct blob *ids, *probabilities, *weights, *details; /* without a batch; details: NULL unless asked for */
    struct blob *copied[TABLE_MAX_COLUMNS]; /* by their places among the columns asked for; NULL: sent from the slots */
};

/* A table that follows a primary's may keep no slot pinned. */
static bool is_copied(const struct replay_request *request, const struct column *column, uint32_t n) {
    return request->entry->followed || !replay_column_is_sent_from_slots(column, n);
}

size_t replay_copied_bytes(const struct replay_request *request, uint32_t n) {
    const struct table_config *config = table_config(request->entry->table);
    size_t bytes = 0;
    for (uint32_t i = 0; i < request->column_count; i++) {
        const struct column *column = &config->column[request->columns[i]];
        if ((request->coded && replay_goes_coded(column)) || column_is_ragged(column)) continue;
        if (is_copied(request, column, n)) bytes += column->item_bytes * n;
    }
    return bytes;
}

static void free_columns(struct replay_parts *parts, uint32_t column_count) {
    for (uint32_t i = 0; i < column_count; i++) {
        blob_release(parts->copied[i]);
        memory_free(parts->offsets[i]);
    }
}

void replay_parts_drop(struct replay_request *request) {
    struct replay_parts *parts = request->parts;
    if (!parts) return;
    request->parts = NULL;
    if (!parts->batch && !parts->by_id && request->begun)
        table_end_sample(request->entry->table, request->n - parts->done - parts->taken);
    cold_read_drop(parts->read);
    table_unpin(request->entry->table, parts->slots, parts->taken);
    if (parts->batch) replay_batch_release(parts->batch);
    blob_release(parts->ids);
    blob_release(parts->probabilities);
    blob_release(parts->weights);
    blob_release(parts->details);
    free_columns(parts, request->column_count);
    memory_free(parts->coded);
    memory_free(parts);
}

/* From here on the columns asked for are those that go as they are. */
static bool take_coded(struct replay_request *request) {
    struct replay_parts *parts = request->parts;
    parts->coded = memory_alloc(sizeof *parts->coded);
    if (!parts->coded || !replay_coded_begin(parts->coded, parts->batch, request->columns, request->column_count))
        return false;
    request->column_count = parts->coded->items;
    memcpy(request->columns, parts->coded->item, parts->coded->items * sizeof *request->columns);
    return true;
}

/* Places for all that is copied. */
static int take_memory(struct replay_request *request, struct replay_batch *batch, struct error *error) {
    const struct table_config *config = table_config(request->entry->table);
    struct replay_parts *parts = request->parts = memory_calloc(1, sizeof *parts);
    size_t n = request->n;
    bool failed = !parts;
    if (parts) {
        parts->batch = batch;
        parts->least = INFINITY;
    }
    if (parts && !batch) {
        failed |= !(parts->ids = blob_new(n * sizeof(uint64_t)));
        failed |= !(parts->probabilities = blob_new(n * sizeof(double)));
        failed |= !(parts->weights = blob_new(n * sizeof(float)));
        if (request->detailed) failed |= !(parts->details = blob_new(n * sizeof(struct table_detail)));
    }
    if (parts && batch && request->coded) failed |= !take_coded(request);
    for (uint32_t i = 0; !failed && i < request->column_count; i++) {
        const struct column *column = &config->column[request->columns[i]];
        if (!is_copied(request, column, request->n)) continue;
        if (column_is_ragged(column))
            failed = !(parts->offsets[i] = memory_calloc(n + 1, sizeof *parts->offsets[i]));
        else
            failed = !(parts->copied[i] = blob_new(column->item_bytes * n));
    }
    return failed ? error_set(error, ERROR_GENERIC, "out of memory for a batch of %zu", n) : 0;
}

/* What the rows of the next items take, in all ragged columns that are copied. */
static size_t next_rows_bytes(const struct replay_request *request, uint32_t items) {
    const struct table_config *config = table_config(request->entry->table);
    size_t bytes = 0;
    for (uint32_t i = 0; i < request->column_count; i++) {
        const int64_t *offsets = request->parts->offsets[i];
        if (!offsets) continue;
        offsets += request->parts->done;
        bytes += (size_t)(offsets[items] - offsets[0]) * config->column[request->columns[i]].row_bytes;
    }
    return bytes;
}

/* Which columns are copied was decided before the first part: the table may have become this server's own since. */
static uint32_t next_part(const struct replay_request *request) {
    const struct table_config *config = table_config(request->entry->table);
    size_t item_bytes = 0;
    for (uint32_t i = 0; i < request->column_count; i++) {
        bool is_fixed = request->parts->copied[i] && !request->parts->offsets[i];
        if (is_fixed) item_bytes += config->column[request->columns[i]].item_bytes;
    }
    uint32_t left = request->n - request->parts->done, most = PART_ITEMS;
    if (item_bytes * PART_ITEMS > REPLAY_PART_BYTES) most = (uint32_t)(REPLAY_PART_BYTES / item_bytes) + 1;
    if (most > left) most = left;
    while (most > 1 && next_rows_bytes(request, most) > REPLAY_PART_BYTES) most /= 2;
    return most;
}

static size_t offsets_bytes(uint32_t n) {
    return (n + (size_t)1) * sizeof(int64_t);
}

/* Of a ragged column, behind the offsets. */
static void copy_rows(const struct replay_request *request, uint32_t i, const uint32_t *slots, uint32_t count) {
    const struct table *table = request->entry->table;
    const struct replay_parts *parts = request->parts;
    const int64_t *offsets = parts->offsets[i] + parts->done;
    size_t row_bytes = table_config(table)->column[request->columns[i]].row_bytes;
    uint8_t *to = parts->copied[i]->data + offsets_bytes(request->n) + (size_t)offsets[0] * row_bytes;
    size_t copied = table_ragged_gather(table, request->columns[i], slots, count, to);
    assert(copied == (size_t)(offsets[count] - offsets[0]) * row_bytes); /* what an item shows never changes */
    (void)copied;
}

static void copy_columns(const struct replay_request *request, const uint32_t *slots, uint32_t count) {
    const struct table *table = request->entry->table;
    const struct replay_parts *parts = request->parts;
    for (uint32_t i = 0; i < request->column_count; i++) {
        size_t bytes = table_config(table)->column[request->columns[i]].item_bytes;
        if (!parts->copied[i]) continue;
        if (parts->offsets[i]) {
            copy_rows(request, i, slots, count);
            continue;
        }
        table_gather_part(table, request->columns[i], slots, count, parts->copied[i]->data + parts->done * bytes,
                          parts->copied[i]->length);
    }
}

/* Pins the next items. 1: not now; -1: they are not there. */
static int take_items(struct client *client, struct replay_request *request, uint32_t count, uint32_t *slots,
                      struct error *error) {
    struct table *table = request->entry->table;
    struct replay_parts *parts = request->parts;
    uint64_t ids[PART_ITEMS];
    double probabilities[PART_ITEMS];
    float weights[PART_ITEMS];
    if (parts->by_id) {
        memcpy(ids, client->argv[2].data + parts->done * sizeof *ids, count * sizeof *ids);
        if (table_get(table, count, ids, parts->done, slots, probabilities, error)) return -1;
        for (uint32_t i = 0; i < count; i++) weights[i] = 1;
        memcpy(parts->weights->data + parts->done * sizeof *weights, weights, count * sizeof *weights);
    } else {
        struct table_detail details[PART_ITEMS];
        int drawn = table_sample_part(table, count, slots, ids, probabilities, parts->details ? details : NULL, error);
        if (drawn) return drawn;
        if (parts->details)
            memcpy(parts->details->data + parts->done * sizeof *details, details, count * sizeof *details);
        double least = table_least_probability(count, probabilities);
        if (least < parts->least) parts->least = least;
    }
    memcpy(parts->ids->data + parts->done * sizeof *ids, ids, count * sizeof *ids);
    memcpy(parts->probabilities->data + parts->done * sizeof *probabilities, probabilities,
           count * sizeof *probabilities);
    return 0;
}

/* What the part reads of a disk is there. 1: not yet; -1: it cannot be read. */
static int await_disk(struct replay_parts *parts, struct error *error) {
    if (!parts->read) return 0;
    if (!cold_read_is_over(parts->read)) return 1;
    bool failed = cold_read_failed(parts->read, error);
    cold_read_drop(parts->read);
    parts->read = NULL;
    return failed ? -1 : 0;
}

/* A part of a batch that is drawn, or found, in parts. */
static int take_part(struct client *client, struct replay_request *request, uint32_t count, struct error *error) {
    struct replay_parts *parts = request->parts;
    if (parts->taken == 0) {
        int missing = take_items(client, request, count, parts->slots, error);
        if (missing) return missing;
        parts->taken = count;
        parts->read =
            cold_read_begin(client, request->entry, request->columns, request->column_count, parts->slots, count);
    }
    int waits = await_disk(parts, error);
    if (waits) return waits;
    copy_columns(request, parts->slots, count);
    table_unpin(request->entry->table, parts->slots, count);
    parts->taken = 0;
    return 0;
}

static int copy_part(struct client *client, struct replay_request *request, struct error *error) {
    struct replay_parts *parts = request->parts;
    uint32_t count = next_part(request);
    if (parts->batch) {
        copy_columns(request, parts->batch->slots + parts->done, count);
    } else {
        int left = take_part(client, request, count, error);
        if (left) return left;
    }
    parts->done += count;
    return 0;
}

/* Offsets, and room for the rows behind them. */
static int take_memory_for_rows(struct replay_request *request, struct error *error) {
    const struct table_config *config = table_config(request->entry->table);
    struct replay_parts *parts = request->parts;
    uint32_t n = request->n;
    for (uint32_t i = 0; i < request->column_count; i++) {
        if (!parts->offsets[i]) continue;
        size_t rows_bytes = (size_t)parts->offsets[i][n] * config->column[request->columns[i]].row_bytes;
        parts->copied[i] = blob_new(offsets_bytes(n) + rows_bytes);
        if (!parts->copied[i]) return error_set(error, ERROR_GENERIC, "out of memory for a batch of %" PRIu32, n);
        memcpy(parts->copied[i]->data, parts->offsets[i], offsets_bytes(n));
    }
    return 0;
}

static bool counts_rows(const struct replay_request *request) {
    bool has_ragged = false;
    for (uint32_t i = 0; i < request->column_count; i++) has_ragged |= request->parts->offsets[i] != NULL;
    return has_ragged && request->parts->counted < request->n;
}

/* How many rows each of the next items has: where one has many, a part is few items. -1: they are not there, or no memory is. */
static int count_rows(struct client *client, struct replay_request *request, struct error *error) {
    struct table *table = request->entry->table;
    struct replay_parts *parts = request->parts;
    uint64_t ids[PART_ITEMS];
    uint32_t slots[PART_ITEMS], left = request->n - parts->counted, count = left < PART_ITEMS ? left : PART_ITEMS;
    double probabilities[PART_ITEMS];
    memcpy(ids, client->argv[2].data + parts->counted * sizeof *ids, count * sizeof *ids);
    if (table_get(table, count, ids, parts->counted, slots, probabilities, error)) return -1;
    for (uint32_t i = 0; i < request->column_count; i++) {
        if (!parts->offsets[i]) continue;
        int64_t *offsets = parts->offsets[i] + parts->counted, before = offsets[0];
        table_ragged_offsets(table, request->columns[i], slots, count, offsets);
        for (uint32_t item = 0; item <= count; item++) offsets[item] += before;
    }
    table_unpin(table, slots, count);
    parts->counted += count;
    return counts_rows(request) ? 0 : take_memory_for_rows(request, error);
}

static void weigh_part(struct replay_request *request) {
    struct replay_parts *parts = request->parts;
    double probabilities[PART_ITEMS];
    float weights[PART_ITEMS];
    uint32_t left = request->n - parts->weighed, count = left < PART_ITEMS ? left : PART_ITEMS;
    memcpy(probabilities, parts->probabilities->data + parts->weighed * sizeof *probabilities,
           count * sizeof *probabilities);
    table_weigh(request->entry->table, count, request->beta, parts->least, probabilities, weights);
    memcpy(parts->weights->data + parts->weighed * sizeof *weights, weights, count * sizeof *weights);
    parts->weighed += count;
}

/* Once a reply is being written the request may be gone, since a client that has too much output is closed: the batch and the
 * blobs are taken out of it first. */
static void reply_parts(struct client *client, struct replay_request *request) {
    struct replay_parts *parts = request->parts;
    uint8_t columns[TABLE_MAX_COLUMNS];
    uint32_t column_count = request->column_count;
    memcpy(columns, request->columns, sizeof columns);
    struct replay_entry *entry = request->entry;
    request->parts = NULL;
    replay_entry_retain(entry);
    if (parts->batch) {
        if (parts->coded)
            replay_coded_reply(client, parts->coded, parts->copied);
        else
            replay_batch_reply(client, parts->batch, columns, column_count, NULL, parts->copied);
        replay_batch_release(parts->batch);
    } else {
        reply_array(client, (parts->details ? 4 : 3) + 2 * (size_t)column_count);
        reply_blob(client, parts->ids);
        reply_blob(client, parts->probabilities);
        reply_blob(client, parts->weights);
        if (parts->details) reply_blob(client, parts->details);
        for (uint32_t i = 0; i < column_count; i++) {
            reply_bulk_string(client, table_config(entry->table)->column[columns[i]].name);
            reply_blob(client, parts->copied[i]);
        }
        blob_release(parts->ids);
        blob_release(parts->probabilities);
        blob_release(parts->weights);
        blob_release(parts->details);
    }
    free_columns(parts, column_count);
    memory_free(parts->coded);
    memory_free(parts);
    replay_entry_release(entry);
}

static bool go_on(struct client *client) {
    struct replay_request *request = client_state(client);
    struct replay_parts *parts = request->parts;
    struct error error = {.code = ERROR_NONE};
    do {
        if (replay_entry_missing(request->entry, &error)) {
            reply_failure(client, &error);
            return true;
        }
        if (parts->done < request->n) {
            int left = counts_rows(request) ? count_rows(client, request, &error) : copy_part(client, request, &error);
            if (left < 0) {
                reply_failure(client, &error);
                return true;
            }
            if (left > 0 && client_may_block(client)) {
                slices_not_now(client);
                return false;
            }
        } else if (parts->coded && replay_coded_find_some(parts->coded)) {
            continue;
        } else if (!parts->batch && !parts->by_id && parts->weighed < request->n) {
            weigh_part(request);
        } else {
            reply_parts(client, request);
            return true;
        }
    } while (slices_have_time(client));
    return false;
}

void replay_sample_in_parts(struct client *client, struct replay_request *request) {
    struct error error = {.code = ERROR_NONE};
    if (take_memory(request, NULL, &error) ||
        table_begin_sample(request->entry->table, request->n, request->beta, request->replace, &error)) {
        reply_failure(client, &error);
        return;
    }
    request->begun = true;
    replay_request_begin_parts(request);
    slices_run(client, go_on);
}

bool replay_follower_gets_in_parts(const struct replay_request *request) {
    return request->entry->followed &&
           (request->n > PART_ITEMS || replay_copied_bytes(request, request->n) > REPLAY_PART_BYTES);
}

bool replay_follower_copies_many_rows(const struct replay_request *request, const struct replay_batch *batch) {
    const struct table_config *config = table_config(request->entry->table);
    size_t bytes = 0;
    for (uint32_t i = 0; i < request->column_count && request->entry->followed; i++)
        if (column_is_ragged(&config->column[request->columns[i]]))
            bytes += replay_ragged_bytes(batch, request->columns[i]);
    return bytes > REPLAY_PART_BYTES;
}

void replay_get_in_parts(struct client *client, struct replay_request *request) {
    struct error error = {.code = ERROR_NONE};
    if (take_memory(request, NULL, &error)) {
        reply_failure(client, &error);
        return;
    }
    request->parts->by_id = true;
    slices_run(client, go_on);
}

void replay_make_in_parts(struct client *client, struct replay_request *request, struct replay_batch *batch) {
    struct error error = {.code = ERROR_NONE};
    replay_batch_pin(batch);
    if (take_memory(request, batch, &error)) {
        if (!request->parts) replay_batch_release(batch);
        reply_failure(client, &error);
        return;
    }
    slices_run(client, go_on);
}

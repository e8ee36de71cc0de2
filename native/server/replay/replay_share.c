/* replay_share: answers a batch through shared memory: its large columns are gathered into a region of the client's arena,
 * slice by slice between the turns of the loop, and the reply says where they lie. */
#include <string.h>

#include "base/arithmetic.h"
#include "server/core/client.h"
#include "server/core/server.h"
#include "server/core/slices.h"
#include "server/replay/replay_ragged.h"
#include "server/replay/replay_registry.h"
#include "server/replay/replay_subsystem.h"
#include "server/replay/shared_memory.h"

#define GATHER_PIECE_BYTES (128u << 10) /* between two looks at the clock */

size_t replay_shared_column_bytes(const struct replay_batch *batch, uint32_t column) {
    const struct column *shape = &table_config(batch->entry->table)->column[column];
    bool ragged = column_is_ragged(shape);
    size_t largest = ragged ? shape->row_bytes * shape->max_length : shape->item_bytes;
    if (largest > REPLAY_SHARE_ITEM_BYTES) return 0;
    size_t bytes = ragged ? replay_ragged_bytes(batch, column) : shape->item_bytes * batch->n;
    return bytes >= REPLAY_SHARE_COLUMN_BYTES ? bytes : 0;
}

static size_t padded(size_t bytes) {
    return round_up(bytes, REPLAY_SHARE_ALIGNMENT);
}

static size_t shared_bytes(const struct replay_request *request, const struct replay_batch *batch) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < request->column_count; i++)
        bytes += padded(replay_shared_column_bytes(batch, request->columns[i]));
    return bytes;
}

/* ---- gathering --------------------------------------------------------------------------------------------------------- */

static const struct column *column_at(const struct replay_request *request, uint32_t place) {
    return &table_config(request->entry->table)->column[request->columns[place]];
}

/* Items of a ragged column, until they are about `budget` bytes; its offsets come before the first. */
static size_t gather_ragged(struct replay_request *request, uint8_t *region, size_t budget) {
    struct replay_gather *gather = &request->gather;
    const struct replay_batch *batch = gather->batch;
    const struct table *table = request->entry->table;
    uint32_t column = request->columns[gather->place];
    size_t column_bytes = replay_shared_column_bytes(batch, column), before = gather->ragged_done;
    uint8_t *to = region + gather->offset;
    if (column_bytes && before == 0) {
        table_ragged_offsets(table, column, batch->slots, batch->n, (int64_t *)(void *)to);
        gather->ragged_done = (batch->n + (size_t)1) * sizeof(int64_t);
    }
    while (column_bytes && gather->item < batch->n && gather->ragged_done - before < budget)
        gather->ragged_done +=
            table_ragged_gather(table, column, &batch->slots[gather->item++], 1, to + gather->ragged_done);
    size_t copied = gather->ragged_done - before;
    if (column_bytes && gather->item < batch->n) return copied;
    gather->offset += padded(column_bytes);
    gather->ragged_done = 0;
    gather->item = 0;
    gather->place++;
    return copied;
}

/* Items of the columns of fixed size that come next, item by item: two windows of an item mostly show some of the same
 * steps, which are then read from memory once. */
static size_t gather_fixed(struct replay_request *request, uint8_t *region, size_t budget) {
    struct replay_gather *gather = &request->gather;
    const struct table *table = request->entry->table;
    const uint32_t n = gather->batch->n;
    uint32_t end = gather->place;
    size_t item_bytes = 0, all_bytes = 0;
    for (; end < request->column_count && !column_is_ragged(column_at(request, end)); end++) {
        size_t bytes = replay_shared_column_bytes(gather->batch, request->columns[end]);
        if (item_bytes && item_bytes + bytes / n > GATHER_PIECE_BYTES) break;
        item_bytes += bytes / n;
        all_bytes += bytes;
    }
    uint32_t items = n - gather->item;
    if (item_bytes && budget / item_bytes < items) items = budget < item_bytes ? 1 : (uint32_t)(budget / item_bytes);
    size_t offset = gather->offset;
    for (uint32_t place = gather->place; place < end; place++) {
        size_t bytes = replay_shared_column_bytes(gather->batch, request->columns[place]);
        if (bytes)
            table_gather_part(table, request->columns[place], gather->batch->slots + gather->item, items,
                              region + offset + gather->item * (bytes / n), all_bytes);
        offset += padded(bytes);
    }
    gather->item += items;
    if (gather->item == n) {
        gather->offset = offset;
        gather->item = 0;
        gather->place = end;
    }
    return items * item_bytes;
}

/* One turn's share of the work; true when all of it is done. */
static bool gather_slice(struct client *client, struct replay_request *request) {
    uint8_t *region = client->share->base + request->gather.region;
    size_t done = 0;
    while (request->gather.place < request->column_count) {
        if (done >= LIMIT_TURN_SHARE_BYTES || (done > 0 && !slices_have_time(client))) return false;
        size_t left = LIMIT_TURN_SHARE_BYTES - done;
        size_t budget = left < GATHER_PIECE_BYTES ? left : GATHER_PIECE_BYTES;
        bool ragged = column_is_ragged(column_at(request, request->gather.place));
        done += (ragged ? gather_ragged : gather_fixed)(request, region, budget);
    }
    return true;
}

/* ---- from a drawn batch to its reply ----------------------------------------------------------------------------------- */

/* The request is over: what it held is the caller's. It may be gone as soon as the reply is being written. */
static struct replay_batch *take_batch(struct replay_request *request) {
    struct replay_batch *batch = request->gather.batch;
    request->gather.batch = NULL;
    return batch;
}

static bool gather_retry(struct client *client) {
    struct replay_request *request = client_state(client);
    if (!gather_slice(client, request)) return false;
    uint8_t columns[TABLE_MAX_COLUMNS];
    uint32_t column_count = request->column_count;
    memcpy(columns, request->columns, sizeof columns);
    struct replay_region region = {.lease = request->gather.lease, .offset = request->gather.region};
    struct replay_batch *batch = take_batch(request);
    client->server->replay->shares.batches++;
    replay_batch_reply(client, batch, columns, column_count, &region, NULL);
    replay_batch_release(batch);
    return true;
}

/* Interrupted: the items were drawn, so they are sent, by the way that needs no more waiting. */
static void gather_expired(struct client *client) {
    struct replay_request *request = client_state(client);
    uint8_t columns[TABLE_MAX_COLUMNS];
    uint32_t column_count = request->column_count;
    memcpy(columns, request->columns, sizeof columns);
    share_end(client, request->gather.lease);
    struct replay_batch *batch = take_batch(request);
    replay_batch_reply(client, batch, columns, column_count, NULL, NULL);
    replay_batch_release(batch);
}

bool replay_share_batch(struct client *client, struct replay_request *request, struct replay_batch *batch) {
    struct server *server = client->server;
    size_t bytes = client->share ? shared_bytes(request, batch) : 0;
    if (bytes == 0) return false;
    const struct share_lease *lease = share_begin(client, bytes);
    if (!lease) {
        server->replay->shares.refused++;
        return false;
    }
    request->gather = (struct replay_gather){.batch = batch, .lease = lease->number, .region = lease->offset};
    replay_batch_pin(batch);
    slices_begin(client, gather_retry, gather_expired);
    return true;
}

void replay_share_drop(struct client *client, struct replay_request *request) {
    if (request->gather.batch) {
        share_end(client, request->gather.lease);
        replay_batch_release(take_batch(request));
    }
}

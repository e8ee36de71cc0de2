/* replay_share: answers a batch through shared memory: its large columns are gathered into a region of the client's arena,
 * slice by slice between the turns of the loop, and the reply says where they lie. */
#include <string.h>

#include "server/core/client.h"
#include "server/core/server.h"
#include "server/core/slices.h"
#include "server/replay/replay_part.h"
#include "server/replay/replay_registry.h"
#include "server/replay/share.h"

#define COLUMN_ALIGNMENT 64u
#define GATHER_PIECE_BYTES (128u << 10) /* between two looks at the clock */

bool replay_column_is_shared(const struct column *column, uint32_t n) {
    return column->item_bytes * n >= REPLAY_SHARE_COLUMN_BYTES && column->item_bytes <= REPLAY_SHARE_ITEM_BYTES;
}

size_t replay_shared_column_bytes(const struct column *column, uint32_t n) {
    size_t bytes = column->item_bytes * n;
    return (bytes + COLUMN_ALIGNMENT - 1) / COLUMN_ALIGNMENT * COLUMN_ALIGNMENT;
}

static size_t shared_bytes(const struct replay_request *request) {
    const struct table_config *config = table_config(request->entry->table);
    size_t bytes = 0;
    for (uint32_t i = 0; i < request->column_count; i++) {
        const struct column *column = &config->column[request->columns[i]];
        if (replay_column_is_shared(column, request->n)) bytes += replay_shared_column_bytes(column, request->n);
    }
    return bytes;
}

/* ---- gathering --------------------------------------------------------------------------------------------------------- */

/* Copies up to `budget` bytes of the column that the gather stands at; returns how many. */
static size_t gather_piece(struct replay_request *request, uint8_t *region, size_t budget) {
    struct replay_gather *gather = &request->gather;
    const struct table *table = request->entry->table;
    uint32_t index = request->columns[gather->place];
    const struct column *column = &table_config(table)->column[index];
    if (!replay_column_is_shared(column, request->n)) {
        gather->place++;
        return 0;
    }
    size_t items = budget / column->item_bytes;
    if (items == 0) items = 1;
    if (items > request->n - gather->item) items = request->n - gather->item;
    table_gather_part(table, index, gather->batch->slots + gather->item, (uint32_t)items,
                      region + gather->offset + gather->item * column->item_bytes, column->item_bytes * request->n);
    gather->item += (uint32_t)items;
    if (gather->item == request->n) {
        gather->offset += replay_shared_column_bytes(column, request->n);
        gather->item = 0;
        gather->place++;
    }
    return items * column->item_bytes;
}

/* One turn's share of the work; true when all of it is done. */
static bool gather_slice(struct client *client, struct replay_request *request) {
    uint8_t *region = client->share->base + request->gather.region;
    size_t done = 0;
    while (request->gather.place < request->column_count) {
        if (done >= LIMIT_TURN_SHARE_BYTES || (done > 0 && !slices_have_time(client))) return false;
        size_t left = LIMIT_TURN_SHARE_BYTES - done;
        done += gather_piece(request, region, left < GATHER_PIECE_BYTES ? left : GATHER_PIECE_BYTES);
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
    size_t bytes = client->share ? shared_bytes(request) : 0;
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

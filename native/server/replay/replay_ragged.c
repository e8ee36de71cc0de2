/* replay_ragged: a head of offsets, and the pieces of each item's rows, found as the socket drains. */
#include "server/replay/replay_ragged.h"

#include "base/arithmetic.h"
#include "server/core/client.h"
#include "server/core/server.h"

static size_t head_bytes(const struct replay_batch *batch) {
    return (batch->n + (size_t)1) * sizeof(int64_t);
}

/* No more than all rows may need. */
static size_t bounce_bytes(const struct replay_batch *batch, uint32_t column) {
    const struct column *shape = &table_config(batch->entry->table)->column[column];
    if (!client_releases_at_write(batch->client)) return 0;
    return (size_t)at_most((uint64_t)shape->row_bytes * shape->max_length * batch->n, REPLAY_BOUNCE_BYTES);
}

size_t replay_ragged_bytes(const struct replay_batch *batch, uint32_t column) {
    const struct table *table = batch->entry->table;
    uint64_t rows = table_ragged_rows(table, column, batch->slots, batch->n);
    return head_bytes(batch) + rows * table_config(table)->column[column].row_bytes;
}

size_t replay_ragged_extra(const struct replay_batch *batch, uint32_t column) {
    return sizeof(int64_t) + head_bytes(batch) + bounce_bytes(batch, column);
}

/* The piece that the next slice begins in is done with: the one behind it, or of the next item that has any rows. */
static bool next_piece(const struct replay_column_source *source, uint32_t *item, struct ragged_piece *piece) {
    const struct replay_batch *batch = source->batch;
    const struct table *table = batch->entry->table;
    if (table_ragged_next(table, source->column, batch->slots[*item], piece)) return true;
    while (++*item < batch->n)
        if (table_ragged_first(table, source->column, batch->slots[*item], piece)) return true;
    return false;
}

static int ragged_vectors(struct reply_source *reply, size_t offset, struct iovec *vectors, int max) {
    struct replay_column_source *source = (struct replay_column_source *)reply;
    size_t at, end = source->source.length_bytes - source->head_bytes;
    struct replay_vectors slice = replay_vectors_begin(source, offset, vectors, max, &at);
    while (at < end && at >= source->block_offset + source->piece.size) {
        source->block_offset += source->piece.size;
        next_piece(source, &source->item, &source->piece);
    }
    uint32_t item = source->item;
    struct ragged_piece piece = source->piece;
    size_t within = at - source->block_offset;
    for (bool more = at < end; more; more = next_piece(source, &item, &piece), within = 0)
        if (!replay_vectors_add(&slice, piece.bytes + within, piece.size - within)) break;
    return slice.filled;
}

void replay_ragged_reply(struct client *client, struct replay_batch *batch, struct replay_column_source *source,
                         uint32_t column, uint8_t *extra) {
    const struct table *table = batch->entry->table;
    uint8_t *head = (uint8_t *)round_up((uintptr_t)extra, sizeof(int64_t));
    *source = (struct replay_column_source){.batch = batch, .column = column, .head = head};
    source->head_bytes = head_bytes(batch);
    if (bounce_bytes(batch, column)) source->bounce = head + source->head_bytes;
    int64_t *offsets = (int64_t *)(void *)head;
    uint64_t rows = (uint64_t)table_ragged_offsets(table, column, batch->slots, batch->n, offsets);
    source->source = (struct reply_source){
        .length_bytes = source->head_bytes + rows * table_config(table)->column[column].row_bytes,
        .vectors = ragged_vectors,
    };
    for (bool found = false; rows && !found; source->item += !found)
        found = table_ragged_first(table, column, batch->slots[source->item], &source->piece);
    replay_source_send(client, source);
}

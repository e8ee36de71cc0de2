/* replay_ragged: a head of offsets, and the pieces of each item's rows, found as the socket drains. The rows of a ragged
 * window are steps: each is a piece, and a compressed one is decoded into the bounce buffer. */
#include "server/replay/replay_ragged.h"

#include "base/arithmetic.h"
#include "server/core/client.h"
#include "server/core/server.h"

static size_t head_bytes(const struct replay_batch *batch) {
    return (batch->n + (size_t)1) * sizeof(int64_t);
}

/* Steps of windows that are compressed, or too small for a vector each. */
static bool is_bounced(const struct table_config *config, const struct column *shape) {
    return column_is_ragged_window(shape) && (config->codec != CODEC_NONE || shape->row_bytes < REPLAY_VECTOR_BYTES);
}

/* No more than all rows may need. */
static size_t bounce_bytes(const struct replay_batch *batch, uint32_t column) {
    const struct table_config *config = table_config(batch->entry->table);
    const struct column *shape = &config->column[column];
    bool bounced = is_bounced(config, shape);
    if (column_is_ragged_window(shape) && !bounced) return 0;
    if (client_releases_at_write(batch->client)) {
        uint64_t most = (uint64_t)shape->row_bytes * shape->max_length * batch->n;
        bool one_is_more = bounced && shape->row_bytes > REPLAY_BOUNCE_BYTES;
        return (size_t)at_most(most, one_is_more ? shape->row_bytes : REPLAY_BOUNCE_BYTES);
    }
    if (!bounced) return 0;
    return table_ragged_rows(batch->entry->table, column, batch->slots, batch->n) * shape->row_bytes;
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

/* A step is copied to `to`, unless an earlier slice has done that and its bytes are kept. */
static void copy_step(struct replay_column_source *source, uint64_t row, uint32_t item, uint32_t index, uint8_t *to) {
    if (source->bounce_holds_all && row < source->from) return;
    table_window_read(source->batch->entry->table, source->column, source->batch->slots[item], index, to);
    source->from = row + 1;
}

/* Steps that are copied lie one behind the other, and share a vector. */
static int bounced_steps(struct replay_column_source *source, uint64_t row, size_t within,
                         struct replay_vectors *slice) {
    const int64_t *offsets = (const int64_t *)(const void *)source->head;
    size_t bytes = source->item_bytes, copied = 0;
    uint8_t *base = source->bounce_holds_all ? source->bounce + row * bytes : source->bounce;
    uint64_t rows = (uint64_t)offsets[source->batch->n];
    for (uint32_t item = source->item; row < rows && (copied == 0 || copied + bytes <= REPLAY_BOUNCE_BYTES); row++) {
        while ((uint64_t)offsets[item + 1] <= row) item++;
        copy_step(source, row, item, (uint32_t)(row - (uint64_t)offsets[item]), base + copied);
        copied += bytes;
    }
    if (copied > 0)
        slice->vectors[slice->filled++] = (struct iovec){.iov_base = base + within, .iov_len = copied - within};
    return slice->filled;
}

/* `item_bytes` of the source are those of a step. */
static int window_vectors(struct reply_source *reply, size_t offset, struct iovec *vectors, int max) {
    struct replay_column_source *source = (struct replay_column_source *)reply;
    const struct table *table = source->batch->entry->table;
    const int64_t *offsets = (const int64_t *)(const void *)source->head;
    uint64_t rows = (uint64_t)offsets[source->batch->n];
    size_t at, size;
    struct replay_vectors slice = replay_vectors_begin(source, offset, vectors, max, &at);
    uint64_t row = at / source->item_bytes;
    size_t within = at % source->item_bytes;
    while (row < rows && (uint64_t)offsets[source->item + 1] <= row) source->item++;
    if (is_bounced(table_config(table), &table_config(table)->column[source->column]))
        return slice.filled < max ? bounced_steps(source, row, within, &slice) : slice.filled;
    for (uint32_t item = source->item; row < rows && slice.filled < max; row++, within = 0) {
        while ((uint64_t)offsets[item + 1] <= row) item++;
        const uint8_t *step = table_window_step(table, source->column, source->batch->slots[item],
                                                (uint32_t)(row - (uint64_t)offsets[item]), &size);
        vectors[slice.filled++] =
            (struct iovec){.iov_base = (void *)(uintptr_t)(step + within), .iov_len = source->item_bytes - within};
    }
    return slice.filled;
}

void replay_ragged_reply(struct client *client, struct replay_batch *batch, struct replay_column_source *source,
                         uint32_t column, uint8_t *extra) {
    const struct table *table = batch->entry->table;
    const struct column *shape = &table_config(table)->column[column];
    bool window = column_is_ragged_window(shape);
    uint8_t *head = (uint8_t *)round_up((uintptr_t)extra, sizeof(int64_t));
    *source =
        (struct replay_column_source){.batch = batch, .column = column, .head = head, .item_bytes = shape->row_bytes};
    source->head_bytes = head_bytes(batch);
    source->bounce_holds_all = !client_releases_at_write(client);
    if (bounce_bytes(batch, column)) source->bounce = head + source->head_bytes;
    int64_t *offsets = (int64_t *)(void *)head;
    uint64_t rows = (uint64_t)table_ragged_offsets(table, column, batch->slots, batch->n, offsets);
    source->source = (struct reply_source){
        .length_bytes = source->head_bytes + rows * shape->row_bytes,
        .vectors = window ? window_vectors : ragged_vectors,
    };
    for (bool found = window; rows && !found; source->item += !found)
        found = table_ragged_first(table, column, batch->slots[source->item], &source->piece);
    replay_source_send(client, source);
}

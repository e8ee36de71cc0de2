/* replay_source: fills iovecs with the pieces of a column in their slots, or with copies of them in a bounce buffer. */
#include "server/replay/replay_source.h"

#include <assert.h>
#include <string.h>

#include "server/core/client.h"
#include "server/core/server.h"
#include "server/replay/replay_ragged.h"

#define COPIED_VECTORS 64

bool replay_column_is_sent_from_slots(const struct column *column, uint32_t n) {
    return column->item_bytes >= REPLAY_GATHER_ITEM_BYTES || column->item_bytes * n > REPLAY_COPY_BYTES ||
           column_is_ragged(column);
}

static bool is_bounced(const struct table_config *config, uint32_t column) {
    const struct column *shape = &config->column[column];
    bool compressed = config->codec != CODEC_NONE && shape->kind == COLUMN_WINDOW;
    return compressed || shape->item_bytes / column_steps(shape) < REPLAY_VECTOR_BYTES;
}

static bool must_hold_all(const struct replay_batch *batch) {
    return !client_releases_at_write(batch->client);
}

/* Whole items, as many as fit. */
static size_t bounce_bytes(const struct replay_batch *batch, size_t item_bytes) {
    size_t items = REPLAY_BOUNCE_BYTES > item_bytes ? REPLAY_BOUNCE_BYTES / item_bytes : 1;
    return item_bytes * (must_hold_all(batch) || items > batch->n ? batch->n : items);
}

size_t replay_source_extra(const struct replay_batch *batch, uint32_t column) {
    const struct table_config *config = table_config(batch->entry->table);
    if (column_is_ragged(&config->column[column])) return replay_ragged_extra(batch, column);
    return is_bounced(config, column) ? bounce_bytes(batch, config->column[column].item_bytes) : 0;
}

/* ---- from where they lie ------------------------------------------------------------------------------------------- */

static const uint8_t *piece(const struct replay_column_source *column, size_t item, size_t index) {
    uint32_t slot = column->batch->slots[item];
    size_t size_bytes;
    return column->base
               ? column->base + slot * column->stride
               : table_window_step(column->batch->entry->table, column->column, slot, (uint32_t)index, &size_bytes);
}

static int vectors_in_place(struct reply_source *source, size_t offset, struct iovec *vectors, int max) {
    const struct replay_column_source *column = (const struct replay_column_source *)source;
    size_t pieces = column->item_bytes / column->piece_bytes;
    size_t at = offset / column->piece_bytes, within = offset % column->piece_bytes;
    size_t end = pieces * column->batch->n;
    int filled = 0;
    for (; at < end && filled < max; at++, within = 0) {
        const uint8_t *bytes = piece(column, at / pieces, at % pieces) + within;
        vectors[filled++] =
            (struct iovec){.iov_base = (void *)(uintptr_t)bytes, .iov_len = column->piece_bytes - within};
    }
    return filled;
}

struct replay_vectors replay_vectors_begin(const struct replay_column_source *source, size_t offset,
                                           struct iovec *vectors, int max, size_t *at) {
    struct replay_vectors slice = {.vectors = vectors, .max = max, .bounce = source->bounce};
    if (offset < source->head_bytes) {
        vectors[slice.filled++] =
            (struct iovec){.iov_base = source->head + offset, .iov_len = source->head_bytes - offset};
        offset = source->head_bytes;
    }
    *at = offset - source->head_bytes;
    return slice;
}

bool replay_vectors_add(struct replay_vectors *vectors, const uint8_t *bytes, size_t size_bytes) {
    bool small = vectors->bounce && size_bytes < REPLAY_VECTOR_BYTES;
    if ((vectors->filled == vectors->max && !(small && vectors->joins)) ||
        (small && vectors->bounced + size_bytes > REPLAY_BOUNCE_BYTES)) {
        return false;
    }
    if (small) {
        memcpy(vectors->bounce + vectors->bounced, bytes, size_bytes);
        bytes = vectors->bounce + vectors->bounced;
        vectors->bounced += size_bytes;
        if (vectors->joins) {
            vectors->vectors[vectors->filled - 1].iov_len += size_bytes;
            return true;
        }
    }
    vectors->vectors[vectors->filled++] = (struct iovec){.iov_base = (void *)(uintptr_t)bytes, .iov_len = size_bytes};
    vectors->joins = small;
    return true;
}

/* ---- through the bounce buffer ------------------------------------------------------------------------------------- */

/* The next items, from the column's byte `offset` on, where an item begins. */
static void fill_bounce(struct replay_column_source *column, size_t offset) {
    const struct replay_batch *batch = column->batch;
    assert(offset % column->item_bytes == 0 && offset < column->source.length_bytes);
    size_t first = offset / column->item_bytes;
    size_t items = REPLAY_BOUNCE_BYTES > column->item_bytes ? REPLAY_BOUNCE_BYTES / column->item_bytes : 1;
    items = items < batch->n - first ? items : batch->n - first;
    uint8_t *to = column->bounce_holds_all ? column->bounce + offset : column->bounce;
    table_gather(batch->entry->table, column->column, batch->slots + first, (uint32_t)items, to);
    column->from = offset;
    column->length = items * column->item_bytes;
}

static int vectors_through_bounce(struct reply_source *source, size_t offset, struct iovec *vectors, int max) {
    (void)max;
    struct replay_column_source *column = (struct replay_column_source *)source;
    if (offset < column->from || offset >= column->from + column->length) fill_bounce(column, offset);
    const uint8_t *bytes = column->bounce + (column->bounce_holds_all ? offset : offset - column->from);
    vectors[0] =
        (struct iovec){.iov_base = (void *)(uintptr_t)bytes, .iov_len = column->from + column->length - offset};
    return 1;
}

static void released(struct reply_source *source) {
    replay_batch_release(((struct replay_column_source *)source)->batch);
}

/* All of it now, since nothing stays pinned: a large reply is made in parts. */
static void send_copied(struct client *client, struct reply_source *source) {
    struct blob *blob = blob_new(source->length_bytes);
    if (!blob) {
        client_close(client); /* the array was announced: an error can no longer stand in its place */
        return;
    }
    struct iovec vectors[COPIED_VECTORS];
    for (size_t at = 0; at < blob->length;) {
        int count = source->vectors(source, at, vectors, COPIED_VECTORS);
        for (int i = 0; i < count; i++) {
            memcpy(blob->data + at, vectors[i].iov_base, vectors[i].iov_len);
            at += vectors[i].iov_len;
        }
    }
    reply_blob(client, blob);
    blob_release(blob);
}

void replay_source_send(struct client *client, struct replay_column_source *source) {
    if (source->batch->entry->followed) {
        send_copied(client, &source->source);
        return;
    }
    source->source.released = released;
    source->batch->references++;
    reply_source(client, &source->source);
}

void replay_source_reply(struct client *client, struct replay_batch *batch, struct replay_column_source *source,
                         uint32_t column, uint8_t *extra) {
    const struct table_config *config = table_config(batch->entry->table);
    const struct column *shape = &config->column[column];
    if (column_is_ragged(shape)) {
        replay_ragged_reply(client, batch, source, column, extra);
        return;
    }
    *source = (struct replay_column_source){.batch = batch, .column = column, .item_bytes = shape->item_bytes};
    source->piece_bytes = shape->item_bytes / column_steps(shape);
    if (is_bounced(config, column)) {
        source->bounce = extra;
        source->bounce_holds_all = must_hold_all(batch);
    } else if (shape->kind != COLUMN_WINDOW) {
        table_column_view(batch->entry->table, column, &source->base, &source->stride);
    }
    source->source = (struct reply_source){.length_bytes = shape->item_bytes * batch->n,
                                           .vectors = source->bounce ? vectors_through_bounce : vectors_in_place};
    replay_source_send(client, source);
}

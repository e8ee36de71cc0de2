/* replay_source: a column of a batch on its way to the socket, slice by slice as the socket drains: large pieces from
 * where they lie, small and compressed ones through a bounce buffer that is filled as far as one slice needs. */
#ifndef REPLAY_SERVER_REPLAY_SOURCE_H
#define REPLAY_SERVER_REPLAY_SOURCE_H

#include "replay/table_ragged.h"
#include "server/replay/replay_registry.h"

#define REPLAY_BOUNCE_BYTES (256u << 10) /* filled in one go: decoding that much takes a fraction of a millisecond */
#define REPLAY_VECTOR_BYTES 2048u        /* pieces below this are cheaper copied than given a vector each */

struct replay_column_source {
    struct reply_source source;
    struct replay_batch *batch;
    uint32_t column;
    size_t item_bytes, piece_bytes; /* an item of a window is sent in steps, others in one piece */
    const uint8_t *base;            /* of a column of items */
    size_t stride;
    uint8_t *bounce;                /* NULL: pieces are sent from where they lie */
    bool bounce_holds_all;          /* the transport needs bytes for longer than a slice takes */
    size_t from, length;            /* which of the column's bytes are in it now */
    /* a coded column: what precedes the blocks, the blocks, and the one that the next slice begins in */
    uint8_t *head;
    size_t head_bytes;
    const uint8_t **blocks;
    const uint32_t *block_sizes;
    uint32_t block;
    size_t block_offset;            /* where that one begins, after the head */
    /* a ragged column: `head` are its offsets, and the next slice begins in a piece of an item, at block_offset */
    uint32_t item;
    struct ragged_piece piece;
};

/* Vectors that are being made of pieces, one behind the other. With a bounce buffer small ones pass through it: it is filled
 * anew for each slice, whose vectors are used at once. */
struct replay_vectors {
    struct iovec *vectors;
    int max, filled;
    uint8_t *bounce; /* NULL: pieces are sent from where they lie */
    size_t bounced;
    bool joins; /* the last vector ends where the bounce buffer goes on */
};

/* A slice from `offset` on of a source that has a head, of which it takes what is left. *at: where it goes on behind the
 * head. */
struct replay_vectors replay_vectors_begin(const struct replay_column_source *source, size_t offset,
                                           struct iovec *vectors, int max, size_t *at);

/* False: there is no room for it in this slice. */
bool replay_vectors_add(struct replay_vectors *vectors, const uint8_t *bytes, size_t size_bytes);

/* Whether a column of n items is sent through a source, its items pinned meanwhile; others are copied into the reply. */
bool replay_column_is_sent_from_slots(const struct column *column, uint32_t n);
/* Bytes of the batch's extra memory that such a source needs. */
size_t replay_source_extra(const struct replay_batch *batch, uint32_t column);
/* Sends a source that is ready, with the batch kept until all of it is released. */
void replay_source_send(struct client *client, struct replay_column_source *source);
/* Replies a column as a bulk string; `extra` is the memory promised above. */
void replay_source_reply(struct client *client, struct replay_batch *batch, struct replay_column_source *source,
                         uint32_t column, uint8_t *extra);

#endif

/* output: the chain of reply pieces on its way to a connection: bytes written inline, blobs, and sources gathered from
 * storage. Knows neither RESP nor clients. */
#ifndef REPLAY_SERVER_OUTPUT_H
#define REPLAY_SERVER_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/blob.h"

struct reply_source;

enum segment_kind { SEGMENT_SMALL, SEGMENT_LARGE, SEGMENT_BLOB, SEGMENT_SOURCE };

#define SEGMENT_SMALL_BYTES 440u
#define SEGMENT_LARGE_BYTES 16304u
#define SEGMENT_POOL_SMALL 1024u   /* free segments kept for reuse */
#define SEGMENT_POOL_LARGE 128u

struct segment {
    struct segment *next;
    enum segment_kind kind;
    bool sealed;                /* nothing more is appended: a deferred header stands here */
    size_t length;
    size_t sent;                /* accepted by the transport */
    union {
        struct blob *blob;
        struct reply_source *source;
    };
    uint8_t data[];             /* small and large segments */
};

/* Free segments, shared by all chains of a server, so that replies need no allocation. */
struct output_pool {
    struct segment *free_small, *free_large;
    uint32_t free_small_count, free_large_count;
    size_t inline_bytes;        /* in small and large segments of all chains */
};

struct output {
    struct segment *head, *tail;
    struct segment *unsent;     /* first with bytes still to send; NULL when all was sent */
    size_t unsent_bytes;
    size_t unsent_source_bytes; /* of these, in sources */
    size_t head_released;       /* bytes of `head` that the transport has released */
    size_t inline_bytes;        /* capacity of this chain's small and large segments */
    size_t most_inline_bytes;   /* that there ever were */
};

/* What was not sent yet. */
struct output_waiting {
    size_t inline_bytes;        /* in small and large segments */
    size_t blob_bytes;
    uint32_t pieces;            /* blobs and sources */
};
struct output_waiting output_waiting(const struct output *output);

void output_pool_free(struct output_pool *pool);

/* `size` (at most SEGMENT_SMALL_BYTES) contiguous bytes at the end of the chain, to be followed by output_advance with
 * how many were used. NULL: memory is exhausted. */
uint8_t *output_reserve(struct output *output, struct output_pool *pool, size_t size);
void output_advance(struct output *output, size_t used);
/* These return false when memory is exhausted; then the chain must not be sent any further. */
bool output_append(struct output *output, struct output_pool *pool, const void *bytes, size_t length);
bool output_append_blob(struct output *output, struct output_pool *pool,
                        struct blob *blob); /* takes its own reference */
/* On failure the source is released at once. */
bool output_append_source(struct output *output, struct output_pool *pool, struct reply_source *source);
/* Moves all of `more`, of which nothing was sent, to the end. */
void output_append_output(struct output *output, struct output *more);
/* An empty piece to be filled by output_fill_deferred before anything is sent. NULL: memory is exhausted. */
struct segment *output_append_deferred(struct output *output, struct output_pool *pool);
void output_fill_deferred(struct output *output, struct segment *segment, const void *bytes, size_t length);

/* The next bytes to send: at most `max` vectors of together at most `most_bytes`. Returns how many. */
int output_vectors(const struct output *output, size_t most_bytes, struct iovec *vectors, int max);
void output_sent(struct output *output, size_t bytes);
/* The transport needs the oldest `bytes` no longer; pieces that are done with are freed. */
void output_released(struct output *output, struct output_pool *pool, size_t bytes);
/* Frees everything, sent or not. */
void output_clear(struct output *output, struct output_pool *pool);

#endif

/* change_stream: what replicas are sent, byte by byte, each at an offset: its newest part is kept, so that a replica whose
 * connection was lost goes on where it was.
 *
 * The bytes lie in blocks of a list. Each block is held by the one before it, by who reads there, and the first by the
 * stream. So what the stream no longer keeps stays for the replica that has still to be sent it, and goes with that. */
#ifndef REPLAY_SERVER_CHANGE_STREAM_H
#define REPLAY_SERVER_CHANGE_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "persist/append_buffer.h"
#include "server/core/command.h"

struct change_block;

struct change_stream {
    struct change_block *first, *last; /* NULL: nothing is kept */
    uint64_t begin, end; /* offsets of the bytes in blocks */
    struct append_buffer open; /* what follows them */
};

/* A place in the stream, which holds what comes after it. Begins with zeros. */
struct change_position {
    struct change_block *block;
    size_t at;
};

/* Keeps what is added from now on, which begins at this offset. False: memory is exhausted. */
bool change_stream_begin(struct change_stream *stream, uint64_t offset);
/* Keeps nothing any more. */
void change_stream_drop(struct change_stream *stream);
static inline bool change_stream_is_kept(const struct change_stream *stream) {
    return stream->first;
}
/* The offset behind all that was added. */
static inline uint64_t change_stream_end(const struct change_stream *stream) {
    return stream->end + stream->open.total;
}
/* Brings what was added into blocks, and lets go of the oldest but these bytes. False: memory is exhausted. */
bool change_stream_settle(struct change_stream *stream, size_t keep_bytes);

/* False: the stream has no longer what begins there, or not yet. What was added is in blocks. */
bool change_stream_find(const struct change_stream *stream, uint64_t offset, struct change_position *position);
void change_position_leave(struct change_position *position);
/* Sends the client so many bytes from there on, which are in blocks, and moves the position behind them. */
void change_position_send(struct change_position *position, size_t bytes, struct client *client);

#endif

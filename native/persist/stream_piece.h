/* stream_piece: the parts of a stream in a snapshot, one after the other: its numbers, its blocks as they lie in memory, then
 * each group with its consumers, each of these with what is pending. docs/snapshot.md has their bytes. */
#ifndef REPLAY_PERSIST_STREAM_PIECE_H
#define REPLAY_PERSIST_STREAM_PIECE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/t_stream.h"

/* How far a stream that is written part by part has come. Begin with zeros. */
struct stream_piece_walk {
    bool begun, blocks_ended, consumers_begun, pending_begun;
    uint32_t group, consumer;
    struct id_position position;
};

/* A part: what stands in front, and what follows it. */
struct stream_part {
    uint8_t head[48];
    size_t head_length;
    const uint8_t *data;
    size_t length;
};

uint64_t stream_piece_parts(const struct xstream *stream);
/* The next part; false: there is none. */
bool stream_piece_next(const struct xstream *stream, struct stream_piece_walk *walk, struct stream_part *part);
/* Adds a part to a stream that holds those before it. "": done; NULL: no memory; else what is wrong. */
const char *stream_piece_add(struct xstream *stream, const uint8_t *part, size_t length);

#endif

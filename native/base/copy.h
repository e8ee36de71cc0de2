/* copy: memcpy that writes past the caches, for results too large to stay in them. The memory that is overwritten is
 * not read first, and data that is still needed stays in the caches. */
#ifndef REPLAY_BASE_COPY_H
#define REPLAY_BASE_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define COPY_STREAM_BYTES (2u << 20) /* of a whole result, from here on; about the second cache of a core */
#define COPY_STREAM_PIECE_BYTES 512u /* of one piece of it; shorter ones are mostly their two ends */
#define COPY_STREAM_PIECES 4u

/* Whether pieces of that size for a result of that size are worth copy_streamed. */
static inline bool copy_streams(size_t result_bytes, size_t piece_bytes) {
    return result_bytes >= COPY_STREAM_BYTES && piece_bytes >= COPY_STREAM_PIECE_BYTES;
}

void copy_streamed(void *to, const void *from, size_t bytes);
/* Up to COPY_STREAM_PIECES pieces of equal size, at least a line of the cache each, which come to lie one after another.
 * They are read side by side, so that the processor follows several pages at once. */
void copy_streamed_pieces(void *to, const uint8_t *const *from, uint32_t count, size_t piece_bytes);
void copy_streamed_end(void); /* after the last one, before others may look at the result */

#endif

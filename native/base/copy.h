/* copy: memcpy that writes past the caches, for results too large to stay in them. The memory that is overwritten is
 * not read first, and data that is still needed stays in the caches. */
#ifndef REPLAY_BASE_COPY_H
#define REPLAY_BASE_COPY_H

#include <stdbool.h>
#include <stddef.h>

#define COPY_STREAM_BYTES (2u << 20) /* of a whole result, from here on; about the second cache of a core */
#define COPY_STREAM_PIECE_BYTES 512u /* of one piece of it; shorter ones are mostly their two ends */

/* Whether pieces of that size for a result of that size are worth copy_streamed. */
static inline bool copy_streams(size_t result_bytes, size_t piece_bytes) {
    return result_bytes >= COPY_STREAM_BYTES && piece_bytes >= COPY_STREAM_PIECE_BYTES;
}

void copy_streamed(void *to, const void *from, size_t bytes);
void copy_streamed_end(void); /* after the last one, before others may look at the result */

#endif

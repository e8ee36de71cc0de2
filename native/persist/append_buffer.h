/* append_buffer: commands as the append-only file holds them: the bytes of requests, large arguments as references to
 * their blobs.
 *
 * Own bytes lie in chunks, which never move: adding costs the same however much is in the buffer, and a buffer that was
 * emptied uses its chunks again. So what is added many times a second allocates nothing. */
#ifndef REPLAY_PERSIST_APPEND_BUFFER_H
#define REPLAY_PERSIST_APPEND_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/blob.h"

#define APPEND_CHUNK_BYTES (256u << 10)
#define APPEND_KEPT_CHUNKS 32u /* of a buffer that was emptied */

/* A stretch of the bytes. */
struct append_piece {
    const uint8_t *data;
    size_t length;
    struct blob *blob; /* whose data it is; NULL: it lies in a chunk */
};

struct append_chunk {
    struct append_chunk *next;
    size_t room, used;
    uint8_t bytes[];
};

/* Begin with zeros. */
struct append_buffer {
    struct append_piece *pieces; /* in order */
    uint32_t count, capacity;
    struct append_chunk *chunks; /* that hold something, the newest first */
    struct append_chunk *spare;
    uint32_t spare_count;
    size_t total; /* bytes, those of blobs too */
};

/* These return false when memory is exhausted; then what was added of the command in hand must not be used. */
bool append_buffer_add(struct append_buffer *buffer, const void *data, size_t length);
bool append_buffer_add_blob(struct append_buffer *buffer, struct blob *blob); /* takes its own reference */
/* "*3\r\n", and "$5\r\nvalue\r\n"; `blob` may be NULL. */
bool append_buffer_add_head(struct append_buffer *buffer, uint32_t argc);
bool append_buffer_add_word(struct append_buffer *buffer, const void *data, size_t length, struct blob *blob);
/* Room for so many bytes in one piece, to be filled before anything else is added. NULL: memory is exhausted. */
uint8_t *append_buffer_room(struct append_buffer *buffer, size_t length);
/* Adds all that is in `from`, which stays as it is; blobs are shared. */
bool append_buffer_copy(struct append_buffer *buffer, const struct append_buffer *from);
/* Nothing is in it; its memory is kept unless it is large. */
void append_buffer_clear(struct append_buffer *buffer);
void append_buffer_free(struct append_buffer *buffer);

/* Begin with zeros. */
struct append_place {
    uint32_t piece;
    size_t within;
};

/* These move `place` behind what they give. At most `max` pieces; 0 at the end. */
int append_buffer_pieces(const struct append_buffer *buffer, struct append_place *place, struct iovec *pieces, int max);
/* At most so many bytes, copied; less at the end alone. */
size_t append_buffer_read(const struct append_buffer *buffer, struct append_place *place, uint8_t *out, size_t length);

#endif

/* append_buffer: commands as the append-only file holds them: the bytes of requests, with large arguments as
 * references to their blobs. */
#ifndef REPLAY_PERSIST_APPEND_BUFFER_H
#define REPLAY_PERSIST_APPEND_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/blob.h"

/* A blob that belongs before byte `at` of the buffer's own. */
struct append_insert {
    size_t at;
    struct blob *blob;
};

/* Begin with zeros. */
struct append_buffer {
    uint8_t *bytes;
    size_t length, capacity;
    struct append_insert *inserts;
    uint32_t insert_count, insert_capacity;
    size_t total; /* bytes, those of blobs too */
};

/* These return false when memory is exhausted; then what was added of the command in hand must not be used. */
bool append_buffer_add(struct append_buffer *buffer, const void *data, size_t length);
bool append_buffer_add_blob(struct append_buffer *buffer, struct blob *blob); /* takes its own reference */
/* "*3\r\n", and "$5\r\nvalue\r\n"; `blob` may be NULL. */
bool append_buffer_add_head(struct append_buffer *buffer, uint32_t argc);
bool append_buffer_add_word(struct append_buffer *buffer, const void *data, size_t length, struct blob *blob);
/* Room for so many bytes, to be filled before anything else is added. NULL: memory is exhausted. */
uint8_t *append_buffer_room(struct append_buffer *buffer, size_t length);
/* Adds all that is in `from`, which stays as it is; blobs are shared. */
bool append_buffer_copy(struct append_buffer *buffer, const struct append_buffer *from);
/* Nothing is in it; its memory is kept unless it is large. */
void append_buffer_clear(struct append_buffer *buffer);
void append_buffer_free(struct append_buffer *buffer);

/* Walks the bytes in order: at most `max` pieces from `*position` on, which begins with zeros; 0 at the end. */
struct append_position {
    size_t at;
    uint32_t insert;
};
int append_buffer_pieces(const struct append_buffer *buffer, struct append_position *position, struct iovec *pieces,
                         int max);

#endif

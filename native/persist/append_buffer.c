/* append_buffer: growing bytes, and the places where blobs stand between them. */
#include "persist/append_buffer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"

#define KEPT_BYTES (1u << 20) /* a larger buffer is given back once it is empty */

static bool make_room(struct append_buffer *buffer, size_t more) {
    if (buffer->capacity - buffer->length >= more) return true;
    size_t capacity = buffer->capacity ? buffer->capacity : 4096;
    while (capacity - buffer->length < more) capacity *= 2;
    uint8_t *bytes = memory_realloc(buffer->bytes, capacity);
    if (!bytes) return false;
    buffer->bytes = bytes;
    buffer->capacity = capacity;
    return true;
}

bool append_buffer_add(struct append_buffer *buffer, const void *data, size_t length) {
    if (!make_room(buffer, length)) return false;
    if (length) memcpy(buffer->bytes + buffer->length, data, length);
    buffer->length += length;
    buffer->total += length;
    return true;
}

bool append_buffer_add_blob(struct append_buffer *buffer, struct blob *blob) {
    if (buffer->insert_count == buffer->insert_capacity) {
        uint32_t capacity = buffer->insert_capacity ? 2 * buffer->insert_capacity : 16;
        struct append_insert *inserts = memory_realloc(buffer->inserts, capacity * sizeof *inserts);
        if (!inserts) return false;
        buffer->inserts = inserts;
        buffer->insert_capacity = capacity;
    }
    buffer->inserts[buffer->insert_count++] = (struct append_insert){buffer->length, blob_retain(blob)};
    buffer->total += blob->length;
    return true;
}

static bool add_number(struct append_buffer *buffer, char type, uint64_t number) {
    char text[32];
    int length = snprintf(text, sizeof text, "%c%" PRIu64 "\r\n", type, number);
    return append_buffer_add(buffer, text, (size_t)length);
}

bool append_buffer_add_head(struct append_buffer *buffer, uint32_t argc) {
    return add_number(buffer, '*', argc);
}

bool append_buffer_add_word(struct append_buffer *buffer, const void *data, size_t length, struct blob *blob) {
    return add_number(buffer, '$', length) &&
           (blob ? append_buffer_add_blob(buffer, blob) : append_buffer_add(buffer, data, length)) &&
           append_buffer_add(buffer, "\r\n", 2);
}

uint8_t *append_buffer_room(struct append_buffer *buffer, size_t length) {
    if (!make_room(buffer, length)) return NULL;
    uint8_t *room = buffer->bytes + buffer->length;
    buffer->length += length;
    buffer->total += length;
    return room;
}

bool append_buffer_copy(struct append_buffer *buffer, const struct append_buffer *from) {
    struct append_position position = {0};
    struct iovec piece;
    bool taken = true;
    while (taken) {
        uint32_t insert = position.insert;
        if (append_buffer_pieces(from, &position, &piece, 1) == 0) break;
        taken = position.insert > insert ? append_buffer_add_blob(buffer, from->inserts[insert].blob)
                                         : append_buffer_add(buffer, piece.iov_base, piece.iov_len);
    }
    return taken;
}

void append_buffer_clear(struct append_buffer *buffer) {
    for (uint32_t i = 0; i < buffer->insert_count; i++) blob_release(buffer->inserts[i].blob);
    buffer->insert_count = 0;
    buffer->length = buffer->total = 0;
    if (buffer->capacity <= KEPT_BYTES) return;
    memory_free(buffer->bytes);
    buffer->bytes = NULL;
    buffer->capacity = 0;
}

void append_buffer_free(struct append_buffer *buffer) {
    append_buffer_clear(buffer);
    memory_free(buffer->bytes);
    memory_free(buffer->inserts);
    *buffer = (struct append_buffer){0};
}

int append_buffer_pieces(const struct append_buffer *buffer, struct append_position *position, struct iovec *pieces,
                         int max) {
    int count = 0;
    while (count < max) {
        const struct append_insert *insert =
            position->insert < buffer->insert_count ? &buffer->inserts[position->insert] : NULL;
        size_t until = insert ? insert->at : buffer->length;
        if (position->at < until) {
            pieces[count++] = (struct iovec){buffer->bytes + position->at, until - position->at};
            position->at = until;
        } else if (insert) {
            pieces[count++] = (struct iovec){insert->blob->data, insert->blob->length};
            position->insert++;
        } else {
            break;
        }
    }
    return count;
}

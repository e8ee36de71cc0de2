/* append_buffer: chunks of bytes, and the order of what lies in them and in blobs. */
#include "persist/append_buffer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"

#define SMALL_CHUNK_BYTES 4096u /* the first, which many buffers never fill */

static bool add_piece(struct append_buffer *buffer, const uint8_t *data, size_t length, struct blob *blob) {
    struct append_piece *last = buffer->count > 0 ? &buffer->pieces[buffer->count - 1] : NULL;
    buffer->total += length;
    if (last && !last->blob && !blob && last->data + last->length == data) {
        last->length += length;
        return true;
    }
    struct append_piece *pieces = memory_grow(buffer->pieces, buffer->count, &buffer->capacity, 16, sizeof *pieces);
    if (!pieces) return false;
    buffer->pieces = pieces;
    buffer->pieces[buffer->count++] = (struct append_piece){data, length, blob};
    return true;
}

/* A chunk with room for so many bytes in one piece becomes the newest. */
static bool add_chunk(struct append_buffer *buffer, size_t length) {
    struct append_chunk *chunk = buffer->spare;
    if (chunk && chunk->room >= length) {
        buffer->spare = chunk->next;
        buffer->spare_count--;
    } else {
        size_t room = buffer->chunks || length > SMALL_CHUNK_BYTES ? APPEND_CHUNK_BYTES : SMALL_CHUNK_BYTES;
        if (room < length) room = length;
        chunk = memory_alloc(sizeof *chunk + room);
        if (!chunk) return false;
        chunk->room = room;
    }
    chunk->used = 0;
    chunk->next = buffer->chunks;
    buffer->chunks = chunk;
    return true;
}

static size_t room_left(const struct append_buffer *buffer) {
    return buffer->chunks ? buffer->chunks->room - buffer->chunks->used : 0;
}

uint8_t *append_buffer_room(struct append_buffer *buffer, size_t length) {
    if (room_left(buffer) < length && !add_chunk(buffer, length)) return NULL;
    struct append_chunk *chunk = buffer->chunks;
    uint8_t *room = chunk->bytes + chunk->used;
    if (!add_piece(buffer, room, length, NULL)) return NULL;
    chunk->used += length;
    return room;
}

bool append_buffer_add(struct append_buffer *buffer, const void *data, size_t length) {
    const uint8_t *from = data;
    while (length > 0) {
        size_t left = room_left(buffer), part = left > 0 && left < length ? left : length;
        if (left == 0 && part > APPEND_CHUNK_BYTES) part = APPEND_CHUNK_BYTES;
        uint8_t *room = append_buffer_room(buffer, part);
        if (!room) return false;
        memcpy(room, from, part);
        from += part;
        length -= part;
    }
    return true;
}

bool append_buffer_add_blob(struct append_buffer *buffer, struct blob *blob) {
    if (!add_piece(buffer, blob->data, blob->length, blob)) return false;
    blob_retain(blob);
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

bool append_buffer_copy(struct append_buffer *buffer, const struct append_buffer *from) {
    for (uint32_t i = 0; i < from->count; i++) {
        const struct append_piece *piece = &from->pieces[i];
        if (!(piece->blob ? append_buffer_add_blob(buffer, piece->blob)
                          : append_buffer_add(buffer, piece->data, piece->length)))
            return false;
    }
    return true;
}

static void give_back(struct append_buffer *buffer, struct append_chunk *chunk) {
    if (chunk->room > APPEND_CHUNK_BYTES || buffer->spare_count == APPEND_KEPT_CHUNKS ||
        (chunk->room < APPEND_CHUNK_BYTES && buffer->spare_count > 0)) {
        memory_free(chunk);
        return;
    }
    chunk->next = buffer->spare;
    buffer->spare = chunk;
    buffer->spare_count++;
}

void append_buffer_clear(struct append_buffer *buffer) {
    for (uint32_t i = 0; i < buffer->count; i++) blob_release(buffer->pieces[i].blob);
    buffer->count = 0;
    buffer->total = 0;
    while (buffer->chunks) {
        struct append_chunk *next = buffer->chunks->next;
        give_back(buffer, buffer->chunks);
        buffer->chunks = next;
    }
}

void append_buffer_free(struct append_buffer *buffer) {
    append_buffer_clear(buffer);
    while (buffer->spare) {
        struct append_chunk *next = buffer->spare->next;
        memory_free(buffer->spare);
        buffer->spare = next;
    }
    memory_free(buffer->pieces);
    *buffer = (struct append_buffer){0};
}

int append_buffer_pieces(const struct append_buffer *buffer, struct append_place *place, struct iovec *pieces,
                         int max) {
    int count = 0;
    for (; count < max && place->piece < buffer->count; count++) {
        const struct append_piece *piece = &buffer->pieces[place->piece++];
        pieces[count] = (struct iovec){(void *)(uintptr_t)(piece->data + place->within), piece->length - place->within};
        place->within = 0;
    }
    return count;
}

size_t append_buffer_read(const struct append_buffer *buffer, struct append_place *place, uint8_t *out, size_t length) {
    size_t done = 0;
    while (done < length && place->piece < buffer->count) {
        const struct append_piece *piece = &buffer->pieces[place->piece];
        size_t left = piece->length - place->within, part = left < length - done ? left : length - done;
        if (part > 0) memcpy(out + done, piece->data + place->within, part);
        done += part;
        place->within += part;
        if (part < left) break;
        *place = (struct append_place){.piece = place->piece + 1};
    }
    return done;
}

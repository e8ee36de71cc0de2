/* change_stream: blocks of bytes, and of blobs that commands brought. */
#include "server/replication/change_stream.h"

#include <assert.h>
#include <string.h>

#include "base/memory.h"
#include "server/core/client.h"

#define BLOCK_BYTES 16384u
#define SHARED_BYTES 4096u /* a blob of at least so many is kept as it is, not copied */
#define COPIED_BYTES 4096u /* so few are copied into a client's output */

struct change_block {
    struct change_block *next;
    uint32_t references;
    size_t length, capacity;
    struct blob *blob; /* NULL: the bytes are in `data` */
    uint8_t data[];
};

/* ---- blocks ---------------------------------------------------------------------------------------------------------- */

static const uint8_t *bytes_of(const struct change_block *block) {
    return block->blob ? block->blob->data : block->data;
}

static struct change_block *block_new(size_t capacity, struct blob *blob) {
    struct change_block *block = memory_alloc(sizeof *block + (blob ? 0 : capacity));
    if (!block) return NULL;
    *block = (struct change_block){.references = 1, .capacity = capacity};
    if (blob) {
        block->blob = blob_retain(blob);
        block->length = blob->length;
    }
    return block;
}

/* Its place in the list is given up: the next is held by it. */
static void release(struct change_block *block) {
    while (block && --block->references == 0) {
        struct change_block *next = block->next;
        if (block->blob) blob_release(block->blob);
        memory_free(block);
        block = next;
    }
}

static void append_block(struct change_stream *stream, struct change_block *block) {
    stream->last->next = block;
    stream->last = block;
}

static bool add_bytes(struct change_stream *stream, const uint8_t *data, size_t length) {
    while (length > 0) {
        struct change_block *last = stream->last;
        size_t room = last->capacity - last->length;
        if (last->blob || room == 0) {
            struct change_block *block = block_new(BLOCK_BYTES, NULL);
            if (!block) return false;
            append_block(stream, block);
            continue;
        }
        size_t piece = length < room ? length : room;
        memcpy(last->data + last->length, data, piece);
        last->length += piece;
        stream->end += piece;
        data += piece;
        length -= piece;
    }
    return true;
}

static bool add_blob(struct change_stream *stream, struct blob *blob) {
    if (blob->length < SHARED_BYTES) return add_bytes(stream, blob->data, blob->length);
    struct change_block *block = block_new(blob->length, blob);
    if (!block) return false;
    append_block(stream, block);
    stream->end += blob->length;
    return true;
}

/* ---- the stream ------------------------------------------------------------------------------------------------------ */

bool change_stream_begin(struct change_stream *stream, uint64_t offset) {
    change_stream_drop(stream);
    stream->first = stream->last = block_new(BLOCK_BYTES, NULL);
    stream->begin = stream->end = offset;
    return stream->first;
}

void change_stream_drop(struct change_stream *stream) {
    release(stream->first);
    stream->first = stream->last = NULL;
    stream->end = stream->begin = change_stream_end(stream);
    append_buffer_free(&stream->open);
}

bool change_stream_settle(struct change_stream *stream, size_t keep_bytes) {
    bool added = true;
    if (!stream->first) return true;
    for (uint32_t i = 0; added && i < stream->open.count; i++) {
        const struct append_piece *piece = &stream->open.pieces[i];
        added = piece->blob ? add_blob(stream, piece->blob) : add_bytes(stream, piece->data, piece->length);
    }
    append_buffer_clear(&stream->open);
    while (added && stream->first != stream->last &&
           stream->end - stream->begin - stream->first->length >= keep_bytes) {
        struct change_block *first = stream->first;
        stream->begin += first->length;
        stream->first = first->next;
        stream->first->references++;
        release(first);
    }
    return added;
}

/* ---- reading --------------------------------------------------------------------------------------------------------- */

bool change_stream_find(const struct change_stream *stream, uint64_t offset, struct change_position *position) {
    if (!stream->first || offset < stream->begin || offset > stream->end) return false;
    struct change_block *block = stream->first;
    uint64_t at = offset - stream->begin;
    while (at > block->length) {
        at -= block->length;
        block = block->next;
    }
    block->references++;
    *position = (struct change_position){block, (size_t)at};
    return true;
}

void change_position_leave(struct change_position *position) {
    release(position->block);
    position->block = NULL;
}

/* To the next block, at the end of one. */
static void move_on(struct change_position *position) {
    struct change_block *block = position->block;
    if (position->at < block->length || !block->next) return;
    block->next->references++;
    *position = (struct change_position){block->next, 0};
    release(block);
}

struct sending {
    struct reply_source source;
    struct change_position from;
    struct change_block *block; /* that `reached` lies in */
    size_t reached;             /* offset of the block's first byte, which may lie before the source's: wraps */
};

static int vectors(struct reply_source *base, size_t offset, struct iovec *vector, int max) {
    struct sending *sending = (struct sending *)(void *)base;
    int count = 0;
    while (offset - sending->reached >= sending->block->length && sending->block->next) {
        sending->reached += sending->block->length;
        sending->block = sending->block->next;
    }
    const struct change_block *block = sending->block;
    size_t at = offset - sending->reached, left = base->length_bytes - offset;
    for (; block && left > 0 && count < max; block = block->next, at = 0) {
        size_t piece = block->length - at < left ? block->length - at : left;
        if (piece == 0) continue;
        vector[count++] = (struct iovec){(void *)(uintptr_t)(bytes_of(block) + at), piece};
        left -= piece;
    }
    return count;
}

static void released(struct reply_source *base) {
    struct sending *sending = (struct sending *)(void *)base;
    change_position_leave(&sending->from);
    memory_free(sending);
}

static void advance(struct change_position *position, size_t bytes, struct client *copy_to) {
    while (bytes > 0) {
        move_on(position);
        size_t here = position->block->length - position->at, piece = here < bytes ? here : bytes;
        assert(piece > 0);
        if (copy_to) client_send(copy_to, bytes_of(position->block) + position->at, piece);
        position->at += piece;
        bytes -= piece;
    }
}

void change_position_send(struct change_position *position, size_t bytes, struct client *client) {
    struct sending *sending = bytes > COPIED_BYTES ? memory_alloc(sizeof *sending) : NULL;
    if (sending) {
        position->block->references++;
        *sending = (struct sending){{bytes, vectors, released}, *position, position->block, 0 - position->at};
        client_send_source(client, &sending->source);
    }
    advance(position, bytes, sending ? NULL : client);
}

#include "server/core/output.h"

#include <assert.h>
#include <string.h>

#include "base/memory.h"
#include "server/core/command.h"

static size_t capacity_of(enum segment_kind kind) {
    return kind == SEGMENT_SMALL ? SEGMENT_SMALL_BYTES : kind == SEGMENT_LARGE ? SEGMENT_LARGE_BYTES : 0;
}

/* Blob and source segments use small ones, so that there are but two sizes to pool. */
static struct segment *segment_new(struct output_pool *pool, enum segment_kind kind) {
    struct segment **free_list = kind == SEGMENT_LARGE ? &pool->free_large : &pool->free_small;
    uint32_t *count = kind == SEGMENT_LARGE ? &pool->free_large_count : &pool->free_small_count;
    struct segment *segment = *free_list;
    if (segment) {
        *free_list = segment->next;
        (*count)--;
    } else {
        size_t data = kind == SEGMENT_LARGE ? SEGMENT_LARGE_BYTES : SEGMENT_SMALL_BYTES;
        segment = memory_alloc(sizeof *segment + data);
        if (!segment) return NULL;
    }
    segment->next = NULL;
    segment->kind = kind;
    segment->sealed = false;
    segment->length = 0;
    segment->sent = 0;
    segment->blob = NULL;
    pool->inline_bytes += capacity_of(kind);
    return segment;
}

static void segment_free(struct output_pool *pool, struct segment *segment) {
    if (segment->kind == SEGMENT_BLOB)
        blob_release(segment->blob);
    else if (segment->kind == SEGMENT_SOURCE)
        segment->source->released(segment->source);
    pool->inline_bytes -= capacity_of(segment->kind);
    bool large = segment->kind == SEGMENT_LARGE;
    struct segment **free_list = large ? &pool->free_large : &pool->free_small;
    uint32_t *count = large ? &pool->free_large_count : &pool->free_small_count;
    if (*count >= (large ? SEGMENT_POOL_LARGE : SEGMENT_POOL_SMALL)) {
        memory_free(segment);
        return;
    }
    segment->next = *free_list;
    *free_list = segment;
    (*count)++;
}

void output_pool_free(struct output_pool *pool) {
    struct segment *lists[2] = {pool->free_small, pool->free_large};
    for (int i = 0; i < 2; i++) {
        while (lists[i]) {
            struct segment *next = lists[i]->next;
            memory_free(lists[i]);
            lists[i] = next;
        }
    }
    *pool = (struct output_pool){0};
}

static struct segment *push(struct output *output, struct output_pool *pool, enum segment_kind kind) {
    struct segment *segment = segment_new(pool, kind);
    if (!segment) return NULL;
    if (output->tail)
        output->tail->next = segment;
    else
        output->head = segment;
    output->tail = segment;
    if (!output->unsent) output->unsent = segment;
    output->inline_bytes += capacity_of(kind);
    if (output->inline_bytes > output->most_inline_bytes) output->most_inline_bytes = output->inline_bytes;
    return segment;
}

static bool is_inline(const struct segment *segment) {
    return segment->kind == SEGMENT_SMALL || segment->kind == SEGMENT_LARGE;
}

/* The segment that takes the next inline bytes: the tail while it has `size` left, else a new one. The first after
 * anything else is small (most replies fit), those that follow it are large. */
static struct segment *inline_tail(struct output *output, struct output_pool *pool, size_t size) {
    struct segment *tail = output->tail;
    bool open = tail && output->unsent && is_inline(tail) && !tail->sealed;
    if (open && capacity_of(tail->kind) - tail->length >= size) return tail;
    return push(output, pool, open ? SEGMENT_LARGE : SEGMENT_SMALL);
}

uint8_t *output_reserve(struct output *output, struct output_pool *pool, size_t size) {
    assert(size <= SEGMENT_SMALL_BYTES);
    struct segment *segment = inline_tail(output, pool, size);
    return segment ? segment->data + segment->length : NULL;
}

void output_advance(struct output *output, size_t used) {
    struct segment *tail = output->tail;
    tail->length += used;
    assert(tail->length <= capacity_of(tail->kind));
    output->unsent_bytes += used;
}

bool output_append(struct output *output, struct output_pool *pool, const void *bytes, size_t length) {
    const uint8_t *from = bytes;
    while (length > 0) {
        struct segment *segment = inline_tail(output, pool, 1);
        if (!segment) return false;
        size_t room = capacity_of(segment->kind) - segment->length;
        size_t piece = length < room ? length : room;
        memcpy(segment->data + segment->length, from, piece);
        output_advance(output, piece);
        from += piece;
        length -= piece;
    }
    return true;
}

bool output_append_blob(struct output *output, struct output_pool *pool, struct blob *blob) {
    if (blob->length == 0) return true;
    struct segment *segment = push(output, pool, SEGMENT_BLOB);
    if (!segment) return false;
    segment->blob = blob_retain(blob);
    segment->length = blob->length;
    output->unsent_bytes += blob->length;
    return true;
}

bool output_append_source(struct output *output, struct output_pool *pool, struct reply_source *source) {
    struct segment *segment = source->length_bytes > 0 ? push(output, pool, SEGMENT_SOURCE) : NULL;
    if (!segment) {
        bool nothing_to_send = source->length_bytes == 0;
        source->released(source);
        return nothing_to_send;
    }
    segment->source = source;
    segment->length = source->length_bytes;
    output->unsent_bytes += source->length_bytes;
    output->unsent_source_bytes += source->length_bytes;
    return true;
}

void output_append_output(struct output *output, struct output *more) {
    assert(more->unsent == more->head);
    if (!more->head) return;
    *(output->tail ? &output->tail->next : &output->head) = more->head;
    output->tail = more->tail;
    if (!output->unsent) output->unsent = more->head;
    output->unsent_bytes += more->unsent_bytes;
    output->unsent_source_bytes += more->unsent_source_bytes;
    output->inline_bytes += more->inline_bytes;
    *more = (struct output){0};
}

struct segment *output_append_deferred(struct output *output, struct output_pool *pool) {
    struct segment *segment = push(output, pool, SEGMENT_SMALL);
    if (segment) segment->sealed = true;
    return segment;
}

void output_fill_deferred(struct output *output, struct segment *segment, const void *bytes, size_t length) {
    assert(segment->sealed && segment->length == 0 && length > 0 && length <= SEGMENT_SMALL_BYTES);
    memcpy(segment->data, bytes, length);
    segment->length = length;
    output->unsent_bytes += length;
}

static int segment_vectors(const struct segment *segment, struct iovec *vectors, int max) {
    if (segment->kind == SEGMENT_SOURCE) return segment->source->vectors(segment->source, segment->sent, vectors, max);
    const uint8_t *data = segment->kind == SEGMENT_BLOB ? segment->blob->data : segment->data;
    vectors[0] = (struct iovec){.iov_base = (void *)(uintptr_t)(data + segment->sent),
                                .iov_len = segment->length - segment->sent};
    return 1;
}

int output_vectors(const struct output *output, size_t most_bytes, struct iovec *vectors, int max) {
    int filled = 0;
    size_t total = 0;
    for (const struct segment *segment = output->unsent; segment && filled < max && total < most_bytes;
         segment = segment->next) {
        if (segment->sent == segment->length) continue;
        int more = segment_vectors(segment, vectors + filled, max - filled);
        assert(more >= 1 && more <= max - filled);
        size_t described = 0;
        for (int i = 0; i < more; i++) {
            struct iovec *vector = &vectors[filled];
            if (vector->iov_len >= most_bytes - total) {
                vector->iov_len = most_bytes - total;
                return filled + 1;
            }
            total += vector->iov_len;
            described += vector->iov_len;
            filled++;
        }
        assert(described <= segment->length - segment->sent);
        if (described < segment->length - segment->sent)
            break; /* the source has more than fits: nothing behind it may overtake */
    }
    return filled;
}

void output_sent(struct output *output, size_t bytes) {
    assert(bytes <= output->unsent_bytes);
    output->unsent_bytes -= bytes;
    while (output->unsent) {
        struct segment *segment = output->unsent;
        size_t left = segment->length - segment->sent;
        size_t now = bytes < left ? bytes : left;
        segment->sent += now;
        bytes -= now;
        if (segment->kind == SEGMENT_SOURCE) output->unsent_source_bytes -= now;
        if (now < left) return;
        output->unsent = segment->next;
    }
    assert(bytes == 0);
}

static void drop_head(struct output *output, struct output_pool *pool) {
    struct segment *head = output->head;
    output->head = head->next;
    if (!output->head) output->tail = NULL;
    output->head_released = 0;
    output->inline_bytes -= capacity_of(head->kind);
    segment_free(pool, head);
}

void output_released(struct output *output, struct output_pool *pool, size_t bytes) {
    while (output->head && output->head != output->unsent) {
        size_t left = output->head->length - output->head_released;
        if (bytes < left) {
            output->head_released += bytes;
            return;
        }
        bytes -= left;
        drop_head(output, pool);
    }
    if (output->head) output->head_released += bytes; /* the head is half sent */
    assert(output->head ? output->head_released <= output->head->sent : bytes == 0);
}

void output_clear(struct output *output, struct output_pool *pool) {
    while (output->head) drop_head(output, pool);
    *output = (struct output){0};
}

struct output_waiting output_waiting(const struct output *output) {
    struct output_waiting waiting = {0};
    for (const struct segment *segment = output->unsent; segment; segment = segment->next) {
        if (is_inline(segment))
            waiting.inline_bytes += segment->length - segment->sent;
        else
            waiting.pieces++;
        if (segment->kind == SEGMENT_BLOB) waiting.blob_bytes += segment->blob->length;
    }
    return waiting;
}

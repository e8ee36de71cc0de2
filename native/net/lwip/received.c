/* received: buffers over frames and copies of them. */
#include "net/lwip/received.h"

#include <string.h>

#include <rte_mbuf.h>

#include "net/lwip/pools.h"

#define EARLY_FRAMES_MOST 64u
#define EARLY_FRAMES_LEAST 8u
#define HELD_ALWAYS_BYTES 16384u /* a connection may hold so much as long as there is any room */
#define EARLY_SHARE 4u /* of all frames, that one connection may keep ahead of a lost one */
#define SHARE 8u /* else this part of what is free */

static struct {
    uint32_t frames_most, frames;
} held;

void received_set_most(uint32_t frames) {
    held.frames_most = frames;
    held.frames = 0;
}

uint32_t received_frames_held(void) {
    return held.frames;
}

bool received_is_full(void) {
    return held.frames > held.frames_most - held.frames_most / 8;
}

bool received_is_low(void) {
    return held.frames > held.frames_most / 2;
}

uint16_t received_early_frames(void) {
    uint32_t room = received_is_low() ? 0 : (held.frames_most / 2 - held.frames) / 4;
    if (room > EARLY_FRAMES_MOST) room = EARLY_FRAMES_MOST;
    return (uint16_t)(room < EARLY_FRAMES_LEAST ? EARLY_FRAMES_LEAST : room);
}

static void free_frame(struct pbuf *buffer) {
    struct received *received = (struct received *)(void *)buffer;
    held.frames--;
    rte_pktmbuf_free(received->frame);
}

static void free_copy(struct pbuf *buffer) {
    pools_give_copy(buffer);
}

struct pbuf *received_from_frame(struct rte_mbuf *frame) {
    struct received *received = rte_mbuf_to_priv(frame);
    received->buffer.custom_free_function = free_frame;
    received->next = NULL;
    received->frame = frame;
    held.frames++;
    uint16_t length = rte_pktmbuf_data_len(frame);
    return pbuf_alloced_custom(PBUF_RAW, length, PBUF_REF, &received->buffer, rte_pktmbuf_mtod(frame, void *), length);
}

/* A piece of its own, of the same length; NULL: no room. */
static struct received *copy(const struct pbuf *buffer) {
    struct received *received = pools_take_copy(sizeof *received + buffer->len);
    if (!received) return NULL;
    received->buffer.custom_free_function = free_copy;
    received->next = NULL;
    received->frame = NULL;
    memcpy(received + 1, buffer->payload, buffer->len);
    pbuf_alloced_custom(PBUF_RAW, buffer->len, PBUF_REF, &received->buffer, received + 1, buffer->len);
    return received;
}

struct received *received_keep(struct rte_mbuf *frame, uint32_t kept) {
    struct pbuf *buffer = received_from_frame(frame);
    if (!received_is_low() && kept < held.frames_most / EARLY_SHARE) return (struct received *)(void *)buffer;
    size_t kept_bytes = (size_t)kept * buffer->len;
    bool has_room = kept_bytes <= HELD_ALWAYS_BYTES || kept_bytes <= pools_copy_room() / SHARE;
    struct received *copied = has_room ? copy(buffer) : NULL;
    pbuf_free(buffer);
    return copied;
}

static void append(struct received **first, struct received **last, struct received *received) {
    if (*first)
        (*last)->next = received;
    else
        *first = received;
    *last = received;
}

static bool take_copies(struct pbuf *chain, size_t held_bytes, struct received **first, struct received **last) {
    size_t room = pools_copy_room();
    if (held_bytes > HELD_ALWAYS_BYTES && held_bytes > room / SHARE) return false;
    for (const struct pbuf *buffer = chain; buffer; buffer = buffer->next) {
        if (buffer->len == 0) continue;
        struct received *received = copy(buffer);
        if (received) {
            append(first, last, received);
            continue;
        }
        while (*first) {
            struct received *next = (*first)->next;
            received_free(*first);
            *first = next;
        }
        return false;
    }
    pbuf_free(chain);
    return true;
}

bool received_take(struct pbuf *chain, size_t held_bytes, struct received **first, struct received **last) {
    *first = *last = NULL;
    if (received_is_low()) return take_copies(chain, held_bytes, first, last);
    for (struct pbuf *buffer = chain; buffer;) {
        struct pbuf *next = buffer->next;
        buffer->next = NULL;
        buffer->tot_len = buffer->len;
        if (buffer->len > 0)
            append(first, last, (struct received *)(void *)buffer);
        else
            pbuf_free(buffer);
        buffer = next;
    }
    return true;
}

void received_free(struct received *received) {
    pbuf_free(&received->buffer.pbuf);
}

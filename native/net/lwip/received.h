/* received: data on its way from a frame to the server: lwIP's buffers lie over the frames, without a copy, as long
 * as there are enough frames. When slow readers hold too many of them, data is copied to a bounded store. */
#ifndef REPLAY_NET_LWIP_RECEIVED_H
#define REPLAY_NET_LWIP_RECEIVED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lwip/opt.h>

#include <lwip/pbuf.h>

struct rte_mbuf;

struct received {
    struct pbuf_custom buffer; /* first: lwIP hands this back to us */
    struct received *next; /* in a connection's queue */
    uint32_t sequence; /* of a frame that came early: where its data begins */
    struct rte_mbuf *frame; /* whose private part this is; NULL: a copy, which begins behind this struct */
};

/* Frames that may be held, by lwIP and by connections together. */
void received_set_most(uint32_t frames);
uint32_t received_frames_held(void);
/* So many are held that only frames without data are taken any more: those are given back at once. */
bool received_is_full(void);
bool received_is_low(void); /* half of them are held: what is to stay longer is copied */
/* How many frames lwIP may keep of one connection that came ahead of a lost one, before the server has it: see out_of_order.h. */
uint16_t received_early_frames(void);

/* Lays a buffer over the frame, which goes back to its pool when the buffer is freed. */
struct pbuf *received_from_frame(struct rte_mbuf *frame);
/* As above, for a frame that came ahead of a lost one, of a connection that keeps `kept` of them: a copy where frames are
 * short, or it has many. NULL: there is no room; the frame was given back. */
struct received *received_keep(struct rte_mbuf *frame, uint32_t kept);
/* Replaces a chain that lwIP handed over by pieces to be queued: the same, or copies where frames are short. False: there is
 * no room for it beside the `held_bytes` that this connection holds; the chain is as it was. */
bool received_take(struct pbuf *chain, size_t held_bytes, struct received **first, struct received **last);
void received_free(struct received *received);

#endif

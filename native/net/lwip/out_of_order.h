/* out_of_order: frames of one connection that came ahead of a lost one. They are kept here and given to lwIP in order, once
 * what was lost has come. lwIP's own queue is a list of frames that it walks twice for each further one, and a far client has
 * thousands under way.
 *
 * Frames without a gap between them make a block. Each frame of a block begins no later than those before it end, so when
 * the first is in order, all are, one after the other. Blocks are in order, with gaps between them: they are what SACK
 * reports. */
#ifndef REPLAY_NET_LWIP_OUT_OF_ORDER_H
#define REPLAY_NET_LWIP_OUT_OF_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "net/lwip/received.h"

#define OUT_OF_ORDER_BLOCKS_MOST 64u /* of a connection */
#define OUT_OF_ORDER_RANGES 4u /* that an acknowledgement reports */

struct out_of_order_block {
    uint32_t left, right; /* sequence numbers */
    struct received *first, *last;
    struct out_of_order_block *next;
};

/* Zeroes stand for none. */
struct out_of_order {
    struct out_of_order_block *first;
    struct out_of_order_block *newest; /* that grew last */
    uint32_t blocks, frames;
};

struct out_of_order_range {
    uint32_t left, right;
};

/* Once a process: room for so many blocks of all connections. */
int out_of_order_open(uint32_t blocks, struct error *error);
void out_of_order_close(void);

/* Keeps a frame with the data [left, right); `received->sequence` is set. False: it is there already, or there is no place
 * for another block: the frame stays the caller's. */
bool out_of_order_hold(struct out_of_order *early, struct received *received, uint32_t left, uint32_t right);
/* Whether all of [left, right) is there already. If so, its block is reported first. */
bool out_of_order_has(struct out_of_order *early, uint32_t left, uint32_t right);
/* The next frame that is in order where `expected` is; NULL: there is a gap. It is the caller's. */
struct received *out_of_order_take(struct out_of_order *early, uint32_t expected);
/* Gives everything back. */
void out_of_order_drop(struct out_of_order *early);
/* What is kept, as SACK reports it (RFC 2018, section 4): the block that grew last first. Returns how many. */
uint32_t out_of_order_report(const struct out_of_order *early, struct out_of_order_range ranges[OUT_OF_ORDER_RANGES]);

#endif

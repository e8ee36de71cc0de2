/* early: frames that came ahead of a lost one, of one connection. They are kept here and given to lwIP in order, once what
 * was lost has come. lwIP's own queue is a list of frames that it walks twice for each further one, and a far client has
 * thousands under way.
 *
 * Frames without a gap between them make a block. Each frame of a block begins no later than those before it end, so when
 * the first is in order, all are, one after the other. Blocks are in order, with gaps between them: they are what SACK
 * reports. */
#ifndef REPLAY_NET_LWIP_EARLY_H
#define REPLAY_NET_LWIP_EARLY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "net/lwip/received.h"

#define EARLY_BLOCKS_MOST 64u /* of a connection */
#define EARLY_RANGES 4u /* that an acknowledgement reports */

struct early_block {
    uint32_t left, right; /* sequence numbers */
    struct received *first, *last;
    struct early_block *next;
};

/* Zeroes stand for none. */
struct early {
    struct early_block *first;
    struct early_block *newest; /* that grew last */
    uint32_t blocks, frames;
};

struct early_range {
    uint32_t left, right;
};

/* Once a process: room for so many blocks of all connections. */
int early_open(uint32_t blocks, struct error *error);
void early_close(void);

/* Keeps a frame with the data [left, right); `received->sequence` is set. False: it is there already, or there is no place
 * for another block: the frame stays the caller's. */
bool early_hold(struct early *early, struct received *received, uint32_t left, uint32_t right);
/* Whether all of [left, right) is there already. If so, its block is reported first. */
bool early_has(struct early *early, uint32_t left, uint32_t right);
/* The next frame that is in order where `expected` is; NULL: there is a gap. It is the caller's. */
struct received *early_take(struct early *early, uint32_t expected);
/* Gives everything back. */
void early_drop(struct early *early);
/* What is kept, as SACK reports it (RFC 2018, section 4): the block that grew last first. Returns how many. */
uint32_t early_report(const struct early *early, struct early_range ranges[EARLY_RANGES]);

#endif

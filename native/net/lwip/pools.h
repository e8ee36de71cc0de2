/* pools: all memory that lwIP takes while it runs, in pieces of a few sizes, each of a number fixed at the start. */
#ifndef REPLAY_NET_LWIP_POOLS_H
#define REPLAY_NET_LWIP_POOLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Once a process. Pages are committed when first used. */
int pools_open(uint32_t connections, uint16_t mtu, struct error *error);
void pools_close(void);

/* lwIP's malloc and free. NULL: all pieces of that size are in use, which lwIP bears. */
void *pools_take(size_t size_bytes);
void *pools_take_zeroed(size_t count, size_t size_bytes);
void pools_give(void *piece);

/* Fewer than an eighth of the pieces that segments are made of are left: connections with much under way take no more. */
bool pools_are_low(void);
uint64_t pools_refusals(void); /* how often there was no piece left */

/* Copies of received frames, when frames themselves run short. Apart from the above, so that neither starves the other. */
void *pools_take_copy(size_t size_bytes);
void pools_give_copy(void *piece);
size_t pools_copy_room(void); /* bytes of frames that still find room */

#endif

/* receive_window: how far ahead of the server a client may send. It begins small and grows as the client proves to use it:
 * the server takes in one round trip what the window holds, so twice as much is asked for, as Linux's dynamic right-sizing
 * does (Fisk and Feng, 2001). It never shrinks. Pure: the caller has the clock and the bounds. */
#ifndef REPLAY_NET_LWIP_RECEIVE_WINDOW_H
#define REPLAY_NET_LWIP_RECEIVE_WINDOW_H

#include <stdint.h>

#define RECEIVE_WINDOW_FIRST_BYTES (256u << 10)

struct receive_window {
    uint32_t bytes;
    uint32_t taken_bytes; /* by the server, in this round trip */
    uint64_t began_us; /* it; 0: none has */
};

/* The server has taken `bytes` of what came. Returns how many the window should have now, at least what it has. */
uint32_t receive_window_take(struct receive_window *window, uint32_t bytes, uint32_t round_trip_us,
                             uint32_t segment_bytes, uint64_t now_us);

#endif

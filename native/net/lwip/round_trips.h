/* round_trips: how long a connection's data takes until it is acknowledged, in microseconds. lwIP's clock ticks every 20 ms,
 * which is enough for its timer, but not to see a queue grow.
 *
 * The time is kept of some packets under way, spread over all of them. Every acknowledgement that ends within one of these
 * is a sample: their frames leave together. */
#ifndef REPLAY_NET_LWIP_ROUND_TRIPS_H
#define REPLAY_NET_LWIP_ROUND_TRIPS_H

#include <stdint.h>

#define ROUND_TRIPS_MARKS 16u

struct round_trips {
    struct {
        uint32_t first, end; /* sequence numbers */
        uint32_t sent_us; /* the clock's lower bits */
    } marks[ROUND_TRIPS_MARKS];
    uint32_t oldest, count;
    uint32_t smoothed_us, least_us; /* 0: nothing was measured yet */
};

void round_trips_add(struct round_trips *trips, uint32_t sample_us);
/* Data goes out for the first time, beside so many bytes that are under way. */
void round_trips_sent(struct round_trips *trips, uint32_t first, uint32_t end, uint32_t under_way, uint64_t now_us);
/* All before it is acknowledged. Returns what that shows of a round trip; 0: nothing. */
uint32_t round_trips_acknowledged(struct round_trips *trips, uint32_t acknowledged, uint64_t now_us);
/* Data goes out again: which of the two an acknowledgement is for cannot be told (Karn's algorithm). */
void round_trips_forget(struct round_trips *trips);

#endif

/* round_trips: how long a connection's data takes until it is acknowledged, in microseconds, and how long to wait before it
 * is sent again. lwIP's own clock ticks every 20 ms, and it also times what was sent again.
 *
 * The time is kept of some packets under way, spread over all of them. Every acknowledgement that ends within one of these
 * is a sample: their frames leave together. There are many samples in a round trip, and the variation shrinks by the largest
 * of them, once in each: else it would forget within a round trip what the one before was like (RFC 7323, appendix G). */
#ifndef REPLAY_NET_LWIP_ROUND_TRIPS_H
#define REPLAY_NET_LWIP_ROUND_TRIPS_H

#include <stdbool.h>
#include <stdint.h>

#define ROUND_TRIPS_MARKS 16u
#define ROUND_TRIPS_TIMEOUT_MOST_US 120000000u /* as Linux has it */

struct round_trips {
    struct {
        uint32_t first, end; /* sequence numbers */
        uint32_t sent_us; /* the clock's lower bits */
    } marks[ROUND_TRIPS_MARKS];
    uint32_t oldest, count;
    uint32_t smoothed_us, least_us; /* SRTT; 0: nothing was measured yet */
    uint32_t variation_us; /* RTTVAR */
    uint32_t off_us; /* the most that a sample of this round trip was off SRTT */
    uint32_t round_end; /* when more than this is acknowledged, another round trip has passed */
    bool in_round;
    uint8_t doubled; /* timeouts since the last sample */
};

/* A sample that is the only one of its round trip. */
void round_trips_add(struct round_trips *trips, uint32_t sample_us);
/* Data goes out for the first time, beside so many bytes that are under way. */
void round_trips_sent(struct round_trips *trips, uint32_t first, uint32_t end, uint32_t under_way, uint64_t now_us);
/* All before it is acknowledged. Returns what that shows of a round trip; 0: nothing. */
uint32_t round_trips_acknowledged(struct round_trips *trips, uint32_t acknowledged, uint64_t now_us);
/* The retransmission timeout (RFC 6298, section 2.3): SRTT + max(200 ms, 4 RTTVAR), as Linux has it. The 200 ms bound the
 * variation, not the sum: a round trip of 150 ms may still become 200 ms longer all at once. It is a second before the first
 * sample, and doubled by every timeout since the last one, up to 120 s. */
uint64_t round_trips_timeout_us(const struct round_trips *trips);
/* It ran out. The next one is twice as long until there is a sample: what is acknowledged meanwhile was sent twice, so a
 * round trip that has become longer than the timeout would never be measured (section 5.7, Karn's algorithm). */
void round_trips_double(struct round_trips *trips);
/* Data goes out again: which of the two an acknowledgement is for cannot be told (Karn's algorithm). */
void round_trips_forget(struct round_trips *trips);

#endif

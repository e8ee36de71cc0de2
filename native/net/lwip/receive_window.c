/* receive_window: bytes taken in a round trip. */
#include "net/lwip/receive_window.h"

#define SPARE_SEGMENTS 16u /* above twice what was taken, as Linux has it */
#define LEAST_US 1000u /* shorter round trips say more of the loop's turns than of the way */

uint32_t receive_window_take(struct receive_window *window, uint32_t bytes, uint32_t round_trip_us,
                             uint32_t segment_bytes, uint64_t now_us) {
    if (round_trip_us < LEAST_US) round_trip_us = LEAST_US;
    uint64_t past_us = now_us - window->began_us;
    if (window->began_us == 0 || past_us >= 2u * (uint64_t)round_trip_us) { /* it was quiet meanwhile */
        window->began_us = now_us;
        window->taken_bytes = bytes;
        return window->bytes;
    }
    window->taken_bytes += bytes;
    if (past_us < round_trip_us) return window->bytes;
    uint64_t in_round_trip = (uint64_t)window->taken_bytes * round_trip_us / past_us;
    uint64_t wanted = 2 * in_round_trip + (uint64_t)SPARE_SEGMENTS * segment_bytes;
    window->began_us = now_us;
    window->taken_bytes = 0;
    if (wanted <= window->bytes) return window->bytes;
    return wanted < UINT32_MAX ? (uint32_t)wanted : UINT32_MAX;
}

/* rack: what is lost, by time (RACK, RFC 8985, section 6). Frames arrive in the order in which they were sent, but for a
 * while: the reordering window. So a frame is lost when one that was sent later has come, and a round trip and the window
 * have passed since it was sent. Unlike a count of frames beyond a gap this holds where few follow, where frames overtake
 * each other, and for what was sent again.
 *
 * The window is a quarter of the least round trip. It is 0 while no frame has overtaken another and there is other
 * evidence: recovery, or as many frames beyond the gap as RFC 6675 wants. It grows by a quarter in every round trip in
 * which the peer says that something came twice (RFC 2883): it was sent again too early. Sixteen recoveries later it is
 * what it was.
 *
 * What went out for the first time did so by sequence numbers, so it is lost up to one of them: RFC 6675's recovery goes
 * on as it is, with another number. Of what was sent again, only the first gap's frame is judged: the next one is the
 * first as soon as that has come.
 *
 * Knows neither lwIP nor clocks. Names of the RFC stand behind ours. */
#ifndef REPLAY_NET_LWIP_RACK_H
#define REPLAY_NET_LWIP_RACK_H

#include <stdbool.h>
#include <stdint.h>

#include "net/lwip/timeline.h"

struct rack {
    struct timeline first, again; /* when data was sent for the first time, and again in this recovery */
    uint64_t sent_us; /* RACK.xmit_ts: of all that has come, what was sent last; 0: nothing */
    uint32_t round_trip_us; /* RACK.rtt: how long that took */
    uint32_t furthest; /* RACK.fack: the end of what has come */
    bool reordering; /* seen */
    uint32_t quarters, recoveries_left; /* RACK.reo_wnd_mult, reo_wnd_persist */
    uint32_t round_end; /* RACK.dsack_round */
    uint32_t resent_from, resent_until; /* what was sent again in the last recovery, and gaps between */
};

void rack_open(struct rack *rack, uint32_t next);
/* [left, right) has come, which was not known. It was sent again where it lies before `resent_until`. */
void rack_take(struct rack *rack, uint32_t left, uint32_t right, uint32_t resent_until, uint32_t least_us,
               uint64_t now_us);
/* Something that ends there came twice. `next`: what has been sent by now. */
void rack_take_twice(struct rack *rack, uint32_t acknowledged, uint32_t end, uint32_t next);
void rack_end_recovery(struct rack *rack);

/* How much a frame may be late. `certain`: there is other evidence. */
uint32_t rack_window_us(const struct rack *rack, uint32_t least_us, uint32_t smoothed_us, bool certain);
/* What is missing before the number returned is lost. `acknowledged`: nothing. */
uint32_t rack_lost_until(const struct rack *rack, uint32_t acknowledged, uint32_t window_us, uint64_t now_us);
/* Whether what was sent again then is lost. */
bool rack_is_lost(const struct rack *rack, uint64_t resent_us, uint32_t window_us, uint64_t now_us);
/* When everything that was sent before what came is lost, or has come. */
uint64_t rack_due_us(const struct rack *rack, uint32_t window_us);

#endif

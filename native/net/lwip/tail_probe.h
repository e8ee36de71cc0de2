/* tail_probe: tail loss probes (RFC 8985, section 7). Frames at the end of what is under way have nothing behind them that
 * would show their loss. If no acknowledgement comes for two round trips, the last frame is sent again. Either it was the
 * only one that was lost, or the peer reports that it has come beyond a gap, and what is missing before it is sent again
 * at once. Neither waits for the retransmission timer, which is 200 ms at least and shrinks the window to one frame.
 *
 * A probe that replaced a lost frame has hidden a loss from the congestion control, which has to hear of it. It was lost,
 * unless the peer says that it has the frame twice (RFC 2883) or repeats itself: both mean that the frame was late only.
 *
 * The RFC would rather have new data as the probe. Data is left to send after two silent round trips only where a whole
 * window was lost, and lwIP's segments are many frames: the last frame tells the same, and is one.
 *
 * Knows neither lwIP nor clocks. Names of the RFC stand behind ours. */
#ifndef REPLAY_NET_LWIP_TAIL_PROBE_H
#define REPLAY_NET_LWIP_TAIL_PROBE_H

#include <stdbool.h>
#include <stdint.h>

struct tail_probe {
    bool measured; /* a round trip, since the last probe: without that, none is sent */
    bool out; /* what has become of it is not known yet */
    uint32_t first, end; /* the sequence numbers of its data; TLP.end_seq */
};

/* What an acknowledgement says that may answer a probe. */
struct tail_probe_answer {
    uint32_t acknowledged;
    bool came_twice; /* it says that something did */
    uint32_t twice_until;
    bool repeats; /* it says nothing new at all */
};

/* How long to wait before a probe (PTO). `lone`: no more than a frame is under way, whose acknowledgement the peer may
 * delay. `timeout_us`: until the retransmission timer runs out. */
uint64_t tail_probe_wait_us(uint32_t smoothed_us, bool lone, uint64_t timeout_us);
void tail_probe_sent(struct tail_probe *probe, uint32_t first, uint32_t end);
/* Returns whether the probe has replaced a frame that was lost. */
bool tail_probe_answered(struct tail_probe *probe, const struct tail_probe_answer *answer);
/* The loss was noticed in another way, or the retransmission timer ran out. */
void tail_probe_forget(struct tail_probe *probe);

#endif

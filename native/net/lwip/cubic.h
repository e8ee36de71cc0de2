/* cubic: how much a connection may have under way: CUBIC (RFC 9438), and HyStart++ (RFC 9406), which ends the first slow
 * start before it fills the queue on the way. Knows neither lwIP nor clocks: whoever calls it says what happened and when.
 *
 * Windows are kept in segments (frames' worth of data) with their fractions, as the RFC's equations have them: with
 * thousands of segments under way, an acknowledgement adds a small part of a byte. Names of the RFCs stand behind ours. */
#ifndef REPLAY_NET_LWIP_CUBIC_H
#define REPLAY_NET_LWIP_CUBIC_H

#include <stdbool.h>
#include <stdint.h>

struct cubic {
    uint32_t segment_bytes; /* SMSS */
    uint32_t most_bytes; /* the window grows no further */
    double window; /* cwnd */
    double threshold; /* ssthresh; infinite until the first congestion or HyStart++'s end */
    bool timed_out; /* the slow start is one after a timeout */
    /* Of the congestion avoidance stage. */
    bool avoiding; /* it has begun */
    bool lost; /* it follows a loss, not a timeout or HyStart++: W_max is the window of that loss */
    double most; /* W_max */
    double prior; /* cwnd_prior: the window at the last congestion; infinite: there was none */
    double friendly; /* W_est: what Reno would have */
    double rise_s; /* K: the time from its beginning to W_max */
    uint64_t began_us; /* moved on by times in which the window was not used up */
    uint64_t heard_us; /* the last acknowledgement */
    /* HyStart++. */
    uint32_t round_end; /* windowEnd: a sequence number */
    bool in_round;
    uint32_t least_us, least_before_us; /* currentRoundMinRTT, lastRoundMinRTT; UINT32_MAX: none */
    uint32_t samples; /* rttSampleCount */
    bool conservative; /* in CSS */
    uint32_t conservative_rounds;
    uint32_t baseline_us; /* cssBaselineMinRtt */
};

/* What an acknowledgement of new data says. */
struct cubic_acknowledgement {
    uint64_t now_us;
    uint32_t bytes; /* newly acknowledged */
    uint32_t acknowledged, next; /* sequence numbers: SEG.ACK, SND.NXT */
    uint32_t sample_us; /* a round trip measured by it; 0: none */
    uint32_t round_trip_us; /* smoothed */
    bool limited; /* the window was all that kept more from being sent */
};

void cubic_open(struct cubic *cubic, uint32_t segment_bytes, uint32_t window_bytes, uint32_t most_bytes);
void cubic_acknowledge(struct cubic *cubic, const struct cubic_acknowledgement *acknowledgement);
/* Loss was noticed, once a window: the window is cut, and the threshold is where recovery leaves it. */
void cubic_lose(struct cubic *cubic);
/* Nothing was heard for the time of a retransmission. `again`: what was sent again after the last time is not
 * acknowledged yet, so the threshold stays (RFC 5681, section 3.1). */
void cubic_time_out(struct cubic *cubic, bool again);

/* Nothing was lost: all is as it was `before`, unless the window is as large again (section 4.9). The time since then does
 * not count, as in section 5.8, so the window does not leap. */
void cubic_undo(struct cubic *cubic, const struct cubic *before, uint64_t now_us);

uint32_t cubic_window_bytes(const struct cubic *cubic);
bool cubic_in_slow_start(const struct cubic *cubic);

#endif

/* tail_probe: by RFC 8985, sections 7.2 to 7.4. */
#include "net/lwip/tail_probe.h"

#define LEAST_US 5000u /* hosts answer later than their wire would have it: Linux has 2 ms and a tick of its clock */
#define DELAYED_US 50000u /* TLP.max_ack_delay: Linux delays for 40 ms and a tick, others for less */

static bool is_after(uint32_t left, uint32_t right) {
    return (int32_t)(left - right) > 0;
}

uint64_t tail_probe_wait_us(uint32_t smoothed_us, bool lone, uint64_t timeout_us) {
    uint64_t wait_us = 2 * (uint64_t)smoothed_us + (lone ? DELAYED_US : 0);
    if (wait_us < LEAST_US) wait_us = LEAST_US;
    if (wait_us <= timeout_us) return wait_us;
    /* Before the acknowledgement can come, a probe would be in vain. */
    uint64_t least_us = (uint64_t)smoothed_us + smoothed_us / 4;
    return timeout_us > least_us ? timeout_us : least_us;
}

void tail_probe_sent(struct tail_probe *probe, uint32_t first, uint32_t end) {
    *probe = (struct tail_probe){.out = true, .first = first, .end = end};
}

bool tail_probe_answered(struct tail_probe *probe, const struct tail_probe_answer *answer) {
    if (!probe->out || is_after(probe->end, answer->acknowledged)) return false;
    if (answer->came_twice && answer->twice_until == probe->end) {
        probe->out = false;
        return false;
    }
    if (is_after(answer->acknowledged, probe->end)) {
        probe->out = false;
        return true;
    }
    if (answer->repeats) probe->out = false;
    return false;
}

void tail_probe_forget(struct tail_probe *probe) {
    probe->out = false;
}

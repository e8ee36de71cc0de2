/* cubic: RFC 9438 by its equations, RFC 9406 by its section 4.2. */
#include "net/lwip/cubic.h"

#include <assert.h>
#include <math.h>

#define C 0.4 /* segments / s^3 */
#define BETA 0.7
#define ALPHA (3.0 * (1.0 - BETA) / (1.0 + BETA)) /* section 4.3: as fair as Reno, which halves */
#define FIRST_MOST 1.5 /* of the window, in a round trip: section 4.2 */
#define THRESHOLD_LEAST 2.0 /* segments: section 4.6 */
#define SECOND_US 1e6

/* Appropriate byte counting (RFC 3465): an acknowledgement of many segments lets no more than these go beside them.
 * RFC 9406, section 4.3, has 8 for a sender that does not pace; after a timeout it is one. */
#define LIMIT_SEGMENTS 8.0
#define LIMIT_AFTER_TIMEOUT 1.0

/* RFC 9406, section 4.3. */
#define LEAST_THRESHOLD_US 4000u
#define MOST_THRESHOLD_US 16000u
#define DIVISOR 8u
#define SAMPLES 8u
#define CONSERVATIVE_DIVISOR 4.0
#define CONSERVATIVE_ROUNDS 5u

static bool is_after(uint32_t left, uint32_t right) {
    return (int32_t)(left - right) > 0;
}

void cubic_open(struct cubic *cubic, uint32_t segment_bytes, uint32_t window_bytes, uint32_t most_bytes) {
    assert(segment_bytes > 0 && window_bytes >= segment_bytes && most_bytes >= window_bytes);
    *cubic = (struct cubic){.segment_bytes = segment_bytes,
                            .most_bytes = most_bytes,
                            .window = (double)window_bytes / segment_bytes,
                            .threshold = INFINITY,
                            .prior = INFINITY,
                            .least_us = UINT32_MAX,
                            .least_before_us = UINT32_MAX,
                            .baseline_us = UINT32_MAX};
}

uint32_t cubic_window_bytes(const struct cubic *cubic) {
    double bytes = cubic->window * cubic->segment_bytes;
    return bytes < cubic->most_bytes ? (uint32_t)bytes : cubic->most_bytes;
}

bool cubic_in_slow_start(const struct cubic *cubic) {
    return cubic->window < cubic->threshold;
}

static void hold_most(struct cubic *cubic) {
    double most = (double)cubic->most_bytes / cubic->segment_bytes;
    if (cubic->window > most) cubic->window = most;
}

/* ---- the first slow start: HyStart++ ----------------------------------------------------------------------------- */

static void end_slow_start(struct cubic *cubic) {
    cubic->threshold = cubic->window;
    cubic->conservative = false;
}

static void begin_round(struct cubic *cubic, uint32_t next) {
    cubic->in_round = true;
    cubic->round_end = next;
    cubic->least_before_us = cubic->least_us;
    cubic->least_us = UINT32_MAX;
    cubic->samples = 0;
    if (cubic->conservative && ++cubic->conservative_rounds >= CONSERVATIVE_ROUNDS) end_slow_start(cubic);
}

static uint32_t delay_threshold(uint32_t before_us) {
    uint32_t threshold = before_us / DIVISOR;
    if (threshold < LEAST_THRESHOLD_US) return LEAST_THRESHOLD_US;
    return threshold < MOST_THRESHOLD_US ? threshold : MOST_THRESHOLD_US;
}

static void take_sample(struct cubic *cubic, uint32_t sample_us) {
    if (sample_us < cubic->least_us) cubic->least_us = sample_us;
    cubic->samples++;
    if (cubic->samples < SAMPLES) return;
    if (cubic->conservative) {
        if (cubic->least_us >= cubic->baseline_us) return;
        cubic->conservative = false; /* the longer round trips were no queue of ours */
        cubic->baseline_us = UINT32_MAX;
        return;
    }
    if (cubic->least_before_us == UINT32_MAX) return;
    if (cubic->least_us < cubic->least_before_us + delay_threshold(cubic->least_before_us)) return;
    cubic->conservative = true;
    cubic->conservative_rounds = 0;
    cubic->baseline_us = cubic->least_us;
}

static void watch_delay(struct cubic *cubic, const struct cubic_acknowledgement *told) {
    if (!cubic->in_round || is_after(told->acknowledged, cubic->round_end)) begin_round(cubic, told->next);
    if (told->sample_us > 0) take_sample(cubic, told->sample_us);
}

/* ---- slow start and congestion avoidance ------------------------------------------------------------------------- */

static void start_slowly(struct cubic *cubic, double segments) {
    double limit = cubic->timed_out ? LIMIT_AFTER_TIMEOUT : LIMIT_SEGMENTS;
    double more = segments < limit ? segments : limit;
    cubic->window += cubic->conservative ? more / CONSERVATIVE_DIVISOR : more;
    /* What an acknowledgement acknowledges beyond the threshold is avoidance's already: RFC 5681 lets it be. */
    if (cubic->window > cubic->threshold) cubic->window = cubic->threshold;
}

/* After a timeout, or HyStart++'s end, the window itself is W_max and K is 0: sections 4.8 and 4.10. */
static void begin_avoidance(struct cubic *cubic, uint64_t now_us) {
    cubic->avoiding = true;
    cubic->began_us = cubic->heard_us = now_us;
    cubic->friendly = cubic->window;
    if (!cubic->lost || cubic->most <= cubic->window) {
        cubic->most = cubic->window;
        cubic->rise_s = 0.0;
    } else {
        cubic->rise_s = cbrt((cubic->most - cubic->window) / C); /* equation 2 */
    }
}

static double cubic_at(const struct cubic *cubic, double time_s) {
    double from_most_s = time_s - cubic->rise_s;
    return C * from_most_s * from_most_s * from_most_s + cubic->most; /* equation 1 */
}

static void avoid(struct cubic *cubic, double segments, uint64_t now_us, uint32_t round_trip_us) {
    double time_s = (double)(now_us - cubic->began_us) / SECOND_US;
    double target = cubic_at(cubic, time_s + round_trip_us / SECOND_US);
    if (target < cubic->window) target = cubic->window;
    if (target > FIRST_MOST * cubic->window) target = FIRST_MOST * cubic->window;
    /* Section 4.3: once it has what it had before the loss, Reno's part grows as Reno does. */
    double alpha = cubic->friendly >= cubic->prior ? 1.0 : ALPHA;
    cubic->friendly += alpha * segments / cubic->window; /* equation 4 */
    if (cubic_at(cubic, time_s) < cubic->friendly) {
        if (cubic->friendly > cubic->window) cubic->window = cubic->friendly;
        return;
    }
    cubic->window += (target - cubic->window) / cubic->window * segments;
}

void cubic_acknowledge(struct cubic *cubic, const struct cubic_acknowledgement *told) {
    double segments = (double)told->bytes / cubic->segment_bytes;
    if (isinf(cubic->threshold)) watch_delay(cubic, told);
    if (!told->limited) {
        /* Section 5.8: neither does the window grow, nor does the time count. */
        if (cubic->avoiding) cubic->began_us += told->now_us - cubic->heard_us;
        cubic->heard_us = told->now_us;
        return;
    }
    if (cubic_in_slow_start(cubic)) {
        start_slowly(cubic, segments);
    } else {
        if (!cubic->avoiding) begin_avoidance(cubic, told->now_us);
        avoid(cubic, segments, told->now_us, told->round_trip_us);
    }
    cubic->heard_us = told->now_us;
    hold_most(cubic);
}

/* ---- congestion -------------------------------------------------------------------------------------------------- */

/* Section 4.6. The window stands for what is under way: it does not grow unless it is used up. */
static void congest(struct cubic *cubic) {
    cubic->prior = cubic->window;
    /* Section 4.7, fast convergence: a window that did not come back to where it was makes room for others. */
    bool less = cubic->window < cubic->most;
    cubic->most = less ? cubic->window * (1.0 + BETA) / 2.0 : cubic->window;
    cubic->threshold = fmax(cubic->window * BETA, THRESHOLD_LEAST);
    cubic->avoiding = cubic->conservative = false;
}

void cubic_lose(struct cubic *cubic) {
    congest(cubic);
    cubic->lost = true;
    cubic->timed_out = false;
    cubic->window = cubic->threshold;
}

void cubic_time_out(struct cubic *cubic, bool again) {
    if (!again) congest(cubic);
    cubic->lost = false;
    cubic->timed_out = true;
    cubic->window = 1.0;
}

void cubic_undo(struct cubic *cubic, const struct cubic *before, uint64_t now_us) {
    if (cubic->window >= before->window) return;
    *cubic = *before;
    if (cubic->avoiding) cubic->began_us += now_us - cubic->heard_us;
    cubic->heard_us = now_us;
}

/* recovery: what an acknowledgement tells, and what follows from it. */
#include "net/lwip/recovery.h"

#include <lwip/priv/tcp_priv.h>

#include "base/clock.h"
#include "net/lwip/connection.h"
#include "net/lwip/hooks.h"
#include "net/lwip/stack.h"

#define DUPLICATES 3u /* DupThresh */
#define TICK_US (TCP_SLOW_INTERVAL * 1000u) /* of lwIP's retransmission timer */
#define TIMEOUTS_UNTIL_DOUBT 2u /* a peer may forget what it has reported (RFC 2018, section 8) */

/* ---- options ----------------------------------------------------------------------------------------------------- */

#define OPTION_END 0
#define OPTION_NOTHING 1
#define OPTION_SACK 5
#define BLOCK_BYTES 8u

static uint32_t word_at(const uint8_t *bytes) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static uint32_t read_option(const uint8_t *option, struct scoreboard_range blocks[RECOVERY_BLOCKS]) {
    uint32_t count = (option[1] - 2u) / BLOCK_BYTES;
    if (count > RECOVERY_BLOCKS) count = RECOVERY_BLOCKS;
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *block = option + 2 + i * BLOCK_BYTES;
        blocks[i] = (struct scoreboard_range){word_at(block), word_at(block + 4)};
    }
    return count;
}

uint32_t recovery_read_blocks(const uint8_t *options, uint32_t length,
                              struct scoreboard_range blocks[RECOVERY_BLOCKS]) {
    for (uint32_t at = 0; at < length && options[at] != OPTION_END;) {
        if (options[at] == OPTION_NOTHING) {
            at++;
            continue;
        }
        if (at + 1 >= length || options[at + 1] < 2 || at + options[at + 1] > length) return 0;
        if (options[at] == OPTION_SACK) return read_option(options + at, blocks);
        at += options[at + 1];
    }
    return 0;
}

/* ---- what has arrived -------------------------------------------------------------------------------------------- */

/* What one acknowledgement says. */
struct told {
    uint32_t acknowledged; /* SEG.ACK */
    uint32_t bytes; /* newly acknowledged */
    uint32_t delivered; /* what is known to have arrived only now */
    uint32_t sample_us;
    uint64_t now_us;
    uint64_t late_us; /* when the last of what shows by coming that a timeout was needless was sent; 0: nothing did */
    bool undone; /* it showed that nothing needed to be sent again */
    struct scoreboard_range twice; /* what it says came twice; empty: nothing */
    struct tail_probe_answer answer;
};

/* Of [left, right) what was not known to have come, before the scoreboard knows. */
static void take_missing(struct recovery *recovery, uint32_t left, uint32_t right, struct told *told) {
    uint32_t resent_until = recovery->timed_out ? recovery->until : recovery->resent_until;
    struct scoreboard_range gap = {.right = left};
    while (scoreboard_gap(&recovery->board, gap.right, right, &gap)) {
        rack_take(&recovery->rack, gap.left, gap.right, resent_until, recovery->round_trips.least_us, told->now_us);
        if (!undo_take(&recovery->undo, gap)) continue;
        uint32_t end = TCP_SEQ_LT(recovery->undo.until, gap.right) ? recovery->undo.until : gap.right;
        uint64_t sent_us = timeline_at(&recovery->rack.first, end - 1);
        if (told->late_us < sent_us) told->late_us = sent_us;
    }
}

/* RFC 2883, section 4: the first block lies before what is acknowledged, or within the second. */
static bool came_twice(const struct scoreboard_range *blocks, uint32_t count, uint32_t acknowledged) {
    if (count == 0) return false;
    if (TCP_SEQ_LEQ(blocks[0].right, acknowledged)) return true;
    return count > 1 && TCP_SEQ_LEQ(blocks[1].left, blocks[0].left) && TCP_SEQ_LEQ(blocks[0].right, blocks[1].right);
}

static void take_blocks(struct recovery *recovery, const struct tcp_pcb *pcb, const struct tcp_hdr *header,
                        uint32_t options_bytes, struct told *told) {
    struct scoreboard_range blocks[RECOVERY_BLOCKS];
    uint32_t count = recovery_read_blocks((const uint8_t *)(header + 1), options_bytes, blocks);
    if (came_twice(blocks, count, told->acknowledged)) {
        told->twice = blocks[0];
        told->answer.came_twice = true;
        told->answer.twice_until = blocks[0].right;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct scoreboard_range block = blocks[i];
        /* What was not sent yet, nobody can have. */
        if (TCP_SEQ_LT(block.left, told->acknowledged)) block.left = told->acknowledged;
        if (TCP_SEQ_GT(block.right, pcb->snd_nxt)) continue;
        take_missing(recovery, block.left, block.right, told);
        told->delivered += scoreboard_add(&recovery->board, block);
    }
    told->answer.repeats = count == 0;
}

/* It carries nothing but the acknowledgement. */
static bool is_bare(const struct recovery *recovery, const struct tcp_hdr *header, const struct pbuf *data) {
    return data->tot_len == 0 && !(TCPH_FLAGS(header) & TCP_FIN) && header->wnd == recovery->peer_window;
}

/* RFC 6937, section 3: without SACK, a duplicate stands for a segment, which is not counted again when it is acknowledged. */
static void count_duplicates(struct recovery *recovery, const struct tcp_pcb *pcb, const struct tcp_hdr *header,
                             const struct pbuf *data, struct told *told) {
    uint32_t segment = recovery->cubic.segment_bytes;
    if (told->bytes > 0) {
        uint32_t counted = recovery->duplicates * segment;
        told->delivered = told->bytes > counted ? told->bytes - counted : 0;
        recovery->duplicates = told->bytes < counted ? (counted - told->bytes) / segment : 0;
        return;
    }
    uint32_t flight = pcb->snd_nxt - told->acknowledged;
    if (!is_bare(recovery, header, data) || (recovery->duplicates + 1) * segment > flight) return;
    recovery->duplicates++;
    told->delivered = segment;
}

static void take_acknowledgement(struct recovery *recovery, const struct tcp_pcb *pcb, const struct tcp_hdr *header,
                                 uint32_t options_bytes, const struct pbuf *data, struct told *told) {
    bool whole = recovery->board.count == 0 && !recovery->active && !recovery->timed_out;
    told->bytes = told->acknowledged - recovery->acknowledged;
    take_missing(recovery, recovery->acknowledged, told->acknowledged, told);
    timeline_advance(&recovery->rack.first, told->acknowledged);
    timeline_advance(&recovery->rack.again, told->acknowledged);
    recovery->acknowledged = told->acknowledged;
    if (pcb->flags & TF_SACK) {
        told->delivered = told->bytes - scoreboard_advance(&recovery->board, told->acknowledged);
        take_blocks(recovery, pcb, header, options_bytes, told);
        told->answer.repeats = told->answer.repeats && told->bytes == 0 && is_bare(recovery, header, data);
    } else {
        count_duplicates(recovery, pcb, header, data, told);
    }
    recovery->peer_window = header->wnd;
    if (told->bytes == 0) return;
    recovery->timeouts = 0;
    if (TCP_SEQ_LT(recovery->resent_until, told->acknowledged)) recovery->resent_until = told->acknowledged;
    if (TCP_SEQ_LT(recovery->late_until, told->acknowledged)) recovery->late_until = told->acknowledged;
    /* What falls behind by 2 GB would seem to lie ahead. */
    if (TCP_SEQ_LT(recovery->until, told->acknowledged)) recovery->until = told->acknowledged;
    if (TCP_SEQ_LT(recovery->spared_until, told->acknowledged)) recovery->spared_until = told->acknowledged;
    /* What fills a gap acknowledges, late, what came long before. */
    if (whole) told->sample_us = round_trips_acknowledged(&recovery->round_trips, told->acknowledged, told->now_us);
    if (told->sample_us > 0) recovery->probe.measured = true;
}

/* ---- growth ------------------------------------------------------------------------------------------------------ */

/* Whether the window was all that kept more from being sent. lwIP sends whole segments of its own. */
static bool is_limited(const struct recovery *recovery, const struct tcp_pcb *pcb, uint32_t bytes) {
    if (recovery->timed_out) return true;
    uint32_t flight = pcb->snd_nxt - recovery->acknowledged + bytes - recovery->board.bytes;
    uint32_t window = cubic_window_bytes(&recovery->cubic);
    if (cubic_in_slow_start(&recovery->cubic)) return flight >= window / 2;
    return flight + pcb->mss >= window;
}

static void grow(struct recovery *recovery, const struct tcp_pcb *pcb, const struct told *told) {
    const struct cubic_acknowledgement acknowledgement = {.now_us = told->now_us,
                                                          .bytes = told->bytes,
                                                          .acknowledged = told->acknowledged,
                                                          .next = pcb->snd_nxt,
                                                          .sample_us = told->sample_us,
                                                          .round_trip_us = recovery->round_trips.smoothed_us,
                                                          .limited = is_limited(recovery, pcb, told->bytes)};
    cubic_acknowledge(&recovery->cubic, &acknowledgement);
}

/* ---- loss -------------------------------------------------------------------------------------------------------- */

static uint32_t window_us(const struct recovery *recovery) {
    uint32_t segment = recovery->cubic.segment_bytes;
    bool certain = recovery->active ||
                   scoreboard_lost_until(&recovery->board, recovery->acknowledged, segment) != recovery->acknowledged;
    return rack_window_us(&recovery->rack, recovery->round_trips.least_us, recovery->round_trips.smoothed_us, certain);
}

/* What is missing before it is lost. */
static uint32_t lost_until(const struct recovery *recovery, const struct tcp_pcb *pcb, uint64_t now_us) {
    uint32_t segment = recovery->cubic.segment_bytes;
    if (pcb->flags & TF_SACK) {
        uint32_t lost = rack_lost_until(&recovery->rack, recovery->acknowledged, window_us(recovery), now_us);
        return TCP_SEQ_LT(lost, recovery->late_until) ? recovery->late_until : lost;
    }
    /* In recovery, an acknowledgement short of what had been sent points at the next loss. */
    bool lost = recovery->active || recovery->duplicates >= DUPLICATES;
    return recovery->acknowledged + (lost ? segment : 0);
}

/* RFC 6675, SetPipe: what is neither known to have arrived nor lost, and what was sent again. */
static uint32_t under_way(const struct recovery *recovery, const struct tcp_pcb *pcb, uint32_t lost) {
    uint32_t again = TCP_SEQ_LT(recovery->resent_until, lost) ? recovery->resent_until : lost;
    uint32_t bytes = scoreboard_missing(&recovery->board, lost, pcb->snd_nxt) +
                     scoreboard_missing(&recovery->board, recovery->acknowledged, again);
    uint32_t left = recovery->duplicates * recovery->cubic.segment_bytes;
    return bytes > left ? bytes - left : 0;
}

/* RFC 6937, section 3.1: how many bytes may be sent now. */
static uint32_t reduce(struct recovery *recovery, uint32_t pipe, uint32_t delivered) {
    uint32_t threshold = cubic_window_bytes(&recovery->cubic);
    if (pipe > threshold) {
        uint64_t share = (uint64_t)recovery->delivered_bytes * threshold;
        uint64_t may = (share + recovery->flight_bytes - 1) / recovery->flight_bytes;
        return may > recovery->sent_bytes ? (uint32_t)(may - recovery->sent_bytes) : 0;
    }
    uint32_t saved =
        recovery->delivered_bytes > recovery->sent_bytes ? recovery->delivered_bytes - recovery->sent_bytes : 0;
    uint32_t limit = (saved > delivered ? saved : delivered) + recovery->cubic.segment_bytes;
    return threshold - pipe < limit ? threshold - pipe : limit;
}

static bool send_gap(struct lwip_connection *connection, struct scoreboard_range gap, uint32_t *may) {
    struct recovery *recovery = &connection->recovery;
    uint32_t length = gap.right - gap.left;
    if (length > recovery->cubic.segment_bytes) length = recovery->cubic.segment_bytes;
    if (!stack_resend(connection, gap.left, &length)) return false;
    uint32_t end = gap.left + length;
    uint64_t now_us = clock_monotonic_us();
    if (gap.left == recovery->acknowledged) {
        recovery->first_gap = gap.left;
        recovery->first_gap_us = now_us;
    }
    if (TCP_SEQ_LT(recovery->resent_until, end)) recovery->resent_until = end;
    if (TCP_SEQ_LT(recovery->rack.resent_until, end)) recovery->rack.resent_until = end;
    timeline_sent(&recovery->rack.again, end, recovery->round_trips.smoothed_us, now_us);
    recovery->sent_bytes += length;
    *may -= length < *may ? length : *may;
    return true;
}

static bool is_first_lost_again(const struct recovery *recovery, uint64_t now_us) {
    if (!TCP_SEQ_GT(recovery->resent_until, recovery->acknowledged)) return false;
    uint64_t resent_us = recovery->first_gap == recovery->acknowledged && recovery->first_gap_us > 0
                             ? recovery->first_gap_us
                             : timeline_at(&recovery->rack.again, recovery->acknowledged);
    return rack_is_lost(&recovery->rack, resent_us, window_us(recovery), now_us);
}

/* `first`: one frame goes whatever may be sent. */
static void send_gaps(struct lwip_connection *connection, const struct told *told, uint32_t lost, uint32_t *may,
                      bool first) {
    struct recovery *recovery = &connection->recovery;
    struct scoreboard_range gap;
    if (is_first_lost_again(recovery, told->now_us) &&
        scoreboard_gap(&recovery->board, recovery->acknowledged, lost, &gap)) {
        if (!send_gap(connection, gap, may)) return;
        first = false;
    }
    while ((first || *may >= recovery->cubic.segment_bytes) &&
           scoreboard_gap(&recovery->board, recovery->resent_until, lost, &gap)) {
        if (!send_gap(connection, gap, may)) return;
        first = false;
    }
}

static bool is_probe_under_way(const struct recovery *recovery) {
    return recovery->probe.out && TCP_SEQ_GT(recovery->probe.end, recovery->acknowledged);
}

/* What was sent again already, and may still be reported to have come twice. */
static uint32_t unreported_bytes(const struct recovery *recovery) {
    if (TCP_SEQ_GT(recovery->resent_until, recovery->acknowledged)) return recovery->undo.again_bytes;
    return is_probe_under_way(recovery) ? recovery->probe.end - recovery->probe.first : 0;
}

static void begin(struct recovery *recovery, struct tcp_pcb *pcb) {
    uint32_t again_until = recovery->resent_until;
    if (is_probe_under_way(recovery) && TCP_SEQ_LT(again_until, recovery->probe.end)) again_until = recovery->probe.end;
    undo_begin(&recovery->undo, &recovery->cubic, recovery->acknowledged, again_until, again_until,
               unreported_bytes(recovery));
    recovery->active = true;
    recovery->until = pcb->snd_nxt;
    recovery->resent_until = recovery->acknowledged;
    recovery->flight_bytes = pcb->snd_nxt - recovery->acknowledged;
    recovery->delivered_bytes = recovery->sent_bytes = 0;
    recovery->counted_until = pcb->snd_nxt;
    recovery->first_gap_us = 0;
    recovery->rack.resent_from = recovery->rack.resent_until = recovery->acknowledged;
    timeline_clear(&recovery->rack.again);
    tail_probe_forget(&recovery->probe);
    cubic_lose(&recovery->cubic);
    stack.recoveries++;
    round_trips_forget(&recovery->round_trips);
    pcb->rttest = 0; /* lwIP's measurement */
    pcb->rtime = 0; /* its timer begins anew, as with its own fast retransmit */
}

/* Sends again, and tells lwIP how much of what is new may follow. */
static void go_on(struct lwip_connection *connection, const struct told *told, uint32_t lost, bool first) {
    struct recovery *recovery = &connection->recovery;
    struct tcp_pcb *pcb = connection->pcb;
    recovery->delivered_bytes += told->delivered;
    recovery->sent_bytes += pcb->snd_nxt - recovery->counted_until;
    recovery->counted_until = pcb->snd_nxt;
    uint32_t may = reduce(recovery, under_way(recovery, pcb, lost), told->delivered);
    send_gaps(connection, told, lost, &may, first);
    pcb->cwnd = pcb->snd_nxt - recovery->acknowledged + may;
}

/* Nothing needed to be sent again. */
static void take_back(struct recovery *recovery, struct told *told) {
    told->undone = true;
    cubic_undo(&recovery->cubic, &recovery->undo.before, told->now_us);
    /* Else the timer runs out as early the next time (RFC 4015, section 3.2). */
    if (told->late_us > 0) round_trips_add(&recovery->round_trips, (uint32_t)(told->now_us - told->late_us));
    undo_forget(&recovery->undo);
    if (recovery->timed_out) {
        recovery->spared_until = recovery->until;
        recovery->probe.measured = true; /* what is spared may be lost all the same: a probe shows it */
    }
    if (recovery->active) rack_end_recovery(&recovery->rack);
    recovery->timed_out = recovery->active = false;
    stack.undone++;
}

/* A peer without SACK may only repeat itself about what was sent again before (RFC 6582, section 3.2). */
static bool is_news(const struct recovery *recovery, const struct tcp_pcb *pcb) {
    return (pcb->flags & TF_SACK) || TCP_SEQ_GEQ(recovery->acknowledged, recovery->until);
}

static void respond(struct lwip_connection *connection, const struct told *told) {
    struct recovery *recovery = &connection->recovery;
    struct tcp_pcb *pcb = connection->pcb;
    if (recovery->timed_out && !(pcb->flags & TF_RTO)) recovery->timed_out = false;
    if (recovery->active && TCP_SEQ_GEQ(recovery->acknowledged, recovery->until)) {
        recovery->active = false;
        recovery->duplicates = 0;
        rack_end_recovery(&recovery->rack);
    }
    uint32_t lost = lost_until(recovery, pcb, told->now_us);
    bool begins = !recovery->active && !recovery->timed_out && TCP_SEQ_GT(lost, recovery->acknowledged) &&
                  is_news(recovery, pcb) && pcb->unacked;
    if (begins) begin(recovery, pcb);
    if (recovery->active) {
        go_on(connection, told, lost, begins || (told->bytes > 0 && !(pcb->flags & TF_SACK)));
        return;
    }
    if (told->bytes > 0) grow(recovery, pcb, told);
    /* What has arrived beyond a gap has left the network: other data may take its place. lwIP sends whole segments. */
    uint32_t window = cubic_window_bytes(&recovery->cubic) + recovery->duplicates * recovery->cubic.segment_bytes;
    pcb->cwnd = scoreboard_reach(&recovery->board, recovery->acknowledged, window) - recovery->acknowledged;
    if (pcb->cwnd < pcb->mss) pcb->cwnd = pcb->mss;
}

/* ---- silence ----------------------------------------------------------------------------------------------------- */

/* Where the peer has what was sent again two round trips later, it will not get what is missing before. */
static void take_answer(struct recovery *recovery, const struct tcp_pcb *pcb, struct told *told) {
    const struct scoreboard *board = &recovery->board;
    const struct tail_probe_answer *answer = &told->answer;
    if (answer->came_twice && answer->twice_until != recovery->probe.end)
        rack_take_twice(&recovery->rack, told->acknowledged, answer->twice_until, pcb->snd_nxt);
    if (undo_take_twice(&recovery->undo, told->twice) || told->late_us > 0) take_back(recovery, told);
    if (tail_probe_answered(&recovery->probe, answer)) {
        undo_forget(&recovery->undo);
        cubic_lose(&recovery->cubic);
        stack.tail_repairs++;
    }
    if (!recovery->probe.out || board->count == 0) return;
    if (TCP_SEQ_GEQ(board->ranges[board->count - 1].right, recovery->probe.end))
        recovery->late_until = recovery->probe.first;
}

/* The tick that lwIP counts first may come at once. */
static int16_t timeout_ticks(const struct round_trips *trips) {
    return (int16_t)((round_trips_timeout_us(trips) + TICK_US - 1) / TICK_US + 1);
}

/* Until two ticks before lwIP's timer runs out: it counts them, and may count the next one at once. */
static uint64_t until_timeout_us(const struct tcp_pcb *pcb, bool begins_anew) {
    int past = begins_anew || pcb->rtime < 0 ? 0 : pcb->rtime;
    int left = pcb->rto - past - 2;
    return left > 0 ? (uint64_t)left * TICK_US : 0;
}

/* In place of lwIP's estimate, which it takes when an acknowledgement comes, and doubles when its timer runs out. */
static void set_timeout(const struct recovery *recovery, struct tcp_pcb *pcb) {
    pcb->sa = 0;
    pcb->sv = pcb->rto = timeout_ticks(&recovery->round_trips);
}

/* `next`: SND.NXT. `acknowledged`: lwIP's timer is about to begin anew. */
static void watch_silence(struct recovery *recovery, const struct tcp_pcb *pcb, uint32_t next, bool acknowledged,
                          uint64_t now_us) {
    uint32_t flight = next - recovery->acknowledged;
    timer_stop(&recovery->timer);
    if (flight == 0 || recovery->timed_out || !(pcb->flags & TF_SACK)) return;
    bool gap = recovery->active || recovery->board.count > 0;
    uint64_t due_us = gap ? rack_due_us(&recovery->rack, window_us(recovery)) : 0;
    if (due_us <= now_us) {
        bool may_probe = recovery->probe.measured && !recovery->probe.out;
        if (recovery->active || !(may_probe || gap)) return;
        due_us = now_us + tail_probe_wait_us(recovery->round_trips.smoothed_us, flight <= recovery->cubic.segment_bytes,
                                             until_timeout_us(pcb, acknowledged));
    }
    timer_wheel_start(&stack.silences, &recovery->timer, due_us);
}

static void probe_tail(struct lwip_connection *connection) {
    struct recovery *recovery = &connection->recovery;
    uint32_t first, length;
    if (!stack_find_last(connection, &first, &length) || !stack_resend(connection, first, &length)) return;
    tail_probe_sent(&recovery->probe, first, first + length);
    stack.tail_probes++;
    connection->pcb->rttest = 0;
    connection->pcb->rtime = 0;
}

static void break_silence(struct lwip_connection *connection, uint64_t now_us) {
    struct recovery *recovery = &connection->recovery;
    const struct scoreboard *board = &recovery->board;
    if (recovery->timed_out || !connection->pcb->unacked) return;
    if (!recovery->active && board->count == 0) {
        probe_tail(connection);
        return;
    }
    if (!recovery->active) recovery->late_until = board->ranges[board->count - 1].left;
    const struct told nothing = {.acknowledged = recovery->acknowledged, .now_us = now_us};
    respond(connection, &nothing);
    tcp_output(connection->pcb);
}

void recovery_run_timers(uint64_t now_us) {
    struct timer *timer;
    while ((timer = timer_wheel_expire(&stack.silences, now_us))) break_silence(connection_of_timer(timer), now_us);
}

/* ---- around lwIP ------------------------------------------------------------------------------------------------- */

void recovery_open(struct recovery *recovery, struct tcp_pcb *pcb, uint32_t wire_bytes) {
    uint32_t window =
        2u * pcb->mss > 10u * wire_bytes ? 2u * pcb->mss : 10u * wire_bytes; /* RFC 6928, and lwIP's segments */
    cubic_open(&recovery->cubic, wire_bytes, window, RECOVERY_WINDOW_MOST_BYTES);
    recovery->acknowledged = recovery->until = recovery->resent_until = recovery->late_until = pcb->snd_nxt;
    recovery->spared_until = pcb->snd_nxt;
    rack_open(&recovery->rack, pcb->snd_nxt);
    set_timeout(recovery, pcb);
}

void recovery_close(struct recovery *recovery) {
    timer_leave(&recovery->timer);
}

void recovery_sent(struct lwip_connection *connection, uint32_t first, uint32_t end, bool again) {
    struct recovery *recovery = &connection->recovery;
    if (again) {
        undo_sent_again(&recovery->undo, first, end);
        if (recovery->timed_out && TCP_SEQ_LT(recovery->resent_until, end)) recovery->resent_until = end;
        round_trips_forget(&recovery->round_trips);
        return;
    }
    uint64_t now_us = clock_monotonic_us();
    round_trips_sent(&recovery->round_trips, first, end, first - recovery->acknowledged, now_us);
    timeline_sent(&recovery->rack.first, end, recovery->round_trips.smoothed_us, now_us);
    watch_silence(recovery, connection->pcb, end, false, now_us);
}

/* What was sent once may come late, if the board tells of all that has come. Probes were sent for the second time. */
static void watch_late(struct recovery *recovery, const struct tcp_pcb *pcb) {
    bool knows = (pcb->flags & TF_SACK) && recovery->board.count < SCOREBOARD_RANGES &&
                 recovery->timeouts < TIMEOUTS_UNTIL_DOUBT;
    if (recovery->timed_out || !knows) {
        undo_forget(&recovery->undo);
        return;
    }
    uint32_t until = pcb->snd_nxt;
    const struct tail_probe *probe = &recovery->probe;
    if (TCP_SEQ_GT(probe->end, recovery->acknowledged) && TCP_SEQ_LT(probe->first, until)) until = probe->first;
    undo_begin(&recovery->undo, &recovery->cubic, recovery->acknowledged, recovery->resent_until, until,
               unreported_bytes(recovery));
}

void recovery_watch_timer(struct lwip_connection *connection) {
    struct recovery *recovery = &connection->recovery;
    struct tcp_pcb *pcb = connection->pcb;
    if (!(pcb->flags & TF_RTO) || pcb->nrtx <= recovery->timeouts) return;
    recovery->timeouts = pcb->nrtx;
    if (recovery->timeouts >= TIMEOUTS_UNTIL_DOUBT) scoreboard_clear(&recovery->board);
    watch_late(recovery, pcb);
    cubic_time_out(&recovery->cubic, recovery->timed_out);
    stack.timeouts++;
    recovery->timed_out = true;
    recovery->active = false;
    recovery->duplicates = 0;
    recovery->until = pcb->snd_nxt;
    recovery->spared_until = recovery->acknowledged;
    recovery->late_until = recovery->rack.resent_from = recovery->rack.resent_until = recovery->acknowledged;
    timeline_clear(&recovery->rack.again);
    tail_probe_forget(&recovery->probe);
    timer_stop(&recovery->timer);
    round_trips_forget(&recovery->round_trips);
    round_trips_double(&recovery->round_trips);
    pcb->rto = timeout_ticks(&recovery->round_trips); /* lwIP knows no bound */
}

err_t stack_before_input(struct tcp_pcb *pcb, struct tcp_hdr *header, u16_t options_bytes, const struct pbuf *data) {
    struct lwip_connection *connection = connection_of(pcb);
    uint8_t flags = TCPH_FLAGS(header);
    if (!connection || pcb->state < ESTABLISHED || pcb->state >= TIME_WAIT || !(flags & TCP_ACK) ||
        (flags & (TCP_SYN | TCP_RST)))
        return ERR_OK;
    struct recovery *recovery = &connection->recovery;
    struct told told = {
        .acknowledged = header->ackno, .now_us = clock_monotonic_us(), .answer = {.acknowledged = header->ackno}};
    pcb->dupacks = 0;
    pcb->ssthresh = pcb->bytes_acked = 0;
    pcb->rttest = 0; /* lwIP's measurement */
    if (TCP_SEQ_LT(told.acknowledged, recovery->acknowledged) || TCP_SEQ_GT(told.acknowledged, pcb->snd_nxt))
        return ERR_OK;
    take_acknowledgement(recovery, pcb, header, options_bytes, data, &told);
    take_answer(recovery, pcb, &told);
    if (told.bytes > 0) set_timeout(recovery, pcb);
    respond(connection, &told);
    if (told.bytes > 0 || told.delivered > 0 || told.undone)
        watch_silence(recovery, pcb, pcb->snd_nxt, told.bytes > 0, told.now_us);
    connection_enlarge_buffer(connection);
    return ERR_OK;
}

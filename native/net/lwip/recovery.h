/* recovery: how much a connection may send, and what it sends again: in place of lwIP's congestion control and fast
 * retransmit, around its input and output.
 *
 * lwIP sends what its window (`cwnd`) lets it send, and resends all when its timer runs out. The rest is done here, before
 * it takes an acknowledgement: CUBIC's window grows; gaps that SACK blocks show, and time shows to be lost (rack.h), are
 * sent again, as many frames as have arrived meanwhile allow (proportional rate reduction, RFC 6937); a peer without SACK
 * gets one frame again a round trip (RFC 6582). After two round trips of silence a probe asks for a block (tail_probe.h).
 * The window is as before when nothing needed to be sent again (undo.h).
 * lwIP's count of duplicates is kept at 0 and its threshold too, so it does neither. */
#ifndef REPLAY_NET_LWIP_RECOVERY_H
#define REPLAY_NET_LWIP_RECOVERY_H

#include <stdbool.h>
#include <stdint.h>

#include <lwip/opt.h>

#include <lwip/tcp.h>

#include "net/lwip/cubic.h"
#include "net/lwip/rack.h"
#include "net/lwip/round_trips.h"
#include "net/lwip/scoreboard.h"
#include "net/lwip/tail_probe.h"
#include "net/lwip/timer_wheel.h"
#include "net/lwip/undo.h"

#define RECOVERY_WINDOW_MOST_BYTES (16u << 20) /* more than 1 Gb/s for 100 ms */
#define RECOVERY_BLOCKS 4u /* of SACK, which find place in a header */

struct lwip_connection;

struct recovery {
    struct cubic cubic;
    struct scoreboard board;
    struct round_trips round_trips;
    uint32_t acknowledged; /* SND.UNA, as of the last acknowledgement */
    uint32_t peer_window; /* as its header had it */
    bool active; /* fast recovery */
    bool timed_out; /* lwIP sends all again; `until`: what had been sent then */
    uint8_t timeouts; /* without progress: lwIP's count, as last seen */
    uint32_t until; /* RecoveryPoint: what had been sent when the loss was noticed */
    uint32_t resent_until; /* HighRxt: gaps before it were sent again, or what lwIP sent again after a timeout */
    uint32_t first_gap; /* where it was when it was last sent again, which may be more than once */
    uint64_t first_gap_us; /* and when that was */
    struct rack rack;
    uint32_t late_until; /* what is missing before it is lost, though little has arrived beyond it */
    struct tail_probe probe;
    struct undo undo;
    uint32_t spared_until; /* what lwIP sends again before it stays here: a timeout was needless */
    struct timer timer; /* until something is lost, or a probe is due */
    uint32_t duplicates; /* acknowledgements that a peer without SACK repeated: as many frames have left the network */
    /* Of proportional rate reduction, by bytes. */
    uint32_t flight_bytes; /* RecoverFS */
    uint32_t delivered_bytes, sent_bytes; /* prr_delivered, prr_out */
    uint32_t counted_until; /* SND.NXT up to which new data is in `sent_bytes` */
};

void recovery_open(struct recovery *recovery, struct tcp_pcb *pcb, uint32_t wire_bytes);
/* Data goes out, for the first time or again. */
void recovery_sent(struct lwip_connection *connection, uint32_t first, uint32_t end, bool again);
/* lwIP lets go of the connection. */
void recovery_close(struct recovery *recovery);
/* For those which have heard nothing for too long. */
void recovery_run_timers(uint64_t now_us);
/* Before a segment is handed to IP: whether that is because lwIP's timer ran out. */
void recovery_watch_timer(struct lwip_connection *connection);

/* The blocks of a segment's options (SACK, RFC 2018). Returns how many; 0: there are none, or they are broken. */
uint32_t recovery_read_blocks(const uint8_t *options, uint32_t length, struct scoreboard_range blocks[RECOVERY_BLOCKS]);

#endif

/* undo: whether a recovery or a timeout was needless: if so, the window is again what it was (RFC 9438, section 4.9).
 *
 * It was needless when the peer reports that everything that was sent again came twice (RFC 2883, RFC 3708). This is
 * counted in bytes. What is lost is never reported, so one lost frame keeps the count above 0, and so does a report that is
 * lost itself: the window stays small where it need not.
 *
 * After a timeout there is a sign that comes sooner: data arrives that was under way then, was not known to have come, and
 * was not sent again since. It was late, not lost (F-RTO, RFC 5682, section 3, for peers with SACK).
 *
 * Knows neither lwIP nor clocks. */
#ifndef REPLAY_NET_LWIP_UNDO_H
#define REPLAY_NET_LWIP_UNDO_H

#include <stdbool.h>
#include <stdint.h>

#include "net/lwip/cubic.h"
#include "net/lwip/scoreboard.h"

struct undo {
    struct cubic before; /* what the window was */
    bool possible;
    uint32_t begin, from, until; /* [begin, from) has all that was sent again; [from, until): once, before a timeout */
    uint32_t again_bytes; /* sent again, and not reported to have come twice */
};

/* Before the window shrinks. [from, until): after a timeout, what has been sent once. `again_bytes` were sent again before,
 * and reports that they came twice would seem to be about what is sent again from now on: these have to come, too. */
void undo_begin(struct undo *undo, const struct cubic *cubic, uint32_t begin, uint32_t from, uint32_t until,
                uint32_t again_bytes);
void undo_forget(struct undo *undo);
void undo_sent_again(struct undo *undo, uint32_t first, uint32_t end);
/* The peer reports that this came twice. Returns whether nothing needed to be sent again. */
bool undo_take_twice(struct undo *undo, struct scoreboard_range twice);
/* This has come, which was not known. Returns whether it shows that the timeout was needless. */
bool undo_take(const struct undo *undo, struct scoreboard_range come);

#endif

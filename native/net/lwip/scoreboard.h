/* scoreboard: what the peer says that it has beyond a gap (SACK, RFC 2018), and what follows from it by RFC 6675: what is
 * lost, what is to be sent again, how much is under way. Sequence numbers only; knows nothing of lwIP.
 *
 * The ranges are kept apart and in order, all of them above what is acknowledged. Where there is no place for another one
 * it is passed over: what is not known to have come is sent once more than needed, which costs time but no data. */
#ifndef REPLAY_NET_LWIP_SCOREBOARD_H
#define REPLAY_NET_LWIP_SCOREBOARD_H

#include <stdbool.h>
#include <stdint.h>

#define SCOREBOARD_RANGES 96u

struct scoreboard_range {
    uint32_t left, right; /* the first byte of it, and the first behind it */
};

struct scoreboard {
    uint32_t count;
    uint32_t bytes; /* in all ranges */
    struct scoreboard_range ranges[SCOREBOARD_RANGES];
};

void scoreboard_clear(struct scoreboard *board);
/* The peer has this too. Returns how many bytes of it were not known to have come. */
uint32_t scoreboard_add(struct scoreboard *board, struct scoreboard_range range);
/* All before `acknowledged` has come. Returns how many bytes the ranges lost by it. */
uint32_t scoreboard_advance(struct scoreboard *board, uint32_t acknowledged);

/* IsLost, for all sequence numbers at once: what is missing before the number returned is lost. `acknowledged`: nothing. */
uint32_t scoreboard_lost_until(const struct scoreboard *board, uint32_t acknowledged, uint32_t segment_bytes);
/* The first gap in [from, until). False: there is none. */
bool scoreboard_gap(const struct scoreboard *board, uint32_t from, uint32_t until, struct scoreboard_range *gap);
/* Bytes of [from, until) that are not known to have come. */
uint32_t scoreboard_missing(const struct scoreboard *board, uint32_t from, uint32_t until);
/* The sequence number that lies behind so many missing bytes from `from` on. */
uint32_t scoreboard_reach(const struct scoreboard *board, uint32_t from, uint32_t bytes);

#endif

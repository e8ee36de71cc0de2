/* timeline: when what is under way was sent, in the order of its sequence numbers, which is that of time.
 *
 * Frames that leave within a sixteenth of a round trip share a mark, which has the time of the last of them: what is
 * concluded from it may come that much late. Where marks run out the newest one grows, and it comes later still. */
#ifndef REPLAY_NET_LWIP_TIMELINE_H
#define REPLAY_NET_LWIP_TIMELINE_H

#include <stdbool.h>
#include <stdint.h>

#define TIMELINE_MARKS 32u

struct timeline {
    uint32_t ends[TIMELINE_MARKS]; /* the first sequence number behind each mark */
    uint64_t sent_us[TIMELINE_MARKS]; /* of its last frame */
    uint64_t began_us; /* of the newest mark's first frame */
    uint32_t oldest, count;
};

void timeline_clear(struct timeline *timeline);
/* Everything before `end` is out now. */
void timeline_sent(struct timeline *timeline, uint32_t end, uint32_t round_trip_us, uint64_t now_us);
/* Everything before `acknowledged` has come. */
void timeline_advance(struct timeline *timeline, uint32_t acknowledged);
/* When the byte was sent; 0: it is not known. */
uint64_t timeline_at(const struct timeline *timeline, uint32_t sequence);
/* Everything from `from` to what is returned was sent no later than `until_us`. */
uint32_t timeline_reach(const struct timeline *timeline, uint32_t from, uint64_t until_us);

#endif

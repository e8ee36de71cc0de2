/* recovery: what lwIP's fast retransmit lacks for segments of many frames and for several losses in one window (RFC 6582). */
#ifndef REPLAY_NET_LWIP_RECOVERY_H
#define REPLAY_NET_LWIP_RECOVERY_H

#include <stdbool.h>
#include <stdint.h>

#include <lwip/opt.h>

#include <lwip/tcp.h>

/* Zeroes stand for none. */
struct recovery {
    bool active;
    uint32_t until; /* what had been sent when the first loss was noticed: it ends when that is acknowledged */
    uint32_t resent_at; /* the acknowledgement that the last frame sent again follows */
};

/* A segment that was sent before goes out again. True: for three duplicate acknowledgements, so that only the frame that
 * is missed shall go, not the others of the segment, each of which would be answered by one more duplicate. */
bool recovery_resends_one(struct recovery *recovery, const struct tcp_pcb *pcb);
/* To be called when lwIP is done with a frame: sends again what its acknowledgement shows to be lost. lwIP by itself would
 * wait for three more duplicates, which nobody sends once all that came through is acknowledged, and then for its timer. */
void recovery_go_on(void);

/* What a segment's options tell (SACK, RFC 2018). */
struct recovery_report {
    enum {
        RECOVERY_NOTHING,
        RECOVERY_MISSING,
        RECOVERY_DUPLICATE
    } sign; /* data is missing; some came twice (RFC 2883) */
    uint32_t highest; /* the end of the last data that came; with RECOVERY_NOTHING what is acknowledged */
};

struct recovery_report recovery_read(const uint8_t *options, uint32_t length, uint32_t acknowledged);

#endif

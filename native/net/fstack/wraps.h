/* wraps: corrects what F-Stack asks of DPDK when it starts.
 *
 * Its config.ini knows no virtual devices but virtio_user, and F-Stack's queues and pool of frames are small. The
 * executable is linked with --wrap for a few of DPDK's functions (fstack.cmake), so that F-Stack's calls of them come
 * here first. */
#ifndef REPLAY_NET_FSTACK_WRAPS_H
#define REPLAY_NET_FSTACK_WRAPS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "net/dpdk/eal.h"

struct wraps_plan {
    struct eal_settings eal;
    const char *offloads;      /* see net/dpdk/offloads.h */
    uint32_t frames;           /* how many there are to be at least */
    bool keeps_arguments;      /* F-Stack's own for DPDK, from a configuration of the user's */
};

struct wraps_frames {
    uint32_t count, free;
};

/* Before ff_init. What `eal` points to has to last until that returned. */
void wraps_set(const struct wraps_plan *plan);
/* Why DPDK did not start; "" if it did. */
const char *wraps_error(void);
struct wraps_frames wraps_frames(void);
int wraps_offloads(void); /* those in use: a set of enum offload */

#endif

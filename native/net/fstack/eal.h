/* eal: what F-Stack tells DPDK when it starts, put right: its config.ini knows no virtual devices but virtio_user.
 *
 * The executable is linked with --wrap=rte_eal_init and --wrap=rte_pktmbuf_pool_create, so that these calls of F-Stack come
 * here first. */
#ifndef REPLAY_NET_FSTACK_EAL_H
#define REPLAY_NET_FSTACK_EAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "net/transport.h"

struct eal_plan {
    const char *device;        /* "": F-Stack's own configuration names it */
    const char *arguments;     /* more of them, separated by spaces */
    uint64_t memory_bytes;     /* 0: as F-Stack's configuration says */
    uint32_t frames;           /* how many there are to be at least */
    int lcore;                 /* the processor; −1: those that the thread may use */
    bool places_lcore;         /* F-Stack's configuration says lcore 0, wherever that is to run */
    bool huge_pages;
};

struct eal_frames {
    uint32_t count, free;
};

void eal_plan_set(const struct eal_plan *plan);
/* Whether hugepages for so much memory are free. */
bool eal_huge_pages_free(uint64_t bytes);
struct eal_frames eal_frames_count(void);
bool eal_is_pci_address(const char *device);

#endif

/* packets: the frames that Python holds, for binding.c, which starts and ends what they live in. */
#ifndef REPLAY_NET_DPDK_PACKETS_H
#define REPLAY_NET_DPDK_PACKETS_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

#include <rte_errno.h>
#include <rte_ethdev.h>

/* DPDK's functions say -1 and set rte_errno, or return the error itself. */
static inline int packets_rte_errno(void) {
    return rte_errno > 0 ? -rte_errno : -EIO;
}

/* The EAL runs, in this process. */
void packets_begin(void);
/* While Python holds frames, their memory must stay. */
bool packets_are_held(void);
/* The name of the pool that a port receives into, "" before its first start. */
const char *packets_pool(uint16_t port);
/* What it can spread frames over its queues by: bits, see dpdk_rss_name. */
uint64_t packets_rss(const struct rte_eth_dev_info *device);
/* 0 where the port runs and has that queue, otherwise a negative errno. */
int packets_check_queue(uint16_t port, uint16_t queue, bool transmit);
/* Before a port is closed: no burst of it passes any more. */
void packets_stop(uint16_t port);
/* After it was closed: its own pool goes, unless somebody holds frames of it. */
void packets_forget(uint16_t port);

#endif

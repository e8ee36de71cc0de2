/* offloads: which work on frames the device does: what it can do and the setting allows. */
#ifndef REPLAY_NET_DPDK_OFFLOADS_H
#define REPLAY_NET_DPDK_OFFLOADS_H

#include <rte_ethdev.h>

#include "base/error.h"
#include "base/text.h"

enum offload {
    OFFLOAD_RECEIVE_CHECKSUMS = 1,  /* it verifies TCP's */
    OFFLOAD_TRANSMIT_CHECKSUMS = 2, /* it fills TCP's in */
    OFFLOAD_SEGMENTATION = 4,       /* it cuts long segments of TCP, and fills in the checksums of TCP and IPv4 */
    OFFLOAD_HEADER_CHECKSUM = 8,    /* where it cuts, it wants to be told to fill in IPv4's; has no name */
};

/* `wanted`: "auto" or "" for all that the device has but `without`, "none", or names separated by commas: "receive-checksums",
 * "transmit-checksums", "segmentation". Adds to the configuration, and returns a set of enum offload, or -1 with what was
 * expected: a name of none, or one that this device has not. */
int offloads_choose(const char *wanted, int without, const struct rte_eth_dev_info *device,
                    struct rte_eth_conf *configuration, struct error *error);
/* Appends the names of a set, separated by commas; "none" for the empty one. */
void offloads_describe(int offloads, struct text *out);

#endif

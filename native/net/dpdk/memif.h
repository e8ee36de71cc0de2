/* memif: what DPDK's net_memif leaves to its user: the MTU that its buffers carry, and a clear word where its socket file is in
 * the way. Devices are as of eal_settings. */
#ifndef REPLAY_NET_DPDK_MEMIF_H
#define REPLAY_NET_DPDK_MEMIF_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define MEMIF_MTU_MOST 23400u /* a segment of the stack */

bool memif_is(const char *device);
/* Of a memif device. */
uint16_t memif_mtu(const char *device);
/* -1 with `error` set: the socket file of a server's device is there already. Whether anybody answers at it cannot be tried:
 * the driver ends a server that is connected to and told nothing (DPDK 22.11). */
int memif_check_path(const char *device, struct error *error);

#endif

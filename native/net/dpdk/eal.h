/* eal: starts and ends DPDK's environment abstraction layer in this process, which can be done once. */
#ifndef REPLAY_NET_DPDK_EAL_H
#define REPLAY_NET_DPDK_EAL_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define EAL_NAME_BYTES 64

struct eal_settings {
    const char *device; /* a PCI address, or a virtual device with its arguments; "": the arguments name it */
    int lcore; /* the processor to run on, −1: where the thread may run now */
    uint64_t memory_bytes; /* that will be asked of it */
    const char *arguments; /* more, separated by spaces; they win over what would be chosen here */
    uint32_t frame_bytes; /* the largest Ethernet frame, 0: as the device's interface has it */
    /* Which of how many processes on the device this one is: see queues.h. Up to 1: it is alone. Number 0 is DPDK's primary
     * process, and the others wait for eal_tell_ready in it. */
    uint16_t queues, queue;
};

/* The MTU that the device will have if nobody sets another: that of its interface, where it stands on one of the kernel's; of
 * net_memif, what its buffers hold. */
uint16_t eal_device_mtu(const char *device);
/* On failure the error holds what the EAL said last. `name` receives the device's name among DPDK's ports. */
int eal_start(const struct eal_settings *settings, char name[EAL_NAME_BYTES], struct error *error);
/* The device runs: other processes may use it, too, until the end. */
int eal_tell_ready(struct error *error);
/* What it logged last, but for what it tells of every start, for errors that come later; "" if nothing. */
const char *eal_last_words(void);
/* What to look at when that device cannot be used. */
const char *eal_advice(const char *device);
void eal_end(void);

#endif

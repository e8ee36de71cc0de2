/* device: a DPDK device as a port uses it: its set-up, and what the port has to know of it afterwards. */
#ifndef REPLAY_NET_DPDK_DEVICE_H
#define REPLAY_NET_DPDK_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define DEVICE_MTU_LEAST 576u
#define DEVICE_MTU_MOST 9600u /* of all but memif */

struct port;
struct port_settings;

struct device {
    uint16_t mtu;
    uint8_t address[6];
    int offloads; /* enum offload: what it does */
    uint32_t buffers_most; /* in one packet */
    bool is_cold; /* frames come out of another processor's cache */
    uint16_t cut_bytes; /* the longest frame that it cuts packets into, with its headers */
    uint32_t frames; /* in each queue's pool */
    uint32_t frames_usable; /* of them, without those that its rings may hold */
};

/* What the frames of a device with that MTU may take in memory. The EAL must know before there is a device. */
uint64_t device_memory_bytes(const struct port_settings *settings, uint16_t mtu);
/* Makes a pool of frames for each queue, and starts the device. Fills in the port's `device` and `pool`. */
int device_bring_up(struct port *port, const struct port_settings *settings, struct error *error);

#endif

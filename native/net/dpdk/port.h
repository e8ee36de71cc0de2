/* port: one queue pair of a DPDK device: bursts of frames in and out, checksums that the device does not do, faults for tests,
 * counters. Other processes may use the device's other pairs. Knows Ethernet, IPv4 and TCP as far as their checksums go. */
#ifndef REPLAY_NET_DPDK_PORT_H
#define REPLAY_NET_DPDK_PORT_H

#include <stdbool.h>
#include <stdint.h>

#include <rte_mbuf.h>

#include "base/error.h"
#include "base/text.h"
#include "net/dpdk/device.h"
#include "net/dpdk/eal.h"
#include "net/dpdk/offloads.h"
#include "net/dpdk/queues.h"

#define PORT_BURST 64u /* frames taken in at once, at most */
#define PORT_QUEUE 1024u /* frames waiting for the device to take them */
#define PORT_HEADER_BYTES 14u /* of Ethernet */

struct port_settings {
    struct eal_settings eal; /* says, too, which of how many queues is this process's */
    uint16_t mtu; /* of IP; 0: the device's */
    uint64_t memory_bytes; /* for frames; 0: by `frames` */
    uint32_t frames; /* that the user means to hold; the device's rings come on top */
    uint16_t private_bytes; /* the user's, in every frame: see rte_mbuf_to_priv */
    const char *offloads; /* see offloads.h */
    const char *faults;
};

struct port_counters {
    uint64_t polls, empty_polls;
    uint64_t frames_in, bytes_in;
    uint64_t frames_out, bytes_out; /* with those that are queued */
    uint64_t bad_checksums; /* dropped for it */
    uint64_t malformed; /* shorter than they say */
    uint64_t no_frame; /* port_frame had none */
    uint64_t device_full; /* bursts that it did not take whole; where it takes nothing, one a second */
    uint64_t refused; /* packets that it cannot send as they are */
};

enum port_link { PORT_LINK_UNKNOWN, PORT_LINK_DOWN, PORT_LINK_UP };

struct port {
    uint16_t number, queue;
    struct queues *queues; /* with other processes; NULL: the device is this one's alone */
    bool is_lost; /* the process that owns the device has gone, or is going */
    bool is_found; /* among DPDK's ports */
    struct device device;
    uint32_t burst; /* frames taken in at once: see port_burst */
    struct rte_mempool *pool;
    struct faults *faults;
    struct port_counters counters;
    uint64_t stuck_us; /* since when the device takes nothing of what is queued; 0: it does */
    enum port_link link; /* as it was last told */
    uint64_t opened_us, link_due_us;
    uint64_t flushes; /* of the outbox: a frame that was sent since the last may still be written to */
    uint32_t queued;
    struct rte_mbuf *outbox[PORT_QUEUE];
    uint32_t received;
    struct rte_mbuf
        *inbox[4 * PORT_BURST]; /* what a poll brings: a burst, as much from others, and what faults doubled */
    char name[EAL_NAME_BYTES];
};

/* Starts DPDK and the device. NULL on failure, with what is wrong and what to do. */
struct port *port_open(const struct port_settings *settings, struct error *error);
void port_close(struct port *port);

/* Of an MTU: PORT_BURST, or so many as are about as many bytes in all, where frames are longer than Ethernet's longest. So a
 * turn of the loop lasts no longer with them. */
uint32_t port_burst(uint16_t mtu);

/* Brings in at most a burst. Returns how many frames are in `inbox` now; they are the caller's. */
uint32_t port_receive(struct port *port);

/* An empty frame to be filled and sent; NULL: there is none now. */
struct rte_mbuf *port_frame(struct port *port);
/* Frames that port_send will take before it has to drop. */
static inline uint32_t port_room(const struct port *port) {
    return PORT_QUEUE - port->queued;
}
/* Frames that are handed to the device at once: more of them wait only where it is full. */
static inline uint32_t port_flush_frames(const struct port *port) {
    return port->burst / 2;
}
/* Queues a frame with complete checksums (or, where the device does them, the flags and lengths that make it so; where it
 * segments, this may be a packet of several buffers that becomes many frames).
 * It goes out with port_flush_frames of them, or at port_flush. */
void port_send(struct port *port, struct rte_mbuf *frame);
void port_flush(struct port *port);

/* What comes for this address, and for TCP's port of it, is this process's: to be said where several share the device. Both in
 * the network's byte order. -1 with `error` set: another process has them. */
void port_own_address(struct port *port, uint32_t address);
int port_own_listener(struct port *port, uint16_t listener, struct error *error);

/* To be called every now and then: tells on standard error when the link goes down and comes up, and when the device is lost. A
 * link that is still being negotiated at the start is no news. */
void port_watch_link(struct port *port, uint64_t now_us);
/* "name:value\r\n" lines for INFO. */
void port_describe(const struct port *port, struct text *out);

#endif

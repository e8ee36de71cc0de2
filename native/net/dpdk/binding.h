/* binding: what Python needs of DPDK, as plain functions and structs. So Python depends neither on DPDK's inline
 * functions nor on the layouts of its structs. Functions that can fail return a negative errno. */
#ifndef REPLAY_NET_DPDK_BINDING_H
#define REPLAY_NET_DPDK_BINDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DPDK_TEXT_BYTES 128

/* ---- the EAL ---- */

const char *dpdk_version(void);
const char *dpdk_error_text(int error_number);
/* Once a process. The arguments must live as long as the process. The calling thread keeps the processors that it had. */
int dpdk_start(int count, char **arguments);
int dpdk_stop(void);
bool dpdk_is_primary(void);
/* What DPDK logged, oldest first, at most the last 16 kB and `size_bytes`. Returns the bytes copied, no zero at the end. */
size_t dpdk_log(char *out, size_t size_bytes);
uint64_t dpdk_logged_bytes(void); /* in all */

/* ---- ports ---- */

struct dpdk_port_info {
    char name[DPDK_TEXT_BYTES];
    char driver[DPDK_TEXT_BYTES];
    char bus[DPDK_TEXT_BYTES];
    char bus_information[DPDK_TEXT_BYTES];
    char interface[DPDK_TEXT_BYTES]; /* of the kernel, where the port is bound to one */
    char pool[DPDK_TEXT_BYTES]; /* that it receives into; "" before its first start */
    uint8_t mac[6];
    int32_t node; /* of memory, −1: none */
    uint16_t mtu_min, mtu_max;
    uint16_t receive_queues_max, transmit_queues_max;
    uint16_t receive_queues, transmit_queues;
    uint64_t receive_offloads, transmit_offloads; /* bits, see dpdk_offload_name */
    uint64_t rss; /* bits, see dpdk_rss_name */
};

struct dpdk_link {
    uint32_t speed_mbps; /* 0: none, UINT32_MAX: not known */
    bool up;
    bool full_duplex;
    bool negotiated;
};

/* Zero stands for the driver's own choice. */
struct dpdk_port_settings {
    uint16_t receive_queues, transmit_queues;
    uint16_t receive_descriptors, transmit_descriptors;
    uint16_t mtu;
    uint32_t buffers; /* of frames, in the port's own pool */
    char pool[DPDK_TEXT_BYTES]; /* in place of its own: the name of one of dpdk_pool_create */
    uint64_t receive_offloads, transmit_offloads;
    uint64_t rss; /* what frames are spread over the queues by; 0: they are not spread */
    bool promiscuous; /* takes frames that are addressed to others, too */
};

struct dpdk_statistics {
    uint64_t frames_in, frames_out, bytes_in, bytes_out;
    uint64_t missed_in, errors_in, errors_out, no_buffer;
};

struct dpdk_counter {
    char name[DPDK_TEXT_BYTES];
    uint64_t value;
};

/* Functions that fill arrays return how many there are, which may be more than were filled. */
int dpdk_ports(uint16_t *ports, int capacity);
int dpdk_port_info(uint16_t port, struct dpdk_port_info *info);
int dpdk_port_link(uint16_t port, struct dpdk_link *link); /* does not wait for a negotiation */
int dpdk_port_set_link(uint16_t port, bool up);
int dpdk_port_mtu(uint16_t port); /* bytes of IP */
int dpdk_port_set_mtu(uint16_t port, uint16_t mtu);
/* Configures queues and pool, then starts. -EBUSY: it runs, or its pool is too small and somebody holds frames of it. */
int dpdk_port_start(uint16_t port, const struct dpdk_port_settings *settings);
int dpdk_port_stop(uint16_t port);
int dpdk_port_statistics(uint16_t port, struct dpdk_statistics *statistics);
int dpdk_port_reset_statistics(uint16_t port);
int dpdk_port_extended(uint16_t port, struct dpdk_counter *counters, int capacity);
int dpdk_port_reset_extended(uint16_t port);
/* The name of an offload's bit, "UNKNOWN" where it is none. */
const char *dpdk_offload_name(bool transmit, int bit);
/* The name of a kind of spreading, "UNKNOWN" where the bit is none. */
const char *dpdk_rss_name(int bit);

/* Adds a device ("net_null0", "net_tap1,iface=t0", a PCI address); returns its first port. */
int dpdk_attach(const char *device);
/* Stops and closes the port and takes its device away. Its pool stays where somebody holds frames of it. */
int dpdk_detach(uint16_t port);

/* ---- packets ---- */

/* Frames are opaque here. Functions that hand some over fill in their lengths in bytes and return how many there are; the caller
 * holds each until it releases, sends or enqueues it. Functions that take some return how many they took, the first ones; the
 * caller still holds the others. */

/* A pool, which lasts until the EAL stops, and its name, in DPDK_TEXT_BYTES bytes. */
int dpdk_pool_create(uint32_t frames, uint16_t frame_bytes, char *name);
/* As many frames of these lengths, filled with zeros, or none: -EMSGSIZE, -ENOBUFS. */
int dpdk_allocate(const char *pool, void **frames, uint32_t *lengths, int count);
int dpdk_port_rx_burst(uint16_t port, uint16_t queue, void **frames, uint32_t *lengths, int count);
/* -EMSGSIZE: a frame lies in several buffers, and the port was started without MULTI_SEGS. */
int dpdk_port_tx_burst(uint16_t port, uint16_t queue, void *const *frames, int count);
/* Does nothing in a forked child: they are its parent's. */
void dpdk_frames_release(void *const *frames, int count);
/* Holds the frame once more; returns its length, and where its bytes are. -EMSGSIZE: in several buffers. -EMLINK: it is held too
 * often. */
int dpdk_frame_hold(void *frame, uint8_t **bytes);
/* The first `frame_bytes` of each frame, with zeros behind shorter ones. */
void dpdk_frames_copy(void *const *frames, int count, uint8_t *to, uint32_t frame_bytes);

/* Rings of frames, which processes on the same memory find by name, until the EAL stops. This makes one for `size` frames, or
 * finds it where `size` is 0; returns for how many frames it is. */
int dpdk_ring_open(const char *name, uint32_t size);
int dpdk_ring_count(const char *name);
int dpdk_ring_enqueue(const char *name, void *const *frames, int count);
int dpdk_ring_dequeue(const char *name, void **frames, uint32_t *lengths, int count);

/* Which frames a flow takes: zero stands for any. Addresses are IPv4's; numbers are in the host's order. */
struct dpdk_flow {
    int32_t queue; /* that they go to; −1: they are dropped */
    uint16_t ether_type;
    uint8_t protocol; /* IPPROTO_TCP or IPPROTO_UDP */
    uint32_t source, source_mask, destination, destination_mask;
    uint16_t source_port, destination_port;
};

/* Where the device cannot, the driver's reason is in the log. */
int dpdk_port_add_flow(uint16_t port, const struct dpdk_flow *flow);
int dpdk_port_clear_flows(uint16_t port);

/* ---- memory ---- */

struct dpdk_memory_zone {
    char name[DPDK_TEXT_BYTES];
    uint64_t address, io_address, size_bytes, page_bytes;
    int32_t node;
};

struct dpdk_pool {
    char name[DPDK_TEXT_BYTES];
    uint32_t size, available, element_bytes, cache;
    int32_t node;
};

struct dpdk_heap {
    uint64_t total_bytes, free_bytes, allocated_bytes, greatest_free_bytes;
    uint32_t allocations;
};

int dpdk_memory_zones(struct dpdk_memory_zone *zones, int capacity);
int dpdk_pools(struct dpdk_pool *pools, int capacity);
int dpdk_nodes(int32_t *nodes, int capacity);
int dpdk_heap(int32_t node, struct dpdk_heap *heap);

#endif

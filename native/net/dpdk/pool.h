/* pool: frames for a DPDK port, in a way that AF_XDP's driver can use. */
#ifndef REPLAY_NET_DPDK_POOL_H
#define REPLAY_NET_DPDK_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include <rte_mempool.h>

struct pool_shape {
    uint32_t frames;
    uint32_t cached; /* by the thread that uses them */
    uint16_t private_bytes, room_bytes;
    int socket;
    /* One piece of memory, one frame behind the other. Of virtual devices alone: a device that reads memory by itself
     * must find every frame within one page. */
    bool dense;
};

/* What a frame must hold for packets of that MTU, with what a driver may want before it. */
uint16_t pool_room_bytes(uint16_t mtu);
/* What it takes in a pool, at most. */
uint64_t pool_frame_bytes(uint16_t mtu, uint16_t private_bytes);
/* NULL with rte_errno set. */
struct rte_mempool *pool_create(const char *name, const struct pool_shape *shape);
/* Whether a device's frames may lie dense. */
bool pool_may_be_dense(const char *device);

#endif

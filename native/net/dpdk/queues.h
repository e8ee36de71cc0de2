/* queues: one device for several processes, each with a queue pair and a stack of its own. The first (queue 0, DPDK's primary
 * process) owns the device; the others are DPDK's secondary processes. A device spreads frames over the queues as it likes:
 * whoever receives a frame sees from its headers whose it is, and hands it over. */
#ifndef REPLAY_NET_DPDK_QUEUES_H
#define REPLAY_NET_DPDK_QUEUES_H

#include <stdbool.h>
#include <stdint.h>

#include <rte_mbuf.h>
#include <rte_mempool.h>

#include "base/error.h"
#include "base/text.h"
#include "net/dpdk/device.h"

#define QUEUES_MOST 16u
#define QUEUES_LOCK \
    "replay_queue_%u" /* file in the EAL's folder, locked by who serves the queue; not that of the first */
#define QUEUES_RING 1024u /* frames that one process has handed to another, and still holds */

struct queues;

/* The name of the pool of a queue's frames. */
void queues_pool_name(uint16_t queue, char name[RTE_MEMPOOL_NAMESIZE]);
/* That pool; NULL: there is none. */
struct rte_mempool *queues_pool(uint16_t queue);

/* In the first process, when the device runs. NULL with `error` set. */
struct queues *queues_make(uint16_t count, uint16_t port, const struct device *device, struct error *error);
/* In another, after the EAL has started: takes a queue over. NULL with `error` set: the first was started for another number of
 * queues, the queue is another process's, or was that of one which died. */
struct queues *queues_join(uint16_t count, uint16_t queue, uint16_t port, struct device *device, struct error *error);
/* Gives the queue back; in the first process, has all others end and waits for it. Returns whether the device is nobody's any
 * more and may be closed. Frees `queues`. */
bool queues_leave(struct queues *queues);

/* Frames for this address come here from now on: ARP and all but TCP only if no lower queue has it, too. Both in the network's
 * byte order. */
void queues_own_address(struct queues *queues, uint32_t address);
/* Those of TCP to this port of the address. -1 with `error` set: another queue has both, or too many ports. */
int queues_own_port(struct queues *queues, uint16_t port, struct error *error);

/* Hands over what is not this process's among the frames of a burst. Returns how many are left; they keep their order. */
uint32_t queues_sort(struct queues *queues, struct rte_mbuf **frames, uint32_t count);
/* What others have handed over, and, in the first process, what came to queues that nobody serves, sorted: at most `most`
 * frames of this queue's pool. */
uint32_t queues_take(struct queues *queues, struct rte_mbuf **frames, uint32_t most);

/* To be called every now and then. `is_up`: the device's link, which drivers know in the first process alone. False: that one
 * has gone or is going, and with it the device. */
bool queues_look_after(struct queues *queues, bool is_up);
/* As the first process said last. */
bool queues_link_is_up(const struct queues *queues);
/* "name:value\r\n" lines for INFO. */
void queues_describe(const struct queues *queues, struct text *out);

#endif

#include "net/fstack/wraps.h"

#include <string.h>

#include <rte_ethdev.h>
#include <rte_mbuf.h>

#include "base/text.h"
#include "net/dpdk/offloads.h"
#include "net/dpdk/pool.h"

#define QUEUE_FRAMES 2048

int __real_rte_eal_init(int count, char **arguments);
int __wrap_rte_eal_init(int count, char **arguments);
int __real_rte_eth_dev_info_get(uint16_t port, struct rte_eth_dev_info *device);
int __wrap_rte_eth_dev_info_get(uint16_t port, struct rte_eth_dev_info *device);
int __real_rte_eth_macaddr_get(uint16_t port, struct rte_ether_addr *address);
int __wrap_rte_eth_macaddr_get(uint16_t port, struct rte_ether_addr *address);
int __real_rte_eth_dev_adjust_nb_rx_tx_desc(uint16_t port, uint16_t *received, uint16_t *sent);
int __wrap_rte_eth_dev_adjust_nb_rx_tx_desc(uint16_t port, uint16_t *received, uint16_t *sent);
struct rte_mempool *__wrap_rte_pktmbuf_pool_create(const char *name, unsigned count, unsigned cache_size,
                                                   uint16_t private_size, uint16_t room, int socket);

static struct wraps_plan plan;
static struct error failure;
static struct rte_mempool *pool;
static int offloads;

void wraps_set(const struct wraps_plan *wanted) {
    plan = *wanted;
}

const char *wraps_error(void) {
    return failure.message;
}

static bool is_tap(void) {
    return strncmp(plan.eal.device, "net_tap", 7) == 0;
}

/* "-c1" as "-c 1", the way in which eal_start looks for what is given. */
static void keep_arguments(struct text *text, int count, char **arguments) {
    for (int i = 1; i < count; i++) {
        const char *argument = arguments[i];
        if (argument[0] == '-' && strchr("cnm", argument[1]) && argument[1] != '\0' && argument[2] != '\0')
            text_append(text, "-%c %s ", argument[1], argument + 2);
        else
            text_append(text, "%s ", argument);
    }
}

int __wrap_rte_eal_init(int count, char **arguments) {
    static bool inside; /* eal_start calls it again */
    if (inside) return __real_rte_eal_init(count, arguments);
    inside = true;
    struct text given = {0};
    if (plan.keeps_arguments) keep_arguments(&given, count, arguments);
    text_append(&given, "%s", plan.eal.arguments);
    struct eal_settings settings = plan.eal;
    settings.arguments = given.data ? given.data : "";
    char name[EAL_NAME_BYTES];
    int result = given.failed ? error_set(&failure, ERROR_GENERIC, "no memory for DPDK's arguments")
                              : eal_start(&settings, name, &failure);
    text_free(&given);
    if (result == 0 && rte_eth_dev_count_avail() == 0)
        result = error_set(&failure, ERROR_GENERIC,
                           "DPDK started but has no port%s%s: a PCI device must be bound to vfio-pci "
                           "(`dpdk-devbind.py --status` shows it, `setup_dpdk.sh` binds it), a virtual one needs its "
                           "driver's library (package librte-net-…)",
                           plan.eal.device[0] ? " for " : "", plan.eal.device);
    return result;
}

/* F-Stack counts its frames for rings and bursts; received bytes that nobody has read yet lie in frames, too. */
struct rte_mempool *__wrap_rte_pktmbuf_pool_create(const char *name, unsigned count, unsigned cache_size,
                                                   uint16_t private_size, uint16_t room, int socket) {
    const struct pool_shape shape = {
        .frames = count < plan.frames ? plan.frames : count,
        .cached = cache_size,
        .private_bytes = private_size,
        .room_bytes = room,
        .socket = socket,
        .dense = pool_may_be_dense(plan.eal.device),
    };
    pool = pool_create(name, &shape);
    if (!pool)
        error_set(&failure, ERROR_GENERIC, "no memory for %u frames: more of it (dpdk-memory), or huge pages",
                  shape.frames);
    return pool;
}

/* F-Stack's queues of 512 frames overflow under a few senders with windows of a megabyte: losses that look like the
 * network's. The device takes what it can of this. */
int __wrap_rte_eth_dev_adjust_nb_rx_tx_desc(uint16_t port, uint16_t *received, uint16_t *sent) {
    if (*received < QUEUE_FRAMES) *received = QUEUE_FRAMES;
    if (*sent < QUEUE_FRAMES) *sent = QUEUE_FRAMES;
    return __real_rte_eth_dev_adjust_nb_rx_tx_desc(port, received, sent);
}

/* The device is said to have the offloads that are to be used, since F-Stack uses what it finds. A tap's driver cuts no
 * segments that are as long as the MTU allows: it compares it with their Ethernet header counted. */
int __wrap_rte_eth_dev_info_get(uint16_t port, struct rte_eth_dev_info *device) {
    int result = __real_rte_eth_dev_info_get(port, device);
    if (result < 0) return result;
    struct rte_eth_conf ignored = {0};
    offloads = offloads_choose(plan.offloads, is_tap() ? OFFLOAD_SEGMENTATION : 0, device, &ignored, &failure);
    if (offloads < 0) return -EINVAL;
    if (!(offloads & OFFLOAD_RECEIVE_CHECKSUMS)) device->rx_offload_capa &= ~(uint64_t)RTE_ETH_RX_OFFLOAD_CHECKSUM;
    if (!(offloads & OFFLOAD_TRANSMIT_CHECKSUMS))
        device->tx_offload_capa &=
            ~(uint64_t)(RTE_ETH_TX_OFFLOAD_IPV4_CKSUM | RTE_ETH_TX_OFFLOAD_UDP_CKSUM | RTE_ETH_TX_OFFLOAD_TCP_CKSUM);
    if (offloads & OFFLOAD_SEGMENTATION) /* it frees frames one by one, and these are of several pieces */
        device->tx_offload_capa &= ~(uint64_t)RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE;
    else
        device->tx_offload_capa &= ~(uint64_t)RTE_ETH_TX_OFFLOAD_TCP_TSO;
    return 0;
}

/* A tap device has one address for both of its ends, and FreeBSD takes no notice of who asks from its own address. */
int __wrap_rte_eth_macaddr_get(uint16_t port, struct rte_ether_addr *address) {
    int result = __real_rte_eth_macaddr_get(port, address);
    if (result == 0 && strncmp(plan.eal.device, "net_tap", 7) == 0) address->addr_bytes[RTE_ETHER_ADDR_LEN - 1] ^= 1;
    return result;
}

struct wraps_frames wraps_frames(void) {
    if (!pool) return (struct wraps_frames){0};
    return (struct wraps_frames){.count = pool->size, .free = rte_mempool_avail_count(pool)};
}

int wraps_offloads(void) {
    return offloads;
}

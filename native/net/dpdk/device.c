#include "net/dpdk/device.h"

#include <string.h>

#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_ether.h>

#include "net/dpdk/memif.h"
#include "net/dpdk/pool.h"
#include "net/dpdk/port.h"

#define RING_FRAMES 1024u
#define SEND_RING_FRAMES 256u /* whatever comes last waits for all of them: 0.3 ms at 10 Gb/s */
#define FRAMES_LEAST 4096u /* that a device with its rings full leaves some of */
#define CACHE_FRAMES 256u /* of the pool, that this thread keeps at hand */

static int fail(struct error *error, const struct port *port, const char *step, int code) {
    const char *words = eal_last_words();
    return error_set(error, ERROR_GENERIC, "DPDK's device %s: %s: %s%s%s", port->name, step,
                     rte_strerror(code < 0 ? -code : code), words[0] ? "; it said: " : "", words);
}

static uint16_t queues_of(const struct port_settings *settings) {
    return settings->eal.queues > 1 ? settings->eal.queues : 1;
}

static int set_mtu(struct port *port, const struct port_settings *settings, struct error *error) {
    uint16_t wanted = settings->mtu, now = 0;
    if (memif_is(port->name)) {
        uint16_t most = memif_mtu(settings->eal.device);
        port->device.mtu = wanted > 0 ? wanted : most;
        if (port->device.mtu >= DEVICE_MTU_LEAST && port->device.mtu <= most) return 0;
        unsigned needed = (wanted > 0 ? wanted : DEVICE_MTU_LEAST) + PORT_HEADER_BYTES;
        return error_set(
            error, ERROR_GENERIC,
            "DPDK's device %s has buffers for an MTU of %u, and %u is needed: expected bsize=%u or more in "
            "its arguments",
            port->name, (unsigned)most, needed - PORT_HEADER_BYTES, needed);
    }
    int code = rte_eth_dev_get_mtu(port->number, &now);
    if (code < 0) return fail(error, port, "its MTU is unknown", code);
    port->device.mtu = wanted > 0 ? wanted : now;
    if (port->device.mtu == now) return 0;
    code = rte_eth_dev_set_mtu(port->number, port->device.mtu);
    if (code == 0) return 0;
    return error_set(error, ERROR_GENERIC, "DPDK's device %s does not take dpdk-mtu %u (%s): it has %u now", port->name,
                     (unsigned)port->device.mtu, rte_strerror(-code), (unsigned)now);
}

/* Where frames are longer than Ethernet's longest, fewer of them, in the same memory. */
static uint32_t wanted_frames(const struct port_settings *settings, uint16_t mtu) {
    uint64_t wanted = settings->frames;
    if (mtu > DEVICE_MTU_MOST) wanted = wanted * DEVICE_MTU_MOST / mtu;
    return wanted > FRAMES_LEAST ? (uint32_t)wanted : FRAMES_LEAST;
}

/* One for each queue. */
static int make_pools(struct port *port, const struct port_settings *settings, uint32_t ring_frames,
                      struct error *error) {
    uint64_t each = pool_frame_bytes(port->device.mtu, settings->private_bytes);
    uint64_t wanted = wanted_frames(settings, port->device.mtu);
    uint64_t frames = settings->memory_bytes > 0 ? settings->memory_bytes / each : wanted + ring_frames;
    if (frames < FRAMES_LEAST + ring_frames)
        return error_set(error, ERROR_GENERIC,
                         "dpdk-memory of %llu bytes is %llu frames of %llu bytes: at least %llu bytes are needed here",
                         (unsigned long long)settings->memory_bytes, (unsigned long long)frames,
                         (unsigned long long)each, (unsigned long long)(each * (FRAMES_LEAST + ring_frames)));
    port->device.frames = (uint32_t)frames;
    port->device.frames_usable = port->device.frames - ring_frames;
    const struct pool_shape shape = {
        .frames = port->device.frames,
        .cached = CACHE_FRAMES,
        .private_bytes = (uint16_t)RTE_ALIGN(settings->private_bytes, RTE_MBUF_PRIV_ALIGN),
        .room_bytes = pool_room_bytes(port->device.mtu),
        .socket = SOCKET_ID_ANY,
        .dense = pool_may_be_dense(settings->eal.device),
    };
    for (uint16_t queue = 0; queue < queues_of(settings); queue++) {
        char name[RTE_MEMPOOL_NAMESIZE];
        queues_pool_name(queue, name);
        struct rte_mempool *pool = pool_create(name, &shape);
        if (!pool)
            return error_set(error, ERROR_GENERIC,
                             "no memory for %u frames of %u bytes: %s; more of it: dpdk-memory BYTES, or huge pages",
                             port->device.frames, (unsigned)shape.room_bytes, rte_strerror(rte_errno));
        if (queue == 0) port->pool = pool;
    }
    return 0;
}

uint64_t device_memory_bytes(const struct port_settings *settings, uint16_t mtu) {
    uint64_t frames = (uint64_t)wanted_frames(settings, mtu) + FRAMES_LEAST + 8 * RING_FRAMES;
    return frames * pool_frame_bytes(mtu, settings->private_bytes);
}

static int choose_offloads(struct port *port, const struct port_settings *settings,
                           const struct rte_eth_dev_info *device, struct rte_eth_conf *configuration,
                           struct error *error) {
    int without = port->faults ? OFFLOAD_SEGMENTATION : 0; /* faults are to hit frames, not packets of many */
    port->device.offloads = offloads_choose(settings->offloads, without, device, configuration, error);
    uint16_t most = device->tx_desc_lim.nb_seg_max;
    port->device.buffers_most = most > 0 ? most : UINT16_MAX;
    return port->device.offloads < 0 ? -1 : 0;
}

/* DPDK 22.11's net_tap counts Ethernet's header to the MTU when it cuts, and takes no packet that asks for more. */
static uint16_t cut_bytes(const struct port *port, const struct rte_eth_dev_info *device) {
    bool is_tap = device->driver_name && strcmp(device->driver_name, "net_tap") == 0;
    return (uint16_t)(port->device.mtu + (is_tap ? 0 : PORT_HEADER_BYTES));
}

/* Drivers that copy what they receive, so that it is in this processor's cache. */
static bool is_copying(const struct rte_eth_dev_info *device) {
    const char *name = device->driver_name;
    return name && (strcmp(name, "net_af_packet") == 0 || strcmp(name, "net_tap") == 0);
}

/* As DPDK 22.11 has these drivers. */
static int check_queues(const struct port *port, uint16_t queues, const struct rte_eth_dev_info *device,
                        struct error *error) {
    static const struct {
        const char *driver;
        uint16_t most;
        const char *why;
    } known[] = {
        {"net_af_packet", 1, "its driver carries frames in one process alone"},
        {"net_af_xdp", 1, "its driver carries frames in one process alone"},
        {"net_memif", 1, "its client says how many queues there are"},
        {"net_tap", 4, "its driver tells other processes of four"},
    };
    const char *name = device->driver_name ? device->driver_name : "?";
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(name, known[i].driver) == 0 && queues > known[i].most)
            return error_set(error, ERROR_GENERIC, "dpdk-queues %u: %s can have %u: %s", (unsigned)queues, port->name,
                             (unsigned)known[i].most, known[i].why);
    if (queues <= device->max_rx_queues && queues <= device->max_tx_queues) return 0;
    return error_set(error, ERROR_GENERIC, "dpdk-queues %u: the device %s has %u queues to receive and %u to send",
                     (unsigned)queues, port->name, (unsigned)device->max_rx_queues, (unsigned)device->max_tx_queues);
}

/* The device spreads connections over the queues, where it can. */
static void spread(const struct rte_eth_dev_info *device, struct rte_eth_conf *configuration) {
    const uint64_t wanted = RTE_ETH_RSS_IPV4 | RTE_ETH_RSS_NONFRAG_IPV4_TCP;
    configuration->rx_adv_conf.rss_conf.rss_hf = device->flow_type_rss_offloads & wanted;
    if (configuration->rx_adv_conf.rss_conf.rss_hf) configuration->rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
}

int device_bring_up(struct port *port, const struct port_settings *settings, struct error *error) {
    const uint16_t queues = queues_of(settings);
    struct rte_eth_dev_info device;
    int code = rte_eth_dev_info_get(port->number, &device);
    if (code < 0) return fail(error, port, "it tells nothing about itself", code);
    uint16_t in = device.default_rxportconf.ring_size ? device.default_rxportconf.ring_size : RING_FRAMES;
    uint16_t out = device.default_txportconf.ring_size ? device.default_txportconf.ring_size : RING_FRAMES;
    if (out > SEND_RING_FRAMES) out = SEND_RING_FRAMES;
    struct rte_eth_conf configuration = {0};
    if (check_queues(port, queues, &device, error) < 0) return -1;
    if (choose_offloads(port, settings, &device, &configuration, error) < 0) return -1;
    if (queues > 1) spread(&device, &configuration);
    if ((code = rte_eth_dev_configure(port->number, queues, queues, &configuration)) < 0)
        return fail(error, port, queues > 1 ? "several queues each way" : "one queue each way", code);
    if (set_mtu(port, settings, error) < 0) return -1;
    port->device.cut_bytes = cut_bytes(port, &device);
    port->device.is_cold = !is_copying(&device);
    if ((code = rte_eth_dev_adjust_nb_rx_tx_desc(port->number, &in, &out)) < 0) return fail(error, port, "rings", code);
    uint32_t handed_over = (queues - 1u) * QUEUES_RING;
    if (make_pools(port, settings, (uint32_t)2 * in + out + 2 * CACHE_FRAMES + handed_over, error) < 0) return -1;
    for (uint16_t queue = 0; queue < queues; queue++) {
        if ((code = rte_eth_rx_queue_setup(port->number, queue, in, SOCKET_ID_ANY, NULL, queues_pool(queue))) < 0)
            return fail(error, port, "the queue for receiving", code);
        if ((code = rte_eth_tx_queue_setup(port->number, queue, out, SOCKET_ID_ANY, NULL)) < 0)
            return fail(error, port, "the queue for sending", code);
    }
    if ((code = rte_eth_dev_start(port->number)) < 0) return fail(error, port, "start", code);
    struct rte_ether_addr address;
    if ((code = rte_eth_macaddr_get(port->number, &address)) < 0) return fail(error, port, "its address", code);
    memcpy(port->device.address, address.addr_bytes, sizeof port->device.address);
    return 0;
}

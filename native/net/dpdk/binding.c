#include "net/dpdk/binding.h"

#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>

#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_malloc.h>
#include <rte_mempool.h>
#include <rte_memzone.h>
#include <rte_version.h>

#include "base/memory.h"
#include "net/dpdk/packets.h"
#include "net/dpdk/start.h"

#define LOG_BYTES 16384u

static void set_text(char *out, const char *text) {
    snprintf(out, DPDK_TEXT_BYTES, "%s", text ? text : "");
}

/* ---- log ---- */

/* Written by any thread of DPDK. */
static struct {
    pthread_mutex_t lock;
    char bytes[LOG_BYTES];
    uint64_t written;
} log_ring = {.lock = PTHREAD_MUTEX_INITIALIZER};

static ssize_t log_write(void *cookie, const char *bytes, size_t size) {
    (void)cookie;
    pthread_mutex_lock(&log_ring.lock);
    for (size_t at = 0; at < size; at++) log_ring.bytes[log_ring.written++ % LOG_BYTES] = bytes[at];
    pthread_mutex_unlock(&log_ring.lock);
    return (ssize_t)size;
}

size_t dpdk_log(char *out, size_t size_bytes) {
    pthread_mutex_lock(&log_ring.lock);
    uint64_t length = log_ring.written < LOG_BYTES ? log_ring.written : LOG_BYTES;
    length = length < size_bytes ? length : size_bytes;
    for (uint64_t at = 0; at < length; at++) out[at] = log_ring.bytes[(log_ring.written - length + at) % LOG_BYTES];
    pthread_mutex_unlock(&log_ring.lock);
    return length;
}

uint64_t dpdk_logged_bytes(void) {
    pthread_mutex_lock(&log_ring.lock);
    uint64_t written = log_ring.written;
    pthread_mutex_unlock(&log_ring.lock);
    return written;
}

/* ---- the EAL ---- */

const char *dpdk_version(void) {
    return rte_version();
}

const char *dpdk_error_text(int error_number) {
    return rte_strerror(error_number);
}

int dpdk_start(int count, char **arguments) {
    static FILE *stream;
    if (!stream) {
        stream = fopencookie(NULL, "w", (cookie_io_functions_t){.write = log_write});
        if (!stream) return -ENOMEM;
        setvbuf(stream, NULL, _IOLBF, 1024);
        rte_openlog_stream(stream);
    }
    cpu_set_t processors;
    int known = pthread_getaffinity_np(pthread_self(), sizeof processors, &processors);
    int status = start_eal(count, arguments);
    if (status < 0) status = packets_rte_errno();
    if (known == 0) pthread_setaffinity_np(pthread_self(), sizeof processors, &processors);
    if (status >= 0) packets_begin();
    return status;
}

int dpdk_stop(void) {
    if (packets_are_held()) return 0; /* the end of the process frees the memory: arrays lie in it */
    return rte_eal_cleanup();
}

bool dpdk_is_primary(void) {
    return rte_eal_process_type() == RTE_PROC_PRIMARY;
}

/* ---- ports ---- */

int dpdk_ports(uint16_t *ports, int capacity) {
    int count = 0;
    uint16_t port;
    RTE_ETH_FOREACH_DEV(port) {
        if (count < capacity) ports[count] = port;
        count++;
    }
    return count;
}

int dpdk_port_info(uint16_t port, struct dpdk_port_info *info) {
    memset(info, 0, sizeof *info);
    struct rte_eth_dev_info device;
    int status = rte_eth_dev_info_get(port, &device);
    if (status != 0) return status;
    char name[RTE_ETH_NAME_MAX_LEN];
    status = rte_eth_dev_get_name_by_port(port, name);
    if (status != 0) return status;
    set_text(info->name, name);
    set_text(info->driver, device.driver_name);
    if (device.device) {
        set_text(info->bus, rte_bus_name(rte_dev_bus(device.device)));
        set_text(info->bus_information, rte_dev_bus_info(device.device));
    }
    char interface[IF_NAMESIZE];
    if (device.if_index > 0 && if_indextoname(device.if_index, interface)) set_text(info->interface, interface);
    struct rte_ether_addr mac;
    if (rte_eth_macaddr_get(port, &mac) == 0) memcpy(info->mac, mac.addr_bytes, sizeof info->mac);
    info->node = rte_eth_dev_socket_id(port);
    info->mtu_min = device.min_mtu;
    info->mtu_max = device.max_mtu;
    set_text(info->pool, packets_pool(port));
    info->receive_queues_max = device.max_rx_queues;
    info->transmit_queues_max = device.max_tx_queues;
    info->receive_queues = device.nb_rx_queues;
    info->transmit_queues = device.nb_tx_queues;
    info->receive_offloads = device.rx_offload_capa;
    info->transmit_offloads = device.tx_offload_capa;
    info->rss = packets_rss(&device);
    return 0;
}

int dpdk_port_link(uint16_t port, struct dpdk_link *link) {
    struct rte_eth_link state;
    memset(&state, 0, sizeof state);
    int status = rte_eth_link_get_nowait(port, &state);
    *link = (struct dpdk_link){
        .speed_mbps = state.link_speed,
        .up = state.link_status == RTE_ETH_LINK_UP,
        .full_duplex = state.link_duplex == RTE_ETH_LINK_FULL_DUPLEX,
        .negotiated = state.link_autoneg == RTE_ETH_LINK_AUTONEG,
    };
    return status;
}

int dpdk_port_set_link(uint16_t port, bool up) {
    return up ? rte_eth_dev_set_link_up(port) : rte_eth_dev_set_link_down(port);
}

int dpdk_port_mtu(uint16_t port) {
    uint16_t mtu;
    int status = rte_eth_dev_get_mtu(port, &mtu);
    return status != 0 ? status : mtu;
}

int dpdk_port_set_mtu(uint16_t port, uint16_t mtu) {
    return rte_eth_dev_set_mtu(port, mtu);
}

int dpdk_port_statistics(uint16_t port, struct dpdk_statistics *statistics) {
    struct rte_eth_stats counted;
    memset(&counted, 0, sizeof counted);
    int status = rte_eth_stats_get(port, &counted);
    *statistics = (struct dpdk_statistics){
        .frames_in = counted.ipackets,
        .frames_out = counted.opackets,
        .bytes_in = counted.ibytes,
        .bytes_out = counted.obytes,
        .missed_in = counted.imissed,
        .errors_in = counted.ierrors,
        .errors_out = counted.oerrors,
        .no_buffer = counted.rx_nombuf,
    };
    return status;
}

int dpdk_port_reset_statistics(uint16_t port) {
    return rte_eth_stats_reset(port);
}

static int extended_into(uint16_t port, struct dpdk_counter *counters, int capacity, struct rte_eth_xstat_name *names,
                         struct rte_eth_xstat *values) {
    int named = rte_eth_xstats_get_names(port, names, (unsigned)capacity);
    int count = rte_eth_xstats_get(port, values, (unsigned)capacity);
    if (named < 0 || count < 0) return named < 0 ? named : count;
    for (int at = 0; at < count && at < capacity; at++) {
        if (values[at].id < (uint64_t)named) set_text(counters[at].name, names[values[at].id].name);
        counters[at].value = values[at].value;
    }
    return count;
}

int dpdk_port_extended(uint16_t port, struct dpdk_counter *counters, int capacity) {
    if (capacity == 0) return rte_eth_xstats_get_names(port, NULL, 0);
    struct rte_eth_xstat_name *names = memory_calloc((size_t)capacity, sizeof *names);
    struct rte_eth_xstat *values = memory_calloc((size_t)capacity, sizeof *values);
    int count = names && values ? extended_into(port, counters, capacity, names, values) : -ENOMEM;
    memory_free(names);
    memory_free(values);
    return count;
}

int dpdk_port_reset_extended(uint16_t port) {
    return rte_eth_xstats_reset(port);
}

const char *dpdk_offload_name(bool transmit, int bit) {
    uint64_t offload = (uint64_t)1 << (bit & 63);
    return transmit ? rte_eth_dev_tx_offload_name(offload) : rte_eth_dev_rx_offload_name(offload);
}

int dpdk_attach(const char *device) {
    int status = rte_dev_probe(device);
    if (status != 0) return status;
    struct rte_dev_iterator iterator;
    uint16_t port;
    RTE_ETH_FOREACH_MATCHING_DEV(port, device, &iterator) {
        rte_eth_iterator_cleanup(&iterator);
        return port;
    }
    return -ENODEV; /* a device, but none of a network */
}

int dpdk_detach(uint16_t port) {
    struct rte_eth_dev_info device;
    int status = rte_eth_dev_info_get(port, &device);
    if (status != 0) return status;
    packets_stop(port);
    rte_eth_dev_stop(port);
    status = rte_eth_dev_close(port);
    packets_forget(port);
    return status != 0 ? status : rte_dev_remove(device.device);
}

/* ---- memory ---- */

struct filling {
    void *out;
    int capacity;
    int count;
};

static void add_zone(const struct rte_memzone *zone, void *context) {
    struct filling *filling = context;
    if (filling->count < filling->capacity) {
        struct dpdk_memory_zone *out = (struct dpdk_memory_zone *)filling->out + filling->count;
        set_text(out->name, zone->name);
        out->address = zone->addr_64;
        out->io_address = zone->iova;
        out->size_bytes = zone->len;
        out->page_bytes = zone->hugepage_sz;
        out->node = zone->socket_id;
    }
    filling->count++;
}

int dpdk_memory_zones(struct dpdk_memory_zone *zones, int capacity) {
    struct filling filling = {.out = zones, .capacity = capacity};
    rte_memzone_walk(add_zone, &filling);
    return filling.count;
}

static void add_pool(struct rte_mempool *pool, void *context) {
    struct filling *filling = context;
    if (filling->count < filling->capacity) {
        struct dpdk_pool *out = (struct dpdk_pool *)filling->out + filling->count;
        set_text(out->name, pool->name);
        out->size = pool->size;
        out->available = rte_mempool_avail_count(pool);
        out->element_bytes = pool->elt_size;
        out->cache = pool->cache_size;
        out->node = pool->socket_id;
    }
    filling->count++;
}

int dpdk_pools(struct dpdk_pool *pools, int capacity) {
    struct filling filling = {.out = pools, .capacity = capacity};
    rte_mempool_walk(add_pool, &filling);
    return filling.count;
}

int dpdk_nodes(int32_t *nodes, int capacity) {
    int count = (int)rte_socket_count();
    for (int at = 0; at < count && at < capacity; at++) nodes[at] = rte_socket_id_by_idx((unsigned)at);
    return count;
}

int dpdk_heap(int32_t node, struct dpdk_heap *heap) {
    struct rte_malloc_socket_stats statistics;
    memset(&statistics, 0, sizeof statistics);
    if (rte_malloc_get_socket_stats(node, &statistics) != 0) return -EINVAL;
    *heap = (struct dpdk_heap){
        .total_bytes = statistics.heap_totalsz_bytes,
        .free_bytes = statistics.heap_freesz_bytes,
        .allocated_bytes = statistics.heap_allocsz_bytes,
        .greatest_free_bytes = statistics.greatest_free_size,
        .allocations = statistics.alloc_count,
    };
    return 0;
}

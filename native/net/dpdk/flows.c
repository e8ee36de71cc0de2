/* flows: which frames a device drops, or puts into which queue, by DPDK's rte_flow. */
#include <netinet/in.h>

#include <rte_byteorder.h>
#include <rte_flow.h>
#include <rte_log.h>

#include "net/dpdk/binding.h"
#include "net/dpdk/packets.h"

/* What a pattern points to: of each header, what it must hold, and which bits of it count. */
struct headers {
    struct rte_flow_item_eth ethernet, ethernet_mask;
    struct rte_flow_item_ipv4 ip, ip_mask;
    struct rte_flow_item_tcp tcp, tcp_mask;
    struct rte_flow_item_udp udp, udp_mask;
};

static void fill(const struct dpdk_flow *flow, struct headers *headers) {
    const rte_be16_t from = rte_cpu_to_be_16(flow->source_port), to = rte_cpu_to_be_16(flow->destination_port);
    const rte_be16_t from_mask = from ? 0xffff : 0, to_mask = to ? 0xffff : 0;
    *headers = (struct headers){
        .ethernet.hdr.ether_type = rte_cpu_to_be_16(flow->ether_type),
        .ethernet_mask.hdr.ether_type = 0xffff,
        .ip.hdr.src_addr = rte_cpu_to_be_32(flow->source),
        .ip.hdr.dst_addr = rte_cpu_to_be_32(flow->destination),
        .ip_mask.hdr.src_addr = rte_cpu_to_be_32(flow->source_mask),
        .ip_mask.hdr.dst_addr = rte_cpu_to_be_32(flow->destination_mask),
        .tcp.hdr = {.src_port = from, .dst_port = to},
        .tcp_mask.hdr = {.src_port = from_mask, .dst_port = to_mask},
        .udp.hdr = {.src_port = from, .dst_port = to},
        .udp_mask.hdr = {.src_port = from_mask, .dst_port = to_mask},
    };
}

static void add(struct rte_flow_item **item, enum rte_flow_item_type type, bool is_limited, const void *spec,
                const void *mask) {
    *(*item)++ = (struct rte_flow_item){
        .type = type,
        .spec = is_limited ? spec : NULL,
        .mask = is_limited ? mask : NULL,
    };
}

static void build(const struct dpdk_flow *flow, const struct headers *headers, struct rte_flow_item *item) {
    const bool has_addresses = flow->source_mask || flow->destination_mask;
    const bool has_ports = flow->source_port || flow->destination_port;
    add(&item, RTE_FLOW_ITEM_TYPE_ETH, flow->ether_type, &headers->ethernet, &headers->ethernet_mask);
    if (has_addresses || flow->protocol)
        add(&item, RTE_FLOW_ITEM_TYPE_IPV4, has_addresses, &headers->ip, &headers->ip_mask);
    if (flow->protocol == IPPROTO_TCP) add(&item, RTE_FLOW_ITEM_TYPE_TCP, has_ports, &headers->tcp, &headers->tcp_mask);
    if (flow->protocol == IPPROTO_UDP) add(&item, RTE_FLOW_ITEM_TYPE_UDP, has_ports, &headers->udp, &headers->udp_mask);
    add(&item, RTE_FLOW_ITEM_TYPE_END, false, NULL, NULL);
}

/* The driver's reason goes where DPDK's other words go. */
static int refused(int status, const struct rte_flow_error *error) {
    if (error->message) rte_log(RTE_LOG_ERR, RTE_LOGTYPE_EAL, "rte_flow: %s\n", error->message);
    return status < 0 ? status : -EIO;
}

int dpdk_port_add_flow(uint16_t port, const struct dpdk_flow *flow) {
    const bool is_dropped = flow->queue < 0;
    int status = packets_check_queue(port, is_dropped ? 0 : (uint16_t)flow->queue, false);
    if (status != 0) return status;
    struct headers headers;
    struct rte_flow_item pattern[4];
    fill(flow, &headers);
    build(flow, &headers, pattern);
    const struct rte_flow_action_queue queue = {.index = (uint16_t)flow->queue};
    const struct rte_flow_action actions[] = {
        {.type = is_dropped ? RTE_FLOW_ACTION_TYPE_DROP : RTE_FLOW_ACTION_TYPE_QUEUE,
         .conf = is_dropped ? NULL : &queue},
        {.type = RTE_FLOW_ACTION_TYPE_END},
    };
    const struct rte_flow_attr attributes = {.ingress = 1};
    struct rte_flow_error error = {.message = NULL};
    status = rte_flow_validate(port, &attributes, pattern, actions, &error);
    if (status != 0) return refused(status, &error);
    if (rte_flow_create(port, &attributes, pattern, actions, &error)) return 0;
    return refused(packets_rte_errno(), &error);
}

int dpdk_port_clear_flows(uint16_t port) {
    struct rte_flow_error error = {.message = NULL};
    int status = rte_flow_flush(port, &error);
    return status == 0 ? 0 : refused(status, &error);
}

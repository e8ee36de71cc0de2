#include "net/dpdk/offloads.h"

#include <string.h>

static const struct {
    const char *name;
    enum offload offload;
    uint64_t receive, transmit; /* DPDK's bits, all of which the device must have */
    int with;                   /* other offloads without which it cannot be */
} known[] = {
    {"receive-checksums", OFFLOAD_RECEIVE_CHECKSUMS, RTE_ETH_RX_OFFLOAD_TCP_CKSUM, 0, 0},
    {"transmit-checksums", OFFLOAD_TRANSMIT_CHECKSUMS, 0, RTE_ETH_TX_OFFLOAD_TCP_CKSUM, 0},
    {"segmentation", OFFLOAD_SEGMENTATION, 0,
     RTE_ETH_TX_OFFLOAD_TCP_TSO | RTE_ETH_TX_OFFLOAD_MULTI_SEGS | RTE_ETH_TX_OFFLOAD_TCP_CKSUM,
     OFFLOAD_TRANSMIT_CHECKSUMS},
};

#define KNOWN (sizeof known / sizeof *known)
#define NAMES "receive-checksums, transmit-checksums, segmentation"

static int available(const struct rte_eth_dev_info *device) {
    int offloads = 0;
    for (size_t at = 0; at < KNOWN; at++)
        if ((device->rx_offload_capa & known[at].receive) == known[at].receive &&
            (device->tx_offload_capa & known[at].transmit) == known[at].transmit)
            offloads |= known[at].offload;
    return offloads;
}

static int add_named(const char *name, size_t length, int device, int *offloads, struct error *error) {
    for (size_t at = 0; at < KNOWN; at++) {
        if (strlen(known[at].name) != length || strncmp(known[at].name, name, length) != 0) continue;
        if (!(device & known[at].offload)) {
            struct text has = {0};
            offloads_describe(device, &has);
            error_set(error, ERROR_GENERIC, "dpdk-offloads: the device has no %s; it has: %s", known[at].name,
                      has.data ? has.data : "?");
            text_free(&has);
            return -1;
        }
        *offloads |= known[at].offload | known[at].with;
        return 0;
    }
    return error_set(error, ERROR_GENERIC, "dpdk-offloads: expected auto, none, or some of " NAMES "; got '%.*s'",
                     (int)length, name);
}

static int parse(const char *wanted, int device, int without, struct error *error) {
    if (wanted[0] == '\0' || strcmp(wanted, "auto") == 0) return device & ~without;
    if (strcmp(wanted, "none") == 0) return 0;
    int offloads = 0;
    for (const char *at = wanted;;) {
        size_t length = strcspn(at, ",");
        if (add_named(at, length, device, &offloads, error) < 0) return -1;
        if (at[length] == '\0') return offloads;
        at += length + 1;
    }
}

int offloads_choose(const char *wanted, int without, const struct rte_eth_dev_info *device,
                    struct rte_eth_conf *configuration, struct error *error) {
    int offloads = parse(wanted, available(device), without, error);
    if (offloads < 0) return -1;
    for (size_t at = 0; at < KNOWN; at++) {
        if (!(offloads & known[at].offload)) continue;
        configuration->rxmode.offloads |= known[at].receive;
        configuration->txmode.offloads |= known[at].transmit;
    }
    /* The sum over IPv4's header costs little in software, and virtio and vmxnet3 have no offload for it. A device that has
     * one wants to be asked for it where it cuts packets. */
    if (offloads & OFFLOAD_SEGMENTATION)
        configuration->txmode.offloads |= device->tx_offload_capa & RTE_ETH_TX_OFFLOAD_IPV4_CKSUM;
    if (configuration->txmode.offloads & RTE_ETH_TX_OFFLOAD_IPV4_CKSUM) offloads |= OFFLOAD_HEADER_CHECKSUM;
    /* Promises one pool, that nobody else refers to a frame, and frames of one piece. */
    if (!(offloads & OFFLOAD_SEGMENTATION))
        configuration->txmode.offloads |= device->tx_offload_capa & RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE;
    return offloads;
}

void offloads_describe(int offloads, struct text *out) {
    const char *between = "";
    for (size_t at = 0; at < KNOWN; at++) {
        if (!(offloads & known[at].offload)) continue;
        text_append(out, "%s%s", between, known[at].name);
        between = ",";
    }
    if (offloads == 0) text_append(out, "none");
}

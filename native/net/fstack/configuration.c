#include "net/fstack/configuration.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FRAME_PAYLOAD_BYTES 1448u
#define STUCK_CONNECTIONS 256u
#define BUFFER_MOST_BYTES (16u << 20)

/* ---- the network ------------------------------------------------------------------------------------- */

static void format(uint32_t address, char out[16]) {
    struct in_addr in = {.s_addr = htonl(address)};
    inet_ntop(AF_INET, &in, out, 16);
}

int fstack_network_read(struct fstack_network *network, const struct transport_settings *settings,
                        struct error *error) {
    char host[32];
    snprintf(host, sizeof host, "%s", settings->address);
    char *slash = strchr(host, '/');
    char *end = NULL;
    long bits = 0;
    if (slash) {
        *slash = '\0';
        bits = strtol(slash + 1, &end, 10);
    }
    struct in_addr in;
    if (!slash || end == slash + 1 || *end != '\0' || bits < 1 || bits > 32 || inet_pton(AF_INET, host, &in) != 1)
        return error_set(error, ERROR_GENERIC,
                         "dpdk-address '%s': expected an IPv4 address and its mask, such as 10.0.0.2/24",
                         settings->address);
    uint32_t address = ntohl(in.s_addr);
    uint32_t mask = (uint32_t)(UINT64_C(0xffffffff) << (32 - bits));
    format(address, network->address);
    format(mask, network->mask);
    format(address | ~mask, network->broadcast);
    snprintf(network->gateway, sizeof network->gateway, "0.0.0.0");
    if (settings->gateway[0] == '\0') return 0;
    if (inet_pton(AF_INET, settings->gateway, &in) != 1)
        return error_set(error, ERROR_GENERIC, "dpdk-gateway '%s': expected an IPv4 address", settings->gateway);
    if ((ntohl(in.s_addr) & mask) != (address & mask))
        return error_set(error, ERROR_GENERIC, "dpdk-gateway %s is not in the network of dpdk-address %s",
                         settings->gateway, settings->address);
    format(ntohl(in.s_addr), network->gateway);
    return 0;
}

/* ---- written ----------------------------------------------------------------------------------------- */

uint32_t fstack_buffer_bytes(uint32_t frames) {
    uint64_t bytes = (uint64_t)frames * FRAME_PAYLOAD_BYTES / STUCK_CONNECTIONS;
    if (bytes < FSTACK_BUFFER_LEAST_BYTES) return FSTACK_BUFFER_LEAST_BYTES;
    return bytes < BUFFER_MOST_BYTES ? (uint32_t)bytes : BUFFER_MOST_BYTES;
}

void fstack_configuration_write(struct text *out, const struct fstack_network *network, uint32_t max_connections,
                                uint32_t buffer_bytes) {
    uint32_t files = max_connections + 256;
    uint32_t initial = buffer_bytes < 256u << 10 ? buffer_bytes : 256u << 10;
    text_append(out,
                "[dpdk]\n"
                "lcore_mask=1\n"
                "channel=4\n"
                "promiscuous=0\n"
                "numa_on=1\n"
                "tx_csum_offoad_skip=0\n"
                "tso=1\n"
                "vlan_strip=1\n"
                "idle_sleep=0\n"
                "pkt_tx_delay=0\n" /* else every reply waits for more to send along */
                "symmetric_rss=0\n"
                "port_list=0\n"
                "nb_vdev=0\n"
                "nb_bond=0\n"
                "[pcap]\n"
                "enable=0\n"
                "[port0]\n"
                "addr=%s\n"
                "netmask=%s\n"
                "broadcast=%s\n"
                "gateway=%s\n"
                "lcore_list=0\n",
                network->address, network->mask, network->broadcast, network->gateway);
    text_append(out,
                "[freebsd.boot]\n"
                "hz=1000\n"
                "fd_reserve=0\n"
                "kern.maxfiles=%u\n"
                "kern.maxfilesperproc=%u\n"
                "kern.ipc.maxsockets=%u\n"
                "net.inet.tcp.syncache.hashsize=4096\n"
                "net.inet.tcp.syncache.bucketlimit=100\n"
                "net.inet.tcp.tcbhashsize=65536\n"
                "kern.ncallout=262144\n"
                "kern.features.inet6=1\n",
                files, files, 2 * files);
    text_append(
        out,
        "[freebsd.sysctl]\n"
        "kern.ipc.somaxconn=32768\n"
        "kern.ipc.maxsockbuf=%u\n"
        "net.add_addr_allfibs=1\n"
        "net.link.ether.inet.maxhold=64\n"
        "net.link.ether.inet.wait=1\n" /* it asks for an address again when this is over, not before */
        "net.inet.tcp.fast_finwait2_recycle=1\n"
        "net.inet.tcp.syncache.rexmtlimit=1\n" /* who is there asks again; who is not is forgotten in three seconds */
        "net.inet.tcp.sendspace=%u\n"
        "net.inet.tcp.recvspace=%u\n"
        "net.inet.tcp.cc.algorithm=cubic\n"
        "net.inet.tcp.sendbuf_max=%u\n"
        "net.inet.tcp.recvbuf_max=%u\n"
        "net.inet.tcp.sendbuf_auto=1\n"
        "net.inet.tcp.recvbuf_auto=1\n"
        "net.inet.tcp.sendbuf_inc=65536\n"
        "net.inet.tcp.sack.enable=1\n"
        "net.inet.tcp.blackhole=0\n" /* a port that nobody listens at says so */
        "net.inet.tcp.msl=2000\n"
        "net.inet.tcp.delayed_ack=1\n" /* with replies, and for every other segment */
        "net.inet.tcp.delacktime=1\n"
        "net.inet.tcp.rfc1323=1\n"
        "net.inet.udp.blackhole=1\n"
        "net.inet.ip.redirect=0\n"
        "net.inet.ip.forwarding=0\n"
        "net.inet.tcp.functions_default=freebsd\n",
        2 * buffer_bytes, initial, initial, buffer_bytes, buffer_bytes);
}

/* ---- read -------------------------------------------------------------------------------------------- */

static char *trimmed(char *text) {
    while (isspace((unsigned char)*text)) text++;
    size_t length = strlen(text);
    while (length > 0 && isspace((unsigned char)text[length - 1])) text[--length] = '\0';
    return text;
}

/* The value of a name in a section, "" where there is none. F-Stack, too, takes the last of several. */
static void look_up(FILE *file, const char *section, const char *name, char *out, size_t size) {
    char line[512], inside[64] = "";
    out[0] = '\0';
    rewind(file);
    while (fgets(line, sizeof line, file)) {
        char *text = trimmed(line);
        if (*text == ';' || *text == '#') continue;
        if (*text == '[') {
            snprintf(inside, sizeof inside, "%.*s", (int)strcspn(text + 1, "]"), text + 1);
            continue;
        }
        char *equals = strpbrk(text, "=:");
        if (!equals || strcmp(inside, section) != 0) continue;
        *equals = '\0';
        if (strcmp(trimmed(text), name) == 0) snprintf(out, size, "%s", trimmed(equals + 1));
    }
}

struct expected {
    const char *name, *value, *setting;
};

static int check_port(FILE *file, const char *path, uint16_t port, const struct fstack_network *network,
                      const struct transport_settings *settings, struct error *error) {
    char section[16], value[128];
    snprintf(section, sizeof section, "port%u", (unsigned)port);
    struct expected expected[] = {
        {"addr", network->address, "dpdk-address"},
        {"netmask", network->mask, "dpdk-address"},
        {"gateway", network->gateway, "dpdk-gateway"},
    };
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        const struct expected *wanted = &expected[i];
        if (i == 2 && settings->gateway[0] == '\0') continue;
        look_up(file, section, wanted->name, value, sizeof value);
        if (strcmp(value, wanted->value) == 0) continue;
        return error_set(error, ERROR_GENERIC, "fstack-config %s: [%s] has %s=%s where %s says %s: make them the same",
                         path, section, wanted->name, value[0] ? value : "(nothing)", wanted->setting, wanted->value);
    }
    return 0;
}

static int check_device(FILE *file, const char *path, const struct transport_settings *settings, struct error *error) {
    char value[128];
    static const char *const naming[] = {"allow", "pci_whitelist"};
    for (size_t i = 0; settings->device[0] != '\0' && i < sizeof naming / sizeof *naming; i++) {
        look_up(file, "dpdk", naming[i], value, sizeof value);
        if (value[0] != '\0' && strcmp(value, settings->device) != 0)
            return error_set(error, ERROR_GENERIC,
                             "fstack-config %s: [dpdk] has %s=%s where dpdk-device says %s: leave one of them out",
                             path, naming[i], value, settings->device);
    }
    if (settings->lcore < 0) return 0;
    look_up(file, "dpdk", "lcore_mask", value, sizeof value);
    if (settings->lcore > 63 || strtoull(value, NULL, 16) != UINT64_C(1) << settings->lcore)
        return error_set(
            error, ERROR_GENERIC,
            "fstack-config %s: [dpdk] has lcore_mask=%s where dpdk-lcore says %d: leave dpdk-lcore out, or "
            "set lcore_mask=%llx and lcore_list=%d",
            path, value, settings->lcore, settings->lcore > 63 ? 0 : 1ULL << settings->lcore, settings->lcore);
    return 0;
}

/* What users of F-Stack complain of most, that it is no faster than the kernel, is how it is shipped. */
static void tell_what_is_slow(FILE *file, const char *path) {
    static const struct {
        const char *section, *name, *wanted, *otherwise, *why;
    } known[] = {
        {"dpdk", "pkt_tx_delay", "0", "100", "replies wait up to so many microseconds before they are sent"},
        {"dpdk", "idle_sleep", "0", "0", "the loop sleeps so many microseconds when nothing came"},
        {"freebsd.boot", "hz", "1000", "100", "timers of TCP are as coarse as 1/hz seconds"},
        {"freebsd.sysctl", "net.inet.tcp.delacktime", "1", "40",
         "an acknowledgement may wait so many milliseconds for something to go along with"},
        {"freebsd.sysctl", "net.inet.tcp.blackhole", "0", "0", "connecting to a closed port times out"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        char value[128];
        look_up(file, known[i].section, known[i].name, value, sizeof value);
        const char *is = value[0] ? value : known[i].otherwise;
        if (strcmp(is, known[i].wanted) != 0)
            fprintf(stderr, "fstack-config %s: [%s] %s is %s, not %s: %s\n", path, known[i].section, known[i].name, is,
                    known[i].wanted, known[i].why);
    }
}

int fstack_file_check(struct fstack_file *out, const struct transport_settings *settings,
                      const struct fstack_network *network, struct error *error) {
    const char *path = settings->fstack_config;
    FILE *file = fopen(path, "r");
    if (!file) return error_set(error, ERROR_GENERIC, "fstack-config %s: %s", path, strerror(errno));
    char value[128], section[16];
    look_up(file, "dpdk", "port_list", value, sizeof value);
    out->port = (uint16_t)strtoul(value, NULL, 10);
    int result = check_port(file, path, out->port, network, settings, error);
    if (result == 0) result = check_device(file, path, settings, error);
    if (result == 0) {
        snprintf(section, sizeof section, "port%u", (unsigned)out->port);
        look_up(file, section, "if_name", out->interface, sizeof out->interface);
        if (out->interface[0] == '\0')
            snprintf(out->interface, sizeof out->interface, "f-stack-%u", (unsigned)out->port);
        tell_what_is_slow(file, path);
    }
    fclose(file);
    return result;
}

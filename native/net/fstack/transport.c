/* transport: the data port over F-Stack: FreeBSD's TCP over a DPDK port, in this process. It owns the loop. */
#include <errno.h>
#include <inttypes.h>
#include <net/if.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ff_api.h>
#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_version.h>

#include "base/clock.h"
#include "base/memory.h"
#include "net/dpdk/eal.h"
#include "net/dpdk/offloads.h"
#include "net/fstack/calls.h"
#include "net/fstack/configuration.h"
#include "net/fstack/relief.h"
#include "net/fstack/sending.h"
#include "net/fstack/start.h"
#include "net/fstack/wraps.h"
#include "net/sockets.h"
#include "net/transport.h"

#define MEMORY_BYTES (256u << 20)
#define MEMORY_BESIDE_FRAMES_BYTES (64u << 20)
#define FRAME_BYTES 2560u /* in the pool, with what the pool puts around it */
#define FRAME_BYTES_MOST 1518u
#define FRAMES_LEAST 16384u
#define FRAMES_MOST (1u << 20)
#define MTU_MOST 1500 /* F-Stack's interface is Ethernet's, without jumbo frames */
#define LINGER_US 1000000u /* for what was written before a stop */
#define LOOK_US 1000u
#define STATES 11 /* of TCP, as FreeBSD numbers them */

struct fstack_transport {
    struct sockets sockets;
    transport_step step;
    void *step_context;
    uint64_t due_us;            /* when step wants to be called */
    struct relief relief;
    struct sending sending;
    uint64_t look_us;           /* when it looks again */
    bool stopping;
    uint16_t port;
    int mtu;
    char interface[16];
    struct {
        uint64_t polls, empty_polls, busy_ticks, offered;
        uint64_t work_began;    /* in ticks, when frames were seen in this turn; 0: none yet */
    } count;
};

/* ---- a turn of the loop ------------------------------------------------------------------------------ */

/* DPDK calls it in each turn of F-Stack's loop, with what came: work begins before our own turn does. */
static uint16_t received(uint16_t port, uint16_t queue, struct rte_mbuf **frames, uint16_t count, uint16_t room,
                         void *context) {
    (void)port;
    (void)queue;
    (void)room;
    struct fstack_transport *transport = context;
    if (count == 0) return 0;
    if (transport->count.work_began == 0) transport->count.work_began = rte_rdtsc();
    return relief_admit(&transport->relief, frames, count);
}

static uint16_t transmitted(uint16_t port, uint16_t queue, struct rte_mbuf **frames, uint16_t count, void *context) {
    (void)port;
    (void)queue;
    (void)frames;
    struct fstack_transport *transport = context;
    if (transport->count.work_began == 0) transport->count.work_began = rte_rdtsc();
    transport->count.offered += count;
    return count;
}

static int turn(void *context) {
    struct fstack_transport *transport = context;
    uint64_t began = rte_rdtsc();
    int handled = sockets_poll(&transport->sockets.base, 0);
    if (transport->relief.moved) handled += relief_deliver(&transport->relief);
    uint64_t now_us = clock_monotonic_us();
    if (now_us >= transport->look_us) {
        relief_look(&transport->relief);
        transport->look_us = now_us + LOOK_US;
    }
    transport->count.polls++;
    handled += sending_serve(&transport->sending);
    if (handled > 0 || now_us >= transport->due_us) {
        uint64_t wait_us = transport->step(transport->step_context);
        transport->due_us = wait_us == UINT64_MAX ? CLOCK_NEVER : now_us + wait_us;
    }
    if (handled > 0 || transport->count.work_began != 0) {
        uint64_t from = transport->count.work_began != 0 ? transport->count.work_began : began;
        transport->count.busy_ticks += rte_rdtsc() - from;
        transport->count.work_began = 0;
    } else {
        transport->count.empty_polls++;
    }
    if (transport->stopping) ff_stop_run();
    return 0;
}

static ssize_t fstack_readv(struct connection *connection, const struct iovec *vectors, int count) {
    struct fstack_transport *transport = (struct fstack_transport *)connection->transport;
    return relief_readv(&transport->relief, (struct fstack_connection *)connection, vectors, count);
}

static ssize_t fstack_writev(struct connection *connection, const struct iovec *vectors, int count) {
    struct fstack_transport *transport = (struct fstack_transport *)connection->transport;
    return sending_writev(&transport->sending, (struct fstack_connection *)connection, vectors, count);
}

/* Who stands in line is told in its turn that it may write. */
static void ready(struct sockets *sockets, struct descriptor *descriptor, uint32_t events) {
    const struct fstack_connection *connection =
        (struct fstack_connection *)((char *)descriptor - offsetof(struct fstack_connection, socket.descriptor));
    if (connection->turn.waits) events &= ~(uint32_t)EPOLLOUT;
    sockets_connection_ready(sockets, descriptor, events);
}

static bool begin_connection(struct socket_connection *connection) {
    connection->descriptor.ready = ready;
    return true;
}

static void forget(struct socket_connection *connection) {
    struct fstack_transport *transport = (struct fstack_transport *)connection->base.transport;
    sending_forget(&transport->sending, (struct fstack_connection *)connection);
    relief_forget(&transport->relief, (struct fstack_connection *)connection);
}

static int fstack_run(struct transport *base, transport_step step, void *context) {
    struct fstack_transport *transport = (struct fstack_transport *)base;
    transport->step = step;
    transport->step_context = context;
    fstack_silence_output();
    ff_run(turn, transport);
    return 0;
}

/* F-Stack forgets a stop that comes before its loop runs: so it is said again in every turn. */
static void fstack_stop(struct transport *base) {
    ((struct fstack_transport *)base)->stopping = true;
}

/* ---- the end ----------------------------------------------------------------------------------------- */

struct lingering {
    uint64_t until_us;
};

/* Connections that still have something to tell their peer: all but those that are closed, listen or have told it. */
static uint64_t unfinished(void) {
    uint64_t states[STATES] = {0};
    size_t length = sizeof states;
    if (fstack_variable("net.inet.tcp.states", states, &length) < 0 || length != sizeof states) return 0;
    uint64_t count = 0;
    for (int i = 3; i <= 8; i++) count += states[i]; /* SYN_RECEIVED to LAST_ACK */
    return count;
}

static int linger_turn(void *context) {
    const struct lingering *linger = context;
    if (unfinished() == 0 || clock_monotonic_us() >= linger->until_us) ff_stop_run();
    return 0;
}

static void fstack_free(struct transport *base) {
    struct fstack_transport *transport = (struct fstack_transport *)base;
    sockets_close(&transport->sockets);
    struct lingering linger = {.until_us = clock_monotonic_us() + LINGER_US};
    ff_run(linger_turn, &linger);
    rte_eth_dev_stop(transport->port);
    rte_eth_dev_close(transport->port);
    eal_end();
    memory_free(transport);
}

/* ---- what INFO tells --------------------------------------------------------------------------------- */

struct traffic { /* as ff_get_traffic fills it */
    uint64_t rx_packets, rx_bytes, tx_packets, tx_bytes;
};

/* The nth counter of a group of the stack's, 0 where this F-Stack has another number of them. */
static uint64_t counter(const char *group, size_t index, size_t count) {
    uint64_t values[160] = {0};
    size_t length = sizeof values;
    if (fstack_variable(group, values, &length) < 0 || length != count * sizeof *values) return 0;
    return values[index];
}

#define TCP_COUNTERS 113
#define TCP_RETRANSMITTED 19
#define TCP_BAD_CHECKSUM 30

static void describe_device(const struct fstack_transport *transport, struct text *out) {
    struct rte_eth_dev_info device = {0};
    struct rte_eth_link link = {0};
    char name[RTE_ETH_NAME_MAX_LEN] = "?";
    rte_eth_dev_get_name_by_port(transport->port, name);
    rte_eth_dev_info_get(transport->port, &device);
    rte_eth_link_get_nowait(transport->port, &link);
    text_append(out, "transport_device:%s\r\ntransport_driver:%s\r\n", name,
                device.driver_name ? device.driver_name : "?");
    text_append(out, "transport_link:%s\r\ntransport_mtu:%d\r\n", link.link_status ? "up" : "down", transport->mtu);
    text_append(out, "transport_offloads:");
    offloads_describe(wraps_offloads(), out);
    text_append(out, "\r\n");
}

static void line(struct text *out, const char *name, uint64_t value) {
    text_append(out, "transport_%s:%" PRIu64 "\r\n", name, value);
}

static void fstack_describe(struct transport *base, struct text *out) {
    const struct fstack_transport *transport = (const struct fstack_transport *)base;
    struct rte_eth_stats statistics = {0};
    struct traffic traffic = {0};
    rte_eth_stats_get(transport->port, &statistics);
    ff_get_traffic(&traffic);
    struct wraps_frames frames = wraps_frames();
    describe_device(transport, out);
    line(out, "polls", transport->count.polls);
    line(out, "empty_polls", transport->count.empty_polls);
    line(out, "frames_in", traffic.rx_packets);
    line(out, "bytes_in", traffic.rx_bytes);
    line(out, "frames_out", traffic.tx_packets);
    line(out, "bytes_out", traffic.tx_bytes);
    line(out, "receive_missed", statistics.imissed);
    line(out, "receive_no_memory", statistics.rx_nombuf);
    line(out, "bad_checksums", counter("net.inet.tcp.stats", TCP_BAD_CHECKSUM, TCP_COUNTERS));
    line(out, "device_full", transport->count.offered - traffic.tx_packets);
    line(out, "send_errors", statistics.oerrors);
    line(out, "frames", frames.count);
    line(out, "frames_free", frames.free);
    line(out, "frames_refused", transport->relief.refused_frames);
    line(out, "moved_bytes", transport->relief.moved_bytes);
    line(out, "connections_refused", transport->relief.closed_connections);
    line(out, "busy_us", (uint64_t)((double)transport->count.busy_ticks * 1e6 / (double)rte_get_tsc_hz()));
    line(out, "senders_waiting_most", transport->sending.line.waiting_most);
    line(out, "sender_gap_bytes_most", transport->sending.line.gap_most_bytes);
    line(out, "retransmissions", counter("net.inet.tcp.stats", TCP_RETRANSMITTED, TCP_COUNTERS));
}

/* ---- the start --------------------------------------------------------------------------------------- */

static int fstack_listen(struct transport *base, struct listen_address *address, struct error *error) {
    if (address->path)
        return error_set(error, ERROR_GENERIC, "cannot listen on %s: F-Stack has no unix sockets", address->path);
    return sockets_listen_tcp((struct sockets *)base, address, error);
}

static const struct transport_operations fstack_operations = {
    .name = "fstack",
    .releases_at_write = true,
    .listen = fstack_listen,
    .run = fstack_run,
    .stop = fstack_stop,
    .stop_listening = sockets_stop_listening,
    .free = fstack_free,
    .readv = fstack_readv,
    .writev = fstack_writev,
    .want_read = sockets_want_read,
    .want_write = sockets_want_write,
    .close = sockets_close_connection,
    .describe = fstack_describe,
};

static int check(const struct transport_settings *settings, struct error *error) {
    if (settings->faults[0] != '\0')
        return error_set(error, ERROR_GENERIC, "dpdk-faults is for the transport dpdk: F-Stack's frames are its own");
    if (settings->queues > 1 || settings->queue > 0)
        return error_set(error, ERROR_GENERIC, "dpdk-queues and dpdk-queue are for the transport dpdk");
    if (settings->device[0] == '\0' && settings->fstack_config[0] == '\0')
        return error_set(
            error, ERROR_GENERIC,
            "dpdk-device is not set: expected a PCI address or a virtual device with its arguments, such as "
            "net_af_xdp0,iface=veth0");
    if (settings->mtu > MTU_MOST)
        return error_set(error, ERROR_GENERIC, "dpdk-mtu %u: F-Stack carries at most %d", (unsigned)settings->mtu,
                         MTU_MOST);
    return 0;
}

static uint32_t frames_of(uint64_t memory_bytes) {
    uint64_t rest = memory_bytes > MEMORY_BESIDE_FRAMES_BYTES ? memory_bytes - MEMORY_BESIDE_FRAMES_BYTES : 0;
    uint64_t frames = rest / FRAME_BYTES;
    if (frames < FRAMES_LEAST) return FRAMES_LEAST;
    return frames < FRAMES_MOST ? (uint32_t)frames : FRAMES_MOST;
}

static struct wraps_plan plan_of(const struct transport_settings *settings) {
    return (struct wraps_plan){.offloads = settings->offloads,
                               .eal = {
                                   .device = settings->device,
                                   .lcore = settings->lcore,
                                   .memory_bytes = settings->memory_bytes,
                                   .arguments = settings->eal_arguments,
                                   .frame_bytes = FRAME_BYTES_MOST,
                               }};
}

/* Starts on a configuration of our own, which nobody else needs to read: it never is a file with a name. */
static int start_on_settings(struct fstack_transport *transport, const struct transport_settings *settings,
                             const struct fstack_network *network, struct error *error) {
    struct wraps_plan plan = plan_of(settings);
    if (plan.eal.memory_bytes == 0) plan.eal.memory_bytes = MEMORY_BYTES;
    plan.frames = frames_of(plan.eal.memory_bytes);
    wraps_set(&plan);
    struct text text = {0};
    fstack_configuration_write(&text, network, settings->max_connections, fstack_buffer_bytes(plan.frames));
    int file = memfd_create("fstack-configuration", MFD_CLOEXEC);
    bool written = file >= 0 && !text.failed && write(file, text.data, text.length) == (ssize_t)text.length;
    text_free(&text);
    if (!written) {
        error_set(error, ERROR_GENERIC, "cannot write F-Stack's configuration: %s", strerror(errno));
        if (file >= 0) close(file);
        return -1;
    }
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    snprintf(transport->interface, sizeof transport->interface, "f-stack-0");
    fstack_start(path);
    close(file);
    return 0;
}

static int start_on_file(struct fstack_transport *transport, const struct transport_settings *settings,
                         const struct fstack_network *network, struct error *error) {
    struct fstack_file file = {0};
    if (fstack_file_check(&file, settings, network, error) < 0) return -1;
    struct wraps_plan plan = plan_of(settings);
    plan.keeps_arguments = true;
    if (settings->memory_bytes > 0) plan.frames = frames_of(settings->memory_bytes);
    wraps_set(&plan);
    transport->port = file.port;
    snprintf(transport->interface, sizeof transport->interface, "%s", file.interface);
    fstack_start(settings->fstack_config);
    return 0;
}

/* Sets it where it is asked for, and learns it where not. */
static int settle_mtu(struct fstack_transport *transport, uint16_t mtu, struct error *error) {
    struct ifreq request = {.ifr_mtu = mtu};
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", transport->interface);
    int number = ff_socket(AF_INET, SOCK_DGRAM, 0);
    int result = number < 0 ? -1 : ff_ioctl(number, mtu > 0 ? SIOCSIFMTU : SIOCGIFMTU, &request);
    if (result < 0)
        error_set(error, ERROR_GENERIC, "dpdk-mtu %u: F-Stack's interface %s refused it: %s", (unsigned)mtu,
                  transport->interface, strerror(errno));
    if (number >= 0) ff_close(number);
    transport->mtu = request.ifr_mtu;
    return result;
}

static int number(const char *variable, int otherwise) {
    int value = 0;
    size_t length = sizeof value;
    return fstack_variable(variable, &value, &length) == 0 && length == sizeof value ? value : otherwise;
}

static void begin(struct fstack_transport *transport) {
    /* A quarter of the room that a connection begins with: not woken for every frame that a slow reader takes. */
    int room = number("net.inet.tcp.sendspace", 0);
    if (room >= 8192) fstack_calls_set_least_room((size_t)room / 4);
    relief_start(&transport->relief, &transport->sockets, (uint32_t)number("net.inet.tcp.recvbuf_max", 65536));
    rte_eth_add_rx_callback(transport->port, 0, received, transport);
    rte_eth_add_tx_callback(transport->port, 0, transmitted, transport);
}

struct transport *transport_fstack_new(const struct transport_settings *settings, const struct transport_events *events,
                                       struct error *error) {
    struct fstack_network network;
    if (check(settings, error) < 0 || fstack_network_read(&network, settings, error) < 0) return NULL;
    struct fstack_transport *transport = memory_calloc(1, sizeof *transport);
    if (!transport) {
        error_set(error, ERROR_GENERIC, "no memory for the F-Stack transport");
        return NULL;
    }
    transport->sockets = (struct sockets){
        .base = {.operations = &fstack_operations, .events = *events},
        .calls = &fstack_calls,
        .keepalive_s = SOCKETS_KEEPALIVE_S,
        .connection_bytes = sizeof(struct fstack_connection),
        .begin = begin_connection,
        .forget = forget,
    };
    int started = settings->fstack_config[0] != '\0' ? start_on_file(transport, settings, &network, error)
                                                     : start_on_settings(transport, settings, &network, error);
    if (started < 0 || settle_mtu(transport, settings->mtu, error) < 0 ||
        sockets_open(&transport->sockets, error) < 0) {
        memory_free(transport);
        return NULL;
    }
    sending_open(&transport->sending);
    begin(transport);
    return &transport->sockets.base;
}

/* transport: the operations and the loop of the transport over lwIP and DPDK. */
#include "net/transport.h"

#include <arpa/inet.h>
#include <signal.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "net/dpdk/port.h"
#include "net/lwip/connection.h"
#include "net/lwip/pools.h"
#include "net/lwip/received.h"
#include "net/lwip/stack.h"

#define LISTENERS 4
#define BACKLOG 255
#define CONNECTIONS_MORE 64u /* beyond those served: they are told so, and closed */
#define HELD_FRAMES 16384u /* that unread input may hold before it is copied */
#define BURSTS_PER_TURN 4 /* taken in before anything is sent */
#define LINGER_US 100000u /* at the end, for the last handshakes */

struct lwip_transport {
    struct transport base;
    struct port *port;
    struct connections connections;
    struct listener listeners[LISTENERS];
    bool stopping;
    bool is_ending; /* because the device is lost: the process has been told */
    uint64_t busy_ns; /* in turns that had something to do */
};

static struct lwip_transport *of(struct transport *transport) {
    return (struct lwip_transport *)transport;
}

/* ---- listening ------------------------------------------------------------------------------------------------- */

static int refuse(struct error *error, const struct listen_address *address, const char *why, enum error_code code) {
    return error_set(error, code, "cannot listen on %s port %u: %s", address->host, (unsigned)address->port, why);
}

static struct listener *free_listener(struct lwip_transport *transport) {
    for (int i = 0; i < LISTENERS; i++)
        if (!transport->listeners[i].pcb) return &transport->listeners[i];
    return NULL;
}

static int lwip_listen(struct transport *base, struct listen_address *address, struct error *error) {
    struct lwip_transport *transport = of(base);
    struct listener *listener = free_listener(transport);
    struct in_addr host;
    if (!address->host || inet_pton(AF_INET, address->host, &host) != 1)
        return error_set(error, ERROR_GENERIC, "the transport over DPDK listens on IPv4 addresses only, not on %s",
                         address->host ? address->host : address->path);
    if (host.s_addr != ip4_addr_get_u32(netif_ip4_addr(&stack.interface)) && host.s_addr != INADDR_ANY)
        return refuse(error, address, "the device has another address (dpdk-address)", ERROR_GENERIC);
    struct tcp_pcb *pcb = listener ? tcp_new() : NULL;
    if (!pcb) return refuse(error, address, "there are too many listeners", ERROR_LIMIT);
    ip_addr_t local = IPADDR4_INIT(host.s_addr);
    err_t bound = tcp_bind(pcb, &local, address->port);
    if (bound != ERR_OK) {
        tcp_abort(pcb);
        if (bound == ERR_USE)
            return refuse(error, address, "it is in use: choose another, or port 0 for any", ERROR_EXISTS);
        return refuse(error, address, lwip_strerr(bound), ERROR_GENERIC);
    }
    struct tcp_pcb *listening = tcp_listen_with_backlog(pcb, BACKLOG);
    if (!listening) {
        tcp_abort(pcb);
        return refuse(error, address, "no memory", ERROR_GENERIC);
    }
    if (port_own_listener(transport->port, lwip_htons(listening->local_port), error) < 0) {
        tcp_close(listening);
        return -1;
    }
    *listener =
        (struct listener){.connections = &transport->connections, .pcb = listening, .is_admin = address->is_admin};
    tcp_arg(listening, listener);
    tcp_accept(listening, connection_accept);
    address->port = listening->local_port;
    return 0;
}

static void lwip_stop_listening(struct transport *base) {
    struct lwip_transport *transport = of(base);
    for (int i = 0; i < LISTENERS; i++) {
        if (transport->listeners[i].pcb) tcp_close(transport->listeners[i].pcb);
        transport->listeners[i].pcb = NULL;
    }
}

struct connection *transport_dpdk_connect(struct transport *base, const char *host, uint16_t port, void *owner,
                                          struct error *error) {
    struct in_addr parsed;
    if (inet_pton(AF_INET, host, &parsed) != 1) {
        error_set(error, ERROR_GENERIC, "cannot connect to %s: expected an IPv4 address", host);
        return NULL;
    }
    ip_addr_t address = IPADDR4_INIT(parsed.s_addr);
    return connection_connect(&of(base)->connections, &address, port, owner, error);
}

/* ---- the loop -------------------------------------------------------------------------------------------------- */

/* One look at the port and the timers. Returns whether there was anything. What has come is taken in before anything is sent,
 * or a client's request waits behind the replies of all others. */
static bool turn(struct lwip_transport *transport, uint64_t now_us) {
    sending_begin_turn(&stack.sending);
    uint32_t frames = 0, burst = transport->port->burst;
    for (int i = 0; i < BURSTS_PER_TURN && burst >= transport->port->burst; i++) {
        burst = port_receive(transport->port);
        if (burst > 0) stack_input();
        frames += burst;
    }
    bool ticks = now_us >= stack.next_tick_us;
    stack_run_timers(now_us);
    if (ticks) {
        connections_tick(&transport->connections, now_us);
        port_watch_link(transport->port, now_us);
    }
    return frames > 0;
}

static int lwip_run(struct transport *base, transport_step step, void *context) {
    struct lwip_transport *transport = of(base);
    uint64_t step_us = 0;
    while (!transport->stopping) {
        uint64_t began_ns = clock_monotonic_ns();
        uint64_t now_us = began_ns / 1000;
        bool busy = turn(transport, now_us);
        bool handled =
            connections_are_ready(&transport->connections) && connections_deliver(&transport->connections) > 0;
        if (handled || now_us >= step_us) {
            uint64_t wait_us = step(context);
            now_us = clock_monotonic_us();
            step_us = wait_us < UINT64_MAX - now_us ? now_us + wait_us : UINT64_MAX;
            busy = busy || wait_us == 0;
        }
        sending_serve(&stack.sending);
        port_flush(transport->port);
        if (busy || handled) transport->busy_ns += clock_monotonic_ns() - began_ns;
        if (transport->port->is_lost && !transport->is_ending) {
            transport->is_ending = true;
            kill(getpid(), SIGTERM); /* the server saves what it has rules for */
        }
    }
    return transport->port->is_lost ? -1 : 0;
}

static void lwip_stop(struct transport *base) {
    of(base)->stopping = true;
}

/* Peers whose connections were closed just now get the rest of the handshake. */
static void linger(struct lwip_transport *transport) {
    uint64_t until_us = clock_monotonic_us() + LINGER_US;
    uint64_t now_us;
    while (stack_is_closing() && (now_us = clock_monotonic_us()) < until_us) {
        turn(transport, now_us);
        sending_serve(&stack.sending);
        port_flush(transport->port);
    }
}

static void lwip_free(struct transport *base) {
    struct lwip_transport *transport = of(base);
    lwip_stop_listening(base);
    connections_close(&transport->connections);
    linger(transport);
    stack_close();
    port_close(transport->port);
    memory_free(transport);
}

/* ---- telling --------------------------------------------------------------------------------------------------- */

static void lwip_describe(struct transport *base, struct text *out) {
    const struct lwip_transport *transport = of(base);
    const struct connections *connections = &transport->connections;
    port_describe(transport->port, out);
    text_append(out, "transport_busy_us:%llu\r\n", (unsigned long long)(transport->busy_ns / 1000));
    text_append(out, "transport_retransmissions:%llu\r\ntransport_tcp_dropped:%llu\r\n",
                (unsigned long long)stack.retransmissions, (unsigned long long)lwip_stats.tcp.drop);
    text_append(out, "transport_recoveries:%llu\r\ntransport_timeouts:%llu\r\n", (unsigned long long)stack.recoveries,
                (unsigned long long)stack.timeouts);
    text_append(out, "transport_undone:%llu\r\n", (unsigned long long)stack.undone);
    text_append(out, "transport_tail_probes:%llu\r\ntransport_tail_repairs:%llu\r\n",
                (unsigned long long)stack.tail_probes, (unsigned long long)stack.tail_repairs);
    text_append(out, "transport_send_window_bytes_most:%u\r\ntransport_receive_window_bytes_most:%u\r\n",
                connections->send_window_most_bytes, connections->window_most_bytes);
    text_append(out, "transport_receive_windows_bytes:%zu\r\n", connections->windows_bytes);
    text_append(out, "transport_frames_held:%u\r\ntransport_frames_refused:%llu\r\ntransport_copies_free_bytes:%zu\r\n",
                received_frames_held(), (unsigned long long)stack.refused_frames, pools_copy_room());
    const struct round_robin *line = &stack.sending.line;
    text_append(out, "transport_senders_waiting_most:%u\r\ntransport_sender_gap_bytes_most:%llu\r\n",
                line->waiting_most, (unsigned long long)line->gap_most_bytes);
    text_append(out, "transport_pool_refusals:%llu\r\n", (unsigned long long)pools_refusals());
    text_append(out,
                "transport_connections:%u\r\ntransport_connections_refused:%llu\r\ntransport_closes_aborted:%llu\r\n",
                connections->used, (unsigned long long)connections->refused, (unsigned long long)connections->aborted);
}

static const struct transport_operations lwip_operations = {
    .name = "dpdk",
    .releases_at_write = false,
    .listen = lwip_listen,
    .run = lwip_run,
    .stop = lwip_stop,
    .stop_listening = lwip_stop_listening,
    .free = lwip_free,
    .readv = connection_readv,
    .writev = connection_writev,
    .want_read = connection_want_read,
    .want_write = connection_want_write,
    .close = connection_close,
    .describe = lwip_describe,
};

static int check(const struct transport_settings *settings, struct error *error) {
    if (settings->device[0] == '\0')
        return error_set(
            error, ERROR_GENERIC,
            "no device: dpdk-device names one, a PCI address (0000:3b:00.0) or a virtual one (net_af_xdp0,iface=NAME)");
    if (settings->queue == 0 || settings->queue < settings->queues) return 0;
    return error_set(error, ERROR_GENERIC, "dpdk-queue %u: expected less than dpdk-queues, which is %u",
                     (unsigned)settings->queue, (unsigned)settings->queues);
}

struct transport *transport_dpdk_new(const struct transport_settings *settings, const struct transport_events *events,
                                     struct error *error) {
    struct lwip_transport *transport = memory_calloc(1, sizeof *transport);
    if (!transport) {
        error_set(error, ERROR_GENERIC, "no memory for the transport over DPDK");
        return NULL;
    }
    transport->base.operations = &lwip_operations;
    transport->base.events = *events;
    const struct port_settings port = {
        .eal = {.device = settings->device,
                .lcore = settings->lcore,
                .arguments = settings->eal_arguments,
                .queues = settings->queues,
                .queue = settings->queue},
        .mtu = settings->mtu,
        .memory_bytes = settings->memory_bytes,
        .frames = HELD_FRAMES + settings->max_connections,
        .private_bytes = sizeof(struct received),
        .offloads = settings->offloads,
        .faults = settings->faults,
    };
    const struct stack_settings address = {
        .address = settings->address, .gateway = settings->gateway, .connections = settings->max_connections};
    if (check(settings, error) < 0) {
        memory_free(transport);
        return NULL;
    }
    transport->port = port_open(&port, error);
    if (!transport->port) {
        memory_free(transport);
        return NULL;
    }
    if (stack_open(transport->port, &address, error) < 0) {
        port_close(transport->port);
        memory_free(transport);
        return NULL;
    }
    if (connections_open(&transport->connections, &transport->base, settings->max_connections + CONNECTIONS_MORE,
                         error) < 0) {
        stack_close();
        port_close(transport->port);
        memory_free(transport);
        return NULL;
    }
    return &transport->base;
}

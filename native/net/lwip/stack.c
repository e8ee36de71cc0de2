/* stack: the interface, timers, and the answers to lwIP's questions. */
#include "net/lwip/stack.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lwip/etharp.h>
#include <lwip/init.h>
#include <lwip/priv/tcp_priv.h>
#include <netif/ethernet.h>

#include "base/clock.h"
#include "base/random.h"
#include "base/siphash.h"
#include "net/lwip/connection.h"
#include "net/lwip/hooks.h"
#include "net/lwip/pools.h"
#include "net/lwip/received.h"
#include "net/lwip/recovery.h"

#define TICK_US (TCP_TMR_INTERVAL * 1000u)
#define SECOND_US 1000000u
#define ANSWER_TIME 0 /* lwIP's additional argument */
#define ANSWERED_AGAIN 1u

struct stack stack;

/* ---- opening --------------------------------------------------------------------------------------------------- */

static int parse_address(const char *text, ip4_addr_t *address, ip4_addr_t *mask, struct error *error) {
    char host[32];
    snprintf(host, sizeof host, "%s", text);
    char *slash = strchr(host, '/');
    char *end = NULL;
    long bits = -1;
    if (slash) {
        *slash = '\0';
        bits = strtol(slash + 1, &end, 10);
    }
    struct in_addr parsed;
    if (inet_pton(AF_INET, host, &parsed) != 1 || bits < 1 || bits > 32 || *end != '\0')
        return error_set(error, ERROR_GENERIC,
                         "dpdk-address '%s': expected an IPv4 address and the length of its mask, such as 10.0.0.2/24",
                         text);
    address->addr = parsed.s_addr;
    mask->addr = htonl((uint32_t)(0xffffffffull << (32 - bits)));
    return 0;
}

static err_t interface_up(struct netif *interface) {
    interface->name[0] = 'd';
    interface->name[1] = 'p';
    interface->mtu = stack.port->device.mtu;
    interface->hwaddr_len = 6;
    memcpy(interface->hwaddr, stack.port->device.address, 6);
    interface->output = etharp_output;
    interface->linkoutput = stack_transmit;
    interface->flags = NETIF_FLAG_BROADCAST | NETIF_FLAG_ETHARP | NETIF_FLAG_ETHERNET | NETIF_FLAG_LINK_UP;
    return ERR_OK;
}

int stack_open(struct port *port, const struct stack_settings *settings, struct error *error) {
    ip4_addr_t address, mask, gateway = {0};
    if (parse_address(settings->address, &address, &mask, error) < 0) return -1;
    struct in_addr parsed;
    if (settings->gateway[0] != '\0') {
        if (inet_pton(AF_INET, settings->gateway, &parsed) != 1)
            return error_set(error, ERROR_GENERIC, "dpdk-gateway '%s': expected an IPv4 address, such as 10.0.0.1",
                             settings->gateway);
        gateway.addr = parsed.s_addr;
        if (((gateway.addr ^ address.addr) & mask.addr) != 0)
            return error_set(error, ERROR_GENERIC, "dpdk-gateway %s is not in the network of dpdk-address %s",
                             settings->gateway, settings->address);
    }
    if (pools_open(settings->connections, port->device.mtu, error) < 0) return -1;
    memset(&stack, 0, sizeof stack);
    stack.port = port;
    port_own_address(port, address.addr);
    for (int i = 0; i < 2; i++) stack.sequence_key[i] = random_entropy();
    sending_open(&stack.sending);
    timer_wheel_open(&stack.silences, clock_monotonic_us());
    received_set_most(port->device.frames_usable);
    lwip_init();
    netif_add(&stack.interface, &address, &mask, &gateway, NULL, interface_up, ethernet_input);
    netif_set_default(&stack.interface);
    netif_set_up(&stack.interface); /* announces the address, too */
    port_flush(port);
    return 0;
}

void stack_close(void) {
    port_flush(stack.port);
    netif_remove(&stack.interface);
    pools_close();
}

/* ---- lwIP's questions ------------------------------------------------------------------------------------------ */

u32_t stack_sequence(const ip_addr_t *local, u16_t local_port, const ip_addr_t *remote, u16_t remote_port) {
    const uint32_t ends[3] = {ip4_addr_get_u32(ip_2_ip4(local)), ip4_addr_get_u32(ip_2_ip4(remote)),
                              (uint32_t)local_port << 16 | remote_port};
    return (u32_t)(siphash(ends, sizeof ends, stack.sequence_key) + clock_monotonic_us() / 4);
}

uint32_t stack_random(void) {
    return (uint32_t)random_entropy();
}

/* The answer to a SYN goes out: its acknowledgement will be the first sample of a round trip, unless it goes out again. */
static void note_answer(const struct tcp_pcb *pcb) {
    struct tcp_pcb *noted = (struct tcp_pcb *)(uintptr_t)pcb;
    uintptr_t before = (uintptr_t)tcp_ext_arg_get(pcb, ANSWER_TIME);
    uintptr_t now = before == 0 ? (uintptr_t)clock_monotonic_us() : ANSWERED_AGAIN;
    tcp_ext_arg_set(noted, ANSWER_TIME, (void *)now);
}

uint32_t stack_answer_us(const struct tcp_pcb *pcb) {
    uintptr_t noted = (uintptr_t)tcp_ext_arg_get(pcb, ANSWER_TIME);
    if (noted == 0 || noted == ANSWERED_AGAIN) return 0;
    uint64_t past_us = clock_monotonic_us() - noted;
    return past_us < UINT32_MAX ? (uint32_t)past_us : 0;
}

u32_t *stack_before_output(const struct tcp_pcb *pcb, u32_t *options) {
    stack.output = pcb;
    struct lwip_connection *connection = connection_of(pcb);
    if (connection) recovery_watch_timer(connection);
    if (pcb && pcb->state == SYN_RCVD) note_answer(pcb);
    return options;
}

u16_t stack_early_frames(const struct tcp_pcb *pcb) {
    (void)pcb;
    return received_early_frames();
}

/* ---- timers ----------------------------------------------------------------------------------------------------- */

uint64_t stack_run_timers(uint64_t now_us) {
    recovery_run_timers(now_us); /* first: a probe puts lwIP's timer off */
    if (now_us >= stack.next_tick_us) {
        tcp_tmr();
        stack.next_tick_us = stack.next_tick_us + TICK_US > now_us ? stack.next_tick_us + TICK_US : now_us + TICK_US;
    }
    if (now_us >= stack.next_second_us) {
        etharp_tmr();
        stack.next_second_us = now_us + SECOND_US;
    }
    return stack.next_tick_us;
}

bool stack_is_closing(void) {
    for (const struct tcp_pcb *pcb = tcp_active_pcbs; pcb; pcb = pcb->next)
        if (pcb->state > ESTABLISHED) return true;
    return false;
}

/* stack: lwIP's one network interface, on one DPDK port: frames in, segments out, clocks. A process has one. */
#ifndef REPLAY_NET_LWIP_STACK_H
#define REPLAY_NET_LWIP_STACK_H

#include <stdbool.h>
#include <stdint.h>

#include <lwip/opt.h>

#include <lwip/netif.h>
#include <lwip/tcp.h>

#include "base/error.h"
#include "net/dpdk/port.h"
#include "net/lwip/sending.h"
#include "net/lwip/timer_wheel.h"

#define STACK_FRAMES_PER_PACKET 128u /* that stack_transmit may have to cut a packet into */

struct stack_settings {
    const char *address; /* "10.0.0.2/24" */
    const char *gateway; /* "" for none */
    uint32_t connections;
};

struct stack {
    struct netif interface;
    struct port *port;
    uint64_t next_tick_us, next_second_us;
    const struct tcp_pcb *output; /* whose segment is on its way out */
    struct sending sending;
    struct timer_wheel silences; /* of connections that wait for an acknowledgement: see recovery.c */
    uint64_t retransmissions; /* frames with bytes that had been sent before */
    uint64_t recoveries, timeouts; /* losses noticed, once a window; retransmission timers that ran out */
    uint64_t undone; /* of both, those that were needless */
    uint64_t tail_probes, tail_repairs; /* sent; those that replaced a lost frame */
    uint64_t refused_frames; /* received but dropped, because too many are held */
    uint64_t sequence_key[2];
};

extern struct stack stack;

int stack_open(struct port *port, const struct stack_settings *settings, struct error *error);
void stack_close(void);

/* input.c: takes what the port brought in. */
void stack_input(void);
/* Gives lwIP the frames of a connection that came early and are in order now. */
struct lwip_connection;
void stack_give_early(struct lwip_connection *connection);
/* How long ago a new connection's SYN was answered; 0: more than once, or it is not known. */
uint32_t stack_answer_us(const struct tcp_pcb *pcb);
/* Runs the timers that are due. Returns when to call it next. */
uint64_t stack_run_timers(uint64_t now_us);
/* Whether there is a handshake at a connection's end still to be finished. */
bool stack_is_closing(void);

/* output.c: hands one of lwIP's packets to the port, cut into frames where it is longer than one. */
err_t stack_transmit(struct netif *interface, struct pbuf *packet);
/* output.c: sends a part of what is under way again, from a sequence number on, past lwIP and out of turn: recovery.c sees
 * to it that no more goes than has arrived. `length`: at most a frame's worth; what went. False: nothing could. */
bool stack_resend(struct lwip_connection *connection, uint32_t from, uint32_t *length);
/* output.c: the last frame's worth of data under way. False: there is none. */
bool stack_find_last(const struct lwip_connection *connection, uint32_t *from, uint32_t *length);

#endif

/* hooks: the places where lwIP asks us something. Included by lwIP's own sources, so it includes nothing of ours. */
#ifndef REPLAY_NET_LWIP_HOOKS_H
#define REPLAY_NET_LWIP_HOOKS_H

#include <lwip/err.h>
#include <lwip/ip_addr.h>

struct tcp_pcb;
struct tcp_hdr;

/* A first sequence number that strangers cannot guess (RFC 6528). */
u32_t stack_sequence(const ip_addr_t *local, u16_t local_port, const ip_addr_t *remote, u16_t remote_port);
#define LWIP_HOOK_TCP_ISN(local, local_port, remote, remote_port) \
    stack_sequence((local), (local_port), (remote), (remote_port))

/* Before a segment goes out: whose it is. No option is added. */
u32_t *stack_before_output(const struct tcp_pcb *pcb, u32_t *options);
#define LWIP_HOOK_TCP_OUT_ADD_TCPOPTS(p, header, pcb, options) stack_before_output((pcb), (options))

/* Before a segment comes in, with its header in the host's order. Other than ERR_OK: it is dropped. */
struct pbuf;
err_t stack_before_input(struct tcp_pcb *pcb, struct tcp_hdr *header, u16_t options_bytes, const struct pbuf *data);
#define LWIP_HOOK_TCP_INPACKET_PCB(pcb, header, options_bytes, first_bytes, rest, p) \
    ((first_bytes) == (options_bytes) ? stack_before_input((pcb), (header), (options_bytes), (p)) : ERR_OK)

/* How many frames a connection may keep that came ahead of a lost one. */
u16_t stack_early_frames(const struct tcp_pcb *pcb);
#define TCP_OOSEQ_PBUFS_LIMIT(pcb) stack_early_frames(pcb)

#endif

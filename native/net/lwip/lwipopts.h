/* lwipopts: lwIP as the transport over DPDK has it compiled: TCP over IPv4 over Ethernet, one thread, no sockets. */
#ifndef REPLAY_NET_LWIP_LWIPOPTS_H
#define REPLAY_NET_LWIP_LWIPOPTS_H

/* One thread calls everything, and calls the timers too. */
#define NO_SYS 1
#define SYS_LIGHTWEIGHT_PROT 0
#define LWIP_TIMERS 0
#define LWIP_SOCKET 0
#define LWIP_NETCONN 0

/* What is spoken. No fragments: TCP does not make any, and they are a burden to whoever has to keep them. */
#define LWIP_IPV4 1
#define LWIP_IPV6 0
#define LWIP_ARP 1
#define LWIP_ETHERNET 1
#define LWIP_ICMP 1
#define LWIP_UDP 0
#define LWIP_RAW 0
#define IP_REASSEMBLY 0
#define IP_FRAG 0
#define IP_FORWARD 0
#define LWIP_SINGLE_NETIF 1
#define LWIP_NETIF_HWADDRHINT 1 /* connections remember their line of the ARP table */
#define ARP_TABLE_SIZE 1024 /* hosts on the same network; connections find theirs without a search */
#define ETHARP_TRUST_IP_MAC 0
/* A packet that waits for its host's address is copied: the reply that it refers to goes with its connection, which may end
 * before the address comes. */
#define PBUF_NEEDS_COPY(p) 1

/* Memory: every allocation is a piece of the pools of pools.h, which are sized at the start. */
#define MEM_LIBC_MALLOC 1
#define MEMP_MEM_MALLOC 1
#define mem_clib_malloc pools_take
#define mem_clib_calloc pools_take_zeroed
#define mem_clib_free pools_give
#define MEM_ALIGNMENT 8
#define LWIP_SUPPORT_CUSTOM_PBUF 1
#define PBUF_LINK_HLEN 14
#define PBUF_POOL_SIZE 0 /* frames are received into mbufs */

/* Checksums are the port's and output.c's, but for ICMP's own. */
#define CHECKSUM_GEN_IP 0
#define CHECKSUM_GEN_TCP 0
#define CHECKSUM_CHECK_IP 0
#define CHECKSUM_CHECK_TCP 0
#define LWIP_CHECKSUM_ON_COPY 0

/* TCP. What one connection may have under way: to us, at most the window, and less at first (receive_window.h); from us, at
 * first the buffer, and later more (connection_enlarge_buffer). 16 MB are more than 1 Gb/s for 100 ms. */
#define LWIP_TCP 1
#define LWIP_WND_SCALE 1
#define TCP_RCV_SCALE 8
#define TCP_WND (0xffffu << TCP_RCV_SCALE)
#define TCP_SND_BUF (2u << 20)
#define TCP_SND_QUEUELEN 16384 /* pieces of memory, headers among them; see PIECES_MOST in connection.c */
#define TCP_MSS 23360 /* the most: what is used follows from the MTU */
#define TCP_OVERSIZE 512 /* small pieces are copied behind each other */
#define TCP_WND_UPDATE_THRESHOLD 16384
#define TCP_QUEUE_OOSEQ 1
#define LWIP_TCP_SACK_OUT 1
#define LWIP_TCP_TIMESTAMPS 0 /* 12 bytes of every frame; round trips are measured without */
#define LWIP_TCP_PCB_NUM_EXT_ARGS 1 /* when the answer to a SYN went out: see stack.c */
#define TCP_LISTEN_BACKLOG 1
#define TCP_DEFAULT_LISTEN_BACKLOG 255
#define LWIP_TCP_KEEPALIVE 1
#define TCP_KEEPIDLE_DEFAULT 300000u
#define TCP_KEEPINTVL_DEFAULT 100000u
#define TCP_KEEPCNT_DEFAULT 3u
#define TCP_TTL 64

/* A tick of 10 ms: delayed acknowledgements wait so long at most, retransmissions are timed in twice that. lwIP's own
 * estimate of the time to a retransmission is too coarse then, and replaced: see round_trips.h. */
#define TCP_TMR_INTERVAL 10
#define TCP_MAXRTX 12
#define TCP_SYNMAXRTX 6
#define TCP_MSL 2000u /* closed connections are remembered for twice that, or until their place is needed */

#define LWIP_STATS 1
#define LWIP_STATS_LARGE 1
#define LINK_STATS 0
#define IP_STATS 0
#define ICMP_STATS 0
#define ETHARP_STATS 0
#define MEM_STATS 0
#define MEMP_STATS 0
#define SYS_STATS 0
#define TCP_STATS 1
#define MIB2_STATS 0
#define LWIP_STATS_DISPLAY 0

#define LWIP_HOOK_FILENAME "hooks.h"
#define LWIP_DISABLE_TCP_SANITY_CHECKS 1 /* they know fixed pools only */
#define LWIP_DISABLE_MEMP_SANITY_CHECKS 1

#endif

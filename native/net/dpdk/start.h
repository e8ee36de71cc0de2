/* start: the EAL started without its page of usage on standard output, where a server's one line is waited for. */
#ifndef REPLAY_NET_DPDK_START_H
#define REPLAY_NET_DPDK_START_H

/* As rte_eal_init. What this process prints through C's stdout meanwhile is lost. */
int start_eal(int count, char **arguments);

#endif

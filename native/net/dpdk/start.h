/* start: starts the EAL without its page of usage on standard output, because a parent waits there for the server's
 * one ready line. */
#ifndef REPLAY_NET_DPDK_START_H
#define REPLAY_NET_DPDK_START_H

/* As rte_eal_init. What this process prints through C's stdout meanwhile is lost. */
int start_eal(int count, char **arguments);

#endif

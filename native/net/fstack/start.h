/* start: starts F-Stack in this process. Its ff_init ends the process if it fails; then a message says what to do. */
#ifndef REPLAY_NET_FSTACK_START_H
#define REPLAY_NET_FSTACK_START_H

/* Returns when the stack is up. Where it is not, the process ends with status 1 and what F-Stack and DPDK said on
 * standard error. What they print while all goes well is not shown, and nothing of it on standard output, where whoever
 * started the server reads one line. `path` is that of config.ini. */
void fstack_start(const char *path);
/* From here on what is printed on standard output goes to standard error. */
void fstack_silence_output(void);

#endif

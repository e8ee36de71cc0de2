/* calls: F-Stack's sockets under the names of the kernel's, for net/sockets.h. */
#ifndef REPLAY_NET_FSTACK_CALLS_H
#define REPLAY_NET_FSTACK_CALLS_H

#include <stddef.h>

#include "net/sockets.h"

extern const struct socket_calls fstack_calls;

/* A variable of the stack by its name ("net.inet.tcp.sendspace"). `*length` is the room, then what came. -1: none such. */
int fstack_variable(const char *name, void *value, size_t *length);

/* A socket is writable when at least so many bytes fit, not when the first do. */
void fstack_calls_set_least_room(size_t bytes);

#endif

/* cc: what lwIP needs to know of compiler and platform. */
#ifndef REPLAY_NET_LWIP_ARCH_CC_H
#define REPLAY_NET_LWIP_ARCH_CC_H

#include <endian.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>

#define LWIP_NO_CTYPE_H 1
#define LWIP_TIMEVAL_PRIVATE 0
#define LWIP_PLATFORM_DIAG(arguments) \
    do {                              \
        printf arguments;             \
    } while (0)
#define LWIP_PLATFORM_ASSERT(message)                                                        \
    do {                                                                                     \
        fprintf(stderr, "lwIP, %s:%d: assertion failed: %s\n", __FILE__, __LINE__, message); \
        abort();                                                                             \
    } while (0)

uint32_t stack_random(void);
#define LWIP_RAND() stack_random()

/* pools.h, for lwIP's own files */
void *pools_take(size_t size_bytes);
void *pools_take_zeroed(size_t count, size_t size_bytes);
void pools_give(void *piece);

#endif

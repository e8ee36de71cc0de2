/* configuration: F-Stack's config.ini: written from our settings, or the user's, checked against them. */
#ifndef REPLAY_NET_FSTACK_CONFIGURATION_H
#define REPLAY_NET_FSTACK_CONFIGURATION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"
#include "net/transport.h"

struct fstack_network {
    char address[16], mask[16], broadcast[16], gateway[16]; /* gateway "0.0.0.0": none */
};

/* Of the user's file. */
struct fstack_file {
    uint16_t port;             /* the first of port_list, the one that is served */
    char interface[16];        /* the name that the stack gives it */
};

#define FSTACK_BUFFER_LEAST_BYTES (64u << 10)

/* Reads dpdk-address and dpdk-gateway. */
int fstack_network_read(struct fstack_network *network, const struct transport_settings *settings, struct error *error);
/* The most that one connection may have in a buffer: as many as can be stuck at once must leave frames for the others. */
uint32_t fstack_buffer_bytes(uint32_t frames);
void fstack_configuration_write(struct text *out, const struct fstack_network *network, uint32_t max_connections,
                                uint32_t buffer_bytes);
/* Refuses a file that says something else than the settings do, and tells on stderr what makes it slow. */
int fstack_file_check(struct fstack_file *file, const struct transport_settings *settings,
                      const struct fstack_network *network, struct error *error);

#endif

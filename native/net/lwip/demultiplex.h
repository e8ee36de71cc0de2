/* demultiplex: finds the connection that a frame is of, whatever their number. lwIP walks a list of them all, and moves whom
 * it found to its front: quick for one that sends much, and a hundred cache misses for one of two hundred. */
#ifndef REPLAY_NET_LWIP_DEMULTIPLEX_H
#define REPLAY_NET_LWIP_DEMULTIPLEX_H

#include <stdint.h>

#include "base/error.h"

struct lwip_connection;
struct tcp_pcb;

/* The ends of a connection, but for our address. Bytes as in the headers. */
struct ends {
    uint32_t remote_address;
    uint16_t remote_port, local_port;
};

int demultiplex_open(uint32_t connections, struct error *error);
void demultiplex_close(void);
void demultiplex_add(struct lwip_connection *connection);
void demultiplex_remove(struct lwip_connection *connection);

/* Around lwIP's taking in of a frame: it finds the connection at the front of its list, which is as it was afterwards. */
struct shortcut {
    struct tcp_pcb *pcb; /* NULL: there is none, and lwIP looks for itself */
    struct tcp_pcb *next, *head;
};
struct shortcut demultiplex_begin(const struct ends *ends);
void demultiplex_end(const struct shortcut *shortcut);

#endif

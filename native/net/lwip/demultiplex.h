/* demultiplex: finds a frame's connection by a hash table, in the same time for any number of connections. lwIP
 * itself walks a list of all connections and moves the one that it found to the front. That is quick if one
 * connection sends most frames, but costs a hundred cache misses if two hundred send in turn. */
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

/* NULL: there is none between these ends. */
struct lwip_connection *demultiplex_find(const struct ends *ends);

/* Around lwIP's taking in of a frame: it finds the connection at the front of its list, which is as it was afterwards. */
struct shortcut {
    struct tcp_pcb *pcb; /* NULL: there is none, and lwIP looks for itself */
    struct tcp_pcb *next, *head;
};
struct shortcut demultiplex_begin(const struct ends *ends);
void demultiplex_end(const struct shortcut *shortcut);

#endif

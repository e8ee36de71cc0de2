/* sending: whose replies go out next. F-Stack's loop takes in 32 frames a turn, and sends at once what is written. If
 * a turn wrote hundreds of kilobytes of a large reply, incoming frames would have to wait. So connections with much
 * to write wait in a queue, and each turn serves as many of them as its budget of bytes allows. */
#ifndef REPLAY_NET_FSTACK_SENDING_H
#define REPLAY_NET_FSTACK_SENDING_H

#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "net/round_robin.h"

struct fstack_connection;

struct sending {
    struct round_robin line;
    struct fstack_connection *served; /* whose turn it is */
    uint32_t turn_bytes; /* of those that were served in this turn of the loop */
};

void sending_open(struct sending *sending);
/* As the operation of a transport: takes little at once, and much of it in the connection's turn. */
ssize_t sending_writev(struct sending *sending, struct fstack_connection *connection, const struct iovec *vectors,
                       int count);
/* Tells those in line that they may write, until the turn's bytes are used up. Returns the events. */
int sending_serve(struct sending *sending);
void sending_forget(struct sending *sending, struct fstack_connection *connection);

#endif

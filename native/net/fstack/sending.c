/* sending: the line of connections with much to write. */
#include "net/fstack/sending.h"

#include <stddef.h>

#include "net/fstack/relief.h"
#include "net/sockets.h"

#define QUANTUM_BYTES 32768u
#define TURN_BYTES 65536u /* about as many frames as F-Stack takes in meanwhile */
#define SMALL_BYTES 4096u /* offered at once: who has more to write is offered more, also where many share a turn */
#define VECTORS 512

void sending_open(struct sending *sending) {
    *sending = (struct sending){.line = {.quantum_bytes = QUANTUM_BYTES}};
}

/* The beginning of vectors, at most so many bytes of it. Returns how many vectors that is. */
static int cut(struct iovec *to, const struct iovec *from, int count, size_t most) {
    int filled = 0;
    for (; filled < count && filled < VECTORS && most > 0; filled++) {
        size_t length = from[filled].iov_len < most ? from[filled].iov_len : most;
        to[filled] = (struct iovec){.iov_base = from[filled].iov_base, .iov_len = length};
        most -= length;
    }
    return filled;
}

ssize_t sending_writev(struct sending *sending, struct fstack_connection *connection, const struct iovec *vectors,
                       int count) {
    size_t offered = 0;
    for (int i = 0; i < count; i++) offered += vectors[i].iov_len;
    if (offered <= SMALL_BYTES) return sockets_writev(&connection->socket.base, vectors, count);
    if (sending->served != connection) {
        round_robin_wait(&sending->line, &connection->turn);
        return -1;
    }
    uint32_t credit = connection->turn.credit_bytes < QUANTUM_BYTES ? connection->turn.credit_bytes : QUANTUM_BYTES;
    struct iovec own[VECTORS];
    ssize_t sent = sockets_writev(&connection->socket.base, own, cut(own, vectors, count, credit));
    if (sent <= 0) return sent; /* there is no room: it is told of when there is */
    round_robin_spend(&sending->line, &connection->turn, (uint32_t)sent);
    sending->turn_bytes += (uint32_t)sent;
    if ((size_t)sent < offered) round_robin_wait(&sending->line, &connection->turn);
    return sent;
}

int sending_serve(struct sending *sending) {
    int events = 0;
    sending->turn_bytes = 0;
    for (uint32_t left = sending->line.waiting; left > 0 && sending->turn_bytes < TURN_BYTES; left--) {
        struct round_robin_member *member = round_robin_serve(&sending->line);
        if (!member) break;
        struct fstack_connection *connection =
            (struct fstack_connection *)((char *)member - offsetof(struct fstack_connection, turn));
        const struct transport_events *to = &connection->socket.base.transport->events;
        if (!connection->socket.dying && (connection->socket.interest & EPOLLOUT)) {
            sending->served = connection;
            to->writable(to->context, connection->socket.base.owner);
            sending->served = NULL;
            events++;
        }
        round_robin_end_service(member);
    }
    return events;
}

void sending_forget(struct sending *sending, struct fstack_connection *connection) {
    round_robin_leave(&sending->line, &connection->turn);
}

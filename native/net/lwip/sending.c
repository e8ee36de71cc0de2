/* sending: the line of connections with much to send. */
#include "net/lwip/sending.h"

#include <assert.h>
#include <stddef.h>

#include "net/lwip/connection.h"
#include "net/lwip/stack.h"

#define TURN_BURSTS 2u /* then what came in is looked at again */
#define SMALL_BYTES 16384u /* under way on one connection: it does not wait */
#define SMALL_FRAMES 256u /* of such connections, in a turn */

void sending_open(struct sending *sending) {
    *sending = (struct sending){.line = {.quantum_bytes = SENDING_QUANTUM_BYTES}};
}

void sending_begin_turn(struct sending *sending) {
    sending->turn_frames = sending->small_frames = 0;
}

void sending_wait(struct sending *sending, struct lwip_connection *connection) {
    round_robin_wait(&sending->line, &connection->turn);
}

static bool is_small(const struct sending *sending, const struct lwip_connection *connection) {
    return connection->written_bytes <= SMALL_BYTES && sending->small_frames < SMALL_FRAMES;
}

bool sending_may(struct sending *sending, struct lwip_connection *connection, uint32_t bytes) {
    if (is_small(sending, connection)) return true;
    if (sending->served == connection && connection->turn.credit_bytes >= bytes) return true;
    sending_wait(sending, connection);
    return false;
}

void sending_sent(struct sending *sending, struct lwip_connection *connection, uint32_t bytes, uint32_t frames) {
    if (is_small(sending, connection)) {
        sending->small_frames += frames;
        return;
    }
    round_robin_spend(&sending->line, &connection->turn, bytes);
    sending->turn_frames += frames;
}

void sending_serve(struct sending *sending) {
    const struct port *port = stack.port;
    /* Where the device is full, whoever else has much waits in line, not behind what it did not take. */
    while (sending->turn_frames < TURN_BURSTS * port->burst && port->queued < port_flush_frames(port)) {
        struct round_robin_member *member = round_robin_serve(&sending->line);
        if (!member) return;
        uint32_t before = sending->turn_frames;
        struct lwip_connection *connection = connection_of_turn(member);
        sending->served = connection;
        tcp_output(connection->pcb);
        sending->served = NULL;
        round_robin_end_service(member);
        if (member->waits && sending->turn_frames == before) return; /* there are no frames left to send with */
    }
}

void sending_leave(struct sending *sending, struct lwip_connection *connection) {
    round_robin_leave(&sending->line, &connection->turn);
}

/* sending: whose data goes out next. Connections with little under way send at once. The others wait in a queue, and
 * each turn of the loop serves as many of them as its budget of frames allows. So a reply of many megabytes delays
 * neither incoming frames nor another client's small reply, and it delays another client's large reply by no more
 * than a quantum. */
#ifndef REPLAY_NET_LWIP_SENDING_H
#define REPLAY_NET_LWIP_SENDING_H

#include <stdbool.h>
#include <stdint.h>

#include "net/round_robin.h"

struct lwip_connection;

#define SENDING_QUANTUM_BYTES 24576u /* no less than lwIP's longest segment: see connection.c */

struct sending {
    struct round_robin line;
    struct lwip_connection *served; /* whose turn it is */
    uint32_t turn_frames; /* of those that were served in this turn of the loop */
    uint32_t small_frames; /* of those that did not wait */
};

void sending_open(struct sending *sending);
void sending_begin_turn(struct sending *sending);
/* Whether a packet may go now. False: the connection waits, and lwIP is asked again in its turn. */
bool sending_may(struct sending *sending, struct lwip_connection *connection, uint32_t bytes);
/* One that might go did, as so many frames. */
void sending_sent(struct sending *sending, struct lwip_connection *connection, uint32_t bytes, uint32_t frames);
/* There was no room for a packet of it after all. */
void sending_wait(struct sending *sending, struct lwip_connection *connection);
/* Serves those who wait, until the turn's frames are used up or the device is full. */
void sending_serve(struct sending *sending);
void sending_leave(struct sending *sending, struct lwip_connection *connection);

#endif

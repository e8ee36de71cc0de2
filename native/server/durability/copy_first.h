/* copy_first: while a snapshot is taken, a command that changes a value of many parts waits until the value is copied, and
 * everybody else is served. */
#ifndef REPLAY_SERVER_COPY_FIRST_H
#define REPLAY_SERVER_COPY_FIRST_H

#include "server/core/client.h"

/* Runs the requests whose values are copied by now. */
void copy_first_step(struct server *server);
bool durability_holds(struct client *client); /* see struct upcalls */
bool copy_first_is_waiting(const struct client *client);

#endif

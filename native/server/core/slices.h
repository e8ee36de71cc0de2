/* slices: replies that are made in slices: a piece in each turn of the loop, as fast as the client takes them. */
#ifndef REPLAY_SERVER_SLICES_H
#define REPLAY_SERVER_SLICES_H

#include "server/core/client.h"

/* The command goes on in later turns, by `go_on`, which makes a piece of the reply for as long as slices_have_time says so,
 * and returns true when the reply is whole. Keys may have changed since. Not for a client that may not block. */
void slices_begin(struct client *client, bool (*go_on)(struct client *client));
bool slices_have_time(const struct client *client);
bool slices_is_going_on(const struct client *client);
/* True when some could go on at once. */
bool slices_step(struct server *server);

#endif

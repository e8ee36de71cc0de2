/* slices: commands that have much to do, or much to reply, and do so in slices: some in each turn of the loop, and no more
 * than the client takes of its reply. All clients that are at it share a turn's time. */
#ifndef REPLAY_SERVER_SLICES_H
#define REPLAY_SERVER_SLICES_H

#include "server/core/client.h"

/* The command goes on in later turns, by `go_on`, which works for as long as slices_have_time says so, and a piece at least,
 * and returns true when the command has replied. What it works on may have changed since. Not for a client that may not
 * block. */
void slices_begin(struct client *client, bool (*go_on)(struct client *client));
/* The same for any client: where it may not block the command is run here, in the slices of its script or transaction. */
void slices_run(struct client *client, bool (*go_on)(struct client *client));
bool slices_have_time(const struct client *client);
bool slices_is_going_on(const struct client *client);
/* True when some could go on at once. */
bool slices_step(struct server *server);

#endif

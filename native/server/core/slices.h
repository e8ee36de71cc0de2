/* slices: commands with much to do, or a long reply, run in slices, some in each turn of the loop. All clients with
 * such a command share a turn's time. */
#ifndef REPLAY_SERVER_SLICES_H
#define REPLAY_SERVER_SLICES_H

#include "server/core/client.h"

/* The command goes on in later turns, by `go_on`, which works for as long as slices_have_time says so, and a piece at least,
 * and returns true when the command has replied. What it works on may have changed since. `expired` replies where the
 * client is not to wait any longer; NULL closes it, since half of the work cannot be taken back. */
void slices_begin(struct client *client, bool (*go_on)(struct client *client), void (*expired)(struct client *client));
/* The same for one that writes its reply meanwhile: it goes on only as fast as the client takes that. */
void slices_begin_reply(struct client *client, bool (*go_on)(struct client *client));
/* As slices_begin for any client: where it may not block the command is run here, in the slices of its script or
 * transaction. */
void slices_run(struct client *client, bool (*go_on)(struct client *client));
bool slices_have_time(const struct client *client);
/* Within `go_on`: it could do nothing, and shall be called again a little later. */
void slices_not_now(struct client *client);
bool slices_is_going_on(const struct client *client);
/* A task of long_work. Returns when some could go on: 0 for at once, CLOCK_NEVER for none. */
uint64_t slices_step(struct server *server);

#endif

/* keyspace_events: what happens when a key has changed, by any command or by expiry: clients that wait for it are
 * served, transactions that watch it are marked, and the change is recorded. */
#ifndef REPLAY_SERVER_KEYSPACE_EVENTS_H
#define REPLAY_SERVER_KEYSPACE_EVENTS_H

#include "server/core/server.h"

/* Makes the server hear of changes of its store. */
void keyspace_listen(struct server *server);

#endif

/* keyspace_events: a key has changed, whoever changed it: clients that wait for it are served, watches of it are broken, and
 * the change is written down. */
#ifndef REPLAY_SERVER_KEYSPACE_EVENTS_H
#define REPLAY_SERVER_KEYSPACE_EVENTS_H

#include "server/core/server.h"

/* Makes the server hear of changes of its store. */
void keyspace_listen(struct server *server);

#endif

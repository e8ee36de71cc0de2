/* keyspace_events: what follows from changes of keys, whoever made them: waiting clients, watched keys, what is written
 * down. */
#ifndef REPLAY_SERVER_KEYSPACE_EVENTS_H
#define REPLAY_SERVER_KEYSPACE_EVENTS_H

#include "server/core/server.h"

/* Makes the server hear of changes of its store. */
void keyspace_listen(struct server *server);

#endif

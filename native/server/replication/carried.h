/* carried: changes of tables, weights and gradients on their way from a primary to its replicas, in the arguments of PINGs
 * (propagate.h), and the beginning and end of sending them. */
#ifndef REPLAY_SERVER_CARRIED_H
#define REPLAY_SERVER_CARRIED_H

#include <stdbool.h>

struct client;
struct server;
struct text;

/* Runs what the primary's PING carries. False: it carries nothing that this server knows, and is to be answered. */
bool carried_run(struct client *client);

/* There are durable tables, weights or gradients. */
bool carried_is_something(const struct server *server);
/* The server is a primary, and its stream begins to tell of them here: with what there is now, which was cut. */
void carried_begin(struct server *server);
/* It tells of them no more. May be called amid a record. */
void carried_stop(struct server *server);
/* What carried_stop has left; once a second. */
void carried_tidy(struct server *server);

/* The replica's tables are its own from here on. Whether its stream goes on to tell of them. */
void carried_become_own(struct server *server, bool streams);

void carried_info(const struct client *client, struct text *out); /* lines of INFO replication */

#endif

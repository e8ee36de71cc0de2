/* table_replication: changes of tables, weights and gradients on their way from a primary to its replicas, in the arguments of
 * PINGs (propagate.h), and the beginning and end of sending them. */
#ifndef REPLAY_SERVER_TABLE_REPLICATION_H
#define REPLAY_SERVER_TABLE_REPLICATION_H

#include <stdbool.h>

struct client;
struct server;
struct text;

/* Runs what the primary's PING carries. False: it carries nothing that this server knows, and is to be answered. */
bool table_replication_apply(struct client *client);

/* There are durable tables, weights or gradients. */
bool table_replication_has_data(const struct server *server);
/* The server is a primary, and its stream begins to tell of them here: with what there is now, which was cut. */
void table_replication_begin(struct server *server);
/* It tells of them no more. May be called amid a record. */
void table_replication_stop(struct server *server);
/* What table_replication_stop has left; once a second. */
void table_replication_tidy(struct server *server);

/* The replica's tables are its own from here on. Whether its stream goes on to tell of them. */
void table_replication_become_own(struct server *server, bool streams);

void table_replication_info(const struct client *client, struct text *out); /* lines of INFO replication */

#endif

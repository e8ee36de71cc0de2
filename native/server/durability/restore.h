/* restore: loads tables from a snapshot file into a server that is starting or serving. */
#ifndef REPLAY_SERVER_RESTORE_H
#define REPLAY_SERVER_RESTORE_H

#include "server/durability/snapshots.h"

/* Begins to read a file of the server's folder beside everything else; its tables take their places once all of it is read
 * and fits, if the client is still there and may write all of them. -1 when one is under way already. */
int restore_begin(struct snapshots *snapshots, const struct client *client, const char *name, struct error *error);
/* Puts the tables of a file that is read into service. Returns when to call again. */
uint64_t restore_step(struct snapshots *snapshots);
void restore_give_up(struct snapshots *snapshots);

/* The keys, libraries of functions and tables of a file in the place of those there are; weights and gradients stay. At once, however long it
 * takes: for DEBUG RELOAD. */
int restore_again(struct snapshots *snapshots, const char *path, struct error *error);

struct server;
struct snapshot_content;
struct store_content;
/* The keys and libraries that were read take the place of those there are; weights, gradients and tables stay. No snapshot
 * may run. */
int restore_replace_keys(struct server *server, struct store_content *content, struct error *error);
/* As do the weights, gradients and durable tables that were read with them: the tables follow a primary's from then on, also
 * where something else was refused. */
int restore_replace_all(struct server *server, struct snapshot_content *content, struct error *error);
/* Puts keys, weights, gradients and libraries of a snapshot into the server's store, which is empty. */
int restore_adopt_store(struct server *server, struct store_content *content, struct error *error);
/* What the server was among primaries when the snapshot was cut. */
void restore_adopt_epochs(struct server *server, const struct snapshot_content *content);
/* The libraries alone; those of the same names that are there go. */
int restore_adopt_libraries(struct server *server, const struct store_content *content, struct error *error);

#endif

/* rewrite: CONFIG REWRITE. What CONFIG SET has changed is written into the configuration file, by the program that reads it. */
#ifndef REPLAY_SERVER_REWRITE_H
#define REPLAY_SERVER_REWRITE_H

#include "net/transport.h"
#include "server/admin/setup.h"
#include "server/core/server.h"

struct client;
struct rewrite;

/* Into server->admin, whose `rewrite` stays NULL where `setup` names no program (its member "reload"): there is
 * no file then. −1 with `error`: no memory. */
int rewrite_open(struct server *server, const struct setup *setup, struct transport *kernel, struct error *error);
void rewrite_free(struct rewrite *rewrite); /* NULL is allowed */
/* The settings in force are those of the file: it was read just now. */
void rewrite_note(struct server *server);
/* Replies once the file is written, or why it is not. */
void rewrite_for_client(struct client *client);

#endif

/* reload: SIGHUP. The program that read the configuration file at the start reads it again. The settings that can
 * change while the server runs take effect: all of them, or none if anything is wrong. The log says line by line what
 * changed. */
#ifndef REPLAY_SERVER_RELOAD_H
#define REPLAY_SERVER_RELOAD_H

#include "net/transport.h"
#include "server/admin/setup.h"
#include "server/core/server.h"

struct reload;

/* `setup` names the program (its member "reload"); without one a reload says that there is nothing to read. `started` is
 * copied: what the server was told at its start, before ports were chosen. NULL with `error`: no memory. */
struct reload *reload_new(struct server *server, const struct setup *setup, const struct server_config *started,
                          struct transport *kernel, struct error *error);
void reload_free(struct reload *reload);
/* Starts the program, on a thread of its own; asked for again while it runs, it is run once more. */
void reload_begin(struct reload *reload);

#endif

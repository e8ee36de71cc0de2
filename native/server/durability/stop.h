/* stop: ends the server after SHUTDOWN, a signal, or the end of its parent: at once, or once a snapshot is written.
 * While the snapshot is written, reads are served and writes wait, so that no change that was answered is lost. */
#ifndef REPLAY_SERVER_STOP_H
#define REPLAY_SERVER_STOP_H

#include <stdbool.h>
#include <stdint.h>

#include "server/core/command.h"

struct server;

struct stop {
    bool saving; /* the server ends with the snapshot that is made, or is about to be */
    bool forced; /* and also if it fails */
    uint64_t number; /* of that snapshot; 0: it has not begun */
    struct wait_queue waiting; /* clients that sent SHUTDOWN */
};

/* Saves, then stops the server. Where saving fails it goes on serving, unless one of those who asked forced it. */
void stop_after_saving(struct server *server, bool forced);
/* As a signal does: saves first where there are rules for saving. */
void stop_by_rules(struct server *server, bool forced);
/* The same for a client, which is told only if the server goes on after all. */
void stop_for_client(struct client *client, bool forced);
/* False: there was none to be given up. */
bool stop_abort(struct server *server);

/* A snapshot is wanted that has not begun. */
bool stop_wants_snapshot(const struct server *server);
void stop_snapshot_begins(struct server *server, uint64_t number);
void stop_snapshot_ended(struct server *server, uint64_t number, bool saved);

#endif

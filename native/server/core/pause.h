/* pause: CLIENT PAUSE: commands that wait until the pause is over, each in its client's order. */
#ifndef REPLAY_SERVER_PAUSE_H
#define REPLAY_SERVER_PAUSE_H

#include <stdbool.h>
#include <stdint.h>

#include "server/core/command.h"

enum pause_kind { PAUSE_NOTHING, PAUSE_WRITES, PAUSE_ALL };

struct pause {
    enum pause_kind kind;
    uint64_t until_us;
    bool for_stop; /* writes wait too: the server saves before it stops */
    bool for_failover; /* and here: a replica is to be the primary */
    struct wait_queue waiting; /* clients with a request to run */
};

/* While writes wait, and on a replica, no key goes because its time is over: that would be a change as well. Whoever
 * changes what this depends on calls it. */
void pause_hold_expiry(struct server *server);
/* A longer pause that is on already stays as long, and a pause of all commands stays one of all. */
void pause_begin(struct server *server, enum pause_kind kind, uint64_t until_us);
/* What has waited is run by the next step, never within a command: a transaction may say so in its midst. */
void pause_end(struct server *server);
/* Ends the pause when its time has come, and runs what has waited; returns when that will be, or CLOCK_NEVER. */
uint64_t pause_step(struct server *server);

/* Has the client's request, which was admitted, wait if it must: then true. */
bool pause_holds(struct client *client, const struct command *command);
bool pause_is_waiting(const struct client *client);
/* Whether writes wait: for the end of a pause, of a stop that saves first, or of a failover. */
bool pause_holds_writes(const struct server *server);

#endif

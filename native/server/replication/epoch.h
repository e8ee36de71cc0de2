/* epoch: which of several primaries is the newest, so that an older one that comes back takes no writes.
 *
 * Data have an origin. It is a random number, which the first primary draws when somebody asks for it or a snapshot is cut.
 * Its replicas take it over with its data, and promotions keep it. Epochs order the promotions of one origin: a server is
 * told of them together with the origin, and passes over those of another one. A replica whose data have an origin gives
 * them up for data of another one only if REPLICAOF says so.
 *
 * Each promotion has a number, its epoch: its time in Unix milliseconds, or one more than the newest epoch that the server
 * has heard of, if that is more. So whoever is promoted is newer than all that it has heard of, whatever its clock says. Of
 * two replicas that were promoted without hearing of each other one is newer: a counter would give both the same number.
 * A server that was never promoted has 0, and a replica has the epoch of its primary.
 *
 * A primary that hears of a newer epoch than its own is fenced (server_is_fenced): it refuses writes, and goes on with reads.
 * Clients of several hosts tell it (FENCE), and replicas that come back by themselves. The fence ends when the server follows
 * another one, or when it is promoted anew. A server that starts from a replica's files and follows nobody is fenced, too
 * (is_copy): its epoch is its primary's, which others may have as well.
 *
 * Why a restart cannot give an epoch back while it keeps what was written in it: the epoch is in the append-only file before
 * the first change of that epoch, and in every snapshot. A file that lacks the epoch lacks those changes, too. Without an
 * append-only file a new snapshot is begun when the epoch or the origin changes, where there may be an earlier one. */
#ifndef REPLAY_SERVER_EPOCH_H
#define REPLAY_SERVER_EPOCH_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>

#define EPOCH_MOST (INT64_MAX / 2) /* that a client is believed: there is always a greater one for the next promotion */

#define EPOCH_ORIGIN_FORMAT "%016" PRIx64

struct client;
struct resp_argument;
struct server;

/* The server is a primary, and the newest from here on. */
void epoch_raise(struct server *server);
/* It is a replica, and has its primary's data of this epoch and origin. */
void epoch_follow(struct server *server, uint64_t epoch, uint64_t origin);
/* That of its data. One is drawn where there is none yet, but not for a replica: 0 then. */
uint64_t epoch_origin(struct server *server);
/* Sixteen hexadecimal digits. False: they are something else. */
bool epoch_read_origin(const struct resp_argument *word, uint64_t *origin);
/* There is a primary of this epoch, or was one. */
void epoch_hear(struct server *server, uint64_t epoch);
/* Somebody had the primary of this epoch follow this server: it is newer then. */
void epoch_succeed(struct server *server, uint64_t epoch);

void fence_command(struct client *client);

#endif

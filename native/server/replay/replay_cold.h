/* replay_cold: reader threads load a batch's pages from the disk before its reply is made. Its client waits; the loop does not,
 * and serves the others. */
#ifndef REPLAY_SERVER_REPLAY_COLD_H
#define REPLAY_SERVER_REPLAY_COLD_H

#include "server/replay/replay_registry.h"

struct cold_read;
struct cold_readers;
struct transport;

struct cold_readers *cold_readers_new(void); /* NULL: memory is exhausted */
void cold_readers_free(struct cold_readers *readers); /* NULL is allowed; waits for what is under way */
/* Has finished reads wake the loop. Without it they are looked for twice in a millisecond. */
int cold_readers_watch(struct cold_readers *readers, struct transport *transport, struct error *error);
/* A task of long_work. */
uint64_t cold_readers_step(struct server *server);

/* Begins to read what is absent of these columns of these slots. NULL: nothing is, or nobody may wait for it: what is absent
 * is then read where it is copied. Slots must be pinned until the read is over or dropped. */
struct cold_read *cold_read_begin(struct client *client, struct replay_entry *entry, const uint8_t *columns,
                                  uint32_t column_count, const uint32_t *slots, uint32_t n);
bool cold_read_is_over(const struct cold_read *read);
/* Gives it up, or lets go of one that is over; NULL is allowed. Readers may go on with it: all that they need of the table is
 * that its memory stays mapped, which the read sees to, and nobody uses what they have looked at. */
void cold_read_drop(struct cold_read *read);
/* Why one that is over was in vain: the disk cannot be read. False: it was not. */
bool cold_read_failed(const struct cold_read *read, struct error *error);

/* Where something of a request's batch is absent: takes the batch, blocks the client, and goes on by `finish` when all is
 * there, or replies by `at_once` where the wait is cut short. False: all is there, and the batch is the caller's. */
bool replay_cold_wait(struct client *client, struct replay_request *request, struct replay_batch *batch,
                      const struct replay_cold_ways *ways);
/* The request is over. */
void replay_cold_drop(struct replay_request *request);

#endif

/* replay_streams: the streams that a connection appends steps to, by the numbers that the client gave them. They end
 * with the connection, with REPLAY.CLOSE, or with their table; giving their steps back is spread over turns of the
 * loop. A table that shares steps has those of their owner.
 *
 * Functions that can refuse return 0, or -1 with `error` set and nothing changed. */
#ifndef REPLAY_SERVER_REPLAY_STREAMS_H
#define REPLAY_SERVER_REPLAY_STREAMS_H

#include "server/replay/replay_registry.h"

#define REPLAY_CLIENT_STREAMS 4096u /* at once, of one connection */
#define REPLAY_STREAM_NUMBERS 65536u
#define REPLAY_DEFAULT_HISTORY 256u

/* n streams as uint32 in one argument: the right length, and no number too large. */
int replay_streams_check(const struct resp_argument *argument, uint32_t n, struct error *error);

/* The streams of checked numbers, where each must be open. */
int replay_streams_find(const struct client *client, const struct replay_entry *entry,
                        const struct resp_argument *argument, uint32_t n, struct stream **streams, struct error *error);
/* As above; those that are not open are opened. */
int replay_streams_open(struct client *client, struct replay_entry *entry, const struct resp_argument *argument,
                        uint32_t n, uint32_t history, struct stream **streams, struct error *error);
/* Takes back what replay_streams_open opened, when the steps for it were refused: closes those without a step, and expects none
 * in the others. */
void replay_streams_close_empty(struct client *client, struct replay_entry *entry);
/* Closes streams, and returns how many of them were open. */
uint32_t replay_streams_close(struct client *client, struct replay_entry *entry, const struct resp_argument *argument,
                              uint32_t n);

void replay_streams_client_gone(struct client *client);
void replay_streams_table_gone(struct replay_entry *entry);

/* Gives steps of closed streams back until the clock reaches `until_us`; true when there are more. */
bool replay_streams_step(struct replay_registry *registry, uint64_t until_us);

#endif

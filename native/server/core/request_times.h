/* request_times: how long the requests of experience, weights and gradients take: in the handler, and until the last byte
 * of the answer is on its way. */
#ifndef REPLAY_SERVER_REQUEST_TIMES_H
#define REPLAY_SERVER_REQUEST_TIMES_H

#include "base/recent_histogram.h"
#include "base/text.h"

struct client;
struct command_entry;
struct server;

/* In nanoseconds. An answer takes from when the request is here whole until the transport has taken the last byte of the
 * reply: waiting (for the rate limiter, for items, for the disk) and gathering are in it, the network is not. Of a client
 * that sends ahead one request at a time is looked at. */
struct request_times {
    struct recent_histogram handlers, answers;
    struct histogram all_answers; /* since the start, or CONFIG RESETSTAT */
};

struct request_times *request_times_new(void); /* NULL: memory is exhausted */
void request_times_reset(struct request_times *times);

/* Of a client's request: it is here; it is answered, but for what the client has not taken yet; all was sent. */
void request_timed_begin(struct client *client, struct command_entry *entry);
void request_timed_answered(struct client *client);
void request_timed_sent(struct client *client);

/* "# Requests\r\n…": a line for each that came in the last seconds. */
void request_times_info(struct server *server, struct text *out);

#endif

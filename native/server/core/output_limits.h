/* output_limits: how much may wait to be sent to a client before it is closed, by classes of clients as Redis has them. */
#ifndef REPLAY_SERVER_OUTPUT_LIMITS_H
#define REPLAY_SERVER_OUTPUT_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct client;

enum output_class { OUTPUT_NORMAL, OUTPUT_REPLICA, OUTPUT_PUBSUB, OUTPUT_CLASSES };

/* 0: no limit. Whoever stays above the soft one for longer than its time is closed too. */
struct output_limit {
    int64_t hard_bytes, soft_bytes, soft_s;
};

/* "normal 0 0 0 pubsub 32mb 8mb 60": classes that are not named keep theirs. One number alone is the hard limit of normal
 * clients. Nothing changes on failure. */
int output_limits_parse(struct output_limit limits[OUTPUT_CLASSES], const char *text, struct error *error);
void output_limits_write(const struct output_limit limits[OUTPUT_CLASSES], char *text, size_t size);
/* The least of all limits: below it there is nothing to look at. SIZE_MAX: there is none. */
size_t output_limits_least(const struct output_limit limits[OUTPUT_CLASSES]);

/* Whether the client must be closed, if so many bytes more wait for it. */
bool output_limit_is_exceeded(struct client *client, size_t more_bytes);

#endif

/* slow_log: the commands that took long, the newest first, for SLOWLOG; and all events that took long, for
 * LATENCY. */
#ifndef REPLAY_SERVER_SLOW_LOG_H
#define REPLAY_SERVER_SLOW_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/core/command.h"

struct command_entry;

#define SLOW_LOG_ARGUMENTS 32u      /* that are kept of a command */
#define SLOW_LOG_ARGUMENT_BYTES 128u /* of each */

struct slow_command {
    struct slow_command *next; /* older */
    int64_t id, unix_s;
    uint64_t took_us;
    char *peer, *name;
    uint32_t count;
    struct blob *arguments[SLOW_LOG_ARGUMENTS]; /* NULL: memory was exhausted */
};

struct slow_log {
    struct slow_command *newest;
    uint32_t length;
    int64_t next_id;
};

/* The highest, for one kind of delay: at most one sample a second is kept, the worst. */
#define LATENCY_SAMPLES 160u
struct latency_sample {
    int64_t unix_s;
    uint32_t took_ms;
};
struct latency_event {
    struct latency_sample samples[LATENCY_SAMPLES];
    uint32_t next, count;
    uint32_t most_ms;
};
enum latency_kind { LATENCY_COMMAND, LATENCY_FAST_COMMAND, LATENCY_LOOP_TURN, LATENCY_KINDS };
const char *latency_name(enum latency_kind kind);
struct latency {
    struct latency_event events[LATENCY_KINDS];
};

/* Every command that took as long as server->slow_ns comes here; it is looked at closer. */
void slow_log_command(struct client *client, const struct command_entry *entry, uint64_t took_ns);
/* The same for a call that took so long although its handler did not. */
void slow_log_took(struct client *client, const struct command_entry *entry, uint64_t took_ns);
void slow_log_reset(struct slow_log *log);
/* Follows the settings: from when on commands are looked at. */
void slow_log_configure(struct server *server);
void latency_add(struct server *server, enum latency_kind kind, uint64_t took_ms);
/* The samples of the kind, the oldest first: how many are to be had, and each. */
const struct latency_sample *latency_at(const struct latency_event *event, uint32_t index);

#endif

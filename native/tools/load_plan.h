/* load_plan: what the load client is told to do: roles, each with its connections and the requests that they repeat. */
#ifndef REPLAY_TOOLS_LOAD_PLAN_H
#define REPLAY_TOOLS_LOAD_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "tools/latency.h"

#define LOAD_ROLES 16u
#define LOAD_REQUESTS 16u /* of one role */
#define LOAD_CONNECTIONS 4096u

/* Bytes that are sent as they are, and what came of sending them. */
struct load_request {
    char name[64]; /* the file's, without its folder */
    uint8_t *bytes;
    size_t size;
    uint32_t replies; /* requests in the bytes: so many replies are waited for */
    struct latency latency; /* from the first byte sent to the last byte of the last reply */
    uint64_t received_bytes;
    uint64_t errors;
    char first_error[160];
};

struct load_role {
    char name[64];
    uint32_t connections;
    uint32_t request_count;
    struct load_request *requests; /* taken in turns, again and again */
    uint64_t pause_us; /* between a round of the requests and the next */
    double rate_per_s; /* rounds begun each second, by all connections together, if they can; 0: no schedule */
    bool spread; /* the schedule is that of requests, which divide the time of a round evenly */
    uint64_t most_rounds; /* of each connection, 0: no bound */
};

struct load_plan {
    char host[64];
    uint16_t port;
    int processor; /* −1: any */
    bool spin; /* asks for replies again and again instead of sleeping */
    double seconds; /* 0: until all rounds are done */
    double warm_up_s; /* not measured */
    double patience_s; /* with no byte going either way for so long the run has failed */
    struct load_request first; /* sent once on each connection, before anything is timed; size 0: nothing */
    FILE *kept; /* where all replies go as they come; NULL: nowhere */
    uint32_t role_count;
    struct load_role roles[LOAD_ROLES];
};

/* From the command line. 0; −1 with `error` set; 1: help was printed. */
int load_plan_read(struct load_plan *plan, int argc, char **argv, struct error *error);
void load_plan_free(struct load_plan *plan);

#endif

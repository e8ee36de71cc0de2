/* failover: this server, a primary, gives that part to one of its replicas and becomes a replica of it. */
#ifndef REPLAY_SERVER_FAILOVER_H
#define REPLAY_SERVER_FAILOVER_H

#include "server/core/server.h"

enum failover_state {
    FAILOVER_NONE,
    FAILOVER_WAITS, /* until a replica has all changes */
    FAILOVER_IN_PROGRESS, /* the target is asked to be the primary */
};

struct failover {
    enum failover_state state;
    char host[256]; /* of the target; "": whichever has all changes first */
    int64_t port;
    uint64_t end_us; /* when it is given up, or forced; CLOCK_NEVER: not by itself */
    bool is_forced;
    uint64_t wanted; /* the offset that the target has to acknowledge */
    uint64_t asked_until; /* the end of the stream with the question that was put behind it */
};

/* Returns when to call again. */
uint64_t failover_step(struct server *server);
/* The target's answer to PSYNC … FAILOVER. */
void failover_answered(struct server *server, const char *line);
void failover_command(struct client *client);

#endif

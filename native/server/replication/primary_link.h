/* primary_link: this server as a replica: its connection to the primary, from greeting to the changes that it applies. */
#ifndef REPLAY_SERVER_PRIMARY_LINK_H
#define REPLAY_SERVER_PRIMARY_LINK_H

#include "base/text.h"
#include "base/worker.h"
#include "persist/append_buffer.h"
#include "server/core/client.h"

struct received_file;

enum link_state {
    LINK_NONE, /* it follows nobody */
    LINK_WAITS, /* until it tries again */
    LINK_RESOLVES, /* the primary's name */
    LINK_GREETS, /* says who it is, and how far */
    LINK_RECEIVES, /* all keys */
    LINK_LOADS, /* them */
    LINK_UP, /* applies changes */
};

enum link_step { STEP_PING, STEP_AUTH, STEP_PORT, STEP_HOST, STEP_CAPABILITIES, STEP_EPOCH, STEP_PSYNC };

struct primary_link {
    struct server *server;
    enum link_state state;
    char host[256];
    int64_t port;
    uint64_t retry_us; /* when it is tried again */
    uint64_t began_us; /* this try */
    uint64_t down_us; /* since when it is not up */
    uint64_t newline_us; /* when the primary was shown last that this server lives */
    uint64_t look_us; /* when the thread that reads what it sends may have room again */
    struct resolution *resolving;
    struct client *client; /* NULL: no connection */
    enum link_step step; /* whose answer is due */
    char line[512];
    size_t line_length;
    struct worker *worker; /* for files; NULL: none was needed yet */
    struct received_file *file;
    struct received_file *given_up; /* an earlier one, which the worker frees; the primary is not asked meanwhile */
    char next_id[41]; /* of the history that the file begins */
    uint64_t next_offset;
    uint64_t next_epoch, next_origin; /* of the primary, as it said in its answer to PSYNC */
    bool was_named; /* REPLICAOF has named the primary, and it was not followed yet */
    uint64_t left_epoch; /* of this server's own data, which it gives up because REPLICAOF said so; 0: they have none */
    struct append_buffer arrived; /* commands of a transaction that is not complete, as bytes of the stream */
    uint64_t arrived_bytes;
    uint64_t before_work; /* while the client rests: the offset before the record whose work is left */
    uint64_t commands_failed;
};

/* Begins to follow, instead of whoever it followed. */
void link_follow(struct server *server, const char *host, int64_t port);
/* REPLICAOF names the primary that it follows already. */
void link_was_named(struct server *server);
/* Follows nobody any more, and is a primary. */
void link_end(struct server *server);
void link_free(struct server *server);
/* What the primary sends does not follow from what is here: everything is asked for again. */
void link_diverged(struct server *server, const char *why);
/* Returns when to call again. */
uint64_t link_step(struct server *server);
/* Once a second. */
void link_each_second(struct server *server);
/* The client's connection is gone. */
void link_lost(struct client *client);
void link_acknowledge(struct server *server);
/* Who waits to write, or for a change, gets this error. */
void link_interrupt_waiting(struct server *server, const char *error);
bool link_is_up(const struct server *server);

/* See struct upcalls. */
void replication_applied(struct client *client);
bool replication_is_up(const struct server *server);

#endif

/* replicas: the clients that follow this server: what each is sent, how far it is, and when it is given up. */
#ifndef REPLAY_SERVER_REPLICAS_H
#define REPLAY_SERVER_REPLICAS_H

#include "server/core/client.h"
#include "server/durability/export.h"
#include "server/replication/replication_subsystem.h"

enum replica_state {
    REPLICA_TALKS,  /* has said something of itself, and follows nobody yet */
    REPLICA_WAITS,  /* for a file of all keys */
    REPLICA_LOADS,  /* is sent that file, which may grow meanwhile */
    REPLICA_ONLINE, /* is sent changes */
};

struct replica {
    struct client *client;
    struct replica *next, *previous; /* of the list of replicas, once attached */
    enum replica_state state;
    /* what it says of itself */
    int64_t port;
    char host[256]; /* "": where it comes from */
    bool knows_ids; /* capa psync2 */
    bool takes_tables; /* capa tables: it is of this kind … */
    bool has_tables;   /* … and has those of the history that it asks to go on with; … */
    bool has_none;     /* … or it has none at all, nor weights, nor gradients */
    bool knows_epochs; /* capa epoch or left-epoch … */
    uint64_t epoch;    /* … that of what it has; 0: it follows whomever it was told to; … */
    uint64_t origin;   /* … likewise */
    bool wants_file_alone;
    bool acknowledges; /* it came by PSYNC */
    struct export_request request;
    int database; /* of the changes that follow the file */
    bool is_whole;   /* all of the file lies in its output, or was sent */
    struct change_position position; /* of what it is to be sent next */
    uint64_t sent_until;             /* the offset of that */
    uint64_t acknowledged, acknowledged_us;
    uint64_t newline_us;    /* when it was shown last that this server lives, while it waits */
    uint64_t soft_limit_us; /* since when too much waits for it; 0: it does not */
};

/* What the client is as a replica, made where there is nothing yet. NULL: memory is exhausted. */
struct replica *replica_of(struct client *client);
/* Whether the client is sent keys and changes, or waits for them. */
static inline bool replica_is_attached(const struct client *client) {
    return client->replica && client->replica->state != REPLICA_TALKS;
}
/* It is sent all keys and then the changes. */
void replica_synchronise(struct replica *replica);
/* It is sent changes from this offset on. False: they are no longer there. */
bool replica_continue(struct replica *replica, uint64_t offset);
/* The end of an answer to PSYNC, with the server's epoch for one that knows them. Returns its length. */
int replica_epoch_words(const struct replica *replica, char *words, size_t size);
/* Gives up what the client is as a replica. */
void replica_leave(struct client *client);
void replicas_close(struct replication_subsystem *replication);

/* Before replies are written. */
void replicas_send(struct server *server);
/* Asks them all how far they are. Not within a transaction. */
void replicas_ask(struct server *server);
/* Once a second: signs of life, timeouts, how many are good. */
void replicas_each_second(struct server *server);
/* How many have acknowledged the bytes up to this offset. */
uint32_t replicas_count(const struct replication_subsystem *replication, uint64_t offset);
bool replicas_take_tables(const struct replication_subsystem *replication); /* one of those that are attached */
/* The address under which others reach it. */
void replica_host(const struct replica *replica, char host[256]);

#endif

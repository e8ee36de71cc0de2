/* replication_subsystem: replicas of keys, tables, weights and gradients, and this server as a replica. */
#ifndef REPLAY_SERVER_REPLICATION_SUBSYSTEM_H
#define REPLAY_SERVER_REPLICATION_SUBSYSTEM_H

#include "server/core/server.h"
#include "server/core/subsystem.h"
#include "server/replication/change_stream.h"
#include "server/replication/failover.h"
#include "server/replication/primary_link.h"

#define REPLICATION_ID_LENGTH 40u
#define TABLES_NEVER UINT64_MAX

struct replica;

/* A history of changes has an id, and each byte of it an offset. A replica that becomes a primary begins a history of its
 * own; up to there it still knows that of its former primary, so that others which followed it go on with this one. */
struct replication_subsystem {
    struct change_stream stream;
    char id[REPLICATION_ID_LENGTH + 1];
    char former_id[REPLICATION_ID_LENGTH + 1]; /* zeros: none */
    int64_t former_until; /* the first offset that is no longer of the former; −1: none */
    struct replica *replicas; /* those that are attached */
    uint32_t replica_count;
    struct primary_link link; /* to the server that this one follows, if it does */
    struct failover failover; /* from this server to a replica */
    int primary_database; /* that the primary has selected */
    uint64_t
        tables_from; /* the stream tells of tables, weights and gradients from this offset on; TABLES_NEVER: it does not */
    uint64_t without_takers_us; /* since when no replica is there that takes them */
    bool has_stopped_tables; /* what told of tables has still to be given up */
    bool asks; /* replicas are to be asked how far they are */
    struct wait_queue acknowledged; /* clients that wait for replicas */
    uint64_t second_us, ping_us; /* when the next is due */
    uint64_t alone_us; /* since when there is no replica */
    uint64_t full, partial, partial_refused; /* synchronisations, for INFO */
};

extern const struct subsystem replication_subsystem;

/* A new history begins here, unless changes are kept already. False: memory is exhausted. */
bool replication_keep(struct server *server);

/* There is no former history that replicas could come from. */
void replication_forget_former(struct replication_subsystem *replication);
/* From here on the history is this server's own; up to here replicas go on with it. */
void replication_begin_own_history(struct server *server);
/* Bytes that are kept for replicas that come back. */
uint64_t replication_kept_bytes(const struct server *server);

/* See struct upcalls. */
struct append_buffer *replication_buffer(const struct server *server);
void replication_added(struct server *server);
void replication_lost(struct server *server);
void replication_replied(struct client *client);

void replication_info(const struct client *client, struct text *out);

extern const struct command commands_replication[];

#endif

/* tracking: which clients may have copies of which keys, and messages to them when those change (CLIENT TRACKING).
 *
 * In the default mode the table remembers, for each key that a tracking client has read, the ids of those that read it.
 * A key leaves the table when it changes; its readers are told once. In broadcasting mode nothing is remembered: a client is
 * told of every change of a key that begins with one of its prefixes.
 *
 * Messages go out between two requests, or at the end of a turn of the loop, so none interrupts a reply, not even
 * that of a transaction. A reply with the old value was written before the change, so it precedes the message. If a
 * client cannot be told of single keys (its reply takes more turns, or too many changes wait), it is told that all
 * keys have changed, which is always safe. */
#ifndef REPLAY_SERVER_TRACKING_H
#define REPLAY_SERVER_TRACKING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/core/client.h"
#include "store/dict.h"

/* Of which keys a client is told that they change. */
enum tracking_mode {
    TRACKING_READ, /* every key that the client reads */
    TRACKING_OPTIN, /* only keys that a command reads which follows CLIENT CACHING YES */
    TRACKING_OPTOUT, /* every key that the client reads, except by a command that follows CLIENT CACHING NO */
    TRACKING_BROADCAST, /* every key that begins with one of the client's prefixes, read or not */
};

/* A client that tracks. */
struct tracker {
    struct client *client;
    enum tracking_mode mode;
    bool no_loop; /* its own changes are not told to it */
    bool redirect_is_broken; /* found so when there was something to tell */
    bool all_changed; /* it is to be told so */
    const struct command_entry *caching; /* CLIENT, while CLIENT CACHING holds for the next command; or NULL */
    uint64_t redirect; /* id of the client that is told in its place; 0: none */
    struct client *target; /* that client; NULL: none, or it has gone */
    struct tracking_membership *prefixes;
    struct tracker *next, *previous;
};

/* A tracker's place among those that are told of a prefix. */
struct tracking_membership {
    struct tracker *tracker;
    struct tracking_prefix *prefix;
    struct tracking_membership *next_of_tracker;
    struct tracking_membership *next, *previous; /* of the prefix */
};

struct tracking_prefix {
    struct dict_entry *entry; /* its bytes */
    struct tracking_membership *head, *tail;
    struct dict
        changed; /* keys since the last messages; their values: ids of the clients that changed them, 0: none did */
};

/* The server's. */
struct tracking {
    struct dict trackers; /* by the ids of their clients */
    struct tracker *head, *tail;
    struct dict keys; /* of struct readers */
    uint64_t items; /* readers of all keys together */
    struct readers *first_changed, *last_changed; /* whose keys have left the table */
    uint64_t changed_count;
    struct dict prefixes; /* of struct tracking_prefix */
    struct dict leaving; /* keys of a table that was flushed: freed in slices */
    bool some_all_changed;
    uint64_t most_keys; /* in the table; 0: no limit */
    struct random_state random;
};

/* What one client asks for. */
struct tracking_wish {
    enum tracking_mode mode;
    bool no_loop;
    struct client *target; /* NULL: itself */
    uint32_t prefix_count;
    const struct resp_argument **prefixes;
};

struct tracking *tracking_new(void); /* NULL: memory is exhausted */
void tracking_free(struct tracking *tracking); /* after all clients */

/* Makes the client track, or changes how it does. False: memory is exhausted; what was is left. */
bool tracking_begin(struct client *client, const struct tracking_wish *wish);
void tracking_end(struct client *client);
/* The client goes: it is told nothing more, not even for others. */
void tracking_client_left(struct client *client);

/* From the store: a key has changed; all keys of some database are about to. */
void tracking_changed(struct server *server, unsigned database, const uint8_t *key, size_t length);
void tracking_flushed(struct server *server);

/* Settings may have changed. */
void tracking_configure(struct server *server);
/* Sends what there is to tell. Returns when it wants to be called again, as a subsystem's `before_write`. */
uint64_t tracking_send(struct server *server);
/* Frees some of what was flushed, and keeps the table to its limit: a task of long work. */
uint64_t tracking_tidy(struct server *server);

/* See struct upcalls. */
void tracking_read(const struct client *client);
void tracking_tell_readers(struct server *server);
void tracking_request_done(struct client *client);

/* ---- between the files on tracking ------------------------------------------------------------------------------------- */

/* A message, whose last part (what has changed) is replied to `to`. It is no reply: CLIENT REPLY OFF does not keep it back. */
struct tracking_message {
    struct client *to;
    enum client_reply_mode mode;
};
/* False: there is nobody that can be told. */
bool tracking_message_begin(struct tracker *tracker, struct tracking_message *message);
void tracking_message_end(const struct tracking_message *message);
bool tracking_prefixes_join(struct tracking *tracking, struct tracker *tracker, const struct resp_argument *prefix);
void tracking_prefixes_leave(struct tracking *tracking, struct tracker *tracker);
void tracking_prefixes_changed(struct tracking *tracking, const struct client *acting, const uint8_t *key,
                               size_t length);
/* Sends to those who are told of prefixes, until about `until_us`. False: there is more. */
bool tracking_prefixes_send(struct server *server, uint64_t until_us);
/* They are told that everything has changed. */
void tracking_tell_all_changed(struct tracking *tracking, struct tracker *tracker);

#endif

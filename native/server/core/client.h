/* client: one connection's state: its request in progress, its replies on their way out, what it waits for. */
#ifndef REPLAY_SERVER_CLIENT_H
#define REPLAY_SERVER_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"
#include "base/text.h"
#include "net/transport.h"
#include "resp/parse.h"
#include "server/core/command.h"
#include "server/core/output.h"

#define CLIENT_NONCE_BYTES 32u /* in hexadecimal */

struct command_entry;
struct request_times;

enum client_reply_mode { CLIENT_REPLY_ON, CLIENT_REPLY_OFF, CLIENT_REPLY_SKIP_NEXT, CLIENT_REPLY_SKIP };

struct client {
    /* what handlers read */
    struct server *server;
    uint32_t argc;
    struct resp_argument *argv;
    int database;               /* 0 .. 15 */
    int resp;                   /* 2 or 3 */
    uint64_t id;
    bool authenticated;
    bool unproven;              /* came through the abstract socket and has not shown a nonce yet */
    const struct command *command;
    struct acl_user *user;      /* who it is; NULL: the server itself, which may do everything */
    bool deny_blocking;         /* runs inside a transaction or a script */
    bool goes_on_over_memory;   /* maxmemory refuses nothing: the script says so, or has written already */
    int slot;                   /* of the keys of its request, and of those that its script has reached; -1: none */
    uint8_t asking;             /* requests that may reach slots that move here: this one and the next */
    bool reads_replica;         /* said READONLY: reads what a shard's replica has, and not its primary alone */
    bool crosses_slots;         /* a script that may reach keys of several slots, if all are here */
    bool has_begun;             /* its request goes on by itself: where it waits, `expired` says so */
    bool goes_on_unwritten;     /* nor does a file that cannot be written: the script has written already */
    struct transaction *transaction; /* since MULTI; NULL: none (server/redis/transaction/transaction.h) */
    struct client_pubsub *pubsub; /* what it has subscribed to; NULL: never anything */
    struct watch *watches;      /* on keys (server/redis/transaction/watch.h) */
    bool watch_broken;          /* one of them has changed */
    struct tracker *tracker; /* of the keys that it keeps copies of (server/redis/tracking/tracking.h); NULL: none */
    bool is_tracking_target; /* others have their messages of tracking sent to it */
    struct replica *replica; /* what it is as a replica (server/replication/replicas.h); NULL: none */
    bool is_primary; /* the server that this one follows: what it sends is run whatever else is refused */
    bool is_resting; /* what it sends is kept until client_go_on */
    /* Takes bytes that are no requests; NULL: they are. Returns how many; fewer where it rests or takes no more. */
    size_t (*take_input)(struct client *client, const uint8_t *bytes, size_t length);
    uint64_t wrote_until; /* offset in bytes: where the stream of changes ended after its last command */

    /* the rest belongs to the server's core */
    struct connection *connection; /* NULL: the server's own client, for scripts and for loading */
    struct resp_parser parser;
    size_t request_bytes; /* of input: of the request that is being read, or that runs */
    struct command_entry *entry;
    uint8_t *pending; /* input read but not parsed yet: the client is blocked, or has had its turn */
    size_t pending_length, pending_at;
    struct output output;
    enum client_reply_mode reply_mode;
    bool error_replied; /* by the command that runs */
    bool closing; /* transport close was called; `closed` will free the client */
    bool close_after_reply; /* no further request is read */
    bool input_ended; /* the peer sends no more: finish what is here, then close */
    bool hung_up; /* it sends no more, but not all that it sent was read yet */
    bool reading, writing; /* what was asked of the transport */
    bool in_ready, in_unsent;
    bool held; /* replies wait until the append-only file has come to held_until */
    uint64_t held_until;
    struct client *held_next, *held_previous;
    bool output_failed; /* a reply could not be held whole (memory, limit): close */
    bool no_evict, no_touch;
    bool is_monitor; /* is told of every command (server/admin/monitor.h) */
    uint32_t pinned_items; /* of tables, by this client's replies in flight; counted by replay_reply.c */
    uint64_t pinned_us; /* when the last of them were: what came before is all but taken by then */
    struct share *share; /* memory shared with this client; NULL: none */
    char nonce[CLIENT_NONCE_BYTES + 1]; /* told to it; "": none, or used up */
    struct replay_streams *streams; /* that this connection appends to */
    uint32_t stream_count;
    const char *refusal; /* error that awaits the request whose large argument was not kept */

    /* waiting */
    bool blocked;
    struct wait_queue *queue;
    struct client *wait_next, *wait_previous;
    uint64_t deadline_us;
    uint32_t deadline_index; /* in the server's heap; UINT32_MAX: not there */
    struct key_wait *key_wait; /* the keys waited for; NULL: none */
    void (*leave_wait)(struct client *client); /* of a wait that is in no queue; NULL: none */
    bool (*retry)(struct client *client);
    void (*expired)(struct client *client);

    struct request_times *timed; /* of the request that is; NULL: none */
    uint64_t timed_from_ns;
    uint64_t timed_until_byte; /* of output_bytes: the last of its reply; UINT64_MAX: that is not made yet */

    void *state;
    void (*drop)(struct client *client, void *state);

    struct client *next, *previous; /* all clients */
    struct client *ready_next, *unsent_next;

    char *name;
    char library_name[64], library_version[64];
    uint64_t created_us, active_us; /* last request */
    uint64_t input_us, output_us; /* last progress in either direction */
    uint64_t soft_limit_us; /* since when too much output waits; 0: it does not */
    uint64_t input_bytes, output_bytes, commands;
};

/* Transport events; context is the server. */
void *client_opened(void *context, struct connection *connection);
void client_readable(void *context, void *owner);
void client_writable(void *context, void *owner);
void client_hung_up(void *context, void *owner);
void client_released(void *context, void *owner, size_t size_bytes);
void client_closed(void *context, void *owner);

/* The parser's question where a large argument lands; context is the client. */
void client_land(void *context, const struct resp_argument *arguments, uint32_t index, uint32_t count, size_t length,
                 struct resp_landing *landing);
/* Runs the request that the parser holds. Afterwards the client is blocked, closing, or ready for its next request. */
void client_run_request(struct client *client);
/* Runs one command whose arguments are in client->argc and argv, and counts it: of a request, a transaction, a script or
 * a file that is loaded. Nothing is checked any more. */
void command_call(struct client *client, struct command_entry *entry);
/* What follows a command's reply; `changed` if the store is not as it was. */
void command_replied(struct client *client, bool changed);
/* Whether the client may run the command with the arguments in argc and argv: arity, rights, memory. False: the error is
 * replied. */
bool command_admit(struct client *client, struct command_entry *entry);
/* A client of the server's own, without a connection: replies pile up in its output, until client_free_own. NULL: memory
 * is exhausted. */
struct client *client_new_own(struct server *server);
void client_free_own(struct client *client);
/* A client that this server connects to another one, as the server itself. NULL: memory is exhausted. */
struct client *client_new_outgoing(struct server *server);
/* Drops one that could not be connected. */
void client_free_outgoing(struct client *client);
void client_go_on(struct client *client); /* it rests no longer */
/* Runs the request that waited for the end of a pause, and what the client sent behind it. */
void client_resume_request(struct client *client);
/* The state of the command that has replied is dropped. */
void client_command_done(struct client *client);
/* The request in progress is answered: its state is dropped, its arguments are released. */
void client_request_done(struct client *client);
/* Puts the client on the list of those whose pending input is run in the next turn. */
void client_make_ready(struct client *client);
/* Asks the transport for input, or not, as the client can take it. */
void client_update_reading(struct client *client);
/* Leaves its wait queue and the deadlines; the client that stood behind it is tried next. */
void client_unblock(struct client *client);

/* Gives up the connection: everything the client holds (reservations, pins, its place in a queue) is released now, the
 * struct itself with the transport's `closed`. Safe to call twice, and from a handler. */
void client_close(struct client *client);
/* For the log. */
void client_say_closed(const struct client *client, const char *why);
#define CLIENT_OUTPUT_WAITS "more output waits for it than client-output-buffer-limit allows"
/* Is a reply done with once it was written? So for those without a connection (scripts, a transaction whose client has
 * gone): their replies are copied, or dropped, at once. */
bool client_releases_at_write(const struct client *client);
/* Closes once what was replied has been sent. */
void client_close_after_reply(struct client *client);
/* Runs requests out of pending input until it is used up, the client blocks, or its turn is over. */
void client_run_pending(struct client *client);
bool client_is_from_this_host(const struct client *client);
/* Writes at most one slice of output. */
void client_write(struct client *client);
/* Nothing is written to the client, and no further request is run after the input in hand, until client_let_go: what it
 * was replied must be on the disk first. */
void client_hold(struct client *client, uint64_t until);
void client_let_go(struct client *client);
/* Bytes that are no reply: CLIENT REPLY, and limits for what replies may take, do not count for them. */
void client_send(struct client *client, const void *bytes, size_t length);
void client_send_source(struct client *client, struct reply_source *source);
/* Ends a wait by reply of `expired` (deadline, CLIENT UNBLOCK, stop). */
void client_expire(struct client *client);
/* Ends a wait with this error ("CODE text") in place of a reply of the command's own. What goes on in slices, or
 * has_begun, is expired. */
void client_interrupt(struct client *client, const char *error);
/* Tries a blocked client again; true if it is no longer blocked. */
bool client_retry(struct client *client);
void client_use_limits(struct client *client); /* after AUTH or CONFIG SET */
size_t client_held_bytes(const struct client *client);

#endif

/* client: one connection's state: its request in progress, its replies on their way out, what it waits for. */
#ifndef REPLAY_SERVER_CLIENT_H
#define REPLAY_SERVER_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"
#include "net/transport.h"
#include "resp/parse.h"
#include "server/command.h"

struct command_entry;

/* A piece of output. The chain is ordered: bytes the transport has not yet released, then bytes not yet sent. */
enum segment_kind { SEGMENT_SMALL, SEGMENT_LARGE, SEGMENT_BLOB, SEGMENT_SOURCE };

struct segment {
    struct segment *next;
    enum segment_kind kind;
    uint32_t capacity;          /* of data[] */
    bool sealed;                /* nothing more is appended: a deferred header stands here */
    size_t length;
    size_t sent;                /* accepted by the transport */
    struct blob *blob;
    struct reply_source *source;
    uint8_t data[];
};

#define SEGMENT_SMALL_BYTES 448u
#define SEGMENT_LARGE_BYTES 16320u

struct output {
    struct segment *head, *tail;
    struct segment *unsent;     /* first with bytes still to send; NULL when all was sent */
    size_t unsent_bytes;
    size_t head_released;       /* bytes of `head` that the transport has released */
    size_t inline_bytes;        /* held in small and large segments */
};

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
    const struct command *command;

    /* the rest belongs to the server's core */
    struct connection *connection;
    struct resp_parser parser;
    struct command_entry *entry;
    uint8_t *pending;           /* input read but not parsed yet: the client is blocked, or has had its turn */
    size_t pending_length, pending_at;
    struct output output;
    enum client_reply_mode reply_mode;
    bool error_replied;         /* by the command that runs */
    bool closing;               /* transport close was called; `closed` will free the client */
    bool close_after_reply;
    bool input_ended;           /* the peer sends no more: finish what is here, then close */
    bool reading, writing;      /* what was asked of the transport */
    bool in_ready, in_unsent;
    bool no_evict, no_touch;

    /* waiting */
    bool blocked;
    struct wait_queue *queue;
    struct client *wait_next, *wait_previous;
    uint64_t deadline_us;
    uint32_t deadline_index;    /* in the server's heap; UINT32_MAX: not there */
    bool (*retry)(struct client *client);
    void (*expired)(struct client *client);

    void *state;
    void (*drop)(struct client *client, void *state);

    struct client *next, *previous;       /* all clients */
    struct client *ready_next, *unsent_next;

    char *name;
    char library_name[64], library_version[64];
    uint64_t created_us, active_us;       /* active: last request; */
    uint64_t input_us, output_us;         /* last progress in either direction */
    uint64_t input_bytes, output_bytes, commands;
};

/* Transport events; context is the server. */
void *client_opened(void *context, struct connection *connection);
void client_readable(void *context, void *owner);
void client_writable(void *context, void *owner);
void client_released(void *context, void *owner, size_t size_bytes);
void client_closed(void *context, void *owner);

/* Gives up the connection: everything the client holds (reservations, pins, its place in a queue) is released now, the
 * struct itself with the transport's `closed`. Safe to call twice, and from a handler. */
void client_close(struct client *client);
/* Closes once what was replied has been sent. */
void client_close_after_reply(struct client *client);
/* Runs requests out of pending input until it is used up, the client blocks, or its turn is over. */
void client_run_pending(struct client *client);
/* Writes at most one slice of output. */
void client_write(struct client *client);
/* Ends a wait by reply of `expired` (deadline, CLIENT UNBLOCK, stop). */
void client_expire(struct client *client);
/* Tries a blocked client again; true if it is no longer blocked. */
bool client_retry(struct client *client);
void client_use_limits(struct client *client);   /* after AUTH or CONFIG SET */
size_t client_held_bytes(const struct client *client);

#endif

/* command: what a command handler sees. A handler reads client->argv, writes one reply with reply_*, and returns.
 * Handlers live in cmd_*.c, one file per subject, each ending in a table of `struct command` ended by a NULL name;
 * the handlers of tables of experience are spread over cmd_replay*.c and replay_info.c, and share one table. */
#ifndef REPLAY_SERVER_COMMAND_H
#define REPLAY_SERVER_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/blob.h"
#include "base/clock.h"
#include "base/error.h"
#include "resp/parse.h"

struct client;
struct server;
struct text;

/* Each command has one row, and all that is known of it stands there: nothing else compares names. */
enum command_flags {
    COMMAND_WRITE = 1 << 0,
    COMMAND_READONLY = 1 << 1,
    COMMAND_DENYOOM = 1 << 2,  /* refused when maxmemory is exceeded */
    COMMAND_ADMIN = 1 << 3,
    COMMAND_FAST = 1 << 4,
    COMMAND_NOAUTH = 1 << 5,   /* allowed before AUTH */
    COMMAND_BLOCKING = 1 << 6,
    COMMAND_LOADING = 1 << 7,
    COMMAND_PUBSUB = 1 << 8,
    COMMAND_NOSCRIPT = 1 << 9,      /* refused in scripts */
    COMMAND_STALE = 1 << 10,
    COMMAND_SKIP_MONITOR = 1 << 11,
    COMMAND_SKIP_SLOWLOG = 1 << 12,
    COMMAND_NO_MULTI = 1 << 13,     /* refused in transactions and scripts */
    COMMAND_ALLOW_BUSY = 1 << 14,   /* runs while a script holds the server */
    COMMAND_MOVABLEKEYS = 1 << 15,  /* the places of the keys depend on the other arguments */
    COMMAND_MAY_REPLICATE = 1 << 16, /* waits as COMMAND_WRITE does in a pause of writes */
    COMMAND_NO_ASYNC_LOADING = 1 << 17,
    COMMAND_NO_MANDATORY_KEYS = 1 << 18,
    COMMAND_DANGEROUS = 1 << 19,    /* of that category of ACL */
    COMMAND_DEBUGS = 1 << 20,       /* NOSCRIPT, unless DEBUG SET-DISABLE-DENY-SCRIPTS says otherwise */
    COMMAND_SUBSCRIBER = 1 << 21,   /* a subscriber may send it with RESP2, which cannot tell replies from messages */
    COMMAND_NOT_QUEUED = 1 << 22,   /* runs at once after MULTI: it is about the transaction or the connection */
    COMMAND_IN_LOG = 1 << 23,       /* stands in the append-only file although it changes nothing */
    COMMAND_TIMED = 1 << 24, /* moves experience, weights or gradients: INFO tells how long its requests take */
    COMMAND_TELLS_PART = 1 << 25, /* replies what the server is in replication, which the append-only file has, too */
    COMMAND_RESTS = 1 << 26, /* may rest between its arguments: where there are many, it is run in slices */
};

/* Of access rules, in the order in which ACL CAT and COMMAND INFO name them. */
enum acl_category {
    ACL_KEYSPACE = 1 << 0,
    ACL_READ = 1 << 1,
    ACL_WRITE = 1 << 2,
    ACL_SET = 1 << 3,
    ACL_SORTEDSET = 1 << 4,
    ACL_LIST = 1 << 5,
    ACL_HASH = 1 << 6,
    ACL_STRING = 1 << 7,
    ACL_BITMAP = 1 << 8,
    ACL_HYPERLOGLOG = 1 << 9,
    ACL_GEO = 1 << 10,
    ACL_STREAM = 1 << 11,
    ACL_PUBSUB = 1 << 12,
    ACL_ADMIN = 1 << 13,
    ACL_FAST = 1 << 14,
    ACL_SLOW = 1 << 15,
    ACL_BLOCKING = 1 << 16,
    ACL_DANGEROUS = 1 << 17,
    ACL_CONNECTION = 1 << 18,
    ACL_TRANSACTION = 1 << 19,
    ACL_SCRIPTING = 1 << 20,
    ACL_REPLAY = 1 << 21,
    ACL_WEIGHTS = 1 << 22,
    ACL_GRADIENTS = 1 << 23,
};

/* What the commands of a group work on. */
enum command_data {
    DATA_KEYS, /* keys, or anything that their changes show in */
    DATA_BESIDE_KEYS, /* weights and gradients: in the append-only file with the keys, but in no database */
    DATA_TABLES, /* tables of experience: the append-only file has records of what happens to them (replay_log.h) */
    DATA_SCRIPTS, /* scripts: what they change is recorded command by command */
    DATA_SERVER, /* connections and the server itself */
};

struct command_group {
    const char *name; /* for COMMAND DOCS */
    uint32_t category; /* of enum acl_category; 0: none */
    enum command_data data;
};

enum key_access {
    KEY_READ = 1 << 0, /* the value's contents come back to the client, or are copied */
    KEY_WRITE = 1 << 1,
};

struct key_place {
    uint32_t index; /* of the argument */
    uint32_t access; /* what a user must be allowed to do, of enum key_access; 0: any right to the key is enough */
    const char *flags; /* what is done to the key, in Redis's words; NULL: they follow from `access` */
};

enum key_find {
    KEY_RANGE, /* numbers: last key, counted from the first one or (< 0) from the end; step; limit */
    KEY_COUNTED, /* numbers: place of the number of keys, of the first key, both counted from `index`; step */
    KEY_AFTER_WORD, /* numbers as for KEY_RANGE, counted from behind `word`, which is looked for from `index` on. One < 0 counts
                     from the end, as COMMAND INFO tells it: such a row needs find_keys */
    KEY_UNKNOWN, /* the arguments lead to keys that they do not name, or only find_keys can tell */
};

/* Where some of a command's keys are and what is done to them. */
struct key_specification {
    const char *flags; /* in Redis's words: "RW access update"; NULL ends a list */
    uint8_t access; /* as in key_place */
    uint8_t find; /* of enum key_find */
    int8_t index; /* of the argument to begin at */
    int8_t numbers[3];
    const char *word;
};

/* Finds the keys of a request whose arity holds: fills at most `max` places and returns how many keys there are, or -1
 * where the arguments make no sense. */
typedef int (*command_keys_of)(uint32_t argc, const struct resp_argument *argv, struct key_place *places, int max);

enum command_channels { CHANNEL_NONE, CHANNEL_FIRST, CHANNEL_ALL, CHANNEL_PATTERNS }; /* which arguments name some */

struct key_event; /* what subscribers to keyspace events are told (server/redis/pubsub/notify.h) */

struct command {
    const char *name; /* lower case; of a subcommand "client|id" */
    void (*handler)(struct client *client);
    int arity; /* as in Redis: the name counts; negative = at least */
    uint32_t flags; /* of enum command_flags */
    const struct command_group *group;
    const char *summary; /* one sentence, for COMMAND DOCS */
    const char *since; /* the version of Redis that had it first; NULL: Redis 7.0 has no such command */
    const char *tips; /* as in Redis, one a line; NULL: none */
    uint32_t categories; /* of enum acl_category; 0: those that follow from group and flags */
    const struct key_specification *keys; /* NULL: none */
    command_keys_of find_keys; /* NULL: `keys` says it all */
    enum command_channels channels;
    /* Whether an argument (never the first) must be shown to nobody: in MONITOR and SLOWLOG it is masked. NULL: none. */
    bool (*is_secret)(uint32_t argc, const struct resp_argument *argv, uint32_t index);
    const struct key_event *event; /* NULL: none */
    resp_land land; /* context is the client; NULL: large arguments land in blobs */
    const struct command *subcommands; /* ended by a NULL name; the handler is command_container */
    const char *usage; /* a subcommand's arguments, for HELP; NULL: it has none */
    /* Of the client's request, where its arguments tell more than `flags`. NULL: they never do. */
    uint32_t (*flags_of)(const struct client *client);
};

/* ---- what a handler may read: see server/core/client.h for the struct ------------------------------------------------
 * client->argc, client->argv[i].data / .length / .blob     client->server     client->database (0..15)
 * client->resp (2 or 3) */

/* ---- replies ----------------------------------------------------------------------------------------- */
void reply_status(struct client *client, const char *text); /* +OK */
/* Bytes that are a whole reply, or some, in the protocol's form. */
void reply_raw(struct client *client, const void *bytes, size_t length);
/* Counts an error ("CODE text") that reaches no client, as one that a script's command replies, for INFO. */
void reply_count_error(struct server *server, const char *line, size_t length);
void reply_error_again(struct client *client, const char *message); /* one that was counted when it came up */
void reply_error(struct client *client, const char *format, ...)
    __attribute__((format(printf, 2, 3))); /* "CODE text" */
void reply_failure(struct client *client, const struct error *error); /* -CODE message */
void reply_integer(struct client *client, int64_t value);
void reply_double(struct client *client, double value); /* RESP2: bulk string */
void reply_boolean(struct client *client, bool value); /* RESP2: integer */
void reply_null(struct client *client);
void reply_null_array(struct client *client);
void reply_bulk(struct client *client, const void *data, size_t length);
void reply_bulk_string(struct client *client, const char *text);
void reply_bulk_format(struct client *client, const char *format, ...) __attribute__((format(printf, 2, 3)));
void reply_verbatim(struct client *client, const char *text, size_t length); /* RESP2: bulk string */
/* The same in another format, three letters. */
void reply_verbatim_as(struct client *client, const char *format, size_t format_length, const char *text,
                       size_t length);
/* The text, which is freed; an error where memory ran out for it. */
void reply_bulk_text(struct client *client, struct text *text);
void reply_verbatim_text(struct client *client, struct text *text);
/* One line of the type ('+': status, '(': big number); what would end it early becomes a blank. */
void reply_line(struct client *client, char type, const char *text, size_t length);
void reply_array(struct client *client, size_t count);
void reply_map(struct client *client, size_t pairs); /* RESP2: array of 2 * pairs */
void reply_set(struct client *client, size_t count);
void reply_push(struct client *client, size_t count); /* RESP2: array */
/* A bulk string that is sent from the blob itself; takes its own reference until the bytes are released. */
void reply_blob(struct client *client, struct blob *blob);

/* A bulk string gathered from storage straight to the socket, slice by slice. The source's bytes must stay where they
 * are until `released` is called: exactly once, after the last byte was released by the transport or the client went.
 */
struct reply_source {
    size_t length_bytes;
    /* Describes bytes from `offset` on with at most `max` vectors; returns how many were filled (>= 1). */
    int (*vectors)(struct reply_source *source, size_t offset, struct iovec *vectors, int max);
    void (*released)(struct reply_source *source);
};
void reply_source(struct client *client, struct reply_source *source);

/* Deferred length, for replies whose count is known at the end: returns a mark for reply_set_array_length. */
size_t reply_array_deferred(struct client *client);
void reply_set_array_length(struct client *client, size_t mark, size_t count);
void reply_set_map_length(struct client *client, size_t mark, size_t pairs); /* RESP2: an array of both */
void reply_set_set_length(struct client *client, size_t mark, size_t count); /* RESP3: a set */
/* False where whatever is replied is dropped: a handler that makes a long reply may stop. */
bool reply_is_wanted(const struct client *client);

/* ---- arguments --------------------------------------------------------------------------------------- */
bool argument_is(const struct resp_argument *argument, const char *word); /* case-insensitive */
bool argument_int64(const struct resp_argument *argument, int64_t *value); /* strict decimal, as Redis */
bool argument_double(const struct resp_argument *argument, double *value);
/* The bytes as a blob: that in which they landed, with a reference of the caller's, or a copy. NULL: no memory. */
struct blob *argument_blob(const struct resp_argument *argument);
void reply_syntax_error(struct client *client); /* ERR syntax error */
void reply_arity_error(struct client *client);
/* What Redis says to an unknown subcommand of argv[0]. */
void reply_unknown_subcommand(struct client *client);
/* What Redis says to a subcommand whose arguments make no sense, although their number is within its arity. */
void reply_subcommand_syntax_error(struct client *client);
void reply_help(struct client *client); /* handles a container's HELP: says what its other subcommands are for */
void reply_help_on(struct client *client, const struct command *rows); /* the same of rows ended by a NULL name */

/* ---- waiting ----------------------------------------------------------------------------------------- */
/* A queue of blocked clients, first in first out. Its owner calls wait_queue_wake when what they wait for may have
 * come; the loop then retries from the head after the current command, until one stays blocked. */
struct wait_queue {
    struct client *head, *tail;
    uint32_t length;
    bool woken;
    bool each; /* what they wait for differs, and serving one takes nothing from another: a wake tries all of them */
    uint32_t untried; /* with `each`: so many from the head on were not tried since the last wake */
    struct wait_queue *next_woken;
};
/* Blocks the client, whose handler has written no reply. `retry` is called after a wake: it either replies and returns
 * true, or returns false to stay. NULL: it stays. `expired` is called at the deadline and must reply. While blocked no
 * further command of the client runs; argv stays valid until the reply. */
void client_block(struct client *client, struct wait_queue *queue, uint64_t deadline_us, bool (*retry)(struct client *),
                  void (*expired)(struct client *));
/* In a transaction or a script nothing waits: there client_block calls `expired` at once. */
bool client_may_block(const struct client *client);
/* As client_block, also from inside the retry of another wait, which then returns true. */
void client_block_next(struct client *client, struct wait_queue *queue, uint64_t deadline_us,
                       bool (*retry)(struct client *), void (*expired)(struct client *));
/* From inside the retry of a wait, which then returns true: it goes on in another queue, with the deadline that it has. */
void client_block_elsewhere(struct client *client, struct wait_queue *queue);
void wait_queue_wake(struct server *server, struct wait_queue *queue);
/* Runs the requests that were held back in the queue, but for those that `must_stay` (NULL: none). If one of them takes
 * slices, the rest wait for its end. */
void wait_queue_run_held(struct server *server, struct wait_queue *queue, bool (*must_stay)(const struct client *));
/* Puts the client, which is the first, behind all others. */
void wait_queue_rotate(struct wait_queue *queue, struct client *client);
/* Fails every waiter through `expired` (a table is dropped, the server stops). */
void wait_queue_expire_all(struct server *server, struct wait_queue *queue);

/* State that a command keeps across its landing or its wait; `drop` is called when the command has replied, or the
 * client vanished, whichever is first. One per client. */
void client_set_state(struct client *client, void *state, void (*drop)(struct client *client, void *state));
void client_free_state(struct client *client, void *state); /* drops a state that is one allocation */
void *client_state(struct client *client);

#endif

/* propagate: records the commands that changed something, for the append-only file and for replicas.
 *
 * A command that changed something is recorded as it came. If it would do something else when run again (at another
 * time, with other random numbers), its handler says here, while it runs, what is recorded in its place. */
#ifndef REPLAY_SERVER_PROPAGATE_H
#define REPLAY_SERVER_PROPAGATE_H

#include <stdbool.h>
#include <stdint.h>

#include "persist/append_buffer.h"

#define PROPAGATE_RECORD "REPLAY.APPLY" /* the command that a record of a table stands in */
#define PROPAGATE_COMMANDS "REPLAY.RUN"

struct client;
struct resp_argument;
struct server;

/* Who reads the recorded commands. Replicas are sent messages that were published, too.
 *
 * All replicas read one stream, and a Redis among them knows neither records of tables nor commands for weights and
 * gradients. So these are sent in the argument of a PING, which a Redis takes as a sign of life: PROPAGATE_RECORD, the table's
 * name and the record, or PROPAGATE_COMMANDS and whole requests. A zero byte follows each word. They are sent only while
 * server.place.streams_tables. */
enum changes_reader { CHANGES_FOR_FILE, CHANGES_FOR_REPLICAS, CHANGES_READERS };

struct changes_told {
    bool in_transaction; /* MULTI was written */
    int database; /* that the reader has selected; −1: it must be told */
};

/* How commands are recorded. */
struct changes {
    struct append_buffer instead; /* what is recorded in place of the command that runs */
    uint32_t instead_count; /* commands in it */
    bool nothing; /* of the command that runs is recorded */
    bool out_of_memory; /* the command that runs may have made only a part of its changes */
    bool lost; /* in this turn a change could not be recorded: the file does not have it */
    unsigned depth; /* of transactions and scripts that run */
    struct append_buffer after; /* the file's, once the transaction is in it: it holds also if that is cut off */
    struct changes_told told[CHANGES_READERS];
};

/* These words in place of the command that the client runs; when called again, those too, in order. The bytes need last
 * only for the call. */
void propagate_instead(struct client *client, uint32_t argc, const struct resp_argument *argv);
/* As propagate_instead, each word a string that ends with a zero byte, but key: argument `key_index` of the command;
 * `words` are those behind it, ended by NULL. */
void propagate_key_words(struct client *client, const char *name, uint32_t key_index, ...);
/* Nothing of the command that the client runs. */
void propagate_nothing(struct client *client);

/* A command that is no client's: a sign of life, or a question to replicas; for the file, what the server itself is,
 * which stands behind a transaction that has begun. */
void propagate_to_replicas(struct server *server, uint32_t argc, const struct resp_argument *argv);
void propagate_to_file(struct server *server, uint32_t argc, const struct resp_argument *argv);

/* A command of the client has replied; `changed` if the store is not as it was. */
void propagate_call(struct client *client, bool changed);
/* A key that the server itself removed: its time was over, or its memory was wanted. */
void propagate_removed(struct server *server, unsigned database, const uint8_t *key, size_t length);
/* What happened to a table of experience (replay/table_journal.h): room for the record, to be filled at once; it stands in the
 * one order with what changes keys. `readers`: a bit for each that is told, by enum changes_reader. NULL: none records it. */
uint8_t *propagate_record(struct server *server, const char *table, size_t bytes, unsigned readers);
/* What a transaction or a script changes is recorded as one: all of it is loaded, or nothing. They nest. */
void propagate_begin(struct server *server);
void propagate_end(struct server *server);

#endif

/* upcalls: what the core, and tables of experience, ask of the other subsystems on the path of every request. The program
 * says which functions answer (process/subsystems.c): the core calls no function of a subsystem by name. What is asked less
 * often goes through struct subsystem. This is one table, because a request would otherwise walk the list of subsystems
 * ten times. */
#ifndef REPLAY_SERVER_UPCALLS_H
#define REPLAY_SERVER_UPCALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/core/command.h"

struct append_buffer;
struct command_entry;
struct text;

struct upcalls {
    /* ---- rights (redis/acl) ---- */

    /* Whether a connection may run commands without having logged in. */
    bool (*acl_lets_strangers_in)(const struct server *server);
    /* Makes the client what a new connection is. */
    void (*acl_welcome)(struct client *client);
    /* Checks a client's request, and notes a refusal in the log. NULL: it may go on; else the error. */
    const char *(*acl_refusal)(struct client *client, const struct command_entry *entry, char *message, size_t size);
    /* Whether a request that has begun with these arguments may become one that is allowed. */
    bool (*acl_may_become_allowed)(const struct client *client, const struct command_entry *entry, uint32_t argc,
                                   const struct resp_argument *argv);
    /* Whether a part of the client's rights lets it run its request and gives it any of these accesses to a key: for
     * commands that tell of keys which their arguments do not name. */
    bool (*acl_may_access_key)(const struct client *client, const struct resp_argument *key, uint32_t access);

    /* ---- transactions (redis/transaction) ---- */

    /* Puts the request off until EXEC where the client is in a transaction and the command is one that waits for it; the
     * reply is made. False: it is to be run now. */
    bool (*transaction_queue)(struct client *client, struct command_entry *entry);
    /* A request was refused: EXEC will refuse them all. */
    void (*transaction_refused)(struct client *client);
    /* A request for EXEC that is refused ends the transaction, and says so: what precedes the reason. NULL: another one. */
    const char *(*transaction_refusal_prefix)(struct client *client, const struct command *command);
    /* What the client's request may do: the command's flags, or those that its arguments tell (of a script); and with EXEC
     * those of all requests queued. */
    uint32_t (*transaction_flags)(const struct client *client, const struct command *command);
    /* Whether any of the requests that the client's request runs, if it is EXEC, is as asked for; all are looked at. */
    bool (*transaction_has)(const struct client *client, const struct command *command,
                            bool (*is_so)(const struct client *client, const struct command *command, uint32_t argc,
                                          const struct resp_argument *argv, void *context),
                            void *context);
    size_t (*transaction_bytes)(const struct client *client); /* that its queue holds */

    /* ---- slots (cluster) ---- */

    /* Of a server that is a shard: why the client's request is not for it; NULL: it is. `message` has room for the answer. */
    const char *(*cluster_refusal)(struct client *client, const struct command *command, char *message, size_t size);

    /* Has the client's request, which was admitted, wait while one of its keys is carried to another shard: then true. */
    bool (*cluster_holds)(struct client *client);

    /* ---- subscriptions (redis/pubsub) ---- */

    bool (*pubsub_is_subscriber)(const struct client *client);
    /* The client's command has replied, or rests: tells subscribers of the keys that it changed. */
    void (*notify_command)(struct client *client);

    /* ---- copies of keys that clients keep (redis/tracking) ---- */

    /* The tracking client's command has read, itself or in its script: it is told when one of the keys that its arguments
     * name changes. */
    void (*tracking_read)(const struct client *client);
    /* Tells tracking clients what has changed, before they are replied what is read now. */
    void (*tracking_tell_readers)(struct server *server);
    /* The tracking client's request is answered. */
    void (*tracking_request_done)(struct client *client);

    /* ---- recording, and saving (durability) ---- */

    /* Why nothing may be written to the store now, or to tables: it could not be recorded or saved. NULL: it may.
     * `text` has room for the answer. */
    const char *(*durability_refuses_writes)(const struct server *server, bool of_tables, char *text, size_t size);
    /* Has the client's request, which was admitted, wait where it changes a large value that a snapshot has still to copy:
     * then true. */
    bool (*durability_holds)(struct client *client);
    /* Where changes are recorded for the append-only file (propagate.h); NULL: nowhere. */
    struct append_buffer *(*append_log_buffer)(const struct server *server);
    /* So much waits for the disk that more should not be added. */
    bool (*append_log_is_behind)(const struct server *server);
    void (*append_log_added)(struct server *server);
    void (*append_log_lost)(struct server *server); /* memory is exhausted: one could not be */
    /* A command has replied: has the client wait for its reply until what the command changed is on the disk. */
    void (*append_log_replied)(struct client *client);
    /* A script, a transaction or a command that changes keys rests; `changed`: it may have changed some. Where the file lacks what it
     * changed, or has only a part, its client waits for all that it is replied, and then goes on when this is the end and
     * append_log_replied has nothing against it. */
    void (*append_log_rests)(struct client *client, bool changed);
    /* "3600 1 300 100": the setting `save`: after so many seconds if so many changes were made. False: it is none. */
    bool (*snapshots_rules_are_valid)(const char *rules);

    /* ---- replicas (replication) ---- */

    /* Where changes are recorded for replicas (propagate.h); NULL: there are none, or it is one itself. */
    struct append_buffer *(*replication_buffer)(const struct server *server);
    void (*replication_added)(struct server *server);
    void (*replication_lost)(struct server *server); /* memory is exhausted: one could not be */
    /* The primary's request is done with. */
    void (*replication_applied)(struct client *client);
    bool (*replication_is_up)(const struct server *server); /* a replica hears from its primary */
    void (*replication_replied)(struct client *client); /* a command has replied, while changes are recorded */

    /* ---- who is told (admin) ---- */

    void (*client_describe)(struct text *out, const struct client *client); /* a line of CLIENT LIST */
    /* Shows monitors the script that the client runs, before what it calls. */
    void (*monitor_feed_script)(struct client *client);
    /* The client's command has replied, and its handler took so long: for monitors and the slow log. */
    void (*admin_command_took)(struct client *client, const struct command_entry *entry, uint64_t took_ns);
};

extern const struct upcalls upcalls;

#endif

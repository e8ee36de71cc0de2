/* exclusive_execution: scripts, transactions and long commands run in slices, and no command of another client runs in
 * between.
 *
 * Between two slices the loop serves transports and timers. Other clients' requests wait. After busy-reply-threshold they are
 * refused as BUSY, except those that can end the script, such as SCRIPT KILL. */
#ifndef REPLAY_SERVER_EXCLUSIVE_EXECUTION_H
#define REPLAY_SERVER_EXCLUSIVE_EXECUTION_H

#include <stdbool.h>
#include <stdint.h>

#include "server/core/command.h"

struct fiber;

/* With `ended_by`. */
#define EXCLUSIVE_BUSY_REFUSAL "BUSY Redis is busy running a script. You can only call %s or SHUTDOWN NOSAVE."

/* What becomes of the changes that slices make, and of the rest where the client is lost. */
enum exclusive_kind {
    EXCLUSIVE_CALLS,   /* a script or a transaction: each command that it runs is recorded; it goes on to its end */
    EXCLUSIVE_READS,   /* a command that changes nothing before its last slice, if at all; it ends */
    EXCLUSIVE_CHANGES, /* a command that changes keys in any slice, recorded whole by its last one; it goes on */
};

struct exclusive {
    struct fiber *fiber;       /* NULL: none was needed yet */
    struct wait_queue waiting; /* of that client, while its command is suspended */
    struct client *client;     /* whose command runs */
    void (*body)(struct client *client);
    bool on;                   /* a command was suspended and has not ended yet */
    bool inside;               /* its next slice is running */
    bool busy;                 /* it takes long: others are told */
    bool orphaned;             /* its client has gone, but for the struct */
    bool abandoned;            /* the server stops: the command is never resumed */
    bool hurried;              /* the next slice is the last one, however long it takes */
    enum exclusive_kind kind;
    uint64_t changes;          /* of the store, when its command began */
    const char *ended_by;      /* what ends a script: SCRIPT KILL, FUNCTION KILL */
    uint64_t began_us, until_us;
    uint64_t rests_until_us;   /* no slice before; 0: in the next turn */
    void *owned;               /* what the body would have freed; used where it is abandoned */
    void (*release)(void *owned);
};

/* Runs body(client), within a handler, whole or in slices: what needs more than one is done later, and the handler
 * returns before. The body replies. */
void exclusive_run(struct client *client, void (*body)(struct client *client));
/* As exclusive_run, for a command that has much to do by itself and is recorded as it came. Others are never refused as
 * BUSY for it. Once its client is lost its arguments are too: a body that finds so after a rest touches nothing more of
 * the client, leaves the store as it was, and ends. Only its last slice may change the store. */
void exclusive_run_command(struct client *client, void (*body)(struct client *client));
/* As exclusive_run_command, for a command that changes keys in any of its slices. It goes on to its end, with the arguments that
 * it has, whatever becomes of its client; as nobody else runs anything meanwhile, its changes are one step for all others. Its
 * end records it as it came, as one. */
void exclusive_run_change(struct client *client, void (*body)(struct client *client));
/* The store's count of changes: before the client's command, if exclusive_run_change has begun it; otherwise as it is. */
uint64_t exclusive_changes_before(const struct client *client);
/* The server begins to stop: what exclusive_run_change began is brought to its end at once. */
void exclusive_end_change(struct server *server);
/* As exclusive_run_command, with a copy of `state` as the client's state. False: a slice is running already, or
 * there is no memory for the copy; nothing was done. */
bool exclusive_run_with(struct client *client, const void *state, size_t size_bytes,
                        void (*body)(struct client *client));
bool exclusive_is_lost(const struct client *client);
/* Within the body, where it may be suspended: suspends it if its slice is over. */
void exclusive_rest(struct server *server);
/* The same within exclusive_run_command's body. False: the client is lost, and the body may end. */
bool exclusive_goes_on(struct client *client);
#define EXCLUSIVE_PARTS_AT_ONCE 2000 /* work on more parts of a value is done in slices */
#define EXCLUSIVE_PARTS_TO_REST 64   /* parts after which such work calls exclusive_goes_on */
/* exclusive_goes_on, where so many parts are done that it is time for it; true elsewhere. */
static inline bool exclusive_goes_on_at(struct client *client, uint64_t parts) {
    return parts % EXCLUSIVE_PARTS_TO_REST != 0 || exclusive_goes_on(client);
}
/* Within the body of exclusive_run_command: suspends it until the time, at least until the next turn, whatever is left of
 * the slice: for what happens meanwhile. False: the client is lost, or there is no stack on which to wait. */
bool exclusive_awaits(struct client *client, uint64_t until_us);
/* In a transaction or a script: until then nothing of anybody is run, but the loop goes on. Elsewhere it returns at once. */
void exclusive_sleep(struct server *server, uint64_t until_us);
/* One more slice, called in each turn of the loop. Returns when it wants to be called again, 0 for at once. */
uint64_t exclusive_step(struct server *server);

/* Is the command that runs in slices between two of them? */
bool exclusive_is_resting(const struct server *server);
/* Must other clients' requests wait? */
bool exclusive_makes_wait(const struct server *server);
/* Are they refused, because they have waited for long? */
bool exclusive_is_busy(const struct server *server);
/* Is it this client's command that is suspended, or whose slice is running? */
bool exclusive_is_run_for(const struct client *client);
/* Does it go on, with the arguments that it has, when the client is lost? */
bool exclusive_goes_on_without(const struct client *client);
/* To be called when the client's connection has closed. True: its command still runs and needs the struct, which
 * will be freed here when the command ends. */
bool exclusive_adopt(struct client *client);
void exclusive_free(struct server *server);

#endif

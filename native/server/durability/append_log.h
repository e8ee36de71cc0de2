/* append_log: the append-only file of a server: all changes of the store, so that they survive a kill. The commands
 * come from server/core/propagate.h; persist/append_writer.h has the files and their thread. This file decides when
 * commands are handed over, which replies wait for the disk, and what happens if a write fails. */
#ifndef REPLAY_SERVER_APPEND_LOG_H
#define REPLAY_SERVER_APPEND_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"
#include "persist/append_writer.h"
#include "server/core/command.h"

struct client;
struct server;
struct transport;

struct append_log {
    struct server *server;
    struct append_writer *writer; /* NULL: there is no append-only file */
    struct append_manifest manifest; /* as it is on the disk, or about to be */
    int notifier; /* descriptor that is readable when the writer has finished something; -1: none */
    /* the disk */
    bool failing; /* the last write did not succeed; it is tried again */
    bool broken; /* the file no longer tells the whole: a rewrite is needed */
    struct error error; /* the last failure */
    uint64_t waiting_us; /* since when something waits to be handed over; 0: nothing does */
    uint64_t unsynced_us; /* since when something is not on the disk; 0: all is */
    uint64_t handed_us; /* when something was handed over last */
    uint64_t retry_us;
    uint64_t delayed_fsyncs; /* replies were held since the disk was late */
    /* the rewrite (append_rewrite.c) */
    bool rewrite_wanted;
    unsigned rewrite; /* enum rewrite_state */
    unsigned base_outcome; /* enum base_outcome, of the one that runs */
    bool renewing; /* broken, but since a cut all is recorded: whole again once the base is there */
    bool beginning; /* there is no whole file yet, and nobody has been promised one */
    struct append_manifest next; /* as it is once the base is there */
    uint64_t newest_base, newest_increment; /* numbers, none of which is used twice */
    uint64_t rewrite_began_us, rewrite_took_us, rewrite_retry_us;
    uint64_t rewrites, rewrites_failed, rewrites_failed_in_a_row;
    struct error rewrite_error; /* of the last; ERROR_NONE: it succeeded */
    uint64_t next_base_bytes; /* of the new base, once it is written and the manifest does not name it yet */
    uint64_t switched_bytes; /* of the increment that was written to until the last switch */
    uint64_t grown_from_bytes; /* how large all was after the last rewrite, or at the start */
    uint64_t base_bytes; /* of the base, for INFO */
    uint64_t earlier_bytes; /* of the increments before the one that is written to */
};

struct append_log *append_log_new(struct server *server); /* NULL: memory is exhausted */
/* Brings all to the disk and closes the file. */
void append_log_free(struct append_log *log);

/* Before anyone is served: reads the files into the store, if there are any, and opens the last for more. What was read
 * and what was repaired is written to `said`. -1 with `error`: refused. */
int append_log_start(struct append_log *log, struct text *said, struct error *error);
/* Wakes the loop through this transport, the kernel's, when the disk has caught up. */
int append_log_watch(struct append_log *log, struct transport *transport, struct error *error);

/* All keys were exchanged for others: these become a new base. Until that is on the disk, the files hold the former ones. */
void append_log_replaced(struct append_log *log);
/* At run time: what CONFIG SET appendonly does. Begins with a rewrite; ends with all on the disk. */
int append_log_configure(struct append_log *log, bool on, struct error *error);

/* Hands over what was added and is not on its way yet; the log is on. True: all that was added is in files that hold
 * the whole. False: not yet, or they do not hold the whole; to be called again in the next turn. */
bool append_log_write_all(struct append_log *log);
/* The keys of these files in the place of those there are; weights and gradients stay. At once, however long it takes: for
 * DEBUG LOADAOF. -1: the store may hold part of them. */
int append_log_load_again(struct append_log *log, struct error *error);

static inline bool append_log_is_on(const struct append_log *log) {
    return log->writer;
}
/* Changes are recorded. */
static inline bool append_log_takes(const struct append_log *log) {
    return log->writer && (!log->broken || log->renewing);
}
uint64_t append_log_bytes(const struct append_log *log);
void append_log_hand_over(struct append_log *log, bool sync);
void append_log_break(struct append_log *log, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* See struct upcalls. */
struct append_buffer *append_log_buffer(const struct server *server);
bool append_log_is_behind(const struct server *server);
void append_log_added(struct server *server);
void append_log_lost(struct server *server);
void append_log_replied(struct client *client);
void append_log_rests(struct client *client, bool changed);

/* Once a turn, before replies are written: hands over, takes back, lets go of replies. Returns when to call again. */
uint64_t append_log_step(struct append_log *log);
/* True: commands that change the store are refused, since the file cannot be written. `text` is the error, MISCONF. */
bool append_log_refuses(const struct append_log *log, char *text, size_t size);
/* Restored tables are not in the file yet: a kill would bring back those that they have replaced. */
bool append_log_lacks_restored(const struct append_log *log);
/* True: commands that change tables are refused, since restored tables are not in the file and the last rewrite,
 * which was to bring them there, has failed; `text` is the error. */
bool append_log_refuses_tables(const struct append_log *log, char *text, size_t size);

void append_log_info(const struct append_log *log, struct text *out); /* lines of INFO persistence */

#endif

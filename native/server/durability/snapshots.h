/* snapshots: saves keys, weights, gradients, libraries of functions and all tables to files, and restores tables, while
 * clients are served. One snapshot at a time, which the loop cuts and copies in slices. One restore at a time: a thread
 * reads the file into new tables, which then replace the existing ones. */
#ifndef REPLAY_SERVER_SNAPSHOTS_H
#define REPLAY_SERVER_SNAPSHOTS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/text.h"
#include "persist/snapshot.h"
#include "server/core/command.h"

struct server;
struct replay_entry;
struct restore_job;
struct saved_table;
struct worker;

/* `error->code` is ERROR_NONE: the base is there. */
typedef void (*snapshot_base_ended)(struct server *server, uint64_t bytes, const struct error *error);

struct snapshots {
    struct server *server;
    struct store_cut *cut; /* of the store, for whichever snapshot runs */
    uint64_t (*origin)(struct server *server); /* that of its data: replication draws one where there is none yet */
    struct worker *worker; /* writes them; NULL until the first. Kept, since a thread's end is waited for by the loop */
    struct snapshot *running; /* NULL: none */
    snapshot_base_ended base_ended; /* not NULL: it is a base, or of the store alone; who is told of its end */
    struct saved_table *cut_tables, *saved_tables; /* counters at the cut of the one running, of the last */
    bool wanted; /* one in the background, by BGSAVE or a rule of `save` */
    uint64_t cut_changes, saved_changes; /* of the store, at the cut of the one running, of the last that succeeded */
    uint64_t retry_us; /* no rule applies before, since one has failed */
    struct replay_entry **entries; /* whose tables are being saved; retained */
    uint32_t entry_count;
    char name[NAME_MAX + 1]; /* of the file being written */
    uint64_t number, done_number; /* of the snapshot running, or run last; of the one that ended last */
    uint64_t began_us;
    struct wait_queue savers;
    struct error outcome; /* of the one that ended last; ERROR_NONE: it is there */
    char path[PATH_MAX]; /* of the last that succeeded */
    int64_t saved_unix_ms; /* and when its cut was; 0: none yet */
    uint64_t saved_us; /* and when it was there, by the monotonic clock */
    uint64_t saved_bytes, took_us, most_waiting_bytes;
    uint64_t saved, failed;
    struct restore_job *restoring; /* NULL: none */
    struct error restore_outcome; /* of the one that ended last */
    struct text restore_said;
    struct wait_queue restorers;
    char restored[PATH_MAX]; /* file that was restored last; "": none */
    int64_t restored_cut_unix_ms;
    uint64_t loaded_keys; /* of the snapshot that was loaded last, at the start or by DEBUG RELOAD */
};

struct snapshots *snapshots_new(struct server *server); /* NULL: memory is exhausted */
void snapshots_free(struct snapshots *snapshots); /* what is being written is given up */
/* One slice of whatever is under way. Returns when to call again (server->now_us: at once), CLOCK_NEVER when idle. */
uint64_t snapshots_step(struct snapshots *snapshots);

/* Restores at the start, before anyone is served: `file` is a path, or "latest": the newest of the folder, if any. What was
 * restored and what is lost is written to `said`, line by line. -1 with `error`: refused, and nothing is loaded. */
int snapshots_restore_at_start(struct snapshots *snapshots, const char *file, struct text *said, struct error *error);

/* A base of the append-only file, or what replicas are sent. */
struct snapshot_base {
    const char *folder, *name; /* of the file */
    bool with_tables; /* those that an append-only file has; else the store alone */
    bool is_passing; /* see snapshot.h */
    snapshot_base_ended ended;
};

/* Cuts and begins to write one. Nothing may be running. */
int snapshots_begin_base(struct snapshots *snapshots, const struct snapshot_base *base, struct error *error);
/* How much of it is written, from its beginning on. */
uint64_t snapshots_base_written(const struct snapshots *snapshots);
bool snapshots_may_begin(const struct snapshots *snapshots);
/* Gives up the base that was begun with this `ended`, if it is still being written. */
void snapshots_give_up_base(struct snapshots *snapshots, snapshot_base_ended ended);
bool snapshots_rules_are_valid(const char *rules); /* see struct upcalls */
/* Whether changes of the store are refused because saving fails: stop-writes-on-bgsave-error. */
bool snapshots_refuse_writes(const struct snapshots *snapshots);

/* What the server is has changed (replication/epoch.h): a server that started from an earlier snapshot would not know it. Asks
 * for a new one where no append-only file tells of it and there may be an earlier one. */
void snapshots_note_change_of_part(struct snapshots *snapshots);

/* The tables are as a file has them: what they lose is counted from here. */
void snapshots_note_restored(struct snapshots *snapshots);

/* Unix seconds of the last cut that was saved; before there is one, of the server's start, as in Redis. */
int64_t snapshots_last_save_s(const struct snapshots *snapshots);
void snapshots_info(const struct client *client, struct text *out); /* lines of INFO persistence, for the client */

#endif

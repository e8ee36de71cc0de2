/* export: makes files for replicas: one for Redis out of the store, and a snapshot of everything for a replica of this kind.
 * Both show the same moment, and clients are served meanwhile.
 *
 * Store and tables are cut as for a base of the append-only file, and written to a snapshot in slices. It is handed out in parts
 * while it grows: the file is what a slow line leaves to be sent. A thread turns it into Redis's format where somebody waits
 * for that, a key at a time. The files end up without names. They are mapped, and sent as fast as clients read. */
#ifndef REPLAY_SERVER_EXPORT_H
#define REPLAY_SERVER_EXPORT_H

#include "server/core/client.h"
#include "server/core/server.h"

struct export;
struct exported; /* a file that was made, or a part of one; it goes with its last source */

/* Embedded in what waits for a file. */
struct export_request {
    struct export_request *next;
    uint64_t number; /* of the file that will do; 0: one that has not been begun */
    bool takes_tables; /* said by who asks: it can read a snapshot */
    bool with_tables; /* said by the export when it has begun: it gets one */
    /* The store has just been cut: the file holds what was changed before, and nothing of what will be. Returns the database
     * of the changes that come next, for the file to name. */
    int (*begun)(struct export_request *request);
    /* The next part of the snapshot, where it gets one: the export's, and valid during the call. export_source keeps it for
     * longer. */
    void (*grown)(struct export_request *request, struct exported *part);
    /* The end of the wait. `exported`: the file, likewise; NULL where there were parts, or with an error in `error`. */
    void (*made)(struct export_request *request, struct exported *exported, const struct error *error);
};

struct export *export_new(struct server *server); /* NULL: memory is exhausted */
void export_free(struct export *export); /* after all who wait */
/* Returns when to call again, CLOCK_NEVER when there is nothing to do. */
uint64_t export_step(struct export *export);

void export_ask(struct export *export, struct export_request *request);
/* None of the functions will be called, where it waits. */
void export_forget(struct export *export, struct export_request *request);
/* All of the file, which the source keeps until it is released. NULL: memory is exhausted. */
struct reply_source *export_source(struct exported *exported);

#endif

/* durability_subsystem: snapshots of keys and tables, and the append-only file. */
#ifndef REPLAY_SERVER_DURABILITY_SUBSYSTEM_H
#define REPLAY_SERVER_DURABILITY_SUBSYSTEM_H

#include "server/core/subsystem.h"
#include "server/durability/stop.h"

struct append_log;
struct export;
struct snapshots;

struct durability_subsystem {
    struct snapshots *snapshots;
    struct append_log *append_log;
    struct export *export;
    struct stop stop; /* after a snapshot */
    struct wait_queue copying; /* of clients whose requests change what a snapshot has still to copy */
};

extern const struct subsystem durability_subsystem;

/* See struct upcalls. */
const char *durability_refuses_writes(const struct server *server, bool of_tables, char *text, size_t size);

extern const struct command commands_snapshot[];

#endif

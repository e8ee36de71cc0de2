/* admin_subsystem: what operators use: INFO, CONFIG, CLIENT, MONITOR, SLOWLOG, the configuration file. It knows all
 * subsystems below it. */
#ifndef REPLAY_SERVER_ADMIN_SUBSYSTEM_H
#define REPLAY_SERVER_ADMIN_SUBSYSTEM_H

#include "server/admin/monitor.h"
#include "server/admin/slow_log.h"
#include "server/core/subsystem.h"

struct rewrite;

/* Of the configuration file, at SIGHUP. */
struct reloads {
    uint64_t count;
    bool failed; /* the last one */
};

struct admin_subsystem {
    struct rewrite *rewrite; /* NULL: there is no configuration file */
    struct monitors monitors;
    struct slow_log slow_log;
    struct latency latency;
    struct reloads reloads;
};

extern const struct subsystem admin_subsystem;
/* See struct upcalls. */
void admin_command_took(struct client *client, const struct command_entry *entry, uint64_t took_ns);
/* Sets the name shown in CLIENT LIST; false: the error is replied. */
bool client_set_name(struct client *client, const struct resp_argument *name);
void client_describe(struct text *out, const struct client *client);

extern const struct command commands_absent[], commands_client[], commands_config[], commands_connection[],
    commands_debug[], commands_introspection[], commands_memory[], commands_monitor[], commands_server[],
    commands_slow_log[];

#endif

#include "server/admin/admin_subsystem.h"

#include "base/memory.h"
#include "server/admin/info_more.h"
#include "server/admin/rewrite.h"
#include "server/core/command_table.h"

static bool create(struct server *server) {
    server->admin = memory_calloc(1, sizeof *server->admin);
    return server->admin;
}

static void disconnect(struct server *server) {
    if (server->admin) rewrite_free(server->admin->rewrite);
}

static void free_subsystem(struct server *server) {
    struct admin_subsystem *admin = server->admin;
    if (!admin) return;
    memory_free(admin->monitors.clients);
    slow_log_reset(&admin->slow_log);
    memory_free(admin);
}

void admin_command_took(struct client *client, const struct command_entry *entry, uint64_t took_ns) {
    const struct server *server = client->server;
    if (took_ns >= server->slow_ns) slow_log_command(client, entry, took_ns);
    if (server->admin->monitors.count > 0) monitor_feed(client, entry->command);
}

static void turn_took(struct server *server, uint64_t took_us) {
    latency_add(server, LATENCY_LOOP_TURN, took_us / 1000);
}

static const struct command *const commands[] = {commands_absent,
                                                 commands_client,
                                                 commands_config,
                                                 commands_connection,
                                                 commands_debug,
                                                 commands_introspection,
                                                 commands_memory,
                                                 commands_monitor,
                                                 commands_server,
                                                 commands_slow_log,
                                                 NULL};

const struct subsystem admin_subsystem = {
    .name = "admin",
    .info = info_admin,
    .commands = commands,
    .create = create,
    .disconnect = disconnect,
    .free = free_subsystem,
    .configure = slow_log_configure,
    .turn_took = turn_took,
    .client_left = monitor_client_gone,
};

/* families_server: the process, its clients, commands, memory and transports. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/memory.h"
#include "server/admin/admin_subsystem.h"
#include "server/admin/info_more.h"
#include "server/cluster/cluster_subsystem.h"
#include "server/cluster/topology.h"
#include "server/core/command_table.h"
#include "server/core/server.h"
#include "server/metrics/families.h"
#include "server/replay/replay_subsystem.h"

#define READ(name, expression)                           \
    static double name(const struct metric_item *item) { \
        const struct server *server = item->server;      \
        (void)server;                                    \
        return (double)(expression);                     \
    }

READ(clients, server->clients.count)
READ(most_clients, server->config.maxclients)
READ(blocked_clients, server->clients.blocked)
READ(connections, server->stats.connections)
READ(connections_rejected, server->stats.connections_rejected)
READ(commands, server->stats.commands)
READ(protocol_errors, server->stats.protocol_errors)
READ(input_bytes, server->stats.input_bytes)
READ(output_bytes, server->stats.output_bytes)
READ(turns, server->stats.turns)
READ(longest_turn, (double)server->stats.turn_us_max / 1e6)
READ(heap_bytes, memory_used_bytes())
READ(heap_peak_bytes, memory_peak_bytes())
READ(heap_limit_bytes, server->config.maxmemory)
READ(mapped_bytes, memory_mapped_bytes() - server->replay->shares.bytes)
READ(reply_bytes, server->output_pool.inline_bytes)
READ(shared_bytes, server->replay->shares.bytes)
READ(shared_clients, server->replay->shares.arenas)
READ(shared_batches, server->replay->shares.batches)
READ(shared_refused, server->replay->shares.refused)
READ(resident_bytes, server_resident_bytes())
READ(start_time, (double)server->start.unix_ms / 1e3)
READ(reloads, server->admin->reloads.count)
READ(reload_successful, !server->admin->reloads.failed)
READ(errors, server->error_stats.codes[item->sequence - 1].count)

/* NaN: the server is not a shard, or has no topology yet. */
#define READ_TOPOLOGY(name, expression)                                    \
    static double name(const struct metric_item *item) {                   \
        const struct topology *topology = item->server->cluster->topology; \
        return topology ? (double)(expression) : NAN;                      \
    }

READ_TOPOLOGY(topology_version, topology->version)
READ_TOPOLOGY(topology_shards, topology->shard_count)
READ_TOPOLOGY(own_slots, topology_count_slots(topology).own)
READ_TOPOLOGY(moving_slots, topology_count_slots(topology).moving)

static double cpu_seconds(const struct metric_item *item) {
    (void)item;
    struct rusage usage = {0};
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void write_build(struct exposition *exposition, const struct family *family, struct metric_item *item) {
    metric_item_label(item, "version", SERVER_VERSION);
    metric_item_label(item, "redis_version", SERVER_REDIS_VERSION);
    exposition_sample(exposition, family->name, item->labels, 1);
}

static void write_closed(struct exposition *exposition, const struct family *family, struct metric_item *item) {
    const struct label output[] = {{"reason", "output_limit", 12}, {0}}, stall[] = {{"reason", "stall", 5}, {0}};
    exposition_sample(exposition, family->name, output, (double)item->server->stats.output_limit_closes);
    exposition_sample(exposition, family->name, stall, (double)item->server->stats.stall_closes);
}

/* ---- commands: with their subcommands ------------------------------------------------------------------------------- */

static uint64_t sum_of(const struct metric_item *item, size_t offset) {
    const struct command_entry *entry = item->what;
    uint64_t sum = *(const uint64_t *)((const char *)&entry->stats + offset);
    for (size_t part = 0; part < entry->subcommand_count; part++)
        sum += *(const uint64_t *)((const char *)&entry->subcommands[part].stats + offset);
    return sum;
}

READ(command_calls, sum_of(item, offsetof(struct command_stats, calls)))
READ(command_failed, sum_of(item, offsetof(struct command_stats, failed)))
READ(command_rejected, sum_of(item, offsetof(struct command_stats, rejected)))

static void write_handlers(struct exposition *exposition, const struct family *family, struct metric_item *item) {
    const struct command_entry *entry = item->what;
    if (entry->stats.latency_ns.count > 0)
        exposition_histogram(exposition, family->name, item->labels, &entry->stats.latency_ns);
}

static void write_answers(struct exposition *exposition, const struct family *family, struct metric_item *item) {
    const struct command_entry *entry = item->what;
    if (entry->times && entry->times->all_answers.count > 0)
        exposition_histogram(exposition, family->name, item->labels, &entry->times->all_answers);
}

/* ---- transports ----------------------------------------------------------------------------------------------------- */

READ(one, 1)

/* Lines "transport_name:value" of INFO whose value is a number. */
static void write_transport(struct exposition *exposition, const struct family *family, struct metric_item *item) {
    struct transport *transport = item->server->transports.all[item->sequence - 1];
    struct text lines = {0};
    if (transport->operations->describe) transport->operations->describe(transport, &lines);
    for (char *line = lines.data, *end; line && *line; line = end + 2) {
        end = strstr(line, "\r\n");
        char *colon = end ? memchr(line, ':', (size_t)(end - line)) : NULL;
        if (!end) break;
        double value;
        int used = 0;
        *end = '\0';
        if (!colon || sscanf(colon + 1, "%lf%n", &value, &used) != 1 || colon[1 + used] != '\0') continue;
        const char *name = strncmp(line, "transport_", 10) == 0 ? line + 10 : line;
        const struct label labels[] = {
            item->labels[0], {.name = "name", .value = name, .length = (size_t)(colon - name)}, {0}};
        exposition_sample(exposition, family->name, labels, value);
    }
    text_free(&lines);
}

const struct family families_server[] = {
    {"replay_server_build_info", METRIC_INFO, EACH_SERVER,
     "Version of the server, and of the Redis that it behaves like.", .write = write_build},
    {"process_start_time_seconds", METRIC_GAUGE, EACH_SERVER, "When the server began, in seconds since 1970.",
     start_time},
    {"process_cpu_seconds_total", METRIC_COUNTER, EACH_SERVER, "Processor time of the server, in user and system mode.",
     cpu_seconds},
    {"process_resident_memory_bytes", METRIC_GAUGE, EACH_SERVER, "Resident memory of the server.", resident_bytes},
    {"replay_server_config_reloads_total", METRIC_COUNTER, EACH_SERVER,
     "Times that the configuration file was read again, at SIGHUP.", reloads},
    {"replay_server_config_last_reload_successful", METRIC_GAUGE, EACH_SERVER,
     "0: the last reload was refused and changed nothing; else 1.", reload_successful},
    {"replay_server_cluster_topology_version", METRIC_GAUGE, EACH_SERVER,
     "Version of the topology that this shard has.", topology_version},
    {"replay_server_cluster_shards", METRIC_GAUGE, EACH_SERVER, "Shards in this shard's topology.", topology_shards},
    {"replay_server_cluster_slots", METRIC_GAUGE, EACH_SERVER, "Slots of keys that this shard has.", own_slots},
    {"replay_server_cluster_moving_slots", METRIC_GAUGE, EACH_SERVER,
     "Slots of keys that are moving to this shard or away from it.", moving_slots},
    {"replay_server_heap_bytes", METRIC_GAUGE, EACH_SERVER, "Heap in use: keys, weights, gradients, buffers.",
     heap_bytes},
    {"replay_server_heap_peak_bytes", METRIC_GAUGE, EACH_SERVER, "The most heap that was ever in use.",
     heap_peak_bytes},
    {"replay_server_heap_limit_bytes", METRIC_GAUGE, EACH_SERVER, "Setting maxmemory; 0: no limit.", heap_limit_bytes},
    {"replay_server_mapped_bytes", METRIC_GAUGE, EACH_SERVER, "Address space of the tables, resident or not.",
     mapped_bytes},
    {"replay_server_reply_bytes", METRIC_GAUGE, EACH_SERVER, "Memory of replies on their way.", reply_bytes},
    {"replay_server_shared_memory_bytes", METRIC_GAUGE, EACH_SERVER, "Memory shared with clients of this host.",
     shared_bytes},
    {"replay_server_shared_memory_clients", METRIC_GAUGE, EACH_SERVER, "Clients that share memory.", shared_clients},
    {"replay_server_shared_batches_total", METRIC_COUNTER, EACH_SERVER, "Batches that went through shared memory.",
     shared_batches},
    {"replay_server_shared_batches_refused_total", METRIC_COUNTER, EACH_SERVER,
     "Batches that went through the socket because shared memory had no room.", shared_refused},
    {"replay_server_clients", METRIC_GAUGE, EACH_SERVER, "Connections.", clients},
    {"replay_server_clients_limit", METRIC_GAUGE, EACH_SERVER, "Setting maxclients.", most_clients},
    {"replay_server_blocked_clients", METRIC_GAUGE, EACH_SERVER, "Clients whose command waits.", blocked_clients},
    {"replay_server_connections_total", METRIC_COUNTER, EACH_SERVER, "Connections received.", connections},
    {"replay_server_rejected_connections_total", METRIC_COUNTER, EACH_SERVER, "Connections that were turned away.",
     connections_rejected},
    {"replay_server_closed_clients_total", METRIC_COUNTER, EACH_SERVER,
     "Clients closed by the server: they left too much output waiting, or stalled.", .write = write_closed},
    {"replay_server_received_bytes_total", METRIC_COUNTER, EACH_SERVER, "Bytes from clients.", input_bytes},
    {"replay_server_sent_bytes_total", METRIC_COUNTER, EACH_SERVER, "Bytes to clients.", output_bytes},
    {"replay_server_commands_total", METRIC_COUNTER, EACH_SERVER, "Commands that were run.", commands},
    {"replay_server_protocol_errors_total", METRIC_COUNTER, EACH_SERVER, "Requests that were not valid RESP.",
     protocol_errors},
    {"replay_server_error_replies_total", METRIC_COUNTER, EACH_ERROR, "Error replies, by their first word.", errors},
    {"replay_server_loop_turns_total", METRIC_COUNTER, EACH_SERVER, "Turns of the server's loop.", turns},
    {"replay_server_loop_turn_longest_seconds", METRIC_GAUGE, EACH_SERVER,
     "The longest that one turn has held the loop.", longest_turn},
    {"replay_server_command_calls_total", METRIC_COUNTER, EACH_COMMAND, "Commands that were run, by name.",
     command_calls},
    {"replay_server_command_failures_total", METRIC_COUNTER, EACH_COMMAND,
     "Commands that were answered by an error, by name.", command_failed},
    {"replay_server_command_rejections_total", METRIC_COUNTER, EACH_COMMAND,
     "Commands refused before they ran: arguments, rights, memory.", command_rejected},
    {"replay_server_command_duration_seconds", METRIC_HISTOGRAM, EACH_COMMAND,
     "Time in a command's handler; what it waited for is left out.", .write = write_handlers},
    {"replay_server_request_duration_seconds", METRIC_HISTOGRAM, EACH_COMMAND,
     "From a request's last byte to that of its answer, waiting included; of commands that move experience, weights or "
     "gradients.",
     .write = write_answers},
    {"replay_server_transport_info", METRIC_INFO, EACH_TRANSPORT, "A transport in service.", one},
    {"replay_server_transport_statistic", METRIC_GAUGE, EACH_TRANSPORT,
     "A number of a user-space transport, by its name in INFO transport.", .write = write_transport},
    {0},
};

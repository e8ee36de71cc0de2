/* info: the sections of INFO. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "server/admin/admin_subsystem.h"
#include "server/admin/info_more.h"
#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/core/percentiles.h"
#include "server/core/server.h"
#include "store/store.h"

static void server_section(const struct client *client, struct text *out) {
    struct server *server = client->server;
    struct utsname name = {0};
    uname(&name);
    uint64_t uptime_s = (server->now_us - server->stats.started_us) / 1000000;
    text_append(out, "# Server\r\nredis_version:%s\r\nreplay_server_version:%s\r\nredis_mode:%s\r\n",
                SERVER_REDIS_VERSION, SERVER_VERSION, server->config.cluster_enabled ? "cluster" : "standalone");
    text_append(out, "os:%s %s %s\r\narch_bits:%zu\r\nprocess_id:%ld\r\nrun_id:%s\r\n", name.sysname, name.release,
                name.machine, 8 * sizeof(void *), (long)getpid(), server->start.run_id);
    text_append(out,
                "tcp_port:%" PRId64 "\r\nadmin_port:%" PRId64 "\r\nserver_time_usec:%" PRId64
                "\r\nuptime_in_seconds:%" PRIu64 "\r\nuptime_in_days:%" PRIu64 "\r\n",
                server->config.port > 0 ? server->config.port : 0,
                server->config.admin_port > 0 ? server->config.admin_port : 0, clock_unix_ms() * 1000, uptime_s,
                uptime_s / 86400);
    text_append(out, "config_reloads:%" PRIu64 "\r\nconfig_last_reload_status:%s\r\n", server->admin->reloads.count,
                server->admin->reloads.failed ? "err" : "ok");
    info_more_server(server, out);
}

static void transport_section(const struct client *client, struct text *out) {
    struct server *server = client->server;
    text_append(out, "# Transport\r\n");
    for (int i = 0; i < server->transports.count; i++) {
        struct transport *transport = server->transports.all[i];
        text_append(out, "transport%d:%s\r\n", i, transport->operations->name);
        if (transport->operations->describe) transport->operations->describe(transport, out);
    }
}

static void clients_section(const struct client *client, struct text *out) {
    struct server *server = client->server;
    text_append(out, "# Clients\r\nconnected_clients:%u\r\nmaxclients:%" PRId64 "\r\nblocked_clients:%u\r\n",
                server->clients.count, server->config.maxclients, server->clients.blocked);
    size_t most_output = 0;
    for (const struct client *each = server->clients.head; each; each = each->next)
        if (each->output.unsent_bytes > most_output) most_output = each->output.unsent_bytes;
    text_append(out, "client_recent_max_output_buffer:%zu\r\n", most_output);
    info_more_clients(server, out);
}

size_t server_resident_bytes(void) {
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file) return 0;
    size_t total = 0, resident = 0;
    int read = fscanf(file, "%zu %zu", &total, &resident);
    fclose(file);
    return read == 2 ? resident * (size_t)sysconf(_SC_PAGESIZE) : 0;
}

static void memory_section(const struct client *client, struct text *out) {
    (void)client;
    char used[32], peak[32];
    text_human_bytes(used, sizeof used, (double)memory_used_bytes());
    text_human_bytes(peak, sizeof peak, (double)memory_peak_bytes());
    text_append(out,
                "# Memory\r\nused_memory:%zu\r\nused_memory_human:%s\r\nused_memory_rss:%zu\r\nused_memory_peak:%zu\r\n"
                "used_memory_peak_human:%s\r\n",
                memory_used_bytes(), used, server_resident_bytes(), memory_peak_bytes(), peak);
}

static void memory_limit_section(const struct client *client, struct text *out) {
    const struct server *server = client->server;
    char most[32];
    text_human_bytes(most, sizeof most, (double)server->config.maxmemory);
    text_append(out, "maxmemory:%" PRId64 "\r\nmaxmemory_human:%s\r\nmaxmemory_policy:%s\r\nmem_allocator:libc\r\n",
                server->config.maxmemory, most, eviction_policy_names[server->store->eviction.policy]);
    info_more_memory(server, out);
}

static void stats_section(const struct client *client, struct text *out) {
    struct server *server = client->server;
    const struct stats *stats = &server->stats;
    text_append(out,
                "# Stats\r\ntotal_connections_received:%" PRIu64 "\r\ntotal_commands_processed:%" PRIu64
                "\r\ninstantaneous_ops_per_sec:%.0f\r\ntotal_net_input_bytes:%" PRIu64
                "\r\ntotal_net_output_bytes:%" PRIu64 "\r\nrejected_connections:%" PRIu64
                "\r\ntotal_error_replies:%" PRIu64 "\r\nprotocol_errors:%" PRIu64 "\r\n",
                stats->connections, stats->commands, stats->commands_per_s, stats->input_bytes, stats->output_bytes,
                stats->connections_rejected, stats->errors, stats->protocol_errors);
    text_append(out,
                "client_output_limit_closes:%" PRIu64 "\r\nclient_stall_closes:%" PRIu64 "\r\nloop_turns:%" PRIu64
                "\r\nloop_turn_us_max:%" PRIu64 "\r\n",
                stats->output_limit_closes, stats->stall_closes, stats->turns, stats->turn_us_max);
}

static void store_stats_section(const struct client *client, struct text *out) {
    const struct server *server = client->server;
    text_append(out,
                "expired_keys:%" PRIu64 "\r\nevicted_keys:%" PRIu64 "\r\nkeyspace_hits:%" PRIu64
                "\r\nkeyspace_misses:%" PRIu64 "\r\n",
                server->store->expired_keys, server->store->evicted_keys, server->store->keyspace_hits,
                server->store->keyspace_misses);
}

static void cpu_section(const struct client *client, struct text *out) {
    struct server *server = client->server;
    struct rusage usage = {0};
    getrusage(RUSAGE_SELF, &usage);
    text_append(out, "# CPU\r\nused_cpu_sys:%ld.%06ld\r\nused_cpu_user:%ld.%06ld\r\n", (long)usage.ru_stime.tv_sec,
                (long)usage.ru_stime.tv_usec, (long)usage.ru_utime.tv_sec, (long)usage.ru_utime.tv_usec);
    info_more_cpu(server, out);
}

static void limits_section(const struct client *client, struct text *out) {
    struct server *server = client->server;
    const struct server_config *config = &server->config;
    text_append(out,
                "# Limits\r\nmax_request_bytes:%" PRId64 "\r\nmax_bulk_bytes:%" PRId64 "\r\nmax_arguments:%" PRId64
                "\r\nmax_inline_bytes:%u\r\nunauthenticated_max_bulk_bytes:%u\r\nunauthenticated_max_arguments:%u\r\n",
                config->max_request_bytes, config->max_bulk_bytes, config->max_arguments, LIMIT_INLINE_BYTES,
                LIMIT_UNAUTHENTICATED_BULK_BYTES, LIMIT_UNAUTHENTICATED_ARGUMENTS);
    text_append(out,
                "client_output_limit_bytes:%" PRId64 "\r\nclient_output_backlog_bytes:%" PRId64
                "\r\nclient_pending_input_bytes:%u\r\n"
                "client_stall_timeout_s:%" PRId64 "\r\nshared_memory_limit_bytes:%" PRId64
                "\r\nshared_memory_client_limit_bytes:%" PRId64 "\r\n",
                config->output_limits[OUTPUT_NORMAL].hard_bytes, config->client_output_backlog_bytes,
                LIMIT_PENDING_INPUT_BYTES, config->client_stall_timeout_s, config->shared_memory_limit_bytes,
                config->shared_memory_client_limit_bytes);
}

static void append_calls(const struct server *server, const struct command_entry *entry, struct text *out) {
    (void)server;
    const struct command_stats *stats = &entry->stats;
    if (stats->calls == 0 && stats->rejected == 0) return;
    text_append(out,
                "cmdstat_%s:calls=%" PRIu64 ",usec=%" PRIu64 ",usec_per_call=%.2f,rejected_calls=%" PRIu64
                ",failed_calls=%" PRIu64 "\r\n",
                entry->command->name, stats->calls, stats->total_ns / 1000,
                stats->calls ? (double)stats->total_ns / 1000.0 / (double)stats->calls : 0.0, stats->rejected,
                stats->failed);
}

static void append_latency(const struct server *server, const struct command_entry *entry, struct text *out) {
    const struct histogram *latency = &entry->stats.latency_ns;
    if (latency->count == 0) return;
    double percentiles[PERCENTILES_MOST];
    struct error error;
    int count = percentiles_parse(server->config.latency_percentiles, percentiles, &error);
    if (count <= 0) return;
    text_append(out, "latency_percentiles_usec_%s:", entry->command->name);
    for (int i = 0; i < count; i++) {
        double ns = (double)histogram_quantile(latency, percentiles[i] / 100);
        text_append(out, "%sp%.10g=%.3f", i > 0 ? "," : "", percentiles[i], ns / 1000);
    }
    text_append(out, "\r\n");
}

static void each_command(struct server *server, struct text *out,
                         void (*append)(const struct server *server, const struct command_entry *entry,
                                        struct text *out)) {
    for (size_t i = 0; i < command_table_count(server->commands); i++) {
        const struct command_entry *entry = command_table_at(server->commands, i);
        append(server, entry, out);
        for (size_t part = 0; part < entry->subcommand_count; part++) append(server, &entry->subcommands[part], out);
    }
}

static void commandstats_section(const struct client *client, struct text *out) {
    struct server *server = client->server;
    text_append(out, "# Commandstats\r\n");
    each_command(server, out, append_calls);
}

static void latencystats_section(const struct client *client, struct text *out) {
    struct server *server = client->server;
    text_append(out, "# Latencystats\r\n");
    each_command(server, out, append_latency);
}

static void modules_section(const struct client *client, struct text *out) {
    (void)client;
    text_append(out, "# Modules\r\n");
}

static void errorstats_section(const struct client *client, struct text *out) {
    struct server *server = client->server;
    text_append(out, "# Errorstats\r\n");
    error_stats_info(&server->error_stats, out);
}

static void requests_section(const struct client *client, struct text *out) {
    request_times_info(client->server, out);
}

const struct info_section info_admin[] = {
    {"server", 10, server_section},
    {"transport", 20, transport_section},
    {"clients", 30, clients_section},
    {"memory", 40, memory_section},
    {"memory", 42, memory_limit_section},
    {"stats", 60, stats_section},
    {"stats", 62, store_stats_section},
    {"stats", 64, info_more_stats},
    {"cpu", 80, cpu_section},
    {"limits", 90, limits_section},
    {"requests", 120, requests_section},
    {"modules", 130, modules_section},
    {"commandstats", 140, commandstats_section, .only_if_asked = true},
    {"errorstats", 150, errorstats_section},
    {"latencystats", 160, latencystats_section, .only_if_asked = true},
    {0},
};

static bool is_wanted(const struct info_section *section, const struct resp_argument *names, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        if (argument_is(&names[i], "all") || argument_is(&names[i], "everything") ||
            argument_is(&names[i], section->name))
            return true;
        if (argument_is(&names[i], "default") && !section->only_if_asked) return true;
    }
    return count == 0 && !section->only_if_asked;
}

/* The section behind that of a place; NULL: there is none. */
static const struct info_section *section_after(unsigned place) {
    const struct info_section *next = NULL;
    for (const struct subsystem *const *each = server_subsystems; *each; each++)
        for (const struct info_section *section = (*each)->info; section && section->name; section++)
            if (section->place > place && (!next || section->place < next->place)) next = section;
    return next;
}

void server_info_text(const struct client *client, const struct resp_argument *names, uint32_t count,
                      struct text *out) {
    const char *last = "";
    for (const struct info_section *section = section_after(0); section; section = section_after(section->place)) {
        if (!is_wanted(section, names, count)) continue;
        if (out->length > 0 && strcmp(section->name, last) != 0) text_append(out, "\r\n");
        section->write(client, out);
        last = section->name;
    }
}

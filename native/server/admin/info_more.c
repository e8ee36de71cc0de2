/* info_more: fields of INFO that dashboards and exporters read from any Redis. Of what this server does not have
 * (forks, defragmentation) they say what a Redis says that never used it. */
#include "server/admin/info_more.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "server/core/client.h"
#include "server/redis/redis_subsystem.h"
#include "server/redis/tracking/tracking.h"
#include "server/replication/replication_subsystem.h"
#include "store/store.h"

void info_more_server(const struct server *server, struct text *out) {
    char path[512];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    text_append(out, "redis_git_sha1:00000000\r\nredis_git_dirty:0\r\nredis_build_id:0\r\n"
                     "monotonic_clock:POSIX clock_gettime\r\nmultiplexing_api:epoll\r\natomicvar_api:c11-builtin\r\n");
    text_append(out, "gcc_version:%d.%d.%d\r\nprocess_supervised:no\r\nhz:%" PRId64 "\r\nconfigured_hz:%" PRId64 "\r\n",
                __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__, server->config.kept.hz, server->config.kept.hz);
    text_append(out, "lru_clock:%u\r\nexecutable:%s\r\nconfig_file:\r\nio_threads_active:0\r\n",
                (unsigned)(clock_unix_ms() / 1000) & 0xffffffu, path);
}

void info_more_clients(const struct server *server, struct text *out) {
    size_t most_input = 0;
    for (const struct client *client = server->clients.head; client; client = client->next)
        if (client->pending_length > most_input) most_input = client->pending_length;
    text_append(out,
                "cluster_connections:0\r\nclient_recent_max_input_buffer:%zu\r\ntracking_clients:%" PRIu64 "\r\n"
                "clients_in_timeout_table:%u\r\n",
                most_input, dict_count(&server->redis->tracking->trackers), server->clients.deadlines.count);
}

static size_t system_bytes(void) {
    return (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
}

/* What is there beside keys and values: the server as it started, its clients, the index of the keys. */
static size_t overhead_bytes(const struct server *server, size_t *clients) {
    size_t bytes = server->start.heap_bytes;
    *clients = 0;
    for (const struct client *client = server->clients.head; client; client = client->next)
        *clients += client_held_bytes(client);
    for (unsigned d = 0; d < STORE_DATABASES; d++) {
        const struct dict *keys = &server->store->databases[d].keys;
        bytes += dict_overhead_bytes(keys) + dict_count(keys) * sizeof(struct dict_entry);
    }
    return bytes + *clients;
}

void info_more_memory(const struct server *server, struct text *out) {
    size_t used = memory_used_bytes(), peak = memory_peak_bytes(), resident = server_resident_bytes(), clients;
    size_t overhead = overhead_bytes(server, &clients), dataset = used > overhead ? used - overhead : 0;
    size_t net = used > server->start.heap_bytes ? used - server->start.heap_bytes : 0;
    char resident_text[32], system_text[32];
    text_human_bytes(resident_text, sizeof resident_text, (double)resident);
    text_human_bytes(system_text, sizeof system_text, (double)system_bytes());
    text_append(out, "used_memory_rss_human:%s\r\nused_memory_peak_perc:%.2f%%\r\nused_memory_overhead:%zu\r\n",
                resident_text, peak > 0 ? 100.0 * (double)used / (double)peak : 100.0, overhead);
    text_append(out, "used_memory_startup:%zu\r\nused_memory_dataset:%zu\r\nused_memory_dataset_perc:%.2f%%\r\n",
                server->start.heap_bytes, dataset, net > 0 ? 100.0 * (double)dataset / (double)net : 0.0);
    text_append(out, "allocator_allocated:%zu\r\nallocator_active:%zu\r\nallocator_resident:%zu\r\n", used, resident,
                resident);
    text_append(out, "total_system_memory:%zu\r\ntotal_system_memory_human:%s\r\n", system_bytes(), system_text);
    text_append(out, "allocator_frag_ratio:1.00\r\nallocator_frag_bytes:0\r\nallocator_rss_ratio:1.00\r\n"
                     "allocator_rss_bytes:0\r\nrss_overhead_ratio:1.00\r\nrss_overhead_bytes:0\r\n");
    text_append(out, "mem_fragmentation_ratio:%.2f\r\nmem_fragmentation_bytes:%lld\r\n",
                used > 0 ? (double)resident / (double)used : 1.0, (long long)resident - (long long)used);
    text_append(
        out,
        "mem_not_counted_for_evict:0\r\nmem_replication_backlog:%" PRIu64 "\r\nmem_total_replication_buffers:0\r\n"
        "mem_clients_slaves:0\r\nmem_clients_normal:%zu\r\nmem_cluster_links:0\r\nmem_aof_buffer:0\r\n"
        "active_defrag_running:0\r\nlazyfree_pending_objects:%" PRIu64 "\r\nlazyfreed_objects:%" PRIu64 "\r\n",
        replication_kept_bytes(server), clients, server->store->discarded_count, server->store->freed_in_slices);
}

static void tracking_describe(const struct tracking *tracking, struct text *out) {
    text_append(out,
                "tracking_total_keys:%" PRIu64 "\r\ntracking_total_items:%" PRIu64
                "\r\ntracking_total_prefixes:%" PRIu64 "\r\n",
                dict_count(&tracking->keys), tracking->items, dict_count(&tracking->prefixes));
}

void info_more_stats(const struct client *client, struct text *out) {
    const struct server *server = client->server;
    /* No threads move bytes of clients, and buffers of replies change no size: they come in pieces. */
    text_append(out,
                "total_reads_processed:%" PRIu64 "\r\ntotal_writes_processed:%" PRIu64
                "\r\nio_threaded_reads_processed:0\r\nio_threaded_writes_processed:0\r\nreply_buffer_shrinks:0\r\n"
                "reply_buffer_expands:0\r\n",
                server->stats.reads, server->stats.writes);
    text_append(out,
                "total_net_repl_input_bytes:0\r\ntotal_net_repl_output_bytes:0\r\ninstantaneous_input_kbps:%.2f\r\n"
                "instantaneous_output_kbps:%.2f\r\ninstantaneous_input_repl_kbps:0.00\r\n"
                "instantaneous_output_repl_kbps:0.00\r\nsync_full:%" PRIu64 "\r\nsync_partial_ok:%" PRIu64
                "\r\nsync_partial_err:%" PRIu64 "\r\n",
                server->stats.input_kb_per_s, server->stats.output_kb_per_s, server->replication->full,
                server->replication->partial, server->replication->partial_refused);
    text_append(out,
                "expired_stale_perc:0.00\r\nexpired_time_cap_reached_count:0\r\nexpire_cycle_cpu_milliseconds:0\r\n"
                "evicted_clients:0\r\ntotal_eviction_exceeded_time:0\r\ncurrent_eviction_exceeded_time:0\r\n"
                "latest_fork_usec:0\r\ntotal_forks:0\r\nmigrate_cached_sockets:0\r\nslave_expires_tracked_keys:0\r\n");
    text_append(out, "active_defrag_hits:0\r\nactive_defrag_misses:0\r\nactive_defrag_key_hits:0\r\n"
                     "active_defrag_key_misses:0\r\ntotal_active_defrag_time:0\r\ncurrent_active_defrag_time:0\r\n"
                     "unexpected_error_replies:0\r\ndump_payload_sanitizations:0\r\n");
    tracking_describe(server->redis->tracking, out);
}

void info_more_cpu(const struct server *server, struct text *out) {
    (void)server;
    struct rusage children = {0}, thread = {0};
    getrusage(RUSAGE_CHILDREN, &children);
    getrusage(RUSAGE_THREAD, &thread);
    text_append(out, "used_cpu_sys_children:%ld.%06ld\r\nused_cpu_user_children:%ld.%06ld\r\n",
                (long)children.ru_stime.tv_sec, (long)children.ru_stime.tv_usec, (long)children.ru_utime.tv_sec,
                (long)children.ru_utime.tv_usec);
    text_append(out, "used_cpu_sys_main_thread:%ld.%06ld\r\nused_cpu_user_main_thread:%ld.%06ld\r\n",
                (long)thread.ru_stime.tv_sec, (long)thread.ru_stime.tv_usec, (long)thread.ru_utime.tv_sec,
                (long)thread.ru_utime.tv_usec);
}

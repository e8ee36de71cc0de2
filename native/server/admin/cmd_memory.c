/* cmd_memory: MEMORY: what keys take, and what the server holds. */
#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "server/admin/admin_subsystem.h"
#include "server/admin/info_more.h"
#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/core/server.h"
#include "server/redis/keys/keyspace.h"
#include "server/redis/redis_rows.h"
#include "server/redis/script/functions.h"
#include "store/store.h"

/* MEMORY USAGE's SAMPLES is checked, then ignored: sizes of large values are always extrapolated from a few parts. */
static bool samples_are_valid(struct client *client) {
    for (uint32_t i = 3; i < client->argc; i += 2) {
        int64_t samples;
        if (!argument_is(&client->argv[i], "samples") || i + 1 >= client->argc) {
            reply_syntax_error(client);
            return false;
        }
        if (!integer_argument(client, i + 1, &samples)) return false;
        if (samples < 0) {
            reply_syntax_error(client);
            return false;
        }
    }
    return true;
}

/* MEMORY USAGE key [SAMPLES count] */
static void memory_usage(struct client *client) {
    if (!samples_are_valid(client)) return;
    const struct dict_entry *entry = keyspace_find(client, 2);
    if (!entry)
        reply_null(client);
    else
        reply_integer(client, (int64_t)(sizeof *entry + entry->key_length + value_memory_bytes(store_value(entry))));
}

static size_t clients_bytes(const struct server *server) {
    size_t bytes = 0;
    for (const struct client *client = server->clients.head; client; client = client->next)
        bytes += client_held_bytes(client);
    return bytes;
}

static void reply_count(struct client *client, const char *name, size_t value) {
    reply_bulk_string(client, name);
    reply_integer(client, (int64_t)value);
}

static void reply_ratio(struct client *client, const char *name, double value) {
    reply_bulk_string(client, name);
    reply_double(client, value);
}

/* The index of a database: its buckets and its entries, without the values. */
static size_t index_bytes(const struct store_database *database) {
    return dict_overhead_bytes(&database->keys) + dict_count(&database->keys) * sizeof(struct dict_entry);
}

static void reply_databases(struct client *client) {
    const struct store *store = client->server->store;
    for (unsigned d = 0; d < STORE_DATABASES; d++) {
        const struct store_database *database = &store->databases[d];
        if (dict_count(&database->keys) == 0) continue;
        reply_bulk_format(client, "db.%u", d);
        reply_map(client, 3);
        reply_count(client, "overhead.hashtable.main", index_bytes(database));
        reply_count(client, "overhead.hashtable.expires", (size_t)database->expiry.count * 16);
        reply_count(client, "overhead.hashtable.slot-to-keys", 0);
    }
}

static void memory_stats(struct client *client) {
    const struct server *server = client->server;
    size_t used = memory_used_bytes(), peak = memory_peak_bytes(), overhead = clients_bytes(server), keys = 0;
    size_t databases = 0, resident = server_resident_bytes();
    for (unsigned d = 0; d < STORE_DATABASES; d++) {
        const struct store_database *database = &server->store->databases[d];
        keys += dict_count(&database->keys);
        databases += dict_count(&database->keys) > 0;
        overhead += index_bytes(database);
    }
    size_t dataset = used > overhead ? used - overhead : 0;
    reply_map(client, 27 + databases);
    reply_count(client, "peak.allocated", peak);
    reply_count(client, "total.allocated", used);
    reply_count(client, "startup.allocated", server->start.heap_bytes);
    reply_count(client, "replication.backlog", 0);
    reply_count(client, "clients.slaves", 0);
    reply_count(client, "clients.normal", clients_bytes(server));
    reply_count(client, "cluster.links", 0);
    reply_count(client, "aof.buffer", 0);
    reply_count(client, "lua.caches", 0);
    reply_count(client, "functions.caches", functions_library_bytes(server));
    reply_databases(client);
    reply_count(client, "overhead.total", overhead);
    reply_count(client, "keys.count", keys);
    reply_count(client, "keys.bytes-per-key", keys > 0 ? used / keys : 0);
    reply_count(client, "dataset.bytes", dataset);
    reply_ratio(client, "dataset.percentage", used > 0 ? 100.0 * (double)dataset / (double)used : 0);
    reply_ratio(client, "peak.percentage", peak > 0 ? 100.0 * (double)used / (double)peak : 0);
    reply_count(client, "allocator.allocated", used);
    reply_count(client, "allocator.active", resident);
    reply_count(client, "allocator.resident", resident);
    reply_ratio(client, "allocator-fragmentation.ratio", 1);
    reply_count(client, "allocator-fragmentation.bytes", 0);
    reply_ratio(client, "allocator-rss.ratio", 1);
    reply_count(client, "allocator-rss.bytes", 0);
    reply_ratio(client, "rss-overhead.ratio", 1);
    reply_count(client, "rss-overhead.bytes", 0);
    reply_ratio(client, "fragmentation", used > 0 ? (double)resident / (double)used : 1);
    reply_count(client, "fragmentation.bytes", resident > used ? resident - used : 0);
}

static void memory_doctor(struct client *client) {
    const struct server *server = client->server;
    size_t used = memory_used_bytes(), peak = memory_peak_bytes(), resident = server_resident_bytes();
    struct text text = {0};
    if (peak > 2 * used && peak > (64u << 20))
        text_append(&text, "At its peak the server held %zu bytes, %.1f times what it holds now.\n", peak,
                    (double)peak / (double)used);
    if (resident > 2 * used + memory_mapped_bytes() && resident > (128u << 20))
        text_append(&text,
                    "The system counts %zu bytes for the process, more than twice what is in use: MEMORY PURGE "
                    "gives back what it can.\n",
                    resident);
    if (server->config.maxmemory > 0 && used > (size_t)server->config.maxmemory / 10 * 9)
        text_append(&text, "More than nine tenths of maxmemory are in use.\n");
    if (!text.data) text_append(&text, "Nothing about the memory of this server stands out.\n");
    reply_verbatim_text(client, &text);
}

static void memory_purge(struct client *client) {
    malloc_trim(0);
    reply_status(client, "OK");
}

static void memory_malloc_stats(struct client *client) {
    char *written = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&written, &length);
    bool told = stream && malloc_info(0, stream) == 0;
    if (stream) told = fclose(stream) == 0 && told;
    if (told)
        reply_verbatim(client, written, length);
    else
        reply_error(client, "ERR the allocator has no statistics");
    free(written); /* the C library's own */
}

static const struct command subcommands[] = {
    {"memory|doctor", memory_doctor, 2, 0, &group_server, "Tells in words what stands out about memory.", "4.0.0",
     .tips = "nondeterministic_output\nrequest_policy:all_shards\nresponse_policy:special"},
    {"memory|help", reply_help, 2, COMMAND_LOADING | COMMAND_STALE, &group_server, "Lists the subcommands.", "4.0.0"},
    {"memory|malloc-stats", memory_malloc_stats, 2, 0, &group_server, "Returns what the allocator tells.", "4.0.0",
     .tips = "nondeterministic_output\nrequest_policy:all_shards\nresponse_policy:special"},
    {"memory|purge", memory_purge, 2, 0, &group_server, "Gives free memory back to the system.", "4.0.0",
     .tips = "request_policy:all_shards\nresponse_policy:all_succeeded"},
    {"memory|stats", memory_stats, 2, 0, &group_server, "Tells what memory is used for.", "4.0.0",
     .tips = "nondeterministic_output\nrequest_policy:all_shards\nresponse_policy:special"},
    {"memory|usage", memory_usage, -3, COMMAND_READONLY, &group_server,
     "Tells how much memory a key and its value take.", "4.0.0", .keys = second_key_known,
     .usage = "<key> [SAMPLES <count>]"},
    {0},
};

const struct command commands_memory[] = {
    {"memory", command_container, -2, 0, &group_server, "Tells what memory is used for.", "4.0.0",
     .subcommands = subcommands},
    {0},
};

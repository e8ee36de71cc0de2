#include "server/redis/redis_subsystem.h"

#include <inttypes.h>

#include "base/memory.h"
#include "server/redis/acl/acl.h"
#include "server/redis/keys/key_wait.h"
#include "server/redis/pubsub/pubsub.h"
#include "server/redis/redis_rows.h"
#include "server/redis/script/functions.h"
#include "server/redis/script/scripts.h"
#include "server/redis/tracking/tracking.h"
#include "server/redis/transaction/transaction.h"
#include "server/redis/transaction/watch.h"

static bool create(struct server *server) {
    struct redis_subsystem *redis = server->redis = memory_calloc(1, sizeof *redis);
    if (!redis) return false;
    redis->acl = acl_new(server);
    redis->pubsub = pubsub_new();
    redis->tracking = tracking_new();
    return redis->acl && redis->pubsub && redis->tracking;
}

static void free_subsystem(struct server *server) {
    struct redis_subsystem *redis = server->redis;
    if (!redis) return;
    scripts_free(server);
    functions_free(server);
    watch_free(server);
    key_waits_free(server);
    tracking_free(redis->tracking);
    pubsub_free(redis->pubsub);
    acl_free(redis->acl);
    notify_free(&redis->notify);
    memory_free(redis);
}

static void configure(struct server *server) {
    server->redis->notify.flags = (int)server->config.notify_keyspace_events;
    acl_follow_config(server->redis->acl);
    tracking_configure(server);
}

static void client_left(struct client *client) {
    transaction_discard(client);
    pubsub_client_gone(client);
    tracking_client_left(client);
}

static void append_bytes(struct text *out, const char *name, size_t bytes) {
    char human[32];
    text_human_bytes(human, sizeof human, (double)bytes);
    text_append(out, "%s:%zu\r\n%s_human:%s\r\n", name, bytes, name, human);
}

static void scripts_info(const struct client *client, struct text *out) {
    const struct server *server = client->server;
    size_t scripts = scripts_memory_bytes(server), functions = functions_memory_bytes(server);
    size_t cache = scripts_cache_bytes(server), libraries = functions_library_bytes(server);
    append_bytes(out, "used_memory_lua", scripts);
    text_append(out, "used_memory_vm_eval:%zu\r\nused_memory_vm_functions:%zu\r\n", scripts, functions);
    append_bytes(out, "used_memory_vm_total", scripts + functions);
    text_append(out, "used_memory_scripts_eval:%zu\r\nused_memory_functions:%zu\r\n", cache, libraries);
    append_bytes(out, "used_memory_scripts", cache + libraries);
    text_append(out,
                "number_of_cached_scripts:%" PRIu32 "\r\nnumber_of_functions:%" PRIu64
                "\r\nnumber_of_libraries:%" PRIu64 "\r\n",
                scripts_count(server), functions_count(server), functions_library_count(server));
}

static void pubsub_info(const struct client *client, struct text *out) {
    const struct server *server = client->server;
    text_append(out,
                "pubsub_channels:%" PRIu64 "\r\npubsub_patterns:%" PRIu64 "\r\npubsubshard_channels:%" PRIu64 "\r\n",
                pubsub_topics(server, PUBSUB_CHANNEL), pubsub_topics(server, PUBSUB_PATTERN),
                pubsub_topics(server, PUBSUB_SHARD));
}

static const struct info_section info[] = {
    {"memory", 43, scripts_info}, {"stats", 63, pubsub_info}, {"keyspace", 180, keyspace_info}, {0}};
static const struct long_task tasks[] = {{tracking_tidy}, {.run = NULL}};

static const struct command *const commands[] = {commands_acl,
                                                 commands_bits,
                                                 commands_database,
                                                 commands_dump,
                                                 commands_functions,
                                                 commands_generic,
                                                 commands_geo,
                                                 commands_geo_search,
                                                 commands_hash,
                                                 commands_hash_random,
                                                 commands_hyperloglog,
                                                 commands_keys,
                                                 commands_lcs,
                                                 commands_list,
                                                 commands_list_move,
                                                 commands_migrate,
                                                 commands_object,
                                                 commands_pubsub,
                                                 commands_scripts,
                                                 commands_set,
                                                 commands_sort,
                                                 commands_stream_claim,
                                                 commands_stream_entries,
                                                 commands_stream_groups,
                                                 commands_stream_info,
                                                 commands_stream_read,
                                                 commands_string,
                                                 commands_transactions,
                                                 commands_zset,
                                                 commands_zset_algebra,
                                                 commands_zset_pop,
                                                 commands_zset_random,
                                                 commands_zset_range,
                                                 NULL};

const struct subsystem redis_subsystem = {
    .name = "redis",
    .commands = commands,
    .tasks = tasks,
    .info = info,
    .before_write = tracking_send,
    .create = create,
    .free = free_subsystem,
    .configure = configure,
    .retry = key_wait_run,
    .client_left = client_left,
};

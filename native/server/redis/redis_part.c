/* redis_part: how keys, publishing, scripts, transactions and access enter the server. */
#include "server/redis/redis_part.h"

#include "base/memory.h"
#include "server/redis/acl/acl.h"
#include "server/redis/keys/key_wait.h"
#include "server/redis/pubsub/pubsub.h"
#include "server/redis/redis_rows.h"
#include "server/redis/script/scripts.h"
#include "server/redis/transaction/transaction.h"
#include "server/redis/transaction/watch.h"

static bool create(struct server *server) {
    struct redis_part *part = server->redis = memory_calloc(1, sizeof *part);
    if (!part) return false;
    part->acl = acl_new(server);
    part->pubsub = pubsub_new();
    return part->acl && part->pubsub;
}

static void free_part(struct server *server) {
    struct redis_part *part = server->redis;
    if (!part) return;
    scripts_free(server);
    watch_free(server);
    key_waits_free(server);
    pubsub_free(part->pubsub);
    acl_free(part->acl);
    notify_free(&part->notify);
    memory_free(part);
}

static void configure(struct server *server) {
    server->redis->notify.flags = (int)server->config.notify_keyspace_events;
    acl_follow_config(server->redis->acl);
}

static void client_left(struct client *client) {
    transaction_discard(client);
    pubsub_client_gone(client);
}

static const struct command *const commands[] = {commands_acl,         commands_bits,
                                                 commands_database,    commands_generic,
                                                 commands_geo,         commands_geo_search,
                                                 commands_hash,        commands_hash_random,
                                                 commands_hyperloglog, commands_keys,
                                                 commands_lcs,         commands_list,
                                                 commands_list_move,   commands_object,
                                                 commands_pubsub,      commands_scripts,
                                                 commands_set,         commands_sort,
                                                 commands_string,      commands_transactions,
                                                 commands_zset,        commands_zset_algebra,
                                                 commands_zset_pop,    commands_zset_random,
                                                 commands_zset_range,  NULL};

const struct subsystem redis_part = {
    .name = "redis",
    .commands = commands,
    .create = create,
    .free = free_part,
    .configure = configure,
    .retry = key_wait_run,
    .client_left = client_left,
};

#include "server/cluster/cluster_subsystem.h"

#include <inttypes.h>

#include "base/memory.h"
#include "server/cluster/topology.h"

static bool create(struct server *server) {
    server->cluster = memory_calloc(1, sizeof *server->cluster);
    if (server->cluster) dict_init(&server->cluster->migrating.keys);
    return server->cluster;
}

static void free_subsystem(struct server *server) {
    if (server->cluster) {
        topology_free(server->cluster->topology);
        migrating_keys_release(&server->cluster->migrating);
    }
    memory_free(server->cluster);
}

static void client_left(struct client *client) {
    struct migrating_keys *migrating = &client->server->cluster->migrating;
    if (migrating->holder == client) migrating_keys_release(migrating);
}

static void write_info(const struct client *client, struct text *out) {
    const struct server *server = client->server;
    const struct topology *topology = server->cluster->topology;
    text_append(out, "# Cluster\r\ncluster_enabled:%d\r\n", (int)server->config.cluster_enabled);
    if (!topology) return;
    text_append(out, "cluster_topology_version:%" PRId64 "\r\ncluster_shard:%u\r\ncluster_shards:%d\r\n",
                topology->version, topology->number, topology->shard_count);
}

static const struct command *const commands[] = {commands_cluster, NULL};
static const struct long_task tasks[] = {{migrating_keys_step, .waits_for_exclusive = true}, {.run = NULL}};
static const struct info_section info[] = {{"cluster", 170, write_info}, {0}};

const struct subsystem cluster_subsystem = {
    .name = "cluster",
    .commands = commands,
    .tasks = tasks,
    .client_left = client_left,
    .info = info,
    .create = create,
    .free = free_subsystem,
};

/* cmd_cluster: CLUSTER, ASKING, READONLY and READWRITE, as Redis 7.0 answers them; and CLUSTER TOPOLOGY and SETTOPOLOGY, by
 * which a supervisor reads and sets what the others tell of. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "server/cluster/cluster_subsystem.h"
#include "server/cluster/cmd_cluster.h"
#include "server/cluster/redirect.h"
#include "server/cluster/topology.h"
#include "server/core/command_table.h"

const struct command_group group_cluster = {"cluster", 0, DATA_KEYS};

/* ---- what every subcommand begins with ------------------------------------------------------------------------------- */

bool cluster_is_on(struct client *client) {
    if (client->server->config.cluster_enabled) return true;
    reply_error(client, "ERR This instance has cluster support disabled");
    return false;
}

static const struct topology *topology_of(const struct client *client) {
    return client->server->cluster->topology;
}

/* ---- the topology ---------------------------------------------------------------------------------------------------- */

static void cluster_topology(struct client *client) {
    struct text text = {0};
    if (!cluster_is_on(client)) return;
    topology_write_json(topology_of(client), &text);
    reply_bulk_text(client, &text);
}

/* CLUSTER SETTOPOLOGY version number [SHARD number id host port unix slots …] [TLS number port …]
 * [REPLICA number id host port tls_port …] [MOVE slots number …] [LEAVING number …] [GONE number …] */
static void cluster_settopology(struct client *client) {
    struct server *server = client->server;
    struct error error;
    if (!cluster_is_on(client)) return;
    struct topology *topology = topology_parse(client->argc - 2, client->argv + 2, &error), *before = NULL;
    if (!topology) {
        reply_error(client, "ERR the topology is refused, and nothing changed: %s", error.message);
        return;
    }
    before = server->cluster->topology;
    if (before && topology->version <= before->version && !topology_equals(topology, before)) {
        reply_error(client,
                    "ERR the topology is refused, and nothing changed: its version is %" PRId64
                    ", and this shard has %" PRId64 ": push a newer one",
                    topology->version, before->version);
        topology_free(topology);
        return;
    }
    int returned = before ? topology_returned(before, topology) : -1;
    if (returned >= 0) {
        reply_error(client,
                    "ERR the topology is refused, and nothing changed: shard %d has gone for good, so say GONE %d",
                    returned, returned);
        topology_free(topology);
        return;
    }
    server->cluster->topology = topology;
    topology_free(before);
    reply_status(client, "OK");
    cluster_redirect_waiting(server);
}

/* ---- who has what ---------------------------------------------------------------------------------------------------- */

static void reply_node(struct client *client, const char *host, int port, const char *id) {
    reply_array(client, 4);
    reply_bulk_string(client, host);
    reply_integer(client, port);
    reply_bulk_string(client, id);
    reply_map(client, 0);
}

static size_t count_replicas(const struct topology *topology, int place) {
    size_t count = 0;
    for (int i = -1; (i = topology_next_replica(topology, i, place)) >= 0;) count++;
    return count;
}

static void cluster_slots(struct client *client) {
    if (!cluster_is_on(client)) return;
    const struct topology *topology = topology_of(client);
    size_t mark = reply_array_deferred(client), count = 0;
    struct slot_run run = {0, -1};
    for (; topology && topology_next_run(topology, run.last + 1, -1, &run); count++) {
        int place = topology->owner[run.first];
        const struct shard *shard = &topology->shards[place];
        reply_array(client, 3 + count_replicas(topology, place));
        reply_integer(client, run.first);
        reply_integer(client, run.last);
        reply_node(client, shard->host, redirect_port(client, shard), shard->id);
        for (int i = -1; (i = topology_next_replica(topology, i, place)) >= 0;) {
            const struct shard_replica *replica = &topology->replicas[i];
            reply_node(client, replica->host, redirect_port_of(client, replica->port, replica->tls_port), replica->id);
        }
    }
    reply_set_array_length(client, mark, count);
}

static void reply_slots_of(struct client *client, const struct topology *topology, int place) {
    size_t mark = reply_array_deferred(client), count = 0;
    struct slot_run run = {0, -1};
    for (; topology_next_run(topology, run.last + 1, place, &run); count += 2) {
        reply_integer(client, run.first);
        reply_integer(client, run.last);
    }
    reply_set_array_length(client, mark, count);
}

static void reply_shards_node(struct client *client, const char *id, const char *host, int port, int tls_port,
                              const char *role) {
    reply_map(client, tls_port ? 8 : 7);
    reply_bulk_string(client, "id");
    reply_bulk_string(client, id);
    reply_bulk_string(client, "port");
    reply_integer(client, port);
    if (tls_port) {
        reply_bulk_string(client, "tls-port");
        reply_integer(client, tls_port);
    }
    reply_bulk_string(client, "ip");
    reply_bulk_string(client, host);
    reply_bulk_string(client, "endpoint");
    reply_bulk_string(client, host);
    reply_bulk_string(client, "role");
    reply_bulk_string(client, role);
    reply_bulk_string(client, "replication-offset");
    reply_integer(client, 0);
    reply_bulk_string(client, "health");
    reply_bulk_string(client, "online");
}

static void cluster_shards(struct client *client) {
    if (!cluster_is_on(client)) return;
    const struct topology *topology = topology_of(client);
    reply_array(client, topology ? (size_t)topology->shard_count : 0);
    for (int place = 0; topology && place < topology->shard_count; place++) {
        const struct shard *shard = &topology->shards[place];
        reply_map(client, 2);
        reply_bulk_string(client, "slots");
        reply_slots_of(client, topology, place);
        reply_bulk_string(client, "nodes");
        reply_array(client, 1 + count_replicas(topology, place));
        reply_shards_node(client, shard->id, shard->host, shard->port, shard->tls_port, "master");
        for (int i = -1; (i = topology_next_replica(topology, i, place)) >= 0;) {
            const struct shard_replica *each = &topology->replicas[i];
            reply_shards_node(client, each->id, each->host, each->port, each->tls_port, "replica");
        }
    }
}

/* "[17->-id]" of the asked shard's slots that leave, "[17-<-id]" of those that come. */
static void write_moves(const struct topology *topology, struct text *out) {
    struct slot_run run = {0, -1};
    while (topology_next_move(topology, run.last + 1, &run)) {
        int owner = topology->owner[run.first], target = topology->target[run.first];
        for (int slot = run.first; slot <= run.last; slot++) {
            if (owner == topology->myself) text_append(out, " [%d->-%s]", slot, topology->shards[target].id);
            if (target == topology->myself) text_append(out, " [%d-<-%s]", slot, topology->shards[owner].id);
        }
    }
}

static void write_node(const struct client *client, const struct topology *topology, int place, struct text *out) {
    const struct shard *shard = &topology->shards[place];
    bool is_myself = place == topology->myself && !client->server->place.is_replica;
    text_append(out, "%s %s:%d@0 %smaster - 0 0 %" PRId64 " connected", shard->id, shard->host,
                redirect_port(client, shard), is_myself ? "myself," : "", topology->version);
    struct slot_run run = {0, -1};
    while (topology_next_run(topology, run.last + 1, place, &run))
        text_append(out, run.first == run.last ? " %d" : " %d-%d", run.first, run.last);
    if (is_myself) write_moves(topology, out);
    text_append(out, "\n");
}

static bool is_this_process(const struct server *server, const struct shard_replica *replica) {
    return server->place.is_replica && strcmp(replica->id, server->start.run_id) == 0;
}

static void write_replica(const struct client *client, const struct topology *topology,
                          const struct shard_replica *replica, struct text *out) {
    text_append(out, "%s %s:%d@0 %sslave %s 0 0 %" PRId64 " connected\n", replica->id, replica->host,
                redirect_port_of(client, replica->port, replica->tls_port),
                is_this_process(client->server, replica) ? "myself," : "", topology->shards[replica->place].id,
                topology->version);
}

/* One that the topology does not list adds itself. */
static void cluster_nodes(struct client *client) {
    struct text text = {0};
    if (!cluster_is_on(client)) return;
    const struct topology *topology = topology_of(client);
    bool is_replica = client->server->place.is_replica, is_listed = false;
    for (int i = 0; topology && i < topology->shard_count; i++) write_node(client, topology, i, &text);
    for (int i = 0; topology && i < topology->replica_count; i++) {
        write_replica(client, topology, &topology->replicas[i], &text);
        is_listed |= is_this_process(client->server, &topology->replicas[i]);
    }
    if (!topology || (is_replica && !is_listed)) {
        bool has_primary = topology && topology->myself != TOPOLOGY_GONE;
        text_append(&text, "%s :%" PRId64 "@0 myself,%s %s 0 0 %" PRId64 " connected\n", client->server->start.run_id,
                    client->server->config.port, is_replica ? "slave" : "master",
                    is_replica && has_primary ? topology->shards[topology->myself].id : "-",
                    topology ? topology->version : 0);
    }
    reply_verbatim_text(client, &text);
}

static void cluster_myid(struct client *client) {
    if (!cluster_is_on(client)) return;
    const struct topology *topology = topology_of(client);
    bool is_one = topology && topology->myself != TOPOLOGY_GONE && !client->server->place.is_replica;
    reply_bulk_string(client, is_one ? topology->shards[topology->myself].id : client->server->start.run_id);
}

static void cluster_info(struct client *client) {
    struct text text = {0};
    if (!cluster_is_on(client)) return;
    const struct topology *topology = topology_of(client);
    int slots = topology ? CLUSTER_SLOTS : 0, shards = topology ? topology->shard_count : 1, size = 0;
    int replicas = topology ? topology->replica_count : 0;
    for (int i = 0; topology && i < shards; i++) size += topology->shards[i].last_slot >= 0;
    int64_t version = topology ? topology->version : 0;
    text_append(&text,
                "cluster_state:%s\r\ncluster_slots_assigned:%d\r\ncluster_slots_ok:%d\r\ncluster_slots_pfail:0\r\n"
                "cluster_slots_fail:0\r\ncluster_known_nodes:%d\r\ncluster_size:%d\r\ncluster_current_epoch:%" PRId64
                "\r\ncluster_my_epoch:%" PRId64 "\r\ncluster_stats_messages_sent:0\r\n"
                "cluster_stats_messages_received:0\r\ntotal_cluster_links_buffer_limit_exceeded:0\r\n",
                topology ? "ok" : "fail", slots, slots, shards + replicas, size, version, version);
    reply_verbatim_text(client, &text);
}

static void cluster_links(struct client *client) {
    if (cluster_is_on(client)) reply_array(client, 0);
}

static bool is_id(const struct resp_argument *argument, const char *id) {
    return argument->length == SHARD_ID_BYTES && memcmp(argument->data, id, SHARD_ID_BYTES) == 0;
}

static void reply_replicas(struct client *client, const struct topology *topology, int place) {
    reply_array(client, count_replicas(topology, place));
    for (int i = -1; (i = topology_next_replica(topology, i, place)) >= 0;) {
        struct text text = {0};
        write_replica(client, topology, &topology->replicas[i], &text);
        if (!text.failed) text.length--; /* as Redis: no end of line */
        reply_bulk_text(client, &text);
    }
}

static void cluster_replicas(struct client *client) {
    if (!cluster_is_on(client)) return;
    const struct topology *topology = topology_of(client);
    const struct resp_argument *id = &client->argv[2];
    for (int place = 0; topology && place < topology->shard_count; place++) {
        if (!is_id(id, topology->shards[place].id)) continue;
        reply_replicas(client, topology, place);
        return;
    }
    for (int i = 0; topology && i < topology->replica_count; i++) {
        if (!is_id(id, topology->replicas[i].id)) continue;
        reply_error(client, "ERR The specified node is not a master");
        return;
    }
    reply_error(client, "ERR Unknown node %.*s", id->length < 128 ? (int)id->length : 128, (const char *)id->data);
}

/* ---- connections ----------------------------------------------------------------------------------------------------- */

static void asking_command(struct client *client) {
    if (!cluster_is_on(client)) return;
    client->asking = 2; /* this request and the next */
    reply_status(client, "OK");
}

static void readonly_command(struct client *client) {
    if (!cluster_is_on(client)) return;
    client->reads_replica = true;
    reply_status(client, "OK");
}

static void readwrite_command(struct client *client) {
    if (!cluster_is_on(client)) return;
    client->reads_replica = false;
    reply_status(client, "OK");
}

/* ---- what only nodes that gossip do ---------------------------------------------------------------------------------- */

static void refuse_gossip(struct client *client) {
    if (!cluster_is_on(client)) return;
    reply_error(client,
                "ERR %s is not supported: shards do not gossip, their supervisor sets the topology "
                "(CLUSTER SETTOPOLOGY, replay-server cluster)",
                client->command->name);
}

static void cluster_help(struct client *client) {
    if (cluster_is_on(client)) reply_help(client);
}

#define ASK COMMAND_STALE
#define LOOK (COMMAND_ADMIN | COMMAND_STALE)
#define RULE (LOOK | COMMAND_NO_ASYNC_LOADING)
#define ANY_TIME (COMMAND_LOADING | COMMAND_STALE)
#define GOSSIP "Refused: shards do not gossip."

static const struct command cluster_subcommands[] = {
    {"cluster|addslots", refuse_gossip, -3, RULE, &group_cluster, GOSSIP, "3.0.0"},
    {"cluster|addslotsrange", refuse_gossip, -4, RULE, &group_cluster, GOSSIP, "7.0.0"},
    {"cluster|bumpepoch", refuse_gossip, 2, RULE, &group_cluster, GOSSIP, "3.0.0", .tips = "nondeterministic_output"},
    {"cluster|count-failure-reports", refuse_gossip, 3, LOOK, &group_cluster, GOSSIP, "3.0.0",
     .tips = "nondeterministic_output"},
    {"cluster|countkeysinslot", cluster_countkeysinslot, 3, ASK, &group_cluster, "Counts the keys in a slot.", "3.0.0",
     .usage = "<slot>"},
    {"cluster|delslots", refuse_gossip, -3, RULE, &group_cluster, GOSSIP, "3.0.0"},
    {"cluster|delslotsrange", refuse_gossip, -4, RULE, &group_cluster, GOSSIP, "7.0.0"},
    {"cluster|failover", refuse_gossip, -2, RULE, &group_cluster, GOSSIP, "3.0.0"},
    {"cluster|flushslots", refuse_gossip, 2, RULE, &group_cluster, GOSSIP, "3.0.0"},
    {"cluster|forget", refuse_gossip, 3, RULE, &group_cluster, GOSSIP, "3.0.0"},
    {"cluster|getkeysinslot", cluster_getkeysinslot, 4, ASK, &group_cluster, "Returns names of keys in a slot.",
     "3.0.0", .tips = "nondeterministic_output", .usage = "<slot> <count>"},
    {"cluster|help", cluster_help, 2, ASK | COMMAND_LOADING, &group_cluster, "Lists the subcommands.", "5.0.0"},
    {"cluster|hold", cluster_hold, -3, RULE | COMMAND_NOSCRIPT | COMMAND_NO_MULTI, &group_cluster,
     "Keeps requests for keys waiting, while the keys are carried to another shard.", .usage = "<key> [<key> ...]"},
    {"cluster|info", cluster_info, 2, ASK, &group_cluster, "Tells how the cluster is.", "3.0.0",
     .tips = "nondeterministic_output"},
    {"cluster|keyslot", cluster_keyslot, 3, ASK, &group_cluster, "Returns the slot of a key.", "3.0.0",
     .usage = "<key>"},
    {"cluster|links", cluster_links, 2, ASK, &group_cluster, "Returns an empty list.", "7.0.0",
     .tips = "nondeterministic_output"},
    {"cluster|meet", refuse_gossip, -4, RULE, &group_cluster, GOSSIP, "3.0.0"},
    {"cluster|myid", cluster_myid, 2, ASK, &group_cluster, "Returns the shard's id.", "3.0.0"},
    {"cluster|nodes", cluster_nodes, 2, ASK, &group_cluster, "Returns the shards and their slots, one a line.", "3.0.0",
     .tips = "nondeterministic_output"},
    {"cluster|release", cluster_release, 2, RULE | COMMAND_NOSCRIPT | COMMAND_NO_MULTI, &group_cluster,
     "Lets requests for held keys go on."},
    {"cluster|replicas", cluster_replicas, 3, LOOK, &group_cluster, "Returns the replicas of a shard.", "5.0.0",
     .tips = "nondeterministic_output", .usage = "<node-id>"},
    {"cluster|replicate", refuse_gossip, 3, RULE, &group_cluster, GOSSIP, "3.0.0"},
    {"cluster|reset", refuse_gossip, -2, LOOK | COMMAND_NOSCRIPT, &group_cluster, GOSSIP, "3.0.0"},
    {"cluster|saveconfig", refuse_gossip, 2, RULE, &group_cluster, GOSSIP, "3.0.0"},
    {"cluster|set-config-epoch", refuse_gossip, 3, RULE, &group_cluster, GOSSIP, "3.0.0"},
    {"cluster|setslot", refuse_gossip, -4, RULE, &group_cluster, GOSSIP, "3.0.0"},
    {"cluster|settopology", cluster_settopology, -4, RULE | COMMAND_NOSCRIPT | COMMAND_NO_MULTI, &group_cluster,
     "Sets which shard has which slots.",
     .usage = "<version> <number> [SHARD <number> <id> <host> <port> <unix> <slots>] [TLS <number> <port>] [REPLICA "
              "<number> <id> <host> <port> <tls-port>] [MOVE <slots> <number>] [LEAVING <number>] [GONE <number>]"},
    {"cluster|shards", cluster_shards, 2, ASK, &group_cluster, "Returns the shards and their slots.", "7.0.0",
     .tips = "nondeterministic_output"},
    {"cluster|slaves", cluster_replicas, 3, LOOK, &group_cluster, "Returns the replicas of a shard.", "3.0.0",
     .tips = "nondeterministic_output", .usage = "<node-id>"},
    {"cluster|slots", cluster_slots, 2, ASK, &group_cluster, "Returns the slots and their shards.", "3.0.0",
     .tips = "nondeterministic_output"},
    {"cluster|topology", cluster_topology, 2, ASK, &group_cluster, "Returns the topology as JSON."},
    {0},
};

const struct command commands_cluster[] = {
    {"asking", asking_command, 1, COMMAND_FAST, &group_cluster, "Lets the next request reach a slot that moves here.",
     "3.0.0", .categories = ACL_FAST | ACL_CONNECTION},
    {"cluster", command_container, -2, 0, &group_cluster, "Tells of the shards of a cluster.", "3.0.0",
     .subcommands = cluster_subcommands},
    {"readonly", readonly_command, 1, COMMAND_FAST | ANY_TIME, &group_cluster,
     "Lets the connection read from a shard's replica.", "3.0.0", .categories = ACL_FAST | ACL_CONNECTION},
    {"readwrite", readwrite_command, 1, COMMAND_FAST | ANY_TIME, &group_cluster, "Takes back READONLY.", "3.0.0",
     .categories = ACL_FAST | ACL_CONNECTION},
    {0},
};

/* cmd_replication: what replicas say, and what clients ask of replication. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/core/exclusive_execution.h"
#include "server/redis/keys/keyspace.h"
#include "server/redis/redis_rows.h"
#include "server/replay/replay_follow.h"
#include "server/replay/replay_subsystem.h"
#include "server/replication/epoch.h"
#include "server/replication/replicas.h"
#include "server/replication/replication_subsystem.h"
#include "server/replication/table_replication.h"

/* ---- replicas -------------------------------------------------------------------------------------------------------- */

/* What it has is not known to be current, nor its offset: others may have more. True: the error is replied. */
static bool lacks_primary(struct client *client) {
    const struct server *server = client->server;
    if (server->place.is_replica && !link_is_up(server))
        reply_error(client, "NOMASTERLINK Can't SYNC while not connected with my master");
    else if (!server->place.is_replica && server->place.is_copy)
        reply_error(client, "NOMASTERLINK this server follows nobody, and its data are a replica's (REPLICAOF NO ONE "
                            "makes it the primary)");
    else
        return false;
    return true;
}

/* True: the error is replied. */
static bool fails_over(struct client *client) {
    if (client->server->replication->failover.state == FAILOVER_NONE) return false;
    reply_error(client, "NOMASTERLINK Can't SYNC while failing over");
    return true;
}

/* A replica that came before psync is sent a file at once, and answers nothing. */
static void sync_command(struct client *client) {
    struct replica *replica = replica_of(client);
    if (replica_is_attached(client)) return;
    if (!replica || !replication_keep(client->server)) {
        reply_error(client, "ERR out of memory");
        return;
    }
    if (!fails_over(client) && !lacks_primary(client)) replica_synchronise(replica);
}

/* What it has is other than what is here, or newer: it keeps that. True: the error is replied. */
static bool keeps_its_own(struct client *client, const struct replica *replica) {
    struct server *server = client->server;
    uint64_t origin = epoch_origin(server);
    if (server->place.is_replica) return false;
    if (replica->origin != 0 && replica->origin != origin)
        reply_error(client,
                    "NOMASTERLINK this primary's data do not descend from those that the replica has (REPLICAOF host "
                    "port, at the replica, gives these up)");
    else if (replica->epoch > server->place.epoch)
        reply_error(client, "NOMASTERLINK this primary is of epoch %" PRIu64 ", older than %" PRIu64,
                    server->place.epoch, replica->epoch);
    else
        return false;
    return true;
}

/* Whether the history is that of the id, up to the offset, which is that of the first byte wanted. */
static bool is_of_history(const struct replication_subsystem *replication, const struct resp_argument *id,
                          int64_t offset) {
    if (id->length != REPLICATION_ID_LENGTH) return false;
    if (memcmp(id->data, replication->id, REPLICATION_ID_LENGTH) == 0) return true;
    return memcmp(id->data, replication->former_id, REPLICATION_ID_LENGTH) == 0 && offset <= replication->former_until;
}

/* Whether a replica that goes on with the stream's bytes has the same tables, weights and gradients then, or is to keep its
 * own. Where none are here nor there, the stream can begin to tell of them. */
static bool agrees_on_tables(struct server *server, const struct replica *replica, int64_t offset) {
    bool is_relay = server->place.is_replica && !server->place.follows_tables; /* of what a Redis sends */
    if (!replica->takes_tables || is_relay) return true;
    if (replica->has_tables) return server->replication->tables_from <= (uint64_t)offset - 1;
    if (!replica->has_none || table_replication_has_data(server)) return false;
    if (!server->place.is_replica) table_replication_begin(server);
    return true;
}

static bool continues(struct client *client, struct replica *replica, int64_t offset) {
    struct replication_subsystem *replication = client->server->replication;
    char line[160];
    if (!is_of_history(replication, &client->argv[1], offset) || offset < 1 ||
        !agrees_on_tables(client->server, replica, offset) || !replica_continue(replica, (uint64_t)offset - 1)) {
        if (!argument_is(&client->argv[1], "?")) replication->partial_refused++;
        return false;
    }
    bool tells = client->server->place.streams_tables || client->server->place.follows_tables;
    int length = snprintf(line, sizeof line, "+CONTINUE%s%s%s", replica->knows_ids ? " " : "",
                          replica->knows_ids ? replication->id : "", replica->takes_tables && tells ? " TABLES" : "");
    length += replica_epoch_words(replica, line + length, sizeof line - (size_t)length);
    client_send(client, line, (size_t)length);
    return true;
}

/* The primary asks this replica of it to take its part. False: the error is replied. */
static bool takes_over(struct client *client) {
    struct server *server = client->server;
    const struct resp_argument *id = &client->argv[1];
    const char *own = server->replication->id;
    if (!server->place.is_replica) {
        reply_error(client, "ERR PSYNC FAILOVER can't be sent to a master.");
    } else if (id->length != REPLICATION_ID_LENGTH || strncasecmp((const char *)id->data, own, id->length) != 0) {
        reply_error(client, "ERR PSYNC FAILOVER replid must match my replid.");
    } else {
        link_end(server);
        return true;
    }
    return false;
}

/* PSYNC id offset [FAILOVER]: the first byte that is wanted; "? -1" for all. */
static void psync_command(struct client *client) {
    int64_t offset;
    struct replica *replica = replica_of(client);
    if (replica_is_attached(client)) return;
    if (client->argc > 3 && argument_is(&client->argv[3], "failover") && !takes_over(client)) return;
    if (fails_over(client) || !integer_argument(client, 2, &offset)) return;
    if (!replica || !replication_keep(client->server)) {
        reply_error(client, "ERR out of memory");
        return;
    }
    if (lacks_primary(client) || keeps_its_own(client, replica)) return;
    replica->acknowledges = true;
    if (!continues(client, replica, offset)) replica_synchronise(replica);
}

static void acknowledge(struct client *client, const struct resp_argument *word) {
    struct replica *replica = client->replica;
    int64_t offset;
    if (!replica || replica->state == REPLICA_TALKS || !argument_int64(word, &offset) || offset < 0) return;
    replica->acknowledged_us = client->server->now_us;
    if ((uint64_t)offset > replica->acknowledged) replica->acknowledged = (uint64_t)offset;
    wait_queue_wake(client->server, &client->server->replication->acknowledged);
}

/* "epoch=12": the number behind the name. False: it is something else. */
static bool is_epoch(const struct resp_argument *value, const char *name, uint64_t *epoch) {
    size_t length = strlen(name);
    int64_t number;
    if (value->length <= length || memcmp(value->data, name, length) != 0) return false;
    const struct resp_argument digits = {.data = value->data + length, .length = value->length - length};
    if (!argument_int64(&digits, &number) || number < 0 || number > EPOCH_MOST) return false;
    *epoch = (uint64_t)number;
    return true;
}

static void take_capability(struct client *client, struct replica *replica, const struct resp_argument *value) {
    uint64_t epoch;
    replica->knows_ids |= argument_is(value, "psync2");
    replica->takes_tables |= argument_is(value, "tables");
    replica->has_tables |= argument_is(value, "tables-kept");
    replica->has_none |= argument_is(value, "tables-none");
    if (value->length > 7 && memcmp(value->data, "origin=", 7) == 0) {
        const struct resp_argument digits = {.data = value->data + 7, .length = value->length - 7};
        epoch_read_origin(&digits, &replica->origin);
    }
    if (is_epoch(value, "epoch=", &epoch)) {
        replica->knows_epochs = true;
        replica->epoch = epoch;
        if (replica->origin == epoch_origin(client->server)) epoch_hear(client->server, epoch);
    } else if (is_epoch(value, "left-epoch=", &epoch)) {
        replica->knows_epochs = true;
        epoch_succeed(client->server, epoch);
    }
}

/* False: the error is replied. */
static bool take_note(struct client *client, struct replica *replica, uint32_t i) {
    const struct resp_argument *name = &client->argv[i], *value = &client->argv[i + 1];
    int64_t number = 0;
    if (argument_is(name, "ip-address")) {
        if (value->length < sizeof replica->host) {
            memcpy(replica->host, value->data, value->length);
            replica->host[value->length] = '\0';
            return true;
        }
        reply_error(client, "ERR REPLCONF ip-address provided by replica instance is too long: %zu bytes",
                    value->length);
    } else if (argument_is(name, "capa")) {
        take_capability(client, replica, value);
        return true;
    } else if (argument_is(name, "listening-port")) {
        if (!integer_argument(client, i + 1, &number)) return false;
        replica->port = number;
        return true;
    } else if (argument_is(name, "rdb-only")) {
        if (!integer_argument(client, i + 1, &number)) return false;
        replica->wants_file_alone = number == 1;
        return true;
    } else {
        reply_error(client, "ERR Unrecognized REPLCONF option: %.*s", name->length < 400 ? (int)name->length : 400,
                    (const char *)name->data);
    }
    return false;
}

static void replconf_command(struct client *client) {
    if (client->argc % 2 == 0) {
        reply_syntax_error(client);
        return;
    }
    for (uint32_t i = 1; i < client->argc; i += 2) {
        bool is_silent = argument_is(&client->argv[i], "ack") || argument_is(&client->argv[i], "getack");
        if (is_silent && client->deny_blocking) { /* EXEC has said how many replies there will be */
            reply_error(client, "ERR REPLCONF ACK and GETACK cannot be run in a transaction: send them outside of it");
            return;
        }
        if (argument_is(&client->argv[i], "ack")) {
            acknowledge(client, &client->argv[i + 1]);
            return; /* to which nothing is replied */
        }
        if (argument_is(&client->argv[i], "getack")) {
            if (client->is_primary) link_acknowledge(client->server);
            return;
        }
        struct replica *replica = replica_of(client);
        if (!replica) reply_error(client, "ERR out of memory");
        if (!replica || !take_note(client, replica, i)) return;
    }
    reply_status(client, "OK");
}

/* ---- clients --------------------------------------------------------------------------------------------------------- */

static void reply_role_of_replica(struct client *client) {
    static const char *const states[] = {"none", "connect", "connecting", "handshake", "sync", "sync", "connected"};
    const struct replication_subsystem *replication = client->server->replication;
    const struct primary_link *link = &replication->link;
    reply_array(client, 5);
    reply_bulk_string(client, "slave");
    reply_bulk_string(client, link->host);
    reply_integer(client, link->port);
    reply_bulk_string(client, states[link->state]);
    reply_integer(client, link->state == LINK_UP ? (int64_t)change_stream_end(&replication->stream) : -1);
}

static void role_command(struct client *client) {
    const struct replication_subsystem *replication = client->server->replication;
    if (client->server->place.is_replica) {
        reply_role_of_replica(client);
        return;
    }
    reply_array(client, 3);
    reply_bulk_string(client, "master");
    reply_integer(client, (int64_t)change_stream_end(&replication->stream));
    size_t mark = reply_array_deferred(client), count = 0;
    for (const struct replica *replica = replication->replicas; replica; replica = replica->next) {
        if (replica->state != REPLICA_ONLINE) continue;
        char host[256];
        replica_host(replica, host);
        reply_array(client, 3);
        reply_bulk_string(client, host);
        reply_bulk_format(client, "%" PRId64, replica->port);
        reply_bulk_format(client, "%" PRIu64, replica->acknowledged);
        count++;
    }
    reply_set_array_length(client, mark, count);
}

static uint32_t count_for(const struct client *client) {
    return replicas_count(client->server->replication, client->wrote_until);
}

static void reply_count(struct client *client) {
    reply_integer(client, count_for(client));
}

static bool enough(struct client *client) {
    int64_t wanted;
    if (!argument_int64(&client->argv[1], &wanted) || count_for(client) < wanted) return false;
    reply_count(client);
    return true;
}

/* WAIT replicas milliseconds: until so many have what the client has written. */
static void wait_command(struct client *client) {
    struct server *server = client->server;
    int64_t replicas, timeout_ms;
    if (server->place.is_replica) {
        reply_error(client,
                    "ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a "
                    "replica is configured to be writable (which is not the default) writes to replicas are "
                    "just local and are not propagated.");
        return;
    }
    if (!integer_argument(client, 1, &replicas)) return;
    if (!argument_int64(&client->argv[2], &timeout_ms)) {
        reply_error(client, "ERR timeout is not an integer or out of range");
    } else if (timeout_ms < 0) {
        reply_error(client, "ERR timeout is negative");
    } else if (count_for(client) >= replicas || client->deny_blocking) {
        reply_count(client);
    } else {
        uint64_t wait_us = timeout_ms < INT64_MAX / 1000 ? (uint64_t)timeout_ms * 1000 : INT64_MAX;
        server->replication->asks = true;
        client_block(client, &server->replication->acknowledged,
                     timeout_ms == 0 ? CLOCK_NEVER : server->now_us + wait_us, enough, reply_count);
    }
}

/* What the last record of its primary left to do comes first: a reset, or new settings, of a large table. */
static void become_primary(struct client *client) {
    struct server *server = client->server;
    while (replay_follow_step(server->replay->tables)) exclusive_rest(server);
    if (server_is_fenced(server)) epoch_raise(server);
    link_end(server);
    reply_status(client, "OK");
}

/* REPLICAOF host port · REPLICAOF NO ONE */
static void replicaof_command(struct client *client) {
    struct server *server = client->server;
    const struct resp_argument *host = &client->argv[1];
    int64_t port;
    char name[256];
    if (server->replication->failover.state != FAILOVER_NONE) {
        reply_error(client, "ERR REPLICAOF not allowed while failing over.");
        return;
    }
    if (argument_is(host, "no") && argument_is(&client->argv[2], "one")) {
        exclusive_run_change(client, become_primary);
        return;
    }
    if (replica_is_attached(client)) {
        reply_error(client, "ERR Command is not valid when client is a replica.");
        return;
    }
    if (!argument_int64(&client->argv[2], &port) || port < 0 || port > 65535) {
        reply_error(client, "ERR Invalid master port");
        return;
    }
    if (host->length == 0 || host->length >= sizeof name || memchr(host->data, '\0', host->length) ||
        memchr(host->data, ' ', host->length)) {
        reply_error(client, "ERR Invalid master host");
        return;
    }
    snprintf(name, sizeof name, "%.*s", (int)host->length, (const char *)host->data);
    const struct primary_link *link = &server->replication->link;
    if (server->place.is_replica && strcasecmp(link->host, name) == 0 && link->port == port) {
        link_was_named(server);
        reply_status(client, "OK Already connected to specified master");
        return;
    }
    link_follow(server, name, port);
    reply_status(client, "OK");
}

#define FOLLOW (COMMAND_ADMIN | COMMAND_NOSCRIPT | COMMAND_STALE | COMMAND_NO_ASYNC_LOADING | COMMAND_TELLS_PART)
#define SYNCHRONISE (COMMAND_ADMIN | COMMAND_NOSCRIPT | COMMAND_NO_ASYNC_LOADING | COMMAND_NO_MULTI)

const struct command commands_replication[] = {
    {"failover", failover_command, -1, COMMAND_ADMIN | COMMAND_NOSCRIPT | COMMAND_STALE, &group_server,
     "Makes a replica the primary, and the server a replica of it.", "6.2.0"},
    {"fence", fence_command, -1,
     COMMAND_NOSCRIPT | COMMAND_NO_MULTI | COMMAND_LOADING | COMMAND_STALE | COMMAND_FAST | COMMAND_IN_LOG |
         COMMAND_TELLS_PART,
     &group_server, "Tells of the newest primary, so that an older one refuses writes; returns part and epochs.",
     "0.1.0", .categories = ACL_ADMIN | ACL_FAST | ACL_DANGEROUS},
    {"psync", psync_command, -3, SYNCHRONISE, &group_server,
     "Makes the client a replica that may have been one before.", "2.8.0"},
    {"replconf", replconf_command, -1,
     COMMAND_ADMIN | COMMAND_NOSCRIPT | COMMAND_LOADING | COMMAND_STALE | COMMAND_ALLOW_BUSY, &group_server,
     "Takes what a replica says of itself.", "3.0.0"},
    {"replicaof", replicaof_command, 3, FOLLOW, &group_server, "Makes the server a replica of another, or of no one.",
     "5.0.0"},
    {"role", role_command, 1, COMMAND_NOSCRIPT | COMMAND_LOADING | COMMAND_STALE | COMMAND_FAST, &group_server,
     "Returns the part in replication.", "2.8.12", .categories = ACL_ADMIN | ACL_FAST | ACL_DANGEROUS},
    {"slaveof", replicaof_command, 3, FOLLOW, &group_server, "REPLICAOF by its former name.", "1.0.0"},
    {"sync", sync_command, 1, SYNCHRONISE, &group_server, "Makes the client a replica, which is sent all keys.",
     "1.0.0"},
    {"wait", wait_command, 3, COMMAND_NOSCRIPT, &group_generic,
     "Waits until replicas have what the client has written.", "3.0.0",
     .tips = "request_policy:all_shards\nresponse_policy:agg_min", .categories = ACL_SLOW | ACL_CONNECTION},
    {0},
};

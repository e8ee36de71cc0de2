#include "server/replication/replication_subsystem.h"

#include <inttypes.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "server/core/config.h"
#include "server/durability/durability_subsystem.h"
#include "server/durability/snapshots.h"
#include "server/replication/epoch.h"
#include "server/replication/replicas.h"
#include "server/replication/table_replication.h"

#define SECOND_US 1000000u

static void replication_new_id(char id[REPLICATION_ID_LENGTH + 1]) {
    struct random_state random;
    random_seed(&random, random_entropy());
    for (unsigned i = 0; i < REPLICATION_ID_LENGTH; i++) id[i] = "0123456789abcdef"[random_below(&random, 16)];
    id[REPLICATION_ID_LENGTH] = '\0';
}

void replication_forget_former(struct replication_subsystem *replication) {
    memset(replication->former_id, '0', REPLICATION_ID_LENGTH);
    replication->former_until = -1;
}

bool replication_keep(struct server *server) {
    struct replication_subsystem *replication = server->replication;
    if (change_stream_is_kept(&replication->stream)) return true;
    /* Of what was changed meanwhile nobody knows: whoever was a replica before must not go on. */
    replication_new_id(replication->id);
    replication_forget_former(replication);
    table_replication_stop(server);
    server->changes.told[CHANGES_FOR_REPLICAS] = (struct changes_told){.database = -1};
    replication->ping_us = server->now_us + (uint64_t)server->config.replication.ping_period_s * SECOND_US;
    return change_stream_begin(&replication->stream, change_stream_end(&replication->stream));
}

void replication_begin_own_history(struct server *server) {
    struct replication_subsystem *replication = server->replication;
    replicas_close(replication); /* they come back, and learn of it */
    memcpy(replication->former_id, replication->id, sizeof replication->id);
    replication->former_until = (int64_t)change_stream_end(&replication->stream) + 1;
    replication_new_id(replication->id);
    replication->alone_us = server->now_us;
    server->changes.told[CHANGES_FOR_REPLICAS] = (struct changes_told){.database = -1};
}

uint64_t replication_kept_bytes(const struct server *server) {
    const struct change_stream *stream = &server->replication->stream;
    return change_stream_is_kept(stream) ? change_stream_end(stream) - stream->begin : 0;
}

/* ---- changes --------------------------------------------------------------------------------------------------------- */

struct append_buffer *replication_buffer(const struct server *server) {
    struct replication_subsystem *replication = server->replication;
    return replication && change_stream_is_kept(&replication->stream) && !server->place.is_replica && !server->loading
               ? &replication->stream.open
               : NULL;
}

void replication_added(struct server *server) {
    (void)server; /* it is sent before the turn ends */
}

void replication_lost(struct server *server) {
    struct replication_subsystem *replication = server->replication;
    replicas_close(replication);
    change_stream_drop(&replication->stream);
    table_replication_stop(server);
    server->changes.told[CHANGES_FOR_REPLICAS].in_transaction = false;
}

void replication_replied(struct client *client) {
    client->wrote_until = change_stream_end(&client->server->replication->stream);
}

/* ---- the subsystem --------------------------------------------------------------------------------------------------- */

static void follow_as_configured(struct server *server) {
    char host[256];
    int port;
    if (!config_follows(&server->config, host, &port)) return;
    link_follow(server, host, port);
    /* Nobody has just said that this primary is the right one: it may be older than what is in the files. */
    server->replication->link.was_named = false;
}

static bool create(struct server *server) {
    struct replication_subsystem *replication = server->replication = memory_calloc(1, sizeof *replication);
    if (!replication) return false;
    replication->acknowledged.each = true;
    replication->link.server = server;
    replication->tables_from = TABLES_NEVER;
    replication_new_id(replication->id);
    replication_forget_former(replication);
    server->durability->snapshots->origin = epoch_origin;
    follow_as_configured(server);
    return true;
}

static void free_subsystem(struct server *server) {
    if (!server->replication) return;
    link_free(server);
    change_stream_drop(&server->replication->stream);
    memory_free(server->replication);
    server->replication = NULL;
}

static void give_up_backlog(struct server *server) {
    struct replication_subsystem *replication = server->replication;
    uint64_t ttl_us = (uint64_t)server->config.replication.backlog_ttl_s * SECOND_US;
    if (ttl_us > 0 && replication->replica_count == 0 && !server->place.is_replica && server->changes.depth == 0 &&
        server->now_us > replication->alone_us + ttl_us) {
        change_stream_drop(&replication->stream);
        table_replication_stop(server);
    }
    /* A Redis alone has no use for them. */
    if (replicas_take_tables(replication)) replication->without_takers_us = server->now_us;
    if (server->place.streams_tables && ttl_us > 0 && server->changes.depth == 0 &&
        server->now_us > replication->without_takers_us + ttl_us)
        table_replication_stop(server);
}

static uint64_t each_second(struct server *server) {
    struct replication_subsystem *replication = server->replication;
    if (replication->has_stopped_tables) table_replication_tidy(server);
    if (!change_stream_is_kept(&replication->stream) && !server->place.is_replica) return CLOCK_NEVER;
    if (server->now_us < replication->second_us) return replication->second_us;
    replication->second_us = server->now_us + SECOND_US;
    replicas_each_second(server);
    if (server->place.is_replica) link_each_second(server);
    give_up_backlog(server);
    return replication->second_us;
}

static uint64_t before_write(struct server *server) {
    if (change_stream_is_kept(&server->replication->stream)) replicas_send(server);
    return CLOCK_NEVER;
}

static void client_left(struct client *client) {
    if (client->is_primary) link_lost(client);
    replica_leave(client);
}

static const struct info_section info[] = {{"replication", 70, replication_info}, {0}};
static const struct long_task tasks[] = {{each_second},
                                         {link_step, .waits_for_exclusive = true},
                                         {failover_step, .waits_for_exclusive = true},
                                         {.run = NULL}};
static const struct command *const commands[] = {commands_replication, NULL};

const struct subsystem replication_subsystem = {
    .name = "replication",
    .commands = commands,
    .info = info,
    .tasks = tasks,
    .before_write = before_write,
    .create = create,
    .free = free_subsystem,
    .client_left = client_left,
};

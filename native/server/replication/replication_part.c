/* replication_part: how replication enters the server. */
#include "server/replication/replication_part.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "server/durability/durability_part.h"
#include "server/durability/snapshots.h"
#include "server/replication/table_replication.h"
#include "server/replication/epoch.h"
#include "server/replication/replicas.h"

#define SECOND_US 1000000u

void replication_new_id(char id[REPLICATION_ID_LENGTH + 1]) {
    struct random_state random;
    random_seed(&random, random_entropy());
    for (unsigned i = 0; i < REPLICATION_ID_LENGTH; i++) id[i] = "0123456789abcdef"[random_below(&random, 16)];
    id[REPLICATION_ID_LENGTH] = '\0';
}

void replication_forget_former(struct replication_part *part) {
    memset(part->former_id, '0', REPLICATION_ID_LENGTH);
    part->former_until = -1;
}

bool replication_keep(struct server *server) {
    struct replication_part *part = server->replication;
    if (change_stream_is_kept(&part->stream)) return true;
    /* Of what was changed meanwhile nobody knows: whoever was a replica before must not go on. */
    replication_new_id(part->id);
    replication_forget_former(part);
    table_replication_stop(server);
    server->changes.told[CHANGES_FOR_REPLICAS] = (struct changes_told){.database = -1};
    part->ping_us = server->now_us + (uint64_t)server->config.replication.ping_period_s * SECOND_US;
    return change_stream_begin(&part->stream, change_stream_end(&part->stream));
}

void replication_begin_own_history(struct server *server) {
    struct replication_part *part = server->replication;
    replicas_close(part); /* they come back, and learn of it */
    memcpy(part->former_id, part->id, sizeof part->id);
    part->former_until = (int64_t)change_stream_end(&part->stream) + 1;
    replication_new_id(part->id);
    part->alone_us = server->now_us;
    server->changes.told[CHANGES_FOR_REPLICAS] = (struct changes_told){.database = -1};
}

uint64_t replication_kept_bytes(const struct server *server) {
    const struct change_stream *stream = &server->replication->stream;
    return change_stream_is_kept(stream) ? change_stream_end(stream) - stream->begin : 0;
}

/* ---- changes --------------------------------------------------------------------------------------------------------- */

struct append_buffer *replication_buffer(const struct server *server) {
    struct replication_part *part = server->replication;
    return part && change_stream_is_kept(&part->stream) && !server->place.is_replica && !server->loading
               ? &part->stream.open
               : NULL;
}

void replication_added(struct server *server) {
    (void)server; /* it is sent before the turn ends */
}

void replication_lost(struct server *server) {
    struct replication_part *part = server->replication;
    replicas_close(part);
    change_stream_drop(&part->stream);
    table_replication_stop(server);
    server->changes.told[CHANGES_FOR_REPLICAS].in_transaction = false;
}

void replication_replied(struct client *client) {
    client->wrote_until = change_stream_end(&client->server->replication->stream);
}

/* ---- the part -------------------------------------------------------------------------------------------------------- */

static void follow_as_configured(struct server *server) {
    char host[256];
    int port;
    if (sscanf(server->config.replication.follows, "%255s %d", host, &port) != 2) return;
    link_follow(server, host, port);
    /* Nobody has just said that this primary is the right one: it may be older than what is in the files. */
    server->replication->link.was_named = false;
}

static bool create(struct server *server) {
    struct replication_part *part = server->replication = memory_calloc(1, sizeof *part);
    if (!part) return false;
    part->acknowledged.each = true;
    part->link.server = server;
    part->tables_from = TABLES_NEVER;
    replication_new_id(part->id);
    replication_forget_former(part);
    server->durability->snapshots->origin = epoch_origin;
    follow_as_configured(server);
    return true;
}

static void free_part(struct server *server) {
    if (!server->replication) return;
    link_free(server);
    change_stream_drop(&server->replication->stream);
    memory_free(server->replication);
    server->replication = NULL;
}

static void give_up_backlog(struct server *server) {
    struct replication_part *part = server->replication;
    uint64_t ttl_us = (uint64_t)server->config.replication.backlog_ttl_s * SECOND_US;
    if (ttl_us > 0 && part->replica_count == 0 && !server->place.is_replica && server->changes.depth == 0 &&
        server->now_us > part->alone_us + ttl_us) {
        change_stream_drop(&part->stream);
        table_replication_stop(server);
    }
    /* A Redis alone has no use for them. */
    if (replicas_take_tables(part)) part->without_takers_us = server->now_us;
    if (server->place.streams_tables && ttl_us > 0 && server->changes.depth == 0 &&
        server->now_us > part->without_takers_us + ttl_us)
        table_replication_stop(server);
}

static uint64_t each_second(struct server *server) {
    struct replication_part *part = server->replication;
    if (part->has_stopped_tables) table_replication_tidy(server);
    if (!change_stream_is_kept(&part->stream) && !server->place.is_replica) return CLOCK_NEVER;
    if (server->now_us < part->second_us) return part->second_us;
    part->second_us = server->now_us + SECOND_US;
    replicas_each_second(server);
    if (server->place.is_replica) link_each_second(server);
    give_up_backlog(server);
    return part->second_us;
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

const struct subsystem replication_part = {
    .name = "replication",
    .commands = commands,
    .info = info,
    .tasks = tasks,
    .before_write = before_write,
    .create = create,
    .free = free_part,
    .client_left = client_left,
};

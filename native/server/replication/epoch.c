/* epoch: how it is raised, heard of, and kept. */
#include "server/replication/epoch.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/core/client.h"
#include "server/core/propagate.h"
#include "server/core/server.h"
#include "server/redis/keys/keyspace.h"
#include "server/replication/replicas.h"
#include "server/replication/replication_part.h"

/* As FENCE reads it while the file is loaded. */
static void keep(struct server *server) {
    char newest[24], own[24];
    int newest_length = snprintf(newest, sizeof newest, "%" PRIu64, server->newest_epoch);
    int own_length = snprintf(own, sizeof own, "%" PRIu64, server->epoch);
    char name[] = "FENCE";
    const struct resp_argument argv[3] = {{.data = (uint8_t *)name, .length = strlen(name)},
                                          {.data = (uint8_t *)newest, .length = (size_t)newest_length},
                                          {.data = (uint8_t *)own, .length = (size_t)own_length}};
    propagate_to_file(server, 3, argv);
}

static void set(struct server *server, uint64_t epoch, uint64_t newest) {
    if (server->epoch == epoch && server->newest_epoch == newest) return;
    /* They are told when they come back. */
    if (server->epoch != epoch) replicas_close(server->replication);
    server->epoch = epoch;
    server->newest_epoch = newest;
    keep(server);
}

void epoch_raise(struct server *server) {
    int64_t now_ms = clock_unix_ms();
    uint64_t next = server->newest_epoch + 1, now = now_ms > 0 ? (uint64_t)now_ms : 0;
    if (next < now) next = now;
    set(server, next, next);
    log_event(LOG_NOTICE, "epoch", LOG_FIELDS({"epoch", .number = (int64_t)next}),
              "this primary is the newest, of epoch %" PRIu64, next);
}

void epoch_follow(struct server *server, uint64_t epoch) {
    set(server, epoch, epoch);
}

void epoch_hear(struct server *server, uint64_t epoch) {
    if (epoch <= server->newest_epoch) return;
    bool was_fenced = server_is_fenced(server);
    set(server, server->epoch, epoch);
    if (was_fenced || !server_is_fenced(server)) return;
    char text[400];
    snprintf(text, sizeof text, SERVER_FENCED_REFUSAL, server->epoch, server->newest_epoch);
    log_event(
        LOG_WARNING, "fenced",
        LOG_FIELDS({"epoch", .number = (int64_t)server->epoch}, {"newest", .number = (int64_t)server->newest_epoch}),
        "writes are refused: a newer primary, of epoch %" PRIu64 ", has taken the place of this one, of epoch "
        "%" PRIu64,
        server->newest_epoch, server->epoch);
    link_interrupt_waiting(server, text);
}

void epoch_succeed(struct server *server, uint64_t epoch) {
    if (server->is_replica) {
        epoch_hear(server, epoch);
    } else if (epoch > server->epoch) {
        uint64_t next = epoch + 1;
        set(server, next, next > server->newest_epoch ? next : server->newest_epoch);
    }
}

/* ---- the command ------------------------------------------------------------------------------------------------------ */

/* False: the error is replied. */
static bool read_epoch(struct client *client, uint32_t index, uint64_t *epoch) {
    int64_t number = 0;
    if (client->argc > index && !integer_argument(client, index, &number)) return false;
    *epoch = (uint64_t)number;
    if (number >= 0 && (number <= EPOCH_MOST || client->server->loading)) return true;
    reply_error(client, "ERR expected an epoch from 0 to %" PRId64 ", got %" PRId64, EPOCH_MOST, number);
    return false;
}

/* FENCE [newest]: the newest epoch that the client knows of. In the append-only file FENCE newest own. */
void fence_command(struct client *client) {
    struct server *server = client->server;
    uint64_t newest, own;
    if (client->argc > (server->loading ? 3u : 2u)) {
        reply_syntax_error(client);
        return;
    }
    if (!read_epoch(client, 1, &newest) || !read_epoch(client, 2, &own)) return;
    if (server->loading) {
        server->epoch = own;
        server->newest_epoch = newest > own ? newest : own;
    } else {
        epoch_hear(server, newest);
    }
    reply_array(client, 3);
    reply_bulk_string(client, server->is_replica ? "slave" : "master");
    reply_integer(client, (int64_t)server->epoch);
    reply_integer(client, (int64_t)server->newest_epoch);
}

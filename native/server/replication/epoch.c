/* epoch: how it is raised, heard of, and kept. */
#include "server/replication/epoch.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "server/core/client.h"
#include "server/core/propagate.h"
#include "server/core/server.h"
#include "server/durability/durability_subsystem.h"
#include "server/durability/snapshots.h"
#include "server/redis/keys/keyspace.h"
#include "server/replication/replicas.h"
#include "server/replication/replication_subsystem.h"

/* As FENCE reads it while the file is loaded. */
static void keep(struct server *server) {
    char words[5][24] = {"FENCE"};
    struct resp_argument argv[5];
    snprintf(words[1], sizeof words[1], "%" PRIu64, server->place.newest_epoch);
    snprintf(words[2], sizeof words[2], "%" PRIu64, server->place.epoch);
    snprintf(words[3], sizeof words[3], EPOCH_ORIGIN_FORMAT, server->place.origin);
    snprintf(words[4], sizeof words[4], "%d", server->place.is_copy);
    for (int i = 0; i < 5; i++)
        argv[i] = (struct resp_argument){.data = (uint8_t *)words[i], .length = strlen(words[i])};
    propagate_to_file(server, 5, argv);
}

static void set(struct server *server, uint64_t epoch, uint64_t newest, uint64_t origin, bool is_copy) {
    if (server->place.epoch == epoch && server->place.newest_epoch == newest && server->place.origin == origin &&
        server->place.is_copy == is_copy)
        return;
    bool is_other = server->place.epoch != epoch || server->place.origin != origin || server->place.is_copy != is_copy;
    /* They are told when they come back. */
    if (server->place.epoch != epoch) replicas_close(server->replication);
    server->place.epoch = epoch;
    server->place.newest_epoch = newest;
    server->place.origin = origin;
    server->place.is_copy = is_copy;
    keep(server);
    if (is_other) snapshots_note_change_of_part(server->durability->snapshots);
}

static uint64_t origin_or_new(const struct server *server) {
    return server->place.origin ? server->place.origin : random_entropy() | 1;
}

uint64_t epoch_origin(struct server *server) {
    if (!server->place.is_replica)
        set(server, server->place.epoch, server->place.newest_epoch, origin_or_new(server), server->place.is_copy);
    return server->place.origin;
}

void epoch_raise(struct server *server) {
    int64_t now_ms = clock_unix_ms();
    uint64_t next = server->place.newest_epoch + 1, now = now_ms > 0 ? (uint64_t)now_ms : 0;
    if (next < now) next = now;
    set(server, next, next, origin_or_new(server), false);
    log_event(LOG_NOTICE, "epoch", LOG_FIELDS({"epoch", .number = (int64_t)next}),
              "this primary is the newest, of epoch %" PRIu64, next);
}

void epoch_follow(struct server *server, uint64_t epoch, uint64_t origin) {
    if (server->place.origin != origin) replicas_close(server->replication); /* likewise */
    set(server, epoch, epoch, origin, true);
}

void epoch_hear(struct server *server, uint64_t epoch) {
    if (epoch <= server->place.newest_epoch) return;
    bool was_fenced = server_is_fenced(server);
    set(server, server->place.epoch, epoch, server->place.origin, server->place.is_copy);
    if (was_fenced || !server_is_fenced(server)) return;
    char text[400];
    snprintf(text, sizeof text, SERVER_FENCED_REFUSAL, server->place.epoch, server->place.newest_epoch);
    log_event(LOG_WARNING, "fenced",
              LOG_FIELDS({"epoch", .number = (int64_t)server->place.epoch},
                         {"newest", .number = (int64_t)server->place.newest_epoch}),
              "writes are refused: a newer primary, of epoch %" PRIu64 ", has taken the place of this one, of epoch "
              "%" PRIu64,
              server->place.newest_epoch, server->place.epoch);
    link_interrupt_waiting(server, text);
}

void epoch_succeed(struct server *server, uint64_t epoch) {
    if (server->place.is_replica) {
        epoch_hear(server, epoch);
    } else if (epoch > server->place.epoch) {
        uint64_t next = epoch + 1;
        set(server, next, next > server->place.newest_epoch ? next : server->place.newest_epoch, server->place.origin,
            server->place.is_copy);
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

bool epoch_read_origin(const struct resp_argument *word, uint64_t *origin) {
    char digits[17] = "", *end;
    if (word->length != 16) return false;
    memcpy(digits, word->data, 16);
    if (strspn(digits, "0123456789abcdef") != 16) return false;
    *origin = strtoull(digits, &end, 16);
    return true;
}

/* As keep() wrote it; former files have no more than two epochs. False: the error is replied. */
static bool load(struct client *client) {
    struct server *server = client->server;
    uint64_t newest, own, origin = 0;
    if (!read_epoch(client, 1, &newest) || !read_epoch(client, 2, &own)) return false;
    if (client->argc > 3 && !epoch_read_origin(&client->argv[3], &origin)) {
        reply_syntax_error(client);
        return false;
    }
    server->place.epoch = own;
    server->place.newest_epoch = newest > own ? newest : own;
    server->place.origin = origin;
    server->place.is_copy = client->argc > 4 && argument_is(&client->argv[4], "1");
    return true;
}

/* The newest epoch that the client knows of the origin; without an origin whatever the data are. False: the error is
 * replied. */
static bool hear(struct client *client) {
    struct server *server = client->server;
    uint64_t newest, origin = 0;
    if (!read_epoch(client, 1, &newest)) return false;
    if (client->argc > 2 && !epoch_read_origin(&client->argv[2], &origin)) {
        reply_error(client, "ERR expected an origin, sixteen hexadecimal digits as FENCE replies them");
        return false;
    }
    if (epoch_origin(server) == origin || client->argc <= 2) epoch_hear(server, newest);
    return true;
}

/* FENCE [newest [origin]]. In the append-only file FENCE newest own origin is_copy. */
void fence_command(struct client *client) {
    struct server *server = client->server;
    if (client->argc > (server->loading ? 5u : 3u)) {
        reply_syntax_error(client);
        return;
    }
    if (!(server->loading ? load : hear)(client)) return;
    reply_array(client, 4);
    reply_bulk_string(client, server->place.is_replica || server->place.is_copy ? "slave" : "master");
    reply_integer(client, (int64_t)server->place.epoch);
    reply_integer(client, (int64_t)server->place.newest_epoch);
    reply_bulk_format(client, EPOCH_ORIGIN_FORMAT, server->place.origin);
}

/* replicas: a file of all keys, or of everything, as they were at an offset, then every change from that offset on.
 *
 * Why nothing is missing and nothing comes twice: the store is cut between two commands, outside of any transaction, and the
 * replica's position is taken in that moment, at the end of the stream. What was changed before is in the file alone, what
 * is changed later in the stream alone. */
#include "server/replication/replicas.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/list.h"
#include "base/log.h"
#include "base/memory.h"
#include "server/durability/durability_subsystem.h"
#include "server/replication/epoch.h"
#include "server/replication/received_file.h"
#include "server/replication/table_replication.h"

#define SENT_AT_ONCE (1u << 20)    /* bytes of changes that are put behind what a replica is being sent … */
#define SENT_LOW_WATER (256u << 10) /* … once so little of that is left */
#define NEWLINE_US 1000000u

static struct replication_subsystem *replication_of(const struct replica *replica) {
    return replica->client->server->replication;
}

static void say(const struct replica *replica, enum log_level level, const char *event, const char *what) {
    const struct client *client = replica->client;
    log_event(level, event,
              LOG_FIELDS({"client", .number = (int64_t)client->id}, {"peer", .text = client->connection->peer}),
              "replica %s %s", client->connection->peer, what);
}

/* ---- coming and going ------------------------------------------------------------------------------------------------ */

struct replica *replica_of(struct client *client) {
    if (client->replica) return client->replica;
    struct replica *replica = client->replica = memory_calloc(1, sizeof *replica);
    if (replica) replica->client = client;
    return replica;
}

static void attach(struct replica *replica, enum replica_state state) {
    struct replication_subsystem *replication = replication_of(replica);
    const struct server *server = replica->client->server;
    replica->state = state;
    replica->acknowledged_us = replica->newline_us = server->now_us;
    replica->client->reply_mode = CLIENT_REPLY_OFF;
    LIST_PUSH(replication->replicas, replica, next, previous);
    replication->replica_count++;
}

static void stand_at(struct replica *replica, uint64_t offset, struct change_position position) {
    change_position_leave(&replica->position);
    replica->position = position;
    replica->sent_until = offset;
}

static struct replica *replica_waiting(struct export_request *request) {
    return (struct replica *)((char *)request - offsetof(struct replica, request));
}

static int begun(struct export_request *request) {
    struct replica *replica = replica_waiting(request);
    struct replication_subsystem *replication = replication_of(replica);
    struct server *server = replica->client->server;
    struct change_position position;
    char line[160];
    uint64_t offset = change_stream_end(&replication->stream);
    if (!change_stream_settle(&replication->stream, (size_t)server->config.replication.backlog_bytes) ||
        !change_stream_find(&replication->stream, offset, &position)) {
        replica->client->output_failed = true; /* the next write closes it */
        client_send(replica->client, "\n", 1);
        return 0;
    }
    stand_at(replica, offset, position);
    if (request->with_tables && !server->place.is_replica) table_replication_begin(server);
    server->changes.told[CHANGES_FOR_REPLICAS].database = -1; /* this one knows of none */
    int length = snprintf(line, sizeof line, "+FULLRESYNC %s %" PRIu64, replication->id, offset);
    length += replica_epoch_words(replica, line + length, sizeof line - (size_t)length);
    if (replica->acknowledges) client_send(replica->client, line, (size_t)length);
    replica->database = server->place.is_replica ? replication->primary_database : 0;
    return replica->database;
}

static void fail_copy(struct replica *replica, const char *why) {
    struct client *client = replica->client;
    say(replica, LOG_WARNING, "replica_failed", why);
    if (!replica->acknowledges && replica->state == REPLICA_WAITS) {
        client_send(client, "-ERR ", 5);
        client_send(client, why, strlen(why));
        client_send(client, "\r\n", 2);
    }
    client_close_after_reply(client);
}

__attribute__((format(printf, 2, 3))) static void send_line(struct client *client, const char *format, ...) {
    char line[64];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    client_send(client, line, (size_t)length);
}

static void grown(struct export_request *request, struct exported *part) {
    struct replica *replica = replica_waiting(request);
    struct client *client = replica->client;
    if (client->close_after_reply) return; /* an earlier part is missing */
    struct reply_source *source = export_source(part);
    if (!source) {
        fail_copy(replica, "cannot be sent everything: out of memory");
        return;
    }
    if (replica->state == REPLICA_WAITS) send_line(client, RECEIVED_SNAPSHOT "%d\r\n", replica->database);
    replica->state = REPLICA_LOADS;
    send_line(client, "%zu\r\n", source->length_bytes);
    client_send_source(client, source);
}

static void made(struct export_request *request, struct exported *exported, const struct error *error) {
    struct replica *replica = replica_waiting(request);
    struct client *client = replica->client;
    if (client->close_after_reply) return;
    if (error->code != ERROR_NONE) {
        fail_copy(replica, error->message);
        return;
    }
    if (request->with_tables) {
        send_line(client, "0\r\n");
    } else {
        struct reply_source *source = export_source(exported);
        if (!source) {
            fail_copy(replica, "cannot be sent keys: out of memory");
            return;
        }
        send_line(client, "$%zu\r\n", source->length_bytes);
        client_send_source(client, source);
    }
    replica->state = REPLICA_LOADS;
    replica->is_whole = true;
    if (replica->wants_file_alone) client->close_after_reply = true;
}

int replica_epoch_words(const struct replica *replica, char *words, size_t size) {
    if (!replica->knows_epochs) return snprintf(words, size, "\r\n");
    const struct server *server = replica->client->server;
    return snprintf(words, size, " EPOCH %" PRIu64 " ORIGIN " EPOCH_ORIGIN_FORMAT "\r\n", server->place.epoch,
                    server->place.origin);
}

void replica_synchronise(struct replica *replica) {
    const struct server *server = replica->client->server;
    attach(replica, REPLICA_WAITS);
    replication_of(replica)->full++;
    replica->request.begun = begun;
    replica->request.grown = grown;
    replica->request.made = made;
    replica->request.takes_tables = replica->takes_tables;
    say(replica, LOG_NOTICE, "replica_full", replica->takes_tables ? "asks for everything" : "asks for all keys");
    export_ask(server->durability->export, &replica->request);
}

bool replica_continue(struct replica *replica, uint64_t offset) {
    struct replication_subsystem *replication = replication_of(replica);
    const struct server *server = replica->client->server;
    struct change_position position;
    if (!change_stream_settle(&replication->stream, (size_t)server->config.replication.backlog_bytes) ||
        !change_stream_find(&replication->stream, offset, &position))
        return false;
    attach(replica, REPLICA_ONLINE);
    stand_at(replica, offset, position);
    replica->acknowledged = offset;
    replication->partial++;
    say(replica, LOG_NOTICE, "replica_continues", "goes on where it was");
    return true;
}

void replica_leave(struct client *client) {
    struct replica *replica = client->replica;
    if (!replica) return;
    struct replication_subsystem *replication = replication_of(replica);
    if (replica->state != REPLICA_TALKS) {
        export_forget(client->server->durability->export, &replica->request);
        change_position_leave(&replica->position);
        LIST_TAKE_OUT(replication->replicas, replica, next, previous);
        replication->replica_count--;
        replication->alone_us = client->server->now_us;
        say(replica, LOG_NOTICE, "replica_gone", "is gone");
    }
    client->replica = NULL;
    memory_free(replica);
}

void replicas_close(struct replication_subsystem *replication) {
    for (struct replica *replica = replication->replicas, *next; replica; replica = next) {
        next = replica->next;
        client_close(replica->client);
    }
}

/* ---- sending --------------------------------------------------------------------------------------------------------- */

/* More waits for it than may: it is closed, and comes back for what it has missed. */
static bool is_over_limit(struct replica *replica, uint64_t waiting) {
    const struct server *server = replica->client->server;
    const struct output_limit *limit = &server->config.output_limits[OUTPUT_REPLICA];
    if (limit->hard_bytes > 0 && waiting > (uint64_t)limit->hard_bytes) return true;
    if (limit->soft_bytes == 0 || waiting <= (uint64_t)limit->soft_bytes) {
        replica->soft_limit_us = 0;
        return false;
    }
    if (replica->soft_limit_us == 0) replica->soft_limit_us = server->now_us;
    return server->now_us > replica->soft_limit_us + (uint64_t)limit->soft_s * 1000000u;
}

static void send_changes(struct replica *replica) {
    struct client *client = replica->client;
    const struct change_stream *stream = &replication_of(replica)->stream;
    if (!replica->position.block) return;
    size_t unsent = client->output.unsent_bytes;
    uint64_t waiting = stream->end - replica->sent_until;
    bool is_online = replica->state == REPLICA_ONLINE;
    if (is_over_limit(replica, waiting + (is_online ? unsent : 0))) {
        say(replica, LOG_WARNING, "client_closed", "is closed: its output waits");
        client->server->stats.output_limit_closes++;
        client_close(client);
        return;
    }
    if (replica->state == REPLICA_LOADS && replica->is_whole && unsent == 0 && !replica->wants_file_alone) {
        replica->state = REPLICA_ONLINE;
        replica->acknowledged_us = client->server->now_us;
        say(replica, LOG_NOTICE, "replica_online", "has been sent all keys");
    }
    if (replica->state != REPLICA_ONLINE || waiting == 0 || unsent > SENT_LOW_WATER) return;
    size_t bytes = waiting < SENT_AT_ONCE ? (size_t)waiting : SENT_AT_ONCE;
    change_position_send(&replica->position, bytes, client);
    replica->sent_until += bytes;
}

void replicas_ask(struct server *server) {
    static const char *const words[] = {"REPLCONF", "GETACK", "*"};
    struct resp_argument argv[3];
    for (int i = 0; i < 3; i++)
        argv[i] = (struct resp_argument){.data = (uint8_t *)(uintptr_t)words[i], .length = strlen(words[i])};
    propagate_to_replicas(server, 3, argv);
}

void replicas_send(struct server *server) {
    struct replication_subsystem *replication = server->replication;
    if (replication->asks && server->changes.depth == 0 && !server->place.is_replica &&
        replication->failover.state == FAILOVER_NONE) {
        replication->asks = false;
        replicas_ask(server);
    }
    if (!change_stream_settle(&replication->stream, (size_t)server->config.replication.backlog_bytes)) {
        replication_lost(server);
        return;
    }
    for (struct replica *replica = replication->replicas, *next; replica; replica = next) {
        next = replica->next;
        send_changes(replica);
    }
}

/* ---- time ------------------------------------------------------------------------------------------------------------ */

static bool is_good(const struct replica *replica) {
    const struct server *server = replica->client->server;
    uint64_t most_us = (uint64_t)server->config.replication.min_replicas_max_lag_s * 1000000u;
    return replica->state == REPLICA_ONLINE && server->now_us <= replica->acknowledged_us + most_us;
}

static void look_at(struct replica *replica) {
    struct client *client = replica->client;
    uint64_t now_us = client->server->now_us;
    uint64_t timeout_us = (uint64_t)client->server->config.replication.timeout_s * 1000000u;
    bool lacks_part = replica->state == REPLICA_LOADS && !replica->is_whole && client->output.unsent_bytes == 0;
    if ((replica->state == REPLICA_WAITS || lacks_part) && now_us >= replica->newline_us + NEWLINE_US) {
        client_send(client, "\n", 1);
        replica->newline_us = now_us;
    }
    uint64_t lived_us = replica->acknowledged_us > client->input_us ? replica->acknowledged_us : client->input_us;
    if (replica->state != REPLICA_ONLINE || !replica->acknowledges || now_us <= lived_us + timeout_us) return;
    say(replica, LOG_WARNING, "client_closed", "is closed: it has not acknowledged anything for repl-timeout seconds");
    client_close(client);
}

static void ping(struct server *server) {
    struct replication_subsystem *replication = server->replication;
    if (server->place.is_replica || replication->replica_count == 0 || server->now_us < replication->ping_us ||
        server->changes.depth > 0 || replication->failover.state != FAILOVER_NONE)
        return;
    const struct resp_argument word = {.data = (uint8_t *)(uintptr_t)"PING", .length = 4};
    replication->ping_us = server->now_us + (uint64_t)server->config.replication.ping_period_s * 1000000u;
    propagate_to_replicas(server, 1, &word);
}

void replicas_each_second(struct server *server) {
    struct replication_subsystem *replication = server->replication;
    ping(server);
    uint32_t good = 0;
    for (struct replica *replica = replication->replicas, *next; replica; replica = next) {
        next = replica->next;
        if (is_good(replica)) good++;
        look_at(replica);
    }
    server->place.good_replicas = good;
}

/* ---- what is asked --------------------------------------------------------------------------------------------------- */

uint32_t replicas_count(const struct replication_subsystem *replication, uint64_t offset) {
    uint32_t count = 0;
    for (const struct replica *replica = replication->replicas; replica; replica = replica->next)
        if (replica->state == REPLICA_ONLINE && replica->acknowledged >= offset) count++;
    return count;
}

bool replicas_take_tables(const struct replication_subsystem *replication) {
    const struct replica *replica = replication->replicas;
    while (replica && !replica->takes_tables) replica = replica->next;
    return replica;
}

void replica_host(const struct replica *replica, char host[256]) {
    const char *from = replica->client->connection->peer;
    if (replica->host[0] != '\0') {
        snprintf(host, 256, "%s", replica->host);
        return;
    }
    const char *end = strrchr(from, ':');
    if (*from == '[') {
        from++;
        end = strchr(from, ']');
    }
    snprintf(host, 256, "%.*s", end ? (int)(end - from) : (int)strlen(from), from);
}

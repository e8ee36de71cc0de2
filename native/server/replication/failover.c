/* failover: FAILOVER, from the primary's side.
 *
 * Why nothing that a client was told of is lost: commands that write wait from the beginning on, and batches that were
 * amid their parts end first, so the stream ends with the last change that was replied to. The target has acknowledged
 * that end before it is asked to be the primary, and it agrees only if its history has the same id. The commands that
 * wait run when that is settled: they are refused as by any replica, or they are run here because the failover was given
 * up. Only FORCE goes on without the acknowledgement. */
#include "server/replication/failover.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/redis/keys/keyspace.h"
#include "server/replay/replay_registry.h"
#include "server/replay/replay_subsystem.h"
#include "server/replication/replicas.h"
#include "server/replication/replication_subsystem.h"

#define LOOK_AGAIN_US 1000u /* whether batches have ended */
#define IS_PRIMARY_ALREADY "-ERR PSYNC FAILOVER can't be sent to a master"

static struct failover *failover_of(const struct server *server) {
    return &server->replication->failover;
}

static void say(const struct failover *failover, enum log_level level, const char *event, const char *what) {
    bool is_any = failover->host[0] == '\0';
    log_event(level, event, LOG_FIELDS({"host", .text = failover->host}, {"port", .number = failover->port}),
              "failover to %s:%" PRId64 " %s", is_any ? "any replica" : failover->host, failover->port, what);
}

/* ---- from beginning to end ---------------------------------------------------------------------------------------------- */

static void hold_changes(struct server *server, bool holds) {
    server->pause.for_failover = holds;
    pause_hold_expiry(server);
}

static void end(struct server *server) {
    *failover_of(server) = (struct failover){.state = FAILOVER_NONE};
    hold_changes(server, false);
}

static void give_up(struct server *server, const char *why) {
    struct failover *failover = failover_of(server);
    char text[400];
    snprintf(text, sizeof text, "is given up: %s", why);
    say(failover, LOG_WARNING, "failover_given_up", text);
    if (failover->state == FAILOVER_IN_PROGRESS) link_end(server);
    end(server);
}

static void hand_over(struct server *server, const char *why) {
    struct failover *failover = failover_of(server);
    say(failover, LOG_NOTICE, "failover_in_progress", why);
    failover->state = FAILOVER_IN_PROGRESS;
    link_follow(server, failover->host, failover->port);
}

void failover_answered(struct server *server, const char *line) {
    struct failover *failover = failover_of(server);
    if (failover->state != FAILOVER_IN_PROGRESS) return;
    bool accepted = strncmp(line, "+CONTINUE", 9) == 0 || strncmp(line, "+FULLRESYNC", 11) == 0;
    /* It took over, but the connection was lost before it could say so. */
    bool has_accepted = strncmp(line, IS_PRIMARY_ALREADY, strlen(IS_PRIMARY_ALREADY)) == 0;
    if (!accepted && !has_accepted) {
        char text[300];
        snprintf(text, sizeof text, "PSYNC was answered by: %.200s", line);
        give_up(server, text);
        return;
    }
    say(failover, LOG_NOTICE, "failover_done", "is done: it is the primary now");
    end(server);
}

/* ---- waiting ------------------------------------------------------------------------------------------------------------ */

static const struct replica *find(const struct server *server, const char *host, int64_t port) {
    for (const struct replica *replica = server->replication->replicas; replica; replica = replica->next) {
        char name[256];
        replica_host(replica, name);
        if (replica->port == port && strcasecmp(name, host) == 0) return replica;
    }
    return NULL;
}

static bool has_all(const struct replica *replica, const struct failover *failover) {
    return replica->state == REPLICA_ONLINE && replica->acknowledged >= failover->wanted &&
           replica->acknowledged <= failover->asked_until;
}

static const struct replica *find_with_all(const struct server *server) {
    const struct failover *failover = failover_of(server);
    const struct replica *replica = server->replication->replicas;
    if (failover->host[0] != '\0') {
        replica = find(server, failover->host, failover->port);
        return replica && has_all(replica, failover) ? replica : NULL;
    }
    while (replica && !has_all(replica, failover)) replica = replica->next;
    return replica;
}

/* Replicas acknowledge each second by themselves. What they are asked stands in the stream and is no change. True: there
 * was something to ask for. */
static bool ask_for_all(struct server *server) {
    struct failover *failover = failover_of(server);
    uint64_t offset = change_stream_end(&server->replication->stream);
    if (offset == failover->asked_until) return false;
    failover->wanted = offset;
    replicas_ask(server);
    failover->asked_until = change_stream_end(&server->replication->stream);
    return true;
}

uint64_t failover_step(struct server *server) {
    struct failover *failover = failover_of(server);
    if (failover->state != FAILOVER_WAITS) return CLOCK_NEVER;
    if (server->changes.depth > 0) return server->now_us;
    if (server->now_us >= failover->end_us) {
        if (failover->is_forced)
            hand_over(server, "is forced: it has not acknowledged all changes in time");
        else
            give_up(server, "no replica has acknowledged all changes in time");
        return CLOCK_NEVER;
    }
    if (replay_registry_is_amid(server->replay->tables)) return server->now_us + LOOK_AGAIN_US;
    if (ask_for_all(server)) return server->now_us; /* which is written in the next turn */
    const struct replica *target = find_with_all(server);
    if (!target) return failover->end_us;
    replica_host(target, failover->host);
    failover->port = target->port;
    hand_over(server, "goes on: it has all changes");
    return CLOCK_NEVER;
}

/* ---- the command -------------------------------------------------------------------------------------------------------- */

struct wish {
    const struct resp_argument *host; /* NULL: any replica */
    int64_t port, timeout_ms;
    bool is_forced, has_timeout;
};

/* False: the error is replied. */
static bool read_wish(struct client *client, struct wish *wish) {
    for (uint32_t i = 1; i < client->argc; i++) {
        const struct resp_argument *word = &client->argv[i];
        uint32_t left = client->argc - i - 1;
        if (argument_is(word, "timeout") && left >= 1 && !wish->has_timeout) {
            if (!integer_argument(client, ++i, &wish->timeout_ms)) return false;
            if (wish->timeout_ms <= 0) {
                reply_error(client, "ERR FAILOVER timeout must be greater than 0");
                return false;
            }
            wish->has_timeout = true;
        } else if (argument_is(word, "to") && left >= 2 && !wish->host) {
            wish->host = &client->argv[i + 1];
            if (!integer_argument(client, i += 2, &wish->port)) return false;
        } else if (argument_is(word, "force") && !wish->is_forced) {
            wish->is_forced = true;
        } else {
            reply_syntax_error(client);
            return false;
        }
    }
    return true;
}

/* Why it cannot begin; NULL: it can. */
static const char *refusal(const struct server *server, const struct wish *wish) {
    if (failover_of(server)->state != FAILOVER_NONE) return "FAILOVER already in progress.";
    if (server->place.is_replica) return "FAILOVER is not valid when server is a replica.";
    if (server->replication->replica_count == 0) return "FAILOVER requires connected replicas.";
    if (wish->is_forced && (!wish->has_timeout || !wish->host))
        return "FAILOVER with force option requires both a timeout and target HOST and IP.";
    if (!wish->host) return NULL;
    char host[256] = "";
    if (wish->host->length < sizeof host) memcpy(host, wish->host->data, wish->host->length);
    const struct replica *target = find(server, host, wish->port);
    if (!target) return "FAILOVER target HOST and PORT is not a replica.";
    return target->state == REPLICA_ONLINE ? NULL : "FAILOVER target replica is not online.";
}

static void begin(struct server *server, const struct wish *wish) {
    struct failover *failover = failover_of(server);
    *failover = (struct failover){.state = FAILOVER_WAITS, .port = wish->port, .is_forced = wish->is_forced};
    if (wish->host) memcpy(failover->host, wish->host->data, wish->host->length);
    bool ends = wish->has_timeout && wish->timeout_ms < INT64_MAX / 1000000;
    failover->end_us = ends ? server->now_us + (uint64_t)wish->timeout_ms * 1000 : CLOCK_NEVER;
    hold_changes(server, true);
    say(failover, LOG_NOTICE, "failover_begun", "is asked for");
}

/* FAILOVER [TO host port [FORCE]] [TIMEOUT milliseconds] · FAILOVER ABORT */
void failover_command(struct client *client) {
    struct server *server = client->server;
    if (client->argc == 2 && argument_is(&client->argv[1], "abort")) {
        if (failover_of(server)->state == FAILOVER_NONE) {
            reply_error(client, "ERR No failover in progress.");
            return;
        }
        give_up(server, "FAILOVER ABORT");
        reply_status(client, "OK");
        return;
    }
    struct wish wish = {.host = NULL};
    if (!read_wish(client, &wish)) return;
    const char *why_not = refusal(server, &wish);
    if (why_not) {
        reply_error(client, "ERR %s", why_not);
        return;
    }
    begin(server, &wish);
    reply_status(client, "OK");
}

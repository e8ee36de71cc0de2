/* primary_link: connects, greets, receives all keys or goes on where it was, and follows.
 *
 * Why no change is missed and none is applied twice: the offset moves when a request has been run, by the bytes that it came
 * in, and with a transaction only when that is complete. What was run is in the stream then, so the end of the stream is
 * where the next PSYNC asks to go on. The keys of a file and its offset take the place of those before in one step. */
#include "server/replication/primary_link.h"

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "server/core/exclusive_execution.h"
#include "server/core/pause.h"
#include "server/core/resolution.h"
#include "server/durability/append_load.h"
#include "server/durability/durability_subsystem.h"
#include "server/durability/restore.h"
#include "server/durability/snapshots.h"
#include "server/replay/replay_follow.h"
#include "server/replay/replay_subsystem.h"
#include "server/replication/epoch.h"
#include "server/replication/received_file.h"
#include "server/replication/replicas.h"
#include "server/replication/replication_subsystem.h"
#include "server/replication/table_replication.h"
#include "store/store.h"

#define RETRY_US 1000000u
#define LOOK_AGAIN_US 1000u /* while a thread works */
#define NEWLINE_US 1000000u
#define MOST_TOLD 10u /* commands that failed are told of up to here */

static const struct resp_limits limits = {
    .max_request_bytes = SIZE_MAX / 2,
    .max_bulk_bytes = LIMIT_BULK_MOST_BYTES,
    .max_arguments = LIMIT_ARGUMENTS,
    .max_inline_bytes = LIMIT_INLINE_BYTES,
};

static struct primary_link *link_of(const struct server *server) {
    return &server->replication->link;
}

static uint64_t timeout_us(const struct server *server) {
    return (uint64_t)server->config.replication.timeout_s * 1000000u;
}

/* ---- coming and going ------------------------------------------------------------------------------------------------ */

__attribute__((format(printf, 4, 5))) static void say(const struct primary_link *link, enum log_level level,
                                                      const char *event, const char *format, ...) {
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    log_event(level, event, LOG_FIELDS({"host", .text = link->host}, {"port", .number = link->port}),
              "primary %s:%" PRId64 ": %s", link->host, link->port, text);
}

static void forget_try(struct primary_link *link) {
    if (!received_file_give_up(link->file)) link->given_up = link->file;
    link->file = NULL;
    append_buffer_clear(&link->arrived);
    link->arrived_bytes = 0;
    link->line_length = 0;
}

static void wait_to_retry(struct primary_link *link) {
    if (link->state == LINK_NONE) return;
    bool was_up = link->state == LINK_UP;
    if (was_up) link->down_us = link->server->now_us;
    link->state = LINK_WAITS;
    link->retry_us = link->server->now_us + (was_up ? 0 : RETRY_US);
}

/* A transaction, or a command in slices, that goes on without its client is applied, but its offset would be that before it. */
static void drop_offset_amid_command(const struct client *client) {
    if (exclusive_is_run_for(client)) change_stream_drop(&client->server->replication->stream);
}

/* The connection is given up; what was applied stays. */
static void hang_up(struct primary_link *link) {
    struct client *client = link->client;
    link->client = NULL;
    if (client) {
        drop_offset_amid_command(client);
        client->take_input = NULL;
        client_close(client);
    }
    forget_try(link);
    wait_to_retry(link);
}

void link_lost(struct client *client) {
    struct primary_link *link = link_of(client->server);
    if (link->client != client) return;
    if (link->state == LINK_UP) say(link, LOG_WARNING, "primary_lost", "the connection was lost");
    drop_offset_amid_command(client);
    link->client = NULL;
    forget_try(link);
    wait_to_retry(link);
}

__attribute__((format(printf, 2, 3))) static void fail(struct primary_link *link, const char *format, ...) {
    char text[300];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    say(link, LOG_WARNING, "primary_failed", "%s; it is tried again", text);
    hang_up(link);
}

void link_diverged(struct server *server, const char *why) {
    struct primary_link *link = link_of(server);
    change_stream_drop(&server->replication->stream);
    replicas_close(server->replication);
    if (link->client) fail(link, "%s", why);
}

/* ---- the name ----------------------------------------------------------------------------------------------------------- */

static void connect_to(struct primary_link *link, const struct addrinfo *address);

/* An address needs no thread that may have to wait for an answer. */
static bool is_connected_as_address(struct primary_link *link) {
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | AI_NUMERICHOST};
    struct addrinfo *found;
    char port[8];
    snprintf(port, sizeof port, "%d", (int)link->port);
    if (getaddrinfo(link->host, port, &hints, &found) != 0) return false;
    link->began_us = link->server->now_us;
    connect_to(link, found);
    freeaddrinfo(found);
    return true;
}

static void begin_resolving(struct primary_link *link) {
    link->resolving = resolution_begin(link->host, link->port);
    if (!link->resolving) {
        fail(link, "out of memory or threads");
        return;
    }
    link->state = LINK_RESOLVES;
    link->began_us = link->server->now_us;
}

/* ---- greeting ------------------------------------------------------------------------------------------------------------ */

static void send_words(struct client *client, unsigned count, const char *const *words) {
    struct text text = {0};
    text_append(&text, "*%u\r\n", count);
    for (unsigned i = 0; i < count; i++) text_append(&text, "$%zu\r\n%s\r\n", strlen(words[i]), words[i]);
    if (text.failed)
        client->output_failed = true;
    else
        client_send(client, text.data, text.length);
    text_free(&text);
}
#define SEND(client, ...)                                                         \
    do {                                                                          \
        const char *const words_[] = {__VA_ARGS__};                               \
        send_words((client), (unsigned)(sizeof words_ / sizeof *words_), words_); \
    } while (0)

static void send_psync(struct primary_link *link) {
    const struct replication_subsystem *replication = link->server->replication;
    char offset[24] = "-1";
    bool goes_on = change_stream_is_kept(&replication->stream);
    if (goes_on) snprintf(offset, sizeof offset, "%" PRIu64, change_stream_end(&replication->stream) + 1);
    const char *id = goes_on ? replication->id : "?";
    if (replication->failover.state == FAILOVER_IN_PROGRESS)
        SEND(link->client, "PSYNC", id, offset, "FAILOVER");
    else
        SEND(link->client, "PSYNC", id, offset);
}

/* A Redis passes over those that it does not know. */
static void send_capabilities(struct primary_link *link) {
    const struct server *server = link->server;
    if (server->place.follows_tables)
        SEND(link->client, "REPLCONF", "capa", "eof", "capa", "psync2", "capa", "tables", "capa", "tables-kept");
    else if (!table_replication_has_data(server))
        SEND(link->client, "REPLCONF", "capa", "eof", "capa", "psync2", "capa", "tables", "capa", "tables-none");
    else
        SEND(link->client, "REPLCONF", "capa", "eof", "capa", "psync2", "capa", "tables");
}

/* A server that was never promoted and has nothing loses nothing by data of another origin. */
static bool has_nothing_to_keep(const struct server *server) {
    return server->place.epoch == 0 && !append_load_holds_something(server);
}

/* By itself: a Redis takes ten words of whoever has not logged in. Whom REPLICAOF has just named is no older primary, whatever
 * this server has heard of another one: it is told only which epoch this server has left. */
static void send_epoch(struct primary_link *link) {
    char origin[40], epoch[40];
    bool follows_any = link->was_named || has_nothing_to_keep(link->server);
    snprintf(origin, sizeof origin, "origin=" EPOCH_ORIGIN_FORMAT, follows_any ? 0 : link->server->place.origin);
    if (!link->was_named)
        snprintf(epoch, sizeof epoch, "epoch=%" PRIu64, link->server->place.epoch);
    else if (link->left_epoch == 0)
        snprintf(epoch, sizeof epoch, "epoch=0");
    else
        snprintf(epoch, sizeof epoch, "left-epoch=%" PRIu64, link->left_epoch);
    SEND(link->client, "REPLCONF", "capa", origin, "capa", epoch);
}

/* Steps that there is nothing to say in are left out. */
static void send_step(struct primary_link *link, enum link_step step) {
    const struct server_config *config = &link->server->config;
    const struct replication_settings *settings = &config->replication;
    char number[24];
    if (step == STEP_AUTH && settings->primary_password[0] == '\0') step++;
    if (step == STEP_HOST && settings->announce_host[0] == '\0') step++;
    link->step = step;
    switch (step) {
    case STEP_PING: SEND(link->client, "PING"); break;
    case STEP_AUTH:
        if (settings->primary_user[0] != '\0')
            SEND(link->client, "AUTH", settings->primary_user, settings->primary_password);
        else
            SEND(link->client, "AUTH", settings->primary_password);
        break;
    case STEP_PORT: {
        int64_t port = settings->uses_tls && config->tls_port > 0 ? config->tls_port : config->port;
        snprintf(number, sizeof number, "%" PRId64, settings->announce_port > 0 ? settings->announce_port : port);
        SEND(link->client, "REPLCONF", "listening-port", number);
        break;
    }
    case STEP_HOST: SEND(link->client, "REPLCONF", "ip-address", settings->announce_host); break;
    case STEP_CAPABILITIES: send_capabilities(link); break;
    case STEP_EPOCH: send_epoch(link); break;
    case STEP_PSYNC: send_psync(link); break;
    }
}

static void go_up(struct primary_link *link) {
    struct client *client = link->client;
    client->take_input = NULL;
    client->database = link->server->replication->primary_database;
    link->state = LINK_UP;
    link->commands_failed = 0;
    link->was_named = false;
    link->left_epoch = 0;
    epoch_follow(link->server, link->next_epoch, link->next_origin);
    say(link, LOG_NOTICE, "primary_up", "followed, from offset %" PRIu64,
        change_stream_end(&link->server->replication->stream));
    client->is_resting = replay_follow_step(link->server->replay->tables); /* of a record before the link was lost */
    link_acknowledge(link->server);
}

/* What is here was found to be what the primary has at this offset, or it tells of keys alone. False: something has come
 * since then. */
static bool go_on_with_tables(struct server *server, bool tells) {
    if (!tells) {
        table_replication_become_own(server, false);
        return true;
    }
    if (server->place.follows_tables) return true;
    if (table_replication_has_data(server)) return false;
    table_replication_stop(server);
    table_replication_tidy(server);
    server->place.follows_tables = true;
    server->replication->tables_from = change_stream_end(&server->replication->stream);
    return true;
}

/* "+CONTINUE", or "+CONTINUE id", or "+CONTINUE id TABLES", and an epoch behind it: the history goes on, perhaps by another name
 * since another server is the primary now. */
static void go_on(struct primary_link *link, const char *words) {
    struct replication_subsystem *replication = link->server->replication;
    char id[REPLICATION_ID_LENGTH + 1] = "", tables[8] = "";
    sscanf(words, "%40s %7s", id, tables);
    if (!go_on_with_tables(link->server, strcmp(tables, "TABLES") == 0)) {
        fail(link, "tables, weights or gradients were made here meanwhile");
        return;
    }
    if (strlen(id) == REPLICATION_ID_LENGTH && strcmp(id, replication->id) != 0) {
        snprintf(replication->former_id, sizeof replication->former_id, "%s", replication->id);
        replication->former_until = (int64_t)change_stream_end(&replication->stream) + 1;
        snprintf(replication->id, sizeof replication->id, "%s", id);
        replicas_close(replication);
    }
    go_up(link);
}

/* "… EPOCH 12 ORIGIN 0123456789abcdef". A Redis tells neither. Data that go on keep theirs then, and data that are received
 * whole have none. */
static void take_epoch(struct primary_link *link, const char *line) {
    const struct server *server = link->server;
    const char *epoch = strstr(line, " EPOCH ");
    uint64_t *number = &link->next_epoch, *origin = &link->next_origin;
    bool goes_on = strncmp(line, "+CONTINUE", 9) == 0;
    bool is_told = epoch && sscanf(epoch, " EPOCH %" SCNu64 " ORIGIN %16" SCNx64, number, origin) == 2;
    if (!is_told) *number = goes_on ? server->place.epoch : 0;
    if (*number > INT64_MAX) *number = server->place.epoch;
    if (!is_told || *origin == 0) *origin = goes_on ? server->place.origin : 0;
}

static void take_psync_answer(struct primary_link *link, const char *line) {
    failover_answered(link->server, line);
    if (link->state == LINK_NONE) return; /* the answer was no, and this server is the primary again */
    take_epoch(link, line);
    if (strncmp(line, "+CONTINUE", 9) == 0) {
        go_on(link, line + 9 + strspn(line + 9, " "));
        return;
    }
    if (sscanf(line, "+FULLRESYNC %40s %" SCNu64, link->next_id, &link->next_offset) == 2 &&
        strlen(link->next_id) == REPLICATION_ID_LENGTH) {
        link->state = LINK_RECEIVES;
        say(link, LOG_NOTICE, "primary_full", "all data are asked for");
        return;
    }
    fail(link, "PSYNC was answered by: %.200s", line);
}

static void take_header(struct primary_link *link, const char *line) {
    struct error error = {.code = ERROR_NONE};
    if (!link->worker) link->worker = worker_new();
    if (link->worker)
        link->file = received_file_new(line, link->worker, &error);
    else
        error_set(&error, ERROR_GENERIC, "out of memory or threads");
    if (!link->file) fail(link, "%s", *line == '-' ? line : error.message);
}

static void take_answer(struct primary_link *link, const char *line) {
    bool is_refusal = *line == '-';
    if (link->step == STEP_PING && is_refusal && strncmp(line, "-NOAUTH", 7) != 0 && strncmp(line, "-NOPERM", 7) != 0 &&
        strncmp(line, "-ERR operation not permitted", 28) != 0) {
        fail(link, "PING was answered by: %.200s", line);
    } else if (link->step == STEP_AUTH && is_refusal) {
        fail(link, "masterauth is refused: %.200s", line);
    } else if (link->step == STEP_PSYNC) {
        take_psync_answer(link, line);
    } else {
        send_step(link, link->step + 1);
    }
}

static void take_line(struct primary_link *link) {
    while (link->line_length > 0 && link->line[link->line_length - 1] == '\r') link->line_length--;
    link->line[link->line_length] = '\0';
    bool is_empty = link->line_length == 0; /* a sign of life */
    link->line_length = 0;
    if (is_empty) return;
    if (link->state == LINK_GREETS)
        take_answer(link, link->line);
    else
        take_header(link, link->line);
}

static size_t take_line_bytes(struct primary_link *link, const uint8_t *bytes, size_t length) {
    for (size_t at = 0; at < length; at++) {
        if (bytes[at] == '\n') {
            take_line(link);
            return at + 1;
        }
        if (link->line_length + 1 == sizeof link->line) {
            fail(link, "it does not speak as a Redis does");
            return length;
        }
        link->line[link->line_length++] = (char)bytes[at];
    }
    return length;
}

/* ---- all data ----------------------------------------------------------------------------------------------------------- */

static size_t take_input(struct client *client, const uint8_t *bytes, size_t length) {
    struct primary_link *link = link_of(client->server);
    size_t at = 0;
    while (at < length && client->take_input) {
        size_t taken = link->file ? received_file_take(link->file, bytes + at, length - at)
                                  : take_line_bytes(link, bytes + at, length - at);
        at += taken;
        if (client->closing) return length;
        if (taken > 0) continue;
        client->is_resting = true; /* until the thread is further */
        break;
    }
    if (link->file && received_file_has_ended(link->file)) client->is_resting = true;
    return at;
}

/* What a Redis sends leaves tables, weights and gradients as they are. */
static int replace(struct server *server, struct received_content *content, struct error *error) {
    if (!content->has_tables) {
        table_replication_become_own(server, false);
        return restore_replace_keys(server, &content->all.store, error);
    }
    table_replication_stop(server);
    table_replication_tidy(server);
    server->place.follows_tables = true;
    if (restore_replace_all(server, &content->all, error) == 0) return 0;
    table_replication_become_own(server, false);
    return -1;
}

/* Into service, in one step: all that was read, id and offset. False: not yet. */
static bool install(struct primary_link *link) {
    struct server *server = link->server;
    struct replication_subsystem *replication = server->replication;
    struct received_content *content = received_file_content(link->file);
    if (!snapshots_may_begin(server->durability->snapshots) || server->changes.depth > 0) return false;
    replicas_close(replication); /* they have to begin anew as well */
    struct error error = {.code = ERROR_NONE};
    uint64_t keys = content->all.store.keys;
    uint32_t tables = content->all.count;
    if (content->stream_database >= STORE_DATABASES) {
        fail(link, "it writes into database %" PRId64 ", but there are only %d here", content->stream_database,
             STORE_DATABASES);
        return true;
    }
    replication->primary_database = content->stream_database > 0 ? (int)content->stream_database : 0;
    if (replace(server, content, &error) < 0 || !change_stream_begin(&replication->stream, link->next_offset)) {
        change_stream_drop(&replication->stream); /* of neither history */
        fail(link, "%s", error.code != ERROR_NONE ? error.message : "out of memory");
        return true;
    }
    snprintf(replication->id, sizeof replication->id, "%s", link->next_id);
    replication_forget_former(replication);
    if (server->place.follows_tables) replication->tables_from = link->next_offset;
    say(link, LOG_NOTICE, "primary_loaded", "%" PRIu64 " keys and %" PRIu32 " tables were read", keys, tables);
    received_file_free(link->file);
    link->file = NULL;
    go_up(link);
    client_go_on(link->client);
    return true;
}

static uint64_t receive(struct primary_link *link) {
    struct error error = {.code = ERROR_NONE};
    struct server *server = link->server;
    if (!link->file) return CLOCK_NEVER;
    if (link->state == LINK_RECEIVES && received_file_has_ended(link->file)) link->state = LINK_LOADS;
    enum received_state state = received_file_step(link->file, &error);
    if (state == RECEIVED_FAILED) {
        fail(link, "%s", error.message);
        return link->retry_us;
    }
    if (state == RECEIVED_ALL && install(link)) return CLOCK_NEVER;
    if (link->state == LINK_LOADS && server->now_us >= link->newline_us + NEWLINE_US) {
        client_send(link->client, "\n", 1); /* the primary is to know that this server lives */
        link->newline_us = server->now_us;
    }
    if (link->state == LINK_RECEIVES && link->client->is_resting && server->now_us >= link->look_us) {
        link->look_us = server->now_us + LOOK_AGAIN_US; /* not each turn: the thread may need this processor */
        client_go_on(link->client);
    }
    return server->now_us + LOOK_AGAIN_US;
}

/* ---- connecting ----------------------------------------------------------------------------------------------------------- */

static struct transport *kernel_of(const struct server *server) {
    for (int i = 0; i < server->transports.count; i++)
        if (strcmp(server->transports.all[i]->operations->name, "kernel") == 0) return server->transports.all[i];
    return NULL;
}

static void connect_to(struct primary_link *link, const struct addrinfo *address) {
    struct server *server = link->server;
    struct error error = {.code = ERROR_NONE};
    struct transport *transport = kernel_of(server);
    struct client *client = transport ? client_new_outgoing(server) : NULL;
    if (!client) {
        fail(link, transport ? "out of memory" : "there is no transport that can connect");
        return;
    }
    client->is_primary = client->goes_on_over_memory = client->goes_on_unwritten = true;
    client->take_input = take_input;
    client->parser.limits = &limits;
    client->connection = transport_kernel_connect(transport, address->ai_addr, address->ai_addrlen,
                                                  server->config.replication.uses_tls, client, &error);
    if (!client->connection) {
        client_free_outgoing(client);
        fail(link, "%s", error.message);
        return;
    }
    link->client = client;
    link->state = LINK_GREETS;
    send_step(link, STEP_PING);
}

static uint64_t resolved(struct primary_link *link) {
    const char *why;
    if (!resolution_has_ended(link->resolving)) return link->server->now_us + LOOK_AGAIN_US;
    struct resolution *resolution = link->resolving;
    const struct addrinfo *found = resolution_found(resolution, &why);
    link->resolving = NULL;
    if (found)
        connect_to(link, found);
    else
        fail(link, "%s", why);
    resolution_free(resolution);
    return link->state == LINK_WAITS ? link->retry_us : CLOCK_NEVER;
}

/* A record of a table has left work, which is a task of the tables' own (cmd_replay_change.c). */
static uint64_t await_work(struct primary_link *link) {
    if (!link->client->is_resting) return CLOCK_NEVER;
    if (replay_follow_step(link->server->replay->tables)) return 0;
    client_go_on(link->client);
    return CLOCK_NEVER;
}

uint64_t link_step(struct server *server) {
    struct primary_link *link = link_of(server);
    if (received_file_give_up(link->given_up)) link->given_up = NULL;
    if (link->given_up && (link->state == LINK_NONE || link->state == LINK_WAITS))
        return server->now_us + LOOK_AGAIN_US;
    switch (link->state) {
    case LINK_WAITS:
        if (server->now_us < link->retry_us) return link->retry_us;
        if (server->ending.begun) return CLOCK_NEVER;
        if (is_connected_as_address(link)) return link->state == LINK_WAITS ? link->retry_us : CLOCK_NEVER;
        if (link->resolving && !resolution_has_ended(link->resolving)) return server->now_us + RETRY_US;
        resolution_free(link->resolving); /* of another primary */
        link->resolving = NULL;
        begin_resolving(link);
        return server->now_us + LOOK_AGAIN_US;
    case LINK_RESOLVES: return resolved(link);
    case LINK_RECEIVES:
    case LINK_LOADS: return receive(link);
    case LINK_UP: return await_work(link);
    default: return CLOCK_NEVER;
    }
}

void link_each_second(struct server *server) {
    struct primary_link *link = link_of(server);
    if (!link->client) return;
    bool works = link->state == LINK_UP && link->client->is_resting;
    if (works) link->began_us = server->now_us; /* what the primary says lies unread until the work is done */
    uint64_t heard_us = link->client->input_us > link->began_us ? link->client->input_us : link->began_us;
    if (link->state != LINK_LOADS && server->now_us > heard_us + timeout_us(server))
        fail(link, "it has said nothing for repl-timeout seconds");
    else if (link->state == LINK_UP)
        link_acknowledge(server);
}

void link_acknowledge(struct server *server) {
    struct primary_link *link = link_of(server);
    uint64_t end = link->client->is_resting ? link->before_work : change_stream_end(&server->replication->stream);
    char offset[24];
    snprintf(offset, sizeof offset, "%" PRIu64, end);
    SEND(link->client, "REPLCONF", "ACK", offset);
}

bool link_is_up(const struct server *server) {
    return link_of(server)->state == LINK_UP;
}

bool replication_is_up(const struct server *server) {
    return link_is_up(server);
}

/* ---- following ------------------------------------------------------------------------------------------------------------ */

/* Its bytes as they came, so that replicas of this one have the same offsets. */
static bool note_request(struct primary_link *link, const struct client *client) {
    size_t before = link->arrived.total;
    bool added = append_buffer_add_head(&link->arrived, client->argc);
    for (uint32_t i = 0; i < client->argc && added; i++)
        added =
            append_buffer_add_word(&link->arrived, client->argv[i].data, client->argv[i].length, client->argv[i].blob);
    size_t told = link->arrived.total - before;
    link->arrived_bytes += client->request_bytes;
    for (; added && told < client->request_bytes; told++) added = append_buffer_add(&link->arrived, "\n", 1);
    return added && told == client->request_bytes;
}

static void say_failed(struct primary_link *link, const struct client *client) {
    if (++link->commands_failed > MOST_TOLD) return;
    say(link, LOG_WARNING, "primary_command_failed",
        "a command failed here: %.*s; keys may differ from the primary's from here on",
        client->argc > 0 && client->argv[0].length < 64 ? (int)client->argv[0].length : 0,
        client->argc > 0 ? (const char *)client->argv[0].data : "");
}

void replication_applied(struct client *client) {
    struct server *server = client->server;
    struct replication_subsystem *replication = server->replication;
    struct primary_link *link = link_of(server);
    if (link->client != client || link->state != LINK_UP) return;
    if (client->error_replied) say_failed(link, client);
    bool noted = note_request(link, client);
    if (client->transaction && noted) return; /* not before all of it has been run */
    replication->primary_database = client->database;
    link->before_work = change_stream_end(&replication->stream);
    uint64_t end = link->before_work + link->arrived_bytes;
    if (!noted || !append_buffer_copy(&replication->stream.open, &link->arrived)) {
        replicas_close(replication); /* there is no memory for what they are to be sent */
        if (!change_stream_begin(&replication->stream, end)) fail(link, "out of memory");
    }
    append_buffer_clear(&link->arrived);
    link->arrived_bytes = 0;
}

/* ---- whom to follow -------------------------------------------------------------------------------------------------------- */

static void leave_primary(struct primary_link *link) {
    hang_up(link); /* a name that is being looked up is waited for by nobody */
    link->state = LINK_NONE;
}

void link_interrupt_waiting(struct server *server, const char *error) {
    for (struct client *client = server->clients.head, *next; client; client = next) {
        next = client->next;
        if (client->blocked && client->command && (client->command->flags & COMMAND_BLOCKING) &&
            !pause_is_waiting(client) && !client->closing)
            client_interrupt(client, error);
    }
}

/* Its own data are a primary's also where its configuration made it a replica, until it has been sent others. */
static void name(struct primary_link *link) {
    const struct server *server = link->server;
    link->was_named = true;
    if (!server->place.is_replica || !server->place.is_copy) link->left_epoch = server->place.epoch;
}

void link_was_named(struct server *server) {
    if (!link_is_up(server)) name(link_of(server));
}

void link_follow(struct server *server, const char *host, int64_t port) {
    struct primary_link *link = link_of(server);
    leave_primary(link);
    name(link);
    if (!server->place.is_replica) {
        /* A change comes from elsewhere now. */
        link_interrupt_waiting(server,
                               "UNBLOCKED force unblock from blocking operation, instance state changed (master "
                               "-> replica?)");
    }
    snprintf(link->host, sizeof link->host, "%s", host);
    link->port = port;
    link->state = LINK_WAITS;
    link->retry_us = link->down_us = server->now_us;
    server->place.is_replica = true;
    pause_hold_expiry(server);
    snprintf(server->config.replication.follows, sizeof server->config.replication.follows, "%s %" PRId64, link->host,
             port);
    say(link, LOG_NOTICE, "follows", "this server is its replica now");
}

void link_end(struct server *server) {
    struct replication_subsystem *replication = server->replication;
    struct primary_link *link = link_of(server);
    if (!server->place.is_replica) return;
    leave_primary(link);
    server->place.is_replica = server->store->keeps_expired = false;
    pause_hold_expiry(server);
    server->config.replication.follows[0] = '\0';
    link->left_epoch = 0;
    replication_begin_own_history(server);
    epoch_raise(server);
    table_replication_become_own(server, change_stream_is_kept(&replication->stream));
    replication->second_us = server->now_us;
    say(link, LOG_NOTICE, "follows_nobody", "this server is a primary now");
}

void link_free(struct server *server) {
    struct primary_link *link = link_of(server);
    resolution_free(link->resolving);
    forget_try(link);
    received_file_free(link->given_up);
    append_buffer_free(&link->arrived);
    worker_free(link->worker);
}

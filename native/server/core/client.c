/* client: a connection from opened to closed: reading, running requests in turn, writing, letting go of everything. */
#include "server/core/client.h"

#include <assert.h>
#include <string.h>

#include "base/list.h"
#include "base/log.h"
#include "base/memory.h"
#include "server/core/exclusive_execution.h"
#include "server/core/fair_share.h"
#include "server/core/request_times.h"
#include "server/core/server.h"
#include "server/core/slices.h"
#include "server/core/subsystem.h"
#include "server/core/upcalls.h"

#define READ_VECTORS 256
#define WRITE_VECTORS 512

/* ---- opened and closed ------------------------------------------------------------------------------- */

static const struct transport_operations *operations_of(const struct client *client) {
    return client->connection->transport->operations;
}

bool client_releases_at_write(const struct client *client) {
    return !client->connection || operations_of(client)->releases_at_write;
}

static void link_client(struct client_list *list, struct client *client) {
    LIST_APPEND(list->head, list->tail, client, next, previous);
    list->count++;
}

static void unlink_client(struct server *server, struct client *client) {
    struct client_list *list = &server->clients;
    if (server->clients.sweep == client) server->clients.sweep = client->next;
    LIST_REMOVE(list->head, list->tail, client, next, previous);
    list->count--;
}

void client_use_limits(struct client *client) {
    bool known = client->authenticated && !client->unproven;
    client->parser.limits = known ? &client->server->limits.known : &client->server->limits.strangers;
}

/* Who may not even ask: it is told why, and let go. */
static void turn_away(struct server *server, struct connection *connection, const char *why) {
    struct iovec vector = {.iov_base = (void *)(uintptr_t)why, .iov_len = strlen(why)};
    server->stats.connections_rejected++;
    log_event(LOG_WARNING, "connection_refused", LOG_FIELDS({"peer", .text = connection->peer}), "refused %s: %s",
              connection->peer, why);
    connection->transport->operations->writev(connection, &vector, 1);
}

static bool is_from_this_host(const struct connection *connection) {
    return connection->is_unix || strcmp(connection->transport->operations->name, "memory") == 0 ||
           strncmp(connection->peer, "127.", 4) == 0 || strncmp(connection->peer, "[::1]", 5) == 0 ||
           strncmp(connection->peer, "[::ffff:127.", 12) == 0;
}

bool client_is_from_this_host(const struct client *client) {
    return client->connection && is_from_this_host(client->connection);
}

void *client_opened(void *context, struct connection *connection) {
    struct server *server = context;
    server->stats.connections++;
    if (server->config.protected_mode && upcalls.acl_lets_strangers_in(server) && !is_from_this_host(connection)) {
        turn_away(
            server, connection,
            "-DENIED Redis is running in protected mode: no password is set for the default user, so that "
            "connections are only accepted from this host. To accept them from others, set a password (requirepass, "
            "or ACL SETUSER default), or, if nobody else can reach the network, turn protected-mode off.\r\n");
        return NULL;
    }
    struct client *client = NULL;
    uint64_t most = (uint64_t)server->config.maxclients + (connection->is_admin ? LIMIT_ADMIN_CLIENTS : 0);
    uint32_t others = subsystems_descriptors(server, false);
    if (server->clients.count + others >= most) others = subsystems_descriptors(server, true);
    bool has_room = server->clients.count + others < most;
    if (has_room && !server->ending.begun) client = memory_calloc(1, sizeof *client);
    if (!client) {
        turn_away(server, connection, "-ERR max number of clients reached\r\n");
        return NULL;
    }
    server_tick(server);
    client->server = server;
    client->connection = connection;
    client->id = ++server->clients.last_id;
    client->resp = 2;
    client->unproven = connection->is_abstract;
    client->deadline_index = UINT32_MAX;
    client->reading = true;
    client->created_us = client->active_us = client->input_us = client->output_us = server->now_us;
    resp_parser_init(&client->parser, &server->limits.known, client_land, client);
    upcalls.acl_welcome(client);
    link_client(&server->clients, client);
    log_event(LOG_DEBUG, "client_connected",
              LOG_FIELDS({"client", .number = (int64_t)client->id}, {"peer", .text = connection->peer}),
              "client %llu came from %s", (unsigned long long)client->id, connection->peer);
    return client;
}

struct client *client_new_outgoing(struct server *server) {
    struct client *client = client_new_own(server);
    if (!client) return NULL;
    client->id = ++server->clients.last_id;
    client->deny_blocking = false;
    client->reading = true;
    client->reply_mode = CLIENT_REPLY_OFF;
    resp_parser_init(&client->parser, &server->limits.known, client_land, client);
    link_client(&server->clients, client);
    return client;
}

void client_free_outgoing(struct client *client) {
    resp_parser_free(&client->parser);
    unlink_client(client->server, client);
    client_free_own(client);
}

struct client *client_new_own(struct server *server) {
    struct client *client = memory_calloc(1, sizeof *client);
    if (!client) return NULL;
    client->server = server;
    client->resp = 2;
    client->authenticated = true;
    client->deny_blocking = true;
    client->deadline_index = UINT32_MAX;
    client->created_us = client->active_us = client->input_us = client->output_us = server->now_us;
    return client;
}

void client_free_own(struct client *client) {
    client_command_done(client);
    output_clear(&client->output, &client->server->output_pool);
    memory_free(client->name);
    memory_free(client);
}

static void forget_pending(struct client *client) {
    memory_free(client->pending);
    client->pending = NULL;
    client->pending_length = 0;
    client->pending_at = 0;
}

static void leave_held(struct client *client) {
    struct held_clients *held = &client->server->clients.held;
    if (!client->held) return;
    client->held = false;
    if (client->held_previous)
        client->held_previous->held_next = client->held_next;
    else
        held->head = client->held_next;
    if (client->held_next) client->held_next->held_previous = client->held_previous;
    held->count--;
}

void client_close(struct client *client) {
    if (client->closing || !client->connection) return;
    client->closing = true;
    leave_held(client);
    client_unblock(client);
    client_request_done(client);
    EACH_SUBSYSTEM(client_left, client);
    forget_pending(client);
    /* Where the transport still reads the bytes of replies, they stay until it says `closed`. */
    if (client_releases_at_write(client)) output_clear(&client->output, &client->server->output_pool);
    operations_of(client)->close(client->connection);
}

static void leave_list(struct client **head, struct client *client, size_t link_offset) {
    for (struct client **link = head; *link; link = (struct client **)((char *)*link + link_offset)) {
        if (*link == client) {
            *link = *(struct client **)((char *)client + link_offset);
            return;
        }
    }
}

void client_closed(void *context, void *owner) {
    struct server *server = context;
    struct client *client = owner;
    client->closing = true;
    leave_held(client);
    client_unblock(client);
    client_request_done(client);
    EACH_SUBSYSTEM(client_closed, client);
    EACH_SUBSYSTEM(client_left, client);
    forget_pending(client);
    output_clear(&client->output, &server->output_pool);
    if (client->writing) server->clients.writers--;
    if (client->in_unsent) leave_list(&server->clients.unsent_head, client, offsetof(struct client, unsent_next));
    if (client->in_ready) leave_list(&server->clients.ready_head, client, offsetof(struct client, ready_next));
    unlink_client(server, client);
    log_event(LOG_DEBUG, "client_gone", LOG_FIELDS({"client", .number = (int64_t)client->id}), "client %llu is gone",
              (unsigned long long)client->id);
    if (exclusive_adopt(client)) return;
    resp_parser_free(&client->parser);
    memory_free(client->name);
    memory_free(client);
}

/* ---- reading ----------------------------------------------------------------------------------------- */

static bool is_backlogged(const struct client *client) {
    const struct output *output = &client->output;
    return output->unsent_source_bytes > LIMIT_SOURCE_BACKLOG_BYTES ||
           output->unsent_bytes > (size_t)client->server->config.client_output_backlog_bytes;
}

static void set_reading(struct client *client, bool wanted) {
    if (wanted == client->reading) return;
    client->reading = wanted;
    operations_of(client)->want_read(client->connection, wanted);
}

void client_update_reading(struct client *client) {
    if (client->closing || !client->connection) return;
    bool wanted = !client->input_ended && !client->close_after_reply;
    if (client->blocked)
        wanted = wanted && client->pending_length < LIMIT_PENDING_INPUT_BYTES; /* so that its going is noticed */
    else
        wanted = wanted && client->pending_length == 0 && !is_backlogged(client);
    /* Most who wait for the disk send nothing before they have their reply: the transport is told only if one does. */
    if (client->held && wanted) wanted = client->reading;
    set_reading(client, wanted);
}

void client_make_ready(struct client *client) {
    struct server *server = client->server;
    if (client->in_ready || client->closing) return;
    client->in_ready = true;
    client->ready_next = server->clients.ready_head;
    server->clients.ready_head = client;
}

static void fail_protocol(struct client *client) {
    client->server->stats.protocol_errors++;
    client->reply_mode = CLIENT_REPLY_ON;
    reply_error(client, "ERR %s", client->parser.error);
    client_close_after_reply(client);
}

/* Another's script or transaction is in its midst. What the primary sends must not be refused for it either. */
static bool must_wait(const struct client *client) {
    const struct server *server = client->server;
    if (client->is_resting || exclusive_makes_wait(server)) return true;
    return client->is_primary && server->exclusive.on && !exclusive_is_run_for(client);
}

/* Feeds the parser and runs what comes out. Returns the bytes consumed: fewer than given when the client may run
 * nothing more for now: blocked, backlogged, its turn over, or going away. */
static size_t feed(struct client *client, const uint8_t *data, size_t length) {
    assert(!client->blocked && !client->closing);
    uint64_t until_us = client->server->now_us + LIMIT_TURN_COMMANDS_US;
    size_t at = 0;
    while (at < length && !client->blocked && !client->close_after_reply && !client->closing) {
        if (is_backlogged(client) || client->server->now_us >= until_us || must_wait(client)) break;
        size_t consumed;
        if (client->take_input) {
            at += client->take_input(client, data + at, length - at);
            if (client->take_input && at < length) break;
            continue;
        }
        enum resp_status status = resp_parser_feed(&client->parser, data + at, length - at, &consumed);
        at += consumed;
        client->request_bytes += consumed;
        if (status == RESP_REQUEST)
            client_run_request(client);
        else if (status == RESP_PROTOCOL_ERROR)
            fail_protocol(client);
    }
    if (client->close_after_reply && client->output.unsent_bytes == 0)
        client_close(client); /* there was nothing to say (QUIT after CLIENT REPLY OFF, SHUTDOWN) */
    return at;
}

/* Keeps input for later, in order. There is always room: reading stops while any is kept, but for a blocked client,
 * whose reads are no longer than the room left. */
static void keep_pending(struct client *client, const uint8_t *data, size_t length) {
    if (length == 0 || client->closing || client->close_after_reply) return;
    if (!client->pending) {
        client->pending = memory_alloc(LIMIT_PENDING_INPUT_BYTES);
        if (!client->pending) {
            client_close(client);
            return;
        }
    }
    if (client->pending_at > 0) {
        memmove(client->pending, client->pending + client->pending_at, client->pending_length);
        client->pending_at = 0;
    }
    assert(client->pending_length + length <= LIMIT_PENDING_INPUT_BYTES);
    memcpy(client->pending + client->pending_length, data, length);
    client->pending_length += length;
}

/* It waits for nothing but time to work on its command. */
static bool is_served(const struct client *client) {
    bool runs_alone = exclusive_is_run_for(client) && client->server->exclusive.rests_until_us == 0;
    return runs_alone || slices_is_going_on(client);
}

/* What was asked before is still answered (`printf … | nc`), also in slices, but nobody who hung up is waited for. */
static bool would_wait(const struct client *client) {
    return client->blocked && !is_served(client);
}

static void end_input(struct client *client) {
    client->input_ended = true;
    if (would_wait(client))
        client_close(client);
    else if (client->pending_length == 0 && !client->blocked)
        client_close_after_reply(client);
    else
        client_update_reading(client);
}

static void count_input(struct client *client, size_t bytes) {
    client->input_bytes += bytes;
    client->server->stats.input_bytes += bytes;
    client->server->stats.reads++;
    client->input_us = client->server->now_us;
}

static void read_while_blocked(struct client *client) {
    size_t room = LIMIT_PENDING_INPUT_BYTES - client->pending_length;
    struct iovec vector = {.iov_base = client->server->read_buffer, .iov_len = room};
    ssize_t got = operations_of(client)->readv(client->connection, &vector, 1);
    if (got == 0) end_input(client);
    if (got <= 0) return;
    count_input(client, (size_t)got);
    keep_pending(client, client->server->read_buffer, (size_t)got);
    client_update_reading(client);
}

/* Where the next input goes: straight to where a large argument lands, and what follows it to the shared buffer. */
static int describe_input(struct client *client, struct iovec *vectors, size_t *landing) {
    struct resp_parser *parser = &client->parser;
    int count = 0;
    *landing = 0;
    if (parser->state == RESP_STATE_LANDING) {
        count = resp_parser_landing(parser, fair_share_to_read(client), vectors, READ_VECTORS - 1);
        for (int i = 0; i < count; i++) *landing += vectors[i].iov_len;
        if (count > 0 && *landing < parser->bulk_length - parser->bulk_done) return count;
    }
    vectors[count++] = (struct iovec){.iov_base = client->server->read_buffer, .iov_len = LIMIT_PENDING_INPUT_BYTES};
    return count;
}

void client_readable(void *context, void *owner) {
    struct server *server = context;
    struct client *client = owner;
    if (client->closing || !client->reading) return;
    if (client->held) {
        set_reading(client, false);
        return;
    }
    server_begin_turn(server);
    if (client->blocked) {
        read_while_blocked(client);
        return;
    }
    assert(client->pending_length == 0);
    struct iovec vectors[READ_VECTORS];
    size_t landing;
    int count = describe_input(client, vectors, &landing);
    ssize_t got = operations_of(client)->readv(client->connection, vectors, count);
    if (got == 0) end_input(client);
    if (got <= 0) return;
    server_tick(server);
    count_input(client, (size_t)got);
    size_t landed = (size_t)got < landing ? (size_t)got : landing;
    if (landed > 0) resp_parser_landed(&client->parser, landed);
    client->request_bytes += landed;
    size_t rest = (size_t)got - landed;
    size_t consumed = feed(client, server->read_buffer, rest);
    keep_pending(client, server->read_buffer + consumed, rest - consumed);
    if (client->pending_length > 0 && !client->blocked) client_make_ready(client);
    client_update_reading(client);
}

void client_run_pending(struct client *client) {
    if (client->closing || client->blocked || client->held || client->pending_length == 0 || is_backlogged(client) ||
        must_wait(client))
        return; /* whoever ends that state makes the client ready again */
    size_t consumed = feed(client, client->pending + client->pending_at, client->pending_length);
    if (client->closing) return;
    if (client->close_after_reply) { /* nothing more is run, and none of it may wake the loop */
        forget_pending(client);
        client_update_reading(client);
        return;
    }
    if (client->hung_up && would_wait(client)) {
        client_close(client);
        return;
    }
    client->pending_at += consumed;
    client->pending_length -= consumed;
    if (client->pending_length == 0) {
        forget_pending(client);
        if (client->input_ended && !client->blocked) client_close_after_reply(client);
    } else if (!client->blocked) {
        client_make_ready(client);
    }
    client_update_reading(client);
}

/* ---- writing ----------------------------------------------------------------------------------------- */

static void set_writing(struct client *client, bool on) {
    if (client->writing == on) return;
    client->writing = on;
    if (on)
        client->server->clients.writers++;
    else
        client->server->clients.writers--;
    client->output_us = client->server->now_us; /* from here on no progress is a stall */
    operations_of(client)->want_write(client->connection, on);
}

void client_write(struct client *client) {
    struct server *server = client->server;
    if (client->closing) return;
    if (client->held && !client->output_failed) {
        set_writing(client, false); /* client_let_go writes */
        return;
    }
    if (client->output_failed) {
        client_close(client);
        return;
    }
    bool was_backlogged = is_backlogged(client);
    if (client->output.unsent_bytes > 0) {
        struct iovec vectors[WRITE_VECTORS];
        int count = output_vectors(&client->output, fair_share_to_write(client), vectors, WRITE_VECTORS);
        ssize_t sent = operations_of(client)->writev(client->connection, vectors, count);
        if (sent == -2) {
            client_close(client);
            return;
        }
        if (sent > 0) {
            client->output_bytes += (uint64_t)sent;
            server->stats.output_bytes += (uint64_t)sent;
            server->stats.writes++;
            client->output_us = server->now_us;
            output_sent(&client->output, (size_t)sent);
            if (client->timed) request_timed_sent(client);
            if (client_releases_at_write(client)) output_released(&client->output, &server->output_pool, (size_t)sent);
        }
    }
    set_writing(client, client->output.unsent_bytes > 0);
    if (client->output.unsent_bytes == 0 && client->close_after_reply) {
        client_close(client);
        return;
    }
    if (was_backlogged && !is_backlogged(client)) {
        if (client->pending_length > 0 && !client->blocked) client_make_ready(client);
        client_update_reading(client);
    }
}

void client_hold(struct client *client, uint64_t until) {
    struct held_clients *held = &client->server->clients.held;
    client->held_until = until;
    if (client->held) return;
    client->held = true;
    client->held_previous = NULL;
    client->held_next = held->head;
    if (held->head) held->head->held_previous = client;
    held->head = client;
    held->count++;
}

void client_let_go(struct client *client) {
    leave_held(client);
    client_write(client);
    if (client->closing) return;
    if (client->pending_length > 0 && !client->blocked) client_make_ready(client);
    client_update_reading(client);
}

void client_go_on(struct client *client) {
    client->is_resting = false;
    if (client->pending_length > 0 && !client->blocked) client_make_ready(client);
    client_update_reading(client);
}

void client_say_closed(const struct client *client, const char *why) {
    log_event(LOG_WARNING, "client_closed",
              LOG_FIELDS({"client", .number = (int64_t)client->id}, {"peer", .text = client->connection->peer},
                         {"reason", .text = why}),
              "client %llu (%s) is closed: %s", (unsigned long long)client->id, client->connection->peer, why);
}

void client_close_after_reply(struct client *client) {
    if (client->closing || !client->connection) return;
    client->close_after_reply = true;
    forget_pending(client);
    client_update_reading(client);
    if (client->output.unsent_bytes == 0) client_close(client);
}

void client_writable(void *context, void *owner) {
    server_begin_turn(context);
    struct client *client = owner;
    if (!client->closing && client->writing) client_write(client);
}

/* Not read from because it has sent too much ahead: nobody who hung up is waited for, here either. */
void client_hung_up(void *context, void *owner) {
    (void)context;
    struct client *client = owner;
    client->hung_up = true;
    if (would_wait(client)) client_close(client);
}

void client_released(void *context, void *owner, size_t size_bytes) {
    struct server *server = context;
    struct client *client = owner;
    output_released(&client->output, &server->output_pool, size_bytes);
}

size_t client_held_bytes(const struct client *client) {
    return sizeof *client + resp_parser_held_bytes(&client->parser) +
           (client->pending ? LIMIT_PENDING_INPUT_BYTES : 0) + client->output.inline_bytes +
           output_waiting(&client->output).blob_bytes + upcalls.transaction_bytes(client);
}

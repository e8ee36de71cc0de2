/* test_server_memory: the whole server over the in-memory transport: order, bounds, waiting, and letting go of
 * everything when a client stops reading or vanishes. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/msgpack.h"
#include "check.h"
#include "net/memory.h"
#include "server/client.h"
#include "server/server.h"

static struct server *server;
static struct transport *transport;

/* ---- the stage --------------------------------------------------------------------------------------- */

static void open_server(bool hold_writes, void (*configure)(struct server_config *config)) {
    struct server_config config;
    struct error error;
    server_config_defaults(&config);
    if (configure) configure(&config);
    server = server_new(&config, &error);
    CHECK(server);
    transport = transport_memory_new(server_events(server));
    CHECK(transport && server_add_transport(server, transport, &error) == 0);
    if (hold_writes) transport_memory_hold_writes(transport);
}

/* Turns until nothing happens any more. */
static void settle(void) {
    int quiet = 0;
    for (int turns = 0; quiet < 2; turns++) {
        CHECK(turns < 1000000);
        uint64_t wait_us = server_step(server);
        quiet = transport->operations->poll(transport, 0) == 0 && wait_us > 0 ? quiet + 1 : 0;
    }
}

static void close_server(void) {
    server_free(server);
    server = NULL;
}

static struct memory_peer *connect_peer(void) {
    struct memory_peer *peer = memory_peer_connect(transport);
    CHECK(peer);
    return peer;
}

static bool received(struct memory_peer *peer, const char *expected) {
    size_t length;
    const uint8_t *bytes = memory_peer_received(peer, &length);
    bool equal = length == strlen(expected) && (length == 0 || memcmp(bytes, expected, length) == 0);
    if (!equal)
        fprintf(stderr, "expected %s\nreceived %.*s\n", expected, (int)(length < 2000 ? length : 2000),
                (const char *)bytes);
    memory_peer_forget_received(peer);
    return equal;
}

static bool received_prefix(struct memory_peer *peer, const char *expected) {
    size_t length;
    const uint8_t *bytes = memory_peer_received(peer, &length);
    bool equal = length > 0 && length >= strlen(expected) && memcmp(bytes, expected, strlen(expected)) == 0;
    if (!equal)
        fprintf(stderr, "expected %s…\nreceived %.*s\n", expected, (int)(length < 2000 ? length : 2000),
                (const char *)bytes);
    memory_peer_forget_received(peer);
    return equal;
}

static bool has_received(struct memory_peer *peer, const char *expected) {
    size_t length;
    const uint8_t *bytes = memory_peer_received(peer, &length);
    return length > 0 && memmem(bytes, length, expected, strlen(expected));
}

static void say(struct memory_peer *peer, const char *text) {
    memory_peer_send(peer, text, strlen(text));
}

static bool answers(struct memory_peer *peer, const char *request, const char *reply) {
    say(peer, request);
    settle();
    return received(peer, reply);
}

static void send_arguments(struct memory_peer *peer, int count) {
    char head[32];
    memory_peer_send(peer, head, (size_t)sprintf(head, "*%d\r\n", count));
}

static void send_bulk(struct memory_peer *peer, const void *bytes, size_t length) {
    char head[32];
    memory_peer_send(peer, head, (size_t)sprintf(head, "$%zu\r\n", length));
    memory_peer_send(peer, bytes, length);
    memory_peer_send(peer, "\r\n", 2);
}

static void send_word(struct memory_peer *peer, const char *word) {
    send_bulk(peer, word, strlen(word));
}

/* ---- plain commands ---------------------------------------------------------------------------------- */

static void commands_are_answered_in_order_however_cut(void) {
    open_server(false, NULL);
    for (size_t piece = 1; piece < 40; piece += 3) {
        struct memory_peer *peer = connect_peer();
        memory_peer_cut_input(peer, piece);
        memory_peer_open_window(peer, SIZE_MAX);
        CHECK(answers(peer, "*1\r\n$4\r\nPING\r\n*2\r\n$4\r\nECHO\r\n$5\r\nhello\r\nPING again\r\n",
                      "+PONG\r\n$5\r\nhello\r\n$5\r\nagain\r\n"));
    }
    close_server();
}

static void a_reply_survives_partial_writes(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    memory_peer_open_window(peer, 0);
    say(peer, "*2\r\n$4\r\nECHO\r\n$5\r\nhello\r\n");
    settle();
    for (int i = 0; i < 11; i++) {
        memory_peer_open_window(peer, 1);
        settle();
    }
    CHECK(received(peer, "$5\r\nhello\r\n"));
    close_server();
}

static void unknown_and_wrong_commands_are_refused_as_redis_refuses_them(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    CHECK(answers(peer, "FOO bar 'a b'\r\n", "-ERR unknown command 'FOO', with args beginning with: 'bar' 'a b' \r\n"));
    CHECK(answers(peer, "*2\r\n$4\r\nf\r\no\r\n$1\r\n\n\r\n",
                  "-ERR unknown command 'f  o', with args beginning with: ' ' \r\n"));
    CHECK(answers(peer, "ECHO\r\n", "-ERR wrong number of arguments for 'echo' command\r\n"));
    CHECK(answers(peer, "CLIENT MAINT_NOTIFICATIONS ON\r\n",
                  "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.\r\n"));
    CHECK(answers(peer, "CLIENT ID now\r\n", "-ERR wrong number of arguments for 'client|id' command\r\n"));
    CHECK(answers(peer, "SELECT 16\r\n", "-ERR DB index is out of range\r\n"));
    CHECK(answers(peer, "PING\r\n", "+PONG\r\n"));
    /* An unknown command with a large argument keeps the connection in step. */
    static char large[50000];
    send_arguments(peer, 2);
    send_word(peer, "FOO");
    send_bulk(peer, large, sizeof large);
    settle();
    CHECK(received(peer, "-ERR unknown command 'FOO', with args beginning with: '' \r\n"));
    CHECK(answers(peer, "PING\r\n", "+PONG\r\n"));
    close_server();
}

static void a_malformed_stream_is_answered_and_closed(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    say(peer, "PING\r\n*1\r\n+PING\r\nPING\r\n");
    settle();
    CHECK(received(peer, "+PONG\r\n-ERR Protocol error: expected '$', got '+'\r\n") && memory_peer_is_closed(peer));
    peer = connect_peer();
    say(peer, "POST / HTTP/1.1\r\nHost: x\r\n\r\n");
    settle();
    CHECK(received(peer, "") && memory_peer_is_closed(peer));
    CHECK(server->clients.count == 0 && server->stats.protocol_errors == 1);
    close_server();
}

static void hello_changes_the_protocol(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    say(peer, "HELLO 3 SETNAME me\r\nCLIENT GETNAME\r\nGET nothing\r\nHELLO 4\r\nHELLO 2\r\nGET "
              "nothing\r\nRESET\r\nCLIENT GETNAME\r\n");
    settle();
    CHECK(has_received(peer, "%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n"));
    CHECK(has_received(peer, "$2\r\nme\r\n_\r\n-NOPROTO unsupported protocol version\r\n*14\r\n"));
    CHECK(has_received(peer, "$-1\r\n+RESET\r\n$-1\r\n"));
    close_server();
}

static void with_password(struct server_config *config) {
    strcpy(config->requirepass, "secret");
}

static void strangers_get_little(void) {
    open_server(false, with_password);
    struct memory_peer *peer = connect_peer();
    CHECK(answers(peer, "GET a\r\n", "-NOAUTH Authentication required.\r\n"));
    CHECK(answers(peer, "AUTH wrong\r\n", "-WRONGPASS invalid username-password pair or user is disabled.\r\n"));
    CHECK(answers(peer, "AUTH secre\r\n", "-WRONGPASS invalid username-password pair or user is disabled.\r\n"));
    CHECK(answers(peer, "*11\r\n", "-ERR Protocol error: unauthenticated multibulk length\r\n") &&
          memory_peer_is_closed(peer));
    peer = connect_peer();
    CHECK(answers(peer, "*2\r\n$4\r\nAUTH\r\n$16385\r\n", "-ERR Protocol error: unauthenticated bulk length\r\n"));
    CHECK(memory_peer_is_closed(peer));
    peer = connect_peer();
    CHECK(answers(peer, "AUTH default secret\r\nPING\r\n", "+OK\r\n+PONG\r\n"));
    static char large[100000];
    send_arguments(peer, 3);
    send_word(peer, "SET");
    send_word(peer, "k");
    send_bulk(peer, large, sizeof large);
    settle();
    CHECK(received(peer, "+OK\r\n"));
    close_server();
}

static void client_reply_mutes(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    CHECK(answers(peer, "CLIENT REPLY SKIP\r\nPING skipped\r\nPING\r\n", "+PONG\r\n"));
    CHECK(answers(peer, "CLIENT REPLY OFF\r\nPING\r\nFOO\r\nCLIENT REPLY ON\r\nPING\r\n", "+OK\r\n+PONG\r\n"));
    say(peer, "CLIENT REPLY OFF\r\nQUIT\r\n");
    settle();
    CHECK(received(peer, "") && memory_peer_is_closed(peer));
    close_server();
}

static void a_finished_peer_still_gets_its_replies(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    say(peer, "PING\r\nPING\r\n*1\r\n$4\r\nPI");
    memory_peer_finish(peer);
    memory_peer_open_window(peer, 0);
    settle();
    CHECK(!memory_peer_is_closed(peer));
    memory_peer_open_window(peer, SIZE_MAX);
    settle();
    CHECK(received(peer, "+PONG\r\n+PONG\r\n") && memory_peer_is_closed(peer) && server->clients.count == 0);
    close_server();
}

static void few_clients(struct server_config *config) {
    config->maxclients = 2;
}

static void more_clients_than_allowed_are_refused(void) {
    open_server(false, few_clients);
    struct memory_peer *peer = connect_peer();
    connect_peer();
    CHECK(!memory_peer_connect(transport) && server->stats.connections_rejected == 1);
    say(peer, "QUIT\r\n");
    settle();
    CHECK(received(peer, "+OK\r\n") && memory_peer_is_closed(peer));
    connect_peer();
    close_server();
}

/* ---- large values and slow readers ------------------------------------------------------------------- */

#define LARGE 300000u
#define BACKLOG (1u << 20)

static char large_value[LARGE];
static char large_reply[LARGE + 32];
static size_t large_reply_length;

static void make_large_value(void) {
    for (size_t i = 0; i < LARGE; i++) large_value[i] = (char)('a' + i % 23);
}

static void store_large(struct memory_peer *peer) {
    make_large_value();
    large_reply_length = (size_t)sprintf(large_reply, "$%u\r\n", LARGE);
    memcpy(large_reply + large_reply_length, large_value, LARGE);
    large_reply_length += LARGE;
    memcpy(large_reply + large_reply_length, "\r\n", 2);
    large_reply_length += 2;
    send_arguments(peer, 3);
    send_word(peer, "SET");
    send_word(peer, "large");
    send_bulk(peer, large_value, LARGE);
    settle();
    CHECK(received(peer, "+OK\r\n"));
}

static bool is_large_replies(const uint8_t *bytes, size_t length, size_t count) {
    if (length != count * large_reply_length) return false;
    for (size_t i = 0; i < count; i++) {
        if (memcmp(bytes + i * large_reply_length, large_reply, large_reply_length) != 0) return false;
    }
    return true;
}

static void a_client_that_does_not_read_runs_nothing_more(void) {
    open_server(false, NULL);
    struct memory_peer *slow = connect_peer(), *other = connect_peer();
    store_large(slow);
    server->config.client_output_backlog_bytes = BACKLOG;
    memory_peer_open_window(slow, 0);
    for (int i = 0; i < 100; i++) say(slow, "GET large\r\n");
    settle();
    struct client *client = server->clients.head;
    CHECK(client->output.unsent_bytes > BACKLOG);
    CHECK(client->output.unsent_bytes < BACKLOG + 2 * LARGE && !memory_peer_is_read(slow));
    CHECK(answers(other, "PING\r\n", "+PONG\r\n"));
    memory_peer_open_window(slow, SIZE_MAX);
    settle();
    size_t length;
    const uint8_t *bytes = memory_peer_received(slow, &length);
    CHECK(is_large_replies(bytes, length, 100) && memory_peer_is_read(slow));
    /* Without progress for too long it is cut off. */
    memory_peer_open_window(slow, 0);
    say(slow, "GET large\r\n");
    settle();
    CHECK(!memory_peer_is_closed(slow));
    client->output_us -= (LIMIT_CLIENT_STALL_TIMEOUT_S + 1) * 1000000ull;
    server->next_sweep_us = 0;
    settle();
    CHECK(memory_peer_is_closed(slow) && server->stats.stall_closes == 1 && server->clients.count == 1);
    close_server();
}

/* Requests that wait for a slow reader's turn, the last of them ending the connection: they are dropped once it has run,
 * and the loop sleeps until the reader reads. */
static void a_slow_reader_that_is_to_be_closed_does_not_keep_the_loop_awake(void) {
    static const char *const endings[] = {"QUIT\r\nPING\r\n", "*1\r\n+PING\r\nPING\r\n"};
    for (size_t i = 0; i < 2; i++) {
        open_server(false, NULL);
        struct memory_peer *slow = connect_peer();
        store_large(slow);
        server->config.client_output_backlog_bytes = BACKLOG;
        memory_peer_open_window(slow, 0);
        for (int get = 0; get < 5; get++) say(slow, "GET large\r\n");
        say(slow, endings[i]);
        settle();
        const struct client *client = server->clients.head;
        CHECK(client->output.unsent_bytes > BACKLOG && client->pending_length > 0);
        memory_peer_open_window(slow, 3 * LARGE);
        settle();
        CHECK(client->close_after_reply && client->pending_length == 0 && client->output.unsent_bytes > 0);
        CHECK(server_step(server) > 0);
        memory_peer_open_window(slow, SIZE_MAX);
        settle();
        CHECK(memory_peer_is_closed(slow) && server->clients.count == 0);
        close_server();
    }
}

static void a_reply_larger_than_the_limit_closes_the_client(void) {
    open_server(false, NULL);
    server->config.client_output_limit_bytes = 1 << 20;
    struct memory_peer *peer = connect_peer();
    static char value[10000]; /* below what is sent without a copy */
    send_arguments(peer, 3);
    send_word(peer, "SET");
    send_word(peer, "k");
    send_bulk(peer, value, sizeof value);
    send_arguments(peer, 301);
    send_word(peer, "MGET");
    for (int i = 0; i < 300; i++) send_word(peer, "k");
    settle();
    CHECK(memory_peer_is_closed(peer) && server->stats.output_limit_closes == 1 && server->clients.count == 0);
    /* At once, also where it has not read the replies before. */
    peer = connect_peer();
    memory_peer_open_window(peer, 3);
    say(peer, "PING\r\n");
    settle();
    send_arguments(peer, 301);
    send_word(peer, "MGET");
    for (int i = 0; i < 300; i++) send_word(peer, "k");
    settle();
    CHECK(memory_peer_is_closed(peer) && server->stats.output_limit_closes == 2 && server->clients.count == 0);
    close_server();
}

static void a_request_of_empty_arguments_that_stalls_is_cut_off(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    send_arguments(peer, 100000);
    for (int i = 0; i < 50000; i++) send_bulk(peer, "", 0);
    settle();
    server->clients.head->input_us -= (LIMIT_CLIENT_STALL_TIMEOUT_S + 1) * 1000000ull;
    server->next_sweep_us = 0;
    settle();
    CHECK(memory_peer_is_closed(peer) && server->stats.stall_closes == 1);
    close_server();
}

static void replies_stay_until_the_transport_releases_them(void) {
    open_server(true, NULL);
    struct memory_peer *peer = connect_peer();
    send_arguments(peer, 3);
    send_word(peer, "SET");
    send_word(peer, "large");
    make_large_value();
    send_bulk(peer, large_value, LARGE);
    say(peer, "GET large\r\nDEL large\r\nPING\r\n");
    settle();
    size_t length;
    memory_peer_received(peer, &length);
    CHECK(length == 0 && memory_peer_held(peer) == 5 + 9 + LARGE + 2 + 4 + 7);
    CHECK(memory_used_bytes() > LARGE);
    while (memory_peer_held(peer) > 0) {
        memory_peer_release(peer, memory_peer_held(peer) < 9973 ? memory_peer_held(peer) : 9973);
        settle();
    }
    const uint8_t *bytes = memory_peer_received(peer, &length);
    CHECK(memcmp(bytes, "+OK\r\n$300000\r\n", 14) == 0 && memcmp(bytes + 14, large_value, LARGE) == 0);
    CHECK(memcmp(bytes + 14 + LARGE, "\r\n:1\r\n+PONG\r\n", 13) == 0);
    CHECK(!server->clients.head->output.head);
    /* One that goes with bytes in flight leaves nothing behind, but not before the transport says closed. */
    say(peer, "PING\r\nQUIT\r\n");
    settle();
    CHECK(server->clients.count == 0 && server->output_pool.inline_bytes == 0);
    close_server();
}

static void requests_beyond_the_limit_are_refused_in_step(void) {
    open_server(false, NULL);
    server->limits.max_request_bytes = 100000;
    server->config.max_request_bytes = 100000;
    struct memory_peer *peer = connect_peer();
    static char value[90000];
    send_arguments(peer, 5);
    send_word(peer, "MSET");
    for (int i = 0; i < 2; i++) {
        send_word(peer, "k");
        send_bulk(peer, value, sizeof value);
    }
    settle();
    CHECK(received_prefix(peer, "-LIMIT the request's arguments are 180006 bytes together"));
    CHECK(answers(peer, "EXISTS k\r\n", ":0\r\n"));
    server->config.maxmemory = (int64_t)memory_used_bytes() + 50000;
    send_arguments(peer, 3);
    send_word(peer, "SET");
    send_word(peer, "k");
    send_bulk(peer, value, sizeof value);
    settle();
    CHECK(received(peer, "-OOM command not allowed when used memory > 'maxmemory'.\r\n"));
    CHECK(answers(peer, "EXISTS k\r\n", ":0\r\n"));
    close_server();
}

/* ---- tables: waiting, vanishing ---------------------------------------------------------------------- */

#define OBSERVATION 4096u

static void send_create_table(struct memory_peer *peer) {
    struct msgpack_writer spec = {0};
    msgpack_write_map(&spec, 4);
    msgpack_write_string(&spec, "capacity", 8);
    msgpack_write_unsigned(&spec, 64);
    msgpack_write_string(&spec, "signature", 9);
    msgpack_write_map(&spec, 1);
    msgpack_write_string(&spec, "obs", 3);
    msgpack_write_array(&spec, 2);
    msgpack_write_string(&spec, "uint8", 5);
    msgpack_write_array(&spec, 1);
    msgpack_write_unsigned(&spec, OBSERVATION);
    msgpack_write_string(&spec, "sampler", 7);
    msgpack_write_string(&spec, "uniform", 7);
    msgpack_write_string(&spec, "rate_limiter", 12);
    msgpack_write_map(&spec, 2);
    msgpack_write_string(&spec, "kind", 4);
    msgpack_write_string(&spec, "min_size", 8);
    msgpack_write_string(&spec, "min_size_to_sample", 18);
    msgpack_write_unsigned(&spec, 8);
    send_arguments(peer, 3);
    send_word(peer, "REPLAY.CREATE");
    send_word(peer, "t");
    send_bulk(peer, spec.data, spec.length);
    memory_free(spec.data);
}

static void create_table(struct memory_peer *peer) {
    send_create_table(peer);
    settle();
    CHECK(received(peer, "+OK\r\n"));
}

/* An ADD of n items, of which only the first `bytes` of the column are sent (all: the whole request). */
static void send_add(struct memory_peer *peer, uint32_t n, size_t bytes) {
    static uint8_t column[64 * OBSERVATION];
    char text[32];
    for (size_t i = 0; i < sizeof column; i++) column[i] = (uint8_t)(i / OBSERVATION);
    send_arguments(peer, 8);
    send_word(peer, "REPLAY.ADD");
    send_word(peer, "t");
    sprintf(text, "%u", n);
    send_word(peer, text);
    send_word(peer, "");
    send_word(peer, "COLUMNS");
    send_word(peer, "1");
    send_word(peer, "obs");
    if (bytes == n * OBSERVATION) {
        send_bulk(peer, column, bytes);
        return;
    }
    memory_peer_send(peer, text, (size_t)sprintf(text, "$%u\r\n", n * OBSERVATION));
    memory_peer_send(peer, column, bytes);
}

static void add(struct memory_peer *peer, uint32_t n) {
    char head[32];
    send_add(peer, n, n * OBSERVATION);
    settle();
    sprintf(head, "$%u\r\n", n * 8);
    CHECK(received_prefix(peer, head));
}

static void release_all(struct memory_peer *peer) {
    memory_peer_release(peer, memory_peer_held(peer));
    settle();
}

/* A field of the reply to REPLAY.INFO that was received. */
static uint64_t info_field(struct memory_peer *peer, const char *name) {
    char pattern[64];
    size_t length;
    const uint8_t *bytes = memory_peer_received(peer, &length);
    int pattern_length = sprintf(pattern, "\r\n%s\r\n:", name);
    const char *found = memmem(bytes, length, pattern, (size_t)pattern_length);
    CHECK(found);
    uint64_t value = strtoull(found + pattern_length, NULL, 10);
    memory_peer_forget_received(peer);
    return value;
}

static uint64_t table_field(struct memory_peer *peer, const char *name) {
    say(peer, "REPLAY.INFO t\r\n");
    settle();
    return info_field(peer, name);
}

static void blocked_clients_are_served_in_turn(void) {
    open_server(false, NULL);
    struct memory_peer *pusher = connect_peer();
    create_table(pusher);
    struct memory_peer *waiting[3];
    for (int i = 0; i < 3; i++) {
        waiting[i] = connect_peer();
        say(waiting[i], "REPLAY.SAMPLE t 1 BLOCK 0\r\nPING\r\n");
        settle();
        CHECK(received(waiting[i], ""));
    }
    CHECK(server->blocked_clients == 3 && table_field(pusher, "waiting") == 3);
    memory_peer_vanish(waiting[1]);
    settle();
    CHECK(memory_peer_is_closed(waiting[1]) && server->blocked_clients == 2);
    add(pusher, 7);
    CHECK(server->blocked_clients == 2);
    add(pusher, 1);
    CHECK(server->blocked_clients == 0);
    for (int i = 0; i < 3; i += 2) {
        size_t length;
        const uint8_t *bytes = memory_peer_received(waiting[i], &length);
        CHECK(length > OBSERVATION && memcmp(bytes, "*5\r\n$8\r\n", 8) == 0);
        CHECK(memcmp(bytes + length - 7, "+PONG\r\n", 7) == 0); /* what was sent behind comes after */
    }
    CHECK(table_field(pusher, "sampled") == 2 && table_field(pusher, "pinned_slots") == 0);
    close_server();
}

static void send_create_queue(struct memory_peer *peer) {
    static const char spec[] = "\x83\xa8"
                               "capacity\x08\xa9signature\x81\xa3obs\x92\xa5uint8\x91\xcd\x10\x00"
                               "\xacrate_limiter\x82\xa4kind\xa5queue\xa4size\x08";
    send_arguments(peer, 3);
    send_word(peer, "REPLAY.CREATE");
    send_word(peer, "t");
    send_bulk(peer, spec, sizeof spec - 1);
    settle();
    CHECK(received(peer, "+OK\r\n"));
}

/* It has sent so much ahead that it is not read from any more: its end must be noticed all the same. A slow reader, not
 * read from either, only has no more to ask. */
static void a_waiting_client_that_sent_much_ahead_and_hung_up_is_let_go(void) {
    open_server(false, NULL);
    server->config.client_output_backlog_bytes = BACKLOG;
    struct memory_peer *waiting = connect_peer(), *slow = connect_peer(), *other = connect_peer();
    send_create_queue(other);
    say(waiting, "REPLAY.SAMPLE t 1 BLOCK 0\r\n");
    for (int ping = 0; ping < 20000; ping++) say(waiting, "PING\r\n");
    store_large(slow);
    memory_peer_open_window(slow, 0);
    for (int get = 0; get < 10; get++) say(slow, "GET large\r\n");
    settle();
    CHECK(server->blocked_clients == 1 && !memory_peer_is_read(waiting) && !memory_peer_is_read(slow));
    memory_peer_finish(waiting);
    memory_peer_finish(slow);
    settle();
    CHECK(memory_peer_is_closed(waiting) && server->blocked_clients == 0 && !memory_peer_is_closed(slow));
    memory_peer_open_window(slow, SIZE_MAX);
    settle();
    size_t length;
    const uint8_t *bytes = memory_peer_received(slow, &length);
    CHECK(is_large_replies(bytes, length, 10) && memory_peer_is_closed(slow));
    close_server();
}

/* The table holds enough for the second, who must not wait for another ADD. */
static void the_next_in_the_queue_is_served_when_the_first_gives_up(void) {
    for (int way = 0; way < 3; way++) {
        open_server(false, NULL);
        struct memory_peer *first = connect_peer(), *second = connect_peer(), *other = connect_peer();
        send_create_queue(other);
        say(first, way == 1 ? "REPLAY.SAMPLE t 8 BLOCK 600000\r\n" : "REPLAY.SAMPLE t 8 BLOCK 0\r\n");
        settle();
        say(second, "REPLAY.SAMPLE t 2 BLOCK 0\r\n");
        settle();
        add(other, 2);
        CHECK(server->blocked_clients == 2);
        if (way == 0)
            memory_peer_vanish(first);
        else if (way == 1)
            server->deadlines[0]->deadline_us = 0;
        else
            say(other, "CLIENT UNBLOCK 1 ERROR\r\n");
        settle();
        CHECK(server->blocked_clients == 0 && received_prefix(second, "*5\r\n$16\r\n"));
        close_server();
    }
}

static void a_wait_ends_at_its_deadline_with_the_reason(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer(), *other = connect_peer();
    create_table(peer);
    uint64_t until_us = clock_monotonic_us() + 5000000;
    say(peer, "REPLAY.SAMPLE t 1 BLOCK 1\r\nPING\r\n");
    size_t length = 0;
    while (length < 14 && clock_monotonic_us() < until_us) {
        settle();
        memory_peer_received(peer, &length);
    }
    const uint8_t *bytes = memory_peer_received(peer, &length);
    CHECK(memmem(bytes, length, "-TIMEOUT ", 9) && memcmp(bytes + length - 7, "+PONG\r\n", 7) == 0);
    memory_peer_forget_received(peer);
    /* CLIENT UNBLOCK and DROP end waits too. */
    say(peer, "CLIENT ID\r\nREPLAY.SAMPLE t 1 BLOCK 0\r\n");
    settle();
    CHECK(received(peer, ":1\r\n") && answers(other, "CLIENT UNBLOCK 1 ERROR\r\n", ":1\r\n"));
    CHECK(received(peer, "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n"));
    say(peer, "REPLAY.SAMPLE t 1 BLOCK 0\r\n");
    settle();
    CHECK(answers(other, "CLIENT UNBLOCK 1\r\n", ":1\r\n") && received_prefix(peer, "-TIMEOUT "));
    say(peer, "REPLAY.SAMPLE t 1 BLOCK 0\r\n");
    settle();
    CHECK(answers(other, "REPLAY.DROP t\r\n", "+OK\r\n") && received_prefix(peer, "-NOTABLE "));
    CHECK(server->blocked_clients == 0 && server->deadline_count == 0);
    close_server();
}

static void deadlines_come_in_order(void) {
    open_server(false, NULL);
    struct memory_peer *peers[40];
    for (int i = 0; i < 40; i++) {
        char text[64];
        peers[i] = connect_peer();
        sprintf(text, "DEBUG SLEEP %d.5\r\n", 100 + (i * 17) % 40);
        say(peers[i], text);
    }
    settle();
    CHECK(server->deadline_count == 40);
    for (int i = 0; i < 40; i += 3) memory_peer_vanish(peers[i]);
    settle();
    CHECK(server->deadline_count == 26);
    uint64_t last_us = 0;
    while (server->deadline_count > 0) {
        struct client *nearest = server->deadlines[0];
        CHECK(nearest->deadline_us >= last_us);
        last_us = nearest->deadline_us;
        client_expire(nearest);
    }
    settle();
    CHECK(received(peers[1], "+OK\r\n"));
    close_server();
}

static void whoever_vanishes_in_mid_request_gives_its_reservation_back(void) {
    open_server(false, NULL);
    struct memory_peer *watcher = connect_peer();
    create_table(watcher);
    size_t cuts[] = {0, 1, OBSERVATION, 5 * OBSERVATION + 17, 16 * OBSERVATION - 1};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        for (int way = 0; way < 3; way++) {
            struct memory_peer *peer = connect_peer();
            memory_peer_cut_input(peer, way == 0 ? 1000 : SIZE_MAX);
            send_add(peer, 16, cuts[i]);
            settle();
            CHECK(table_field(watcher, "reserved_slots") == 16);
            if (way == 2) { /* one that merely stalls is cut off in the end */
                server->clients.tail->input_us -= (LIMIT_CLIENT_STALL_TIMEOUT_S + 1) * 1000000ull;
                server->next_sweep_us = 0;
            } else if (way == 1) {
                memory_peer_finish(peer);
            } else {
                memory_peer_vanish(peer);
            }
            settle();
            CHECK(memory_peer_is_closed(peer) && table_field(watcher, "reserved_slots") == 0);
        }
    }
    CHECK(table_field(watcher, "size") == 0 && table_field(watcher, "added") == 0);
    close_server();
}

static void a_refused_add_keeps_the_connection_in_step(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    create_table(peer);
    static uint8_t column[8 * OBSERVATION];
    const char *wrong[][3] = {{"nosuch", "8", "obs"}, {"t", "7", "obs"}, {"t", "8", "other"}};
    const char *errors[] = {"-NOTABLE ", "-BADSHAPE ", "-BADSCHEMA "};
    for (int i = 0; i < 3; i++) {
        send_arguments(peer, 8);
        send_word(peer, "REPLAY.ADD");
        send_word(peer, wrong[i][0]);
        send_word(peer, wrong[i][1]);
        send_word(peer, "");
        send_word(peer, "COLUMNS");
        send_word(peer, "1");
        send_word(peer, wrong[i][2]);
        send_bulk(peer, column, sizeof column);
        settle();
        CHECK(received_prefix(peer, errors[i]));
        CHECK(answers(peer, "PING\r\n", "+PONG\r\n"));
    }
    CHECK(table_field(peer, "reserved_slots") == 0 && table_field(peer, "size") == 0);
    add(peer, 8);
    close_server();
}

/* The observations of a reply to REPLAY.SAMPLE t 32, each of which is one value throughout. */
static void check_observations(struct memory_peer *peer) {
    size_t length;
    const uint8_t *bytes = memory_peer_received(peer, &length);
    CHECK(length > 32 * OBSERVATION);
    const uint8_t *column = bytes + length - 2 - 32 * OBSERVATION;
    for (uint32_t i = 0; i < 32; i++) {
        for (uint32_t j = 1; j < OBSERVATION; j++) CHECK(column[i * OBSERVATION + j] == column[i * OBSERVATION]);
    }
    memory_peer_forget_received(peer);
}

static void sampled_items_are_pinned_until_their_bytes_are_sent(void) {
    open_server(false, NULL);
    struct memory_peer *watcher = connect_peer(), *peer = connect_peer();
    create_table(watcher);
    add(watcher, 64);
    memory_peer_open_window(peer, 100);
    say(peer, "REPLAY.SAMPLE t 32\r\n");
    settle();
    CHECK(table_field(watcher, "pinned_slots") > 0);
    /* Items that leave while they are on their way: the bytes sent are still theirs. */
    CHECK(answers(watcher, "REPLAY.RESET t\r\n", "+OK\r\n"));
    add(watcher, 64);
    memory_peer_open_window(peer, SIZE_MAX);
    settle();
    check_observations(peer);
    CHECK(table_field(watcher, "pinned_slots") == 0);
    memory_peer_open_window(peer, 1000);
    say(peer, "REPLAY.SAMPLE t 32\r\n");
    settle();
    CHECK(table_field(watcher, "pinned_slots") > 0);
    memory_peer_vanish(peer);
    settle();
    CHECK(table_field(watcher, "pinned_slots") == 0 && server->clients.count == 1);
    close_server();
}

static void sampled_items_are_pinned_until_the_transport_releases_them(void) {
    open_server(true, NULL);
    struct memory_peer *peer = connect_peer();
    struct memory_peer *watcher = connect_peer();
    send_create_table(peer);
    send_add(peer, 64, 64 * OBSERVATION);
    settle();
    release_all(peer);
    memory_peer_forget_received(peer);
    say(peer, "REPLAY.SAMPLE t 32\r\n");
    settle();
    size_t held = memory_peer_held(peer);
    CHECK(held > 32 * OBSERVATION);
    say(watcher, "REPLAY.RESET t\r\n");
    send_add(watcher, 64, 64 * OBSERVATION);
    settle();
    memory_peer_release(peer, held / 2);
    settle();
    release_all(peer);
    check_observations(peer);
    say(peer, "REPLAY.SAMPLE t 32\r\n");
    settle();
    memory_peer_vanish(peer);
    memory_peer_vanish(watcher);
    settle();
    CHECK(server->clients.count == 0);
    peer = connect_peer();
    say(peer, "REPLAY.INFO t\r\n");
    settle();
    release_all(peer);
    CHECK(info_field(peer, "pinned_slots") == 0);
    close_server();
}

static void stopping_answers_who_waits_and_lets_go(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer(), *idle = connect_peer(), *slow = connect_peer();
    create_table(peer);
    store_large(slow);
    memory_peer_open_window(slow, 10);
    say(slow, "GET large\r\n");
    say(peer, "REPLAY.SAMPLE t 1 BLOCK 0\r\n");
    settle();
    server_ask_stop(server);
    /* The slow one never reads: the stop does not wait for it longer than its bound. */
    server_step(server);
    server_run(server);
    CHECK(server->stopping && memory_peer_is_closed(idle) && memory_peer_is_closed(peer) &&
          !memory_peer_is_closed(slow));
    CHECK(received_prefix(peer, "-TIMEOUT ") && server->clients.count == 1);
    close_server();
}

int main(void) {
    size_t before = memory_used_bytes();
    RUN(commands_are_answered_in_order_however_cut);
    RUN(a_reply_survives_partial_writes);
    RUN(unknown_and_wrong_commands_are_refused_as_redis_refuses_them);
    RUN(a_malformed_stream_is_answered_and_closed);
    RUN(hello_changes_the_protocol);
    RUN(strangers_get_little);
    RUN(client_reply_mutes);
    RUN(a_finished_peer_still_gets_its_replies);
    RUN(more_clients_than_allowed_are_refused);
    RUN(a_client_that_does_not_read_runs_nothing_more);
    RUN(a_slow_reader_that_is_to_be_closed_does_not_keep_the_loop_awake);
    RUN(a_reply_larger_than_the_limit_closes_the_client);
    RUN(a_request_of_empty_arguments_that_stalls_is_cut_off);
    RUN(replies_stay_until_the_transport_releases_them);
    RUN(requests_beyond_the_limit_are_refused_in_step);
    RUN(blocked_clients_are_served_in_turn);
    RUN(the_next_in_the_queue_is_served_when_the_first_gives_up);
    RUN(a_waiting_client_that_sent_much_ahead_and_hung_up_is_let_go);
    RUN(a_wait_ends_at_its_deadline_with_the_reason);
    RUN(deadlines_come_in_order);
    RUN(whoever_vanishes_in_mid_request_gives_its_reservation_back);
    RUN(a_refused_add_keeps_the_connection_in_step);
    RUN(sampled_items_are_pinned_until_their_bytes_are_sent);
    RUN(sampled_items_are_pinned_until_the_transport_releases_them);
    RUN(stopping_answers_who_waits_and_lets_go);
    CHECK(memory_used_bytes() == before);
    return 0;
}

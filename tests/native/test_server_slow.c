/* test_server_slow: large values, and clients that do not read: bounds on what the server holds for them. */
#include "server/core/config.h"
#include "server_stage.h"

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
    server->clients.next_sweep_us = 0;
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
    server->config.output_limits[OUTPUT_NORMAL].hard_bytes = 1 << 20;
    config_apply(server);
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
    server->clients.next_sweep_us = 0;
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
    server->limits.known.max_request_bytes = 100000;
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

int main(void) {
    size_t before = memory_used_bytes();
    RUN(a_client_that_does_not_read_runs_nothing_more);
    RUN(a_slow_reader_that_is_to_be_closed_does_not_keep_the_loop_awake);
    RUN(a_reply_larger_than_the_limit_closes_the_client);
    RUN(a_request_of_empty_arguments_that_stalls_is_cut_off);
    RUN(replies_stay_until_the_transport_releases_them);
    RUN(requests_beyond_the_limit_are_refused_in_step);
    CHECK(memory_used_bytes() == before);
    return 0;
}

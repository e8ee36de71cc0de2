/* test_server_commands: commands over the in-memory transport: order, refusals, strangers, and who may come in. */
#include "server_stage.h"

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

/* The array that EXEC answers has as many replies as it says. */
static void what_answers_nothing_is_refused_in_a_transaction(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    CHECK(answers(
        peer, "MULTI\r\nPING\r\nCLIENT REPLY OFF\r\nPING\r\nEXEC\r\nPING\r\n",
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n+PONG\r\n-ERR CLIENT REPLY cannot be run in a transaction: "
        "send it before MULTI or after EXEC\r\n+PONG\r\n+PONG\r\n"));
    CHECK(answers(
        peer, "MULTI\r\nREPLCONF ACK 4\r\nREPLCONF GETACK *\r\nEXEC\r\nREPLCONF ACK 4\r\nPING\r\n",
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n-ERR REPLCONF ACK and GETACK cannot be run in a transaction: send them "
        "outside of it\r\n-ERR REPLCONF ACK and GETACK cannot be run in a transaction: send them outside of "
        "it\r\n+PONG\r\n"));
    close_server();
}

static void allow_debug(struct server_config *config) {
    config->enable_debug_command = DEBUG_ALLOWED;
}

static void a_push_is_followed_by_the_reply(void) {
    open_server(false, allow_debug);
    struct memory_peer *peer = connect_peer();
    say(peer, "HELLO 3\r\n");
    settle();
    memory_peer_forget_received(peer);
    CHECK(answers(
        peer, "DEBUG PROTOCOL push\r\nPING\r\n",
        ">2\r\n$16\r\nserver-cpu-usage\r\n:42\r\n$40\r\nSome real reply following the push reply\r\n+PONG\r\n"));
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

int main(void) {
    size_t before = memory_used_bytes();
    RUN(commands_are_answered_in_order_however_cut);
    RUN(a_reply_survives_partial_writes);
    RUN(unknown_and_wrong_commands_are_refused_as_redis_refuses_them);
    RUN(a_malformed_stream_is_answered_and_closed);
    RUN(hello_changes_the_protocol);
    RUN(strangers_get_little);
    RUN(client_reply_mutes);
    RUN(a_push_is_followed_by_the_reply);
    RUN(what_answers_nothing_is_refused_in_a_transaction);
    RUN(a_finished_peer_still_gets_its_replies);
    RUN(more_clients_than_allowed_are_refused);
    CHECK(memory_used_bytes() == before);
    return 0;
}

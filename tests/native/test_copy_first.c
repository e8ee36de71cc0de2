/* Tests of changes of large values while a snapshot is taken: who asks for one waits until the value is copied, and everybody
 * else is served. */
#include <stdio.h>
#include <unistd.h>

#include "own_folder.h"
#include "server/durability/copy_first.h"
#include "server_stage.h"

#define FIELDS 100000
#define PER_COMMAND 1000

static void make_hash(struct memory_peer *peer, const char *key) {
    char field[32];
    for (int first = 0; first < FIELDS; first += PER_COMMAND) {
        send_arguments(peer, 2 + 2 * PER_COMMAND);
        send_word(peer, "HSET");
        send_word(peer, key);
        for (int i = first; i < first + PER_COMMAND; i++) {
            sprintf(field, "field-%d", i);
            send_word(peer, field);
            send_word(peer, "before");
        }
        settle();
        CHECK(received(peer, ":1000\r\n"));
    }
}

/* A snapshot that has been cut, and has large values still to copy. */
static void begin_snapshot(struct memory_peer *peer) {
    say(peer, "BGSAVE\r\n");
    for (int turns = 0; !server->copying; turns++) {
        CHECK(turns < 1000);
        take_turn();
    }
    CHECK(received(peer, "+Background saving started\r\n"));
}

static bool has_answer(struct memory_peer *peer) {
    size_t length;
    memory_peer_received(peer, &length);
    return length > 0;
}

static void asks_and_is_answered_at_once(struct memory_peer *peer, const char *request, const char *reply) {
    say(peer, request);
    for (int turns = 0; turns < 3 && !has_answer(peer); turns++) take_turn();
    CHECK(received(peer, reply));
}

static void whoever_changes_a_value_that_is_to_be_copied_waits_and_others_do_not(void) {
    open_server(false, NULL);
    struct memory_peer *maker = connect_peer(), *one = connect_peer(), *other = connect_peer(), *both = connect_peer();
    make_hash(maker, "h");
    make_hash(maker, "i");
    begin_snapshot(maker);
    say(one, "HSET h field-0 after\r\n");
    say(both, "MULTI\r\nSET k 1\r\nHDEL i field-1\r\nEXEC\r\n");
    take_turn();
    take_turn();
    CHECK(server->copying && !has_answer(one) && server->clients.blocked == 2);
    CHECK(received(both, "+OK\r\n+QUEUED\r\n+QUEUED\r\n"));
    asks_and_is_answered_at_once(other, "HGET h field-0\r\n", "$6\r\nbefore\r\n");
    asks_and_is_answered_at_once(other, "SET small 1\r\n", "+OK\r\n");
    settle();
    CHECK(!server->copying && received(one, ":0\r\n") && received(both, "*2\r\n+OK\r\n:1\r\n"));
    CHECK(answers(other, "HGET h field-0\r\n", "$5\r\nafter\r\n"));
    close_server();
}

static void who_leaves_or_is_stopped_while_it_waits_has_changed_nothing(void) {
    open_server(false, NULL);
    struct memory_peer *maker = connect_peer(), *one = connect_peer(), *two = connect_peer();
    make_hash(maker, "h");
    begin_snapshot(maker);
    say(one, "HSET h field-0 after\r\n");
    say(two, "HSET h field-1 after\r\n");
    take_turn();
    CHECK(server->clients.blocked == 2);
    memory_peer_vanish(one);
    take_turn();
    CHECK(server->clients.blocked == 1);
    asks_and_is_answered_at_once(maker, "HGET h field-0\r\n", "$6\r\nbefore\r\n");
    server_ask_stop(server);
    server_run(server);
    CHECK(received_prefix(two, "-ERR the server is stopping; the command was waiting for a snapshot"));
    close_server();
}

static void a_snapshot_that_is_over_holds_nobody(void) {
    open_server(false, NULL);
    struct memory_peer *maker = connect_peer();
    make_hash(maker, "h");
    begin_snapshot(maker);
    settle();
    CHECK(!server->copying);
    asks_and_is_answered_at_once(maker, "HSET h field-0 after\r\n", ":0\r\n");
    close_server();
}

int main(void) {
    enter_own_folder();
    size_t before = memory_used_bytes();
    RUN(whoever_changes_a_value_that_is_to_be_copied_waits_and_others_do_not);
    RUN(who_leaves_or_is_stopped_while_it_waits_has_changed_nothing);
    RUN(a_snapshot_that_is_over_holds_nobody);
    CHECK(memory_used_bytes() == before);
    return 0;
}

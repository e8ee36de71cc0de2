/* test_server_changes: RESET and CONFIG of a large table over the in-memory transport: done in slices while others are
 * served, one change after the other, and who waits is told why. */
#include <inttypes.h>

#include "server/replay/replay_registry.h"
#include "server/replay/replay_subsystem.h"
#include "server_stage.h"

#define MANY 300000u
#define ADDED 30000u

/* A table of MANY policy versions 0, 1, …, no one too old yet. */
static void create_large_table(struct memory_peer *peer) {
    static int64_t versions[ADDED];
    struct msgpack_writer spec = {0};
    msgpack_write_map(&spec, 4);
    write_text(&spec, "capacity");
    msgpack_write_unsigned(&spec, MANY);
    write_text(&spec, "sampler");
    write_text(&spec, "uniform");
    write_text(&spec, "max_staleness");
    msgpack_write_unsigned(&spec, MANY);
    write_text(&spec, "signature");
    msgpack_write_map(&spec, 1);
    write_text(&spec, TABLE_VERSION_COLUMN);
    msgpack_write_array(&spec, 2);
    write_text(&spec, "int64");
    msgpack_write_array(&spec, 0);
    send_spec(peer, "REPLAY.CREATE", &spec);
    settle();
    CHECK(received(peer, "+OK\r\n"));
    for (int64_t first = 0; first < MANY; first += ADDED) {
        for (int64_t i = 0; i < ADDED; i++) versions[i] = first + i;
        send_arguments(peer, 8);
        send_word(peer, "REPLAY.ADD");
        send_word(peer, "t");
        send_word(peer, "30000");
        send_word(peer, "");
        send_word(peer, "COLUMNS");
        send_word(peer, "1");
        send_word(peer, TABLE_VERSION_COLUMN);
        send_bulk(peer, versions, sizeof versions);
        settle();
        CHECK(received_prefix(peer, "$240000\r\n"));
    }
}

/* One turn; how the loop would wait afterwards. */
static uint64_t turn(void) {
    transport->operations->poll(transport, 0);
    return server_step(server);
}

static bool silent(struct memory_peer *peer) {
    size_t length;
    memory_peer_received(peer, &length);
    return length == 0;
}

/* Turns until the peer gets an answer, asking PING each time; returns how many PINGs were answered before. */
static int pings_until_answered(struct memory_peer *peer, struct memory_peer *other) {
    int pings = 0;
    for (; silent(peer); pings++) {
        CHECK(pings < 100000);
        say(other, "PING\r\n");
        for (int turns = 0; silent(other); turns++) {
            CHECK(turns < 3); /* it is not the change that it waits for */
            CHECK(turn() == 0 || !silent(peer) || !silent(other));
        }
        CHECK(received(other, "+PONG\r\n"));
    }
    return pings;
}

static void a_reset_of_a_large_table_lets_others_be_served(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer(), *other = connect_peer(), *sampler = connect_peer();
    create_large_table(peer);
    say(peer, "REPLAY.RESET t\r\n");
    turn();
    CHECK(silent(peer));
    say(sampler, "REPLAY.SAMPLE t 1\r\n");
    while (silent(sampler)) turn();
    CHECK(received_prefix(sampler, "-TIMEOUT the table is being reset: "));
    say(sampler, "REPLAY.SAMPLE t 1 BLOCK 0\r\n");
    CHECK(pings_until_answered(peer, other) >= 3);
    CHECK(received(peer, "+OK\r\n") && table_field(other, "size") == 0 && table_field(other, "removed") == MANY);
    settle();
    CHECK(silent(sampler) && table_field(other, "waiting_sample") == 1); /* now for items */
    close_server();
}

static void send_change(struct memory_peer *peer, const char *key, const char *value) {
    struct msgpack_writer changes = {0};
    msgpack_write_map(&changes, 1);
    write_text(&changes, key);
    write_text(&changes, value);
    send_spec(peer, "REPLAY.CONFIG", &changes);
}

static void a_change_of_sampler_wakes_who_waited_for_it(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer(), *other = connect_peer(), *sampler = connect_peer();
    create_large_table(peer);
    send_change(peer, "sampler", "min_heap");
    turn();
    CHECK(silent(peer));
    say(sampler, "REPLAY.SAMPLE t 1 BLOCK 0\r\n");
    CHECK(pings_until_answered(peer, other) >= 1 && received(peer, "+OK\r\n"));
    settle();
    CHECK(received_prefix(sampler, "*5\r\n") && table_field(other, "size") == MANY);
    close_server();
}

static void changes_come_one_after_the_other(void) {
    open_server(false, NULL);
    struct memory_peer *first = connect_peer(), *second = connect_peer(), *third = connect_peer();
    create_large_table(first);
    send_change(first, "sampler", "max_heap");
    turn();
    send_change(second, "sampler", "lifo");
    send_change(third, "sampler", "nonsense");
    turn();
    CHECK(silent(first) && silent(second) && silent(third));
    while (silent(first)) turn();
    settle();
    CHECK(received(first, "+OK\r\n") && received(second, "+OK\r\n") && received_prefix(third, "-BADSCHEMA sampler"));
    CHECK(table_config(server->replay->tables->entries->table)->sampler == SELECTOR_LIFO);
    close_server();
}

static void a_client_that_leaves_its_change_alone_changes_nothing_about_it(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer(), *other = connect_peer(), *unblocked = connect_peer();
    create_large_table(peer);
    say(peer, "REPLAY.RESET t\r\n");
    turn();
    say(unblocked, "REPLAY.RESET t\r\n");
    turn();
    memory_peer_vanish(peer);
    say(other, "CLIENT UNBLOCK 3\r\n");
    while (silent(unblocked)) CHECK(turn() == 0);
    CHECK(received_prefix(unblocked, "-TIMEOUT "));
    settle();
    CHECK(received(other, ":1\r\n") && table_field(other, "size") == 0 && server->clients.blocked == 0);
    close_server();
}

static void a_change_that_has_begun_is_not_said_to_be_unblocked(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer(), *other = connect_peer(), *behind = connect_peer();
    create_large_table(peer);
    say(peer, "REPLAY.RESET t\r\n");
    turn();
    say(behind, "REPLAY.RESET t\r\n");
    turn();
    say(other, "CLIENT UNBLOCK 3 ERROR\r\nCLIENT UNBLOCK 1 ERROR\r\n");
    while (silent(peer) || silent(behind)) CHECK(turn() == 0);
    CHECK(received_prefix(peer, "-TIMEOUT the change of table 't' continues"));
    CHECK(received(behind, "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n"));
    settle();
    CHECK(received(other, ":1\r\n:1\r\n") && table_field(other, "size") == 0);
    /* What the client sends next has not begun. */
    say(peer, "REPLAY.SAMPLE t 1 BLOCK 0\r\n");
    settle();
    CHECK(answers(other, "CLIENT UNBLOCK 1 ERROR\r\n", ":1\r\n"));
    CHECK(received(peer, "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n"));
    close_server();
}

static void dropping_a_table_at_work_tells_who_waits(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer(), *other = connect_peer();
    create_large_table(peer);
    send_change(peer, "sampler", "max_heap");
    turn();
    CHECK(answers(other, "REPLAY.DROP t\r\n", "+OK\r\n") && received_prefix(peer, "-NOTABLE "));
    close_server();
}

/* The learner's policy jumps ahead of every item. */
static void items_of_old_policies_leave_between_other_work(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer(), *other = connect_peer();
    create_large_table(peer);
    say(peer, "REPLAY.SAMPLE t 4 POLICY_VERSION 400000 BLOCK 0 REPLACE 0\r\n");
    CHECK(pings_until_answered(peer, other) >= 1 && received_prefix(peer, "*5\r\n$32\r\n"));
    CHECK(table_field(other, "size") == 200000 && table_field(other, "stale_items") == 100000);
    CHECK(table_field(other, "policy_version") == 400000);
    say(peer, "REPLAY.SAMPLE t 1 POLICY_VERSION soon\r\n");
    settle();
    CHECK(received_prefix(peer, "-ERR expected POLICY_VERSION with an integer"));
    close_server();
}

int main(void) {
    size_t before = memory_used_bytes();
    RUN(a_reset_of_a_large_table_lets_others_be_served);
    RUN(a_change_of_sampler_wakes_who_waited_for_it);
    RUN(changes_come_one_after_the_other);
    RUN(a_client_that_leaves_its_change_alone_changes_nothing_about_it);
    RUN(a_change_that_has_begun_is_not_said_to_be_unblocked);
    RUN(dropping_a_table_at_work_tells_who_waits);
    RUN(items_of_old_policies_leave_between_other_work);
    CHECK(memory_used_bytes() == before);
    return 0;
}

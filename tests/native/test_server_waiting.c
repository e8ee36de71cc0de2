/* test_server_waiting: blocked clients: who is served when, deadlines, giving up, and stopping. */
#include "server_stage.h"

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
    CHECK(server->clients.blocked == 3 && table_field(pusher, "waiting") == 3);
    memory_peer_vanish(waiting[1]);
    settle();
    CHECK(memory_peer_is_closed(waiting[1]) && server->clients.blocked == 2);
    add(pusher, 7);
    CHECK(server->clients.blocked == 2);
    add(pusher, 1);
    CHECK(server->clients.blocked == 0);
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

/* An ADD of n items that waits for room. */
static void send_blocking_add(struct memory_peer *peer, uint32_t n) {
    static const uint8_t column[8 * OBSERVATION];
    char text[16];
    sprintf(text, "%u", n);
    send_arguments(peer, 10);
    for (const char *const *word =
             (const char *const[]){"REPLAY.ADD", "t", text, "", "BLOCK", "0", "COLUMNS", "1", "obs", NULL};
         *word; word++)
        send_word(peer, *word);
    send_bulk(peer, column, n * OBSERVATION);
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
    CHECK(server->clients.blocked == 1 && !memory_peer_is_read(waiting) && !memory_peer_is_read(slow));
    memory_peer_finish(waiting);
    memory_peer_finish(slow);
    settle();
    CHECK(memory_peer_is_closed(waiting) && server->clients.blocked == 0 && !memory_peer_is_closed(slow));
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
        CHECK(server->clients.blocked == 2);
        if (way == 0)
            memory_peer_vanish(first);
        else if (way == 1)
            server->clients.deadlines.heap[0]->deadline_us = 0;
        else
            say(other, "CLIENT UNBLOCK 1 ERROR\r\n");
        settle();
        CHECK(server->clients.blocked == 0 && received_prefix(second, "*5\r\n$16\r\n"));
        close_server();
    }
}

static void a_wait_ends_at_its_deadline_with_the_reason(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer(), *other = connect_peer();
    create_table(peer);
    uint64_t until_us = clock_monotonic_us() + 60000000;
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
    CHECK(server->clients.blocked == 0 && server->clients.deadlines.count == 0);
    close_server();
}

/* Every command that can wait, each on a connection of its own: those for room, those for items, those who only look. */
static void who_waits_at_a_table_that_is_closed_is_told_at_once(void) {
    open_server(false, NULL);
    struct memory_peer *other = connect_peer(), *adders[2], *samplers[2], *watchers[2];
    send_create_queue(other);
    add(other, 8);
    for (int i = 0; i < 2; i++) {
        adders[i] = connect_peer();
        send_blocking_add(adders[i], 1);
        watchers[i] = connect_peer();
        say(watchers[i], i ? "REPLAY.AWAIT t SIZE 9 BLOCK 0\r\n" : "REPLAY.AWAIT t SINCE 8 BLOCK 0\r\n");
    }
    settle();
    CHECK(server->clients.blocked == 4);
    CHECK(answers(other, "REPLAY.CLOSETABLE t\r\n", "+OK\r\n") && server->clients.blocked == 0);
    for (int i = 0; i < 2; i++)
        CHECK(received_prefix(adders[i], "-CLOSED table 't' is closed; ") && received_prefix(watchers[i], "-CLOSED "));
    CHECK(table_field(other, "closed") == 1 && table_field(other, "reserved_slots") == 0);
    CHECK(answers(other, "REPLAY.OPENTABLE t\r\n", "+OK\r\n") && answers(other, "REPLAY.RESET t\r\n", "+OK\r\n"));
    add(other, 3);
    for (int i = 0; i < 2; i++) {
        samplers[i] = connect_peer();
        say(samplers[i], i ? "REPLAY.SAMPLE t 3 BLOCK 0\r\nPING\r\n" : "REPLAY.SAMPLE t 4 BLOCK 0\r\nPING\r\n");
        settle();
    }
    CHECK(server->clients.blocked == 2); /* the second stands behind the first */
    CHECK(answers(other, "REPLAY.CLOSETABLE t 'the run is over'\r\n", "+OK\r\n") && server->clients.blocked == 0);
    CHECK(received_prefix(samplers[0], "-CLOSED table 't' is closed: the run is over; ") &&
          received_prefix(samplers[1], "*5\r\n$24\r\n"));
    CHECK(answers(samplers[0], "REPLAY.CLOSETABLE t a b\r\n",
                  "-ERR wrong number of arguments for 'replay.closetable' command\r\n"));
    close_server();
}

/* The answer to the script comes first; those who wait are told after it. */
static void a_script_or_a_transaction_may_close_a_table(void) {
    for (int way = 0; way < 2; way++) {
        open_server(false, NULL);
        struct memory_peer *waiting = connect_peer(), *other = connect_peer();
        create_table(other);
        say(waiting, "REPLAY.SAMPLE t 1 BLOCK 0\r\n");
        settle();
        if (way == 0) {
            send_arguments(other, 4);
            send_word(other, "EVAL");
            send_word(other, "redis.call('REPLAY.CLOSETABLE', KEYS[1], 'over') "
                             "return {redis.pcall('REPLAY.SAMPLE', KEYS[1], '1').err:sub(1, 24)}");
            send_word(other, "1");
            send_word(other, "t");
            settle();
            CHECK(received(other, "*1\r\n$24\r\nCLOSED table 't' is clos\r\n"));
        } else {
            say(other,
                "MULTI\r\nREPLAY.CLOSETABLE t over\r\nREPLAY.OPENTABLE t\r\nREPLAY.CLOSETABLE t over\r\nEXEC\r\n");
            settle();
            CHECK(received(other, "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n+OK\r\n+OK\r\n+OK\r\n"));
        }
        CHECK(received_prefix(waiting, "-CLOSED table 't' is closed: over; ") && server->clients.blocked == 0);
        close_server();
    }
}

/* The columns of an ADD may be on their way when its table is closed: they are read, and the answer is in step. */
static void an_add_whose_columns_are_on_their_way_is_refused_in_step(void) {
    open_server(false, NULL);
    struct memory_peer *adder = connect_peer(), *other = connect_peer();
    create_table(other);
    send_add(adder, 2, OBSERVATION);
    settle();
    CHECK(answers(other, "REPLAY.CLOSETABLE t\r\n", "+OK\r\n"));
    static const uint8_t rest[OBSERVATION];
    memory_peer_send(adder, rest, sizeof rest);
    say(adder, "\r\nPING\r\n");
    settle();
    CHECK(has_received(adder, "-CLOSED ") && has_received(adder, "\r\n+PONG\r\n"));
    memory_peer_forget_received(adder);
    send_add(adder, 2, 2 * OBSERVATION); /* refused by its header */
    say(adder, "PING\r\n");
    settle();
    CHECK(has_received(adder, "-CLOSED ") && has_received(adder, "\r\n+PONG\r\n"));
    CHECK(table_field(other, "size") == 0 && table_field(other, "reserved_slots") == 0);
    close_server();
}

static void allow_debug(struct server_config *config) {
    config->enable_debug_command = DEBUG_ALLOWED;
}

static void deadlines_come_in_order(void) {
    open_server(false, allow_debug);
    struct memory_peer *peers[40];
    for (int i = 0; i < 40; i++) {
        char text[64];
        peers[i] = connect_peer();
        sprintf(text, "DEBUG SLEEP %d.5\r\n", 100 + (i * 17) % 40);
        say(peers[i], text);
    }
    settle();
    CHECK(server->clients.deadlines.count == 40);
    for (int i = 0; i < 40; i += 3) memory_peer_vanish(peers[i]);
    settle();
    CHECK(server->clients.deadlines.count == 26);
    uint64_t last_us = 0;
    while (server->clients.deadlines.count > 0) {
        struct client *nearest = server->clients.deadlines.heap[0];
        CHECK(nearest->deadline_us >= last_us);
        last_us = nearest->deadline_us;
        client_expire(nearest);
    }
    settle();
    CHECK(received(peers[1], "+OK\r\n"));
    close_server();
}

/* Until its next turn the transaction itself waits; what runs in it does not. */
static void in_a_transaction_of_several_turns_nothing_waits(void) {
    static const struct {
        const char *command, *reply;
    } cases[] = {
        {"GRAD.TAKE g 1 BLOCK 0", "-TIMEOUT no gradient waits\r\n"},
        {"GRAD.AWAIT g 1 1 n BLOCK 0", ":0\r\n"},
        {"BLPOP l 0", "*-1\r\n"},
        {"BZPOPMIN z 0", "*-1\r\n"},
        {"REPLAY.SAMPLE t 1 BLOCK 0", "-TIMEOUT "},
        {"REPLAY.AWAIT t SIZE 1 BLOCK 0", "-TIMEOUT "},
    };
    open_server(false, allow_debug);
    struct memory_peer *peer = connect_peer(), *other = connect_peer();
    send_create_queue(peer);
    settle();
    memory_peer_forget_received(peer);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[128], expected[128];
        sprintf(text, "MULTI\r\nDEBUG SLEEP 0.005\r\n%s\r\nEXEC\r\n", cases[i].command);
        sprintf(expected, "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n%s", cases[i].reply);
        say(peer, text);
        settle();
        CHECK(received_prefix(peer, expected));
        CHECK(answers(other, "PING\r\n", "+PONG\r\n"));
    }
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
    CHECK(server->ending.begun && memory_peer_is_closed(idle) && memory_peer_is_closed(peer) &&
          !memory_peer_is_closed(slow));
    CHECK(received_prefix(peer, "-TIMEOUT ") && server->clients.count == 1);
    close_server();
}

/* Some of them wait for another client to be answered first. */
static void a_server_ends_while_clients_wait_for_a_snapshot(void) {
    open_server(false, NULL);
    struct memory_peer *first = connect_peer(), *second = connect_peer();
    CHECK(answers(first, "GRAD.PUSH g 1 name float32 abcd\r\n", ":1\r\n"));
    say(first, "REPLAY.SAVE ended\r\n");
    transport->operations->poll(transport, 0);
    say(second, "REPLAY.SAVE ended\r\n");
    transport->operations->poll(transport, 0);
    CHECK(server->clients.blocked == 2);
    close_server();
}

int main(void) {
    size_t before = memory_used_bytes();
    RUN(blocked_clients_are_served_in_turn);
    RUN(the_next_in_the_queue_is_served_when_the_first_gives_up);
    RUN(a_waiting_client_that_sent_much_ahead_and_hung_up_is_let_go);
    RUN(a_wait_ends_at_its_deadline_with_the_reason);
    RUN(who_waits_at_a_table_that_is_closed_is_told_at_once);
    RUN(a_script_or_a_transaction_may_close_a_table);
    RUN(an_add_whose_columns_are_on_their_way_is_refused_in_step);
    RUN(deadlines_come_in_order);
    RUN(in_a_transaction_of_several_turns_nothing_waits);
    RUN(stopping_answers_who_waits_and_lets_go);
    RUN(a_server_ends_while_clients_wait_for_a_snapshot);
    CHECK(memory_used_bytes() == before);
    return 0;
}

/* test_server_keys: KEYS of a large database is done in slices, and its reply is whole whatever comes in between. */
#include "server/redis/redis_subsystem.h"
#include "server_stage.h"
#include "store/store.h"

#define MANY 30000

static void fill(struct memory_peer *peer) {
    char line[64];
    for (int i = 0; i < MANY; i++) {
        sprintf(line, "SET key:%d 1\r\n", i);
        say(peer, line);
        if (i % 500 == 499) settle();
    }
    settle();
    memory_peer_forget_received(peer);
}

/* The keys in a reply of KEYS, in seen[] by number; returns how many. */
static size_t parse_keys(struct memory_peer *peer, uint8_t seen[MANY + 1000]) {
    size_t length;
    const uint8_t *bytes = memory_peer_received(peer, &length);
    char *text = malloc(length + 1), *at;
    memcpy(text, bytes, length);
    text[length] = '\0';
    CHECK(text[0] == '*');
    size_t count = strtoull(text + 1, &at, 10), found = 0;
    memset(seen, 0, MANY + 1000);
    while ((at = strstr(at, "key:"))) {
        int number = atoi(at + 4);
        CHECK(number >= 0 && number < MANY + 1000);
        seen[number]++;
        found++;
        at += 4;
    }
    CHECK(found == count);
    free(text);
    memory_peer_forget_received(peer);
    return count;
}

/* Begins KEYS and takes `steps` turns; it must not be done then. */
static void begin_search(struct memory_peer *peer, int steps) {
    say(peer, "KEYS *\r\n");
    while (!server->slices.working.head) {
        transport->operations->poll(transport, 0);
        server_step(server);
    }
    for (int i = 0; i < steps; i++) server_step(server);
    CHECK(server->slices.working.head && server->clients.blocked == 1);
}

static void others_are_served_and_their_changes_lose_no_key(void) {
    static uint8_t seen[MANY + 1000];
    open_server(false, NULL);
    struct memory_peer *searcher = connect_peer(), *other = connect_peer();
    fill(other);
    begin_search(searcher, 1);
    char line[64];
    for (int i = 0; i < 500; i++) {
        sprintf(line, "DEL key:%d\r\nSET key:%d 1\r\n", i, MANY + i);
        say(other, line);
    }
    transport->operations->poll(transport, 0);
    server_step(server);
    CHECK(has_received(other, ":1\r\n+OK\r\n")); /* before the search is done, or right with its end */
    settle();
    parse_keys(searcher, seen);
    for (int i = 500; i < MANY; i++) CHECK(seen[i] == 1);
    for (int i = 0; i < MANY + 1000; i++) CHECK(seen[i] <= 1);
    close_server();
}

static void the_dict_may_shrink_and_grow_in_between(void) {
    static uint8_t seen[MANY + 1000];
    open_server(false, NULL);
    struct memory_peer *searcher = connect_peer(), *other = connect_peer();
    fill(other);
    begin_search(searcher, 0);
    char line[64];
    for (int i = 1000; i < MANY; i++) {
        sprintf(line, "DEL key:%d\r\n", i);
        say(other, line);
        if (i % 1000 == 0) {
            transport->operations->poll(transport, 0);
            server_step(server);
        }
    }
    settle();
    parse_keys(searcher, seen);
    for (int i = 0; i < 1000; i++) CHECK(seen[i] == 1);
    for (int i = 0; i < MANY; i++) CHECK(seen[i] <= 1);
    close_server();
}

static void flushes_and_exchanges_end_a_search_in_order(void) {
    static uint8_t seen[MANY + 1000];
    open_server(false, NULL);
    struct memory_peer *searcher = connect_peer(), *other = connect_peer();
    fill(other);
    begin_search(searcher, 0);
    say(other, "SWAPDB 0 1\r\n");
    settle();
    CHECK(received(other, "+OK\r\n") && parse_keys(searcher, seen) == MANY);
    CHECK(answers(other, "SWAPDB 0 1\r\n", "+OK\r\n"));
    begin_search(searcher, 0);
    say(other, "FLUSHALL\r\n");
    settle();
    CHECK(received(other, "+OK\r\n") && parse_keys(searcher, seen) < MANY);
    close_server();
}

static void a_searcher_may_go_but_is_not_interrupted(void) {
    static uint8_t seen[MANY + 1000];
    open_server(false, NULL);
    struct memory_peer *searcher = connect_peer(), *second = connect_peer(), *other = connect_peer();
    fill(other);
    say(searcher, "PING\r\nKEYS *\r\nPING\r\n");
    settle();
    size_t length;
    const uint8_t *bytes = memory_peer_received(searcher, &length);
    CHECK(memcmp(bytes, "+PONG\r\n*30000\r\n", 15) == 0 && memcmp(bytes + length - 7, "+PONG\r\n", 7) == 0);
    begin_search(second, 0);
    CHECK(answers(other, "CLIENT UNBLOCK 2\r\n", ":0\r\n") && parse_keys(second, seen) == MANY);
    begin_search(second, 0);
    memory_peer_vanish(second);
    settle();
    CHECK(server->clients.blocked == 0 && !server->slices.working.head);
    CHECK(answers(other, "MULTI\r\nKEYS key:77\r\nEXEC\r\n", "+OK\r\n+QUEUED\r\n*1\r\n*1\r\n$6\r\nkey:77\r\n"));
    begin_search(searcher, 0);
    close_server();
}

int main(void) {
    others_are_served_and_their_changes_lose_no_key();
    the_dict_may_shrink_and_grow_in_between();
    flushes_and_exchanges_end_a_search_in_order();
    a_searcher_may_go_but_is_not_interrupted();
    return 0;
}

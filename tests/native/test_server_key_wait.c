/* test_server_key_wait: clients that wait for keys come and go in every way without leaving anything behind. */
#include "server_stage.h"

static void a_client_named_twice_in_a_queue_is_served_once(void) {
    open_server(false, NULL);
    struct memory_peer *waiting = connect_peer(), *pusher = connect_peer();
    say(waiting, "BLPOP a b a a 0\r\n");
    settle();
    CHECK(server->clients.blocked == 1 && received(waiting, ""));
    CHECK(answers(pusher, "RPUSH a 1 2\r\n", ":2\r\n"));
    CHECK(received(waiting, "*2\r\n$1\r\na\r\n$1\r\n1\r\n"));
    CHECK(server->clients.blocked == 0 && answers(pusher, "LLEN a\r\n", ":1\r\n"));
    close_server();
}

static void clients_leave_from_any_place_of_a_queue(void) {
    for (int gone = 0; gone < 4; gone++) {
        open_server(false, NULL);
        struct memory_peer *waiting[4], *pusher = connect_peer();
        for (int i = 0; i < 4; i++) {
            waiting[i] = connect_peer();
            say(waiting[i], "BLPOP a b 0\r\n");
            settle();
        }
        memory_peer_vanish(waiting[gone]);
        settle();
        CHECK(server->clients.blocked == 3);
        CHECK(answers(pusher, "RPUSH b 1 2\r\nRPUSH a 3\r\n", ":2\r\n:1\r\n"));
        static const char *const served[3] = {"*2\r\n$1\r\nb\r\n$1\r\n1\r\n", "*2\r\n$1\r\nb\r\n$1\r\n2\r\n",
                                              "*2\r\n$1\r\na\r\n$1\r\n3\r\n"};
        for (int i = 0, order = 0; i < 4; i++)
            if (i != gone) CHECK(received(waiting[i], served[order++]));
        CHECK(server->clients.blocked == 0 && answers(pusher, "EXISTS a b\r\n", ":0\r\n"));
        close_server();
    }
}

/* The keys of those who wait need not come before the server goes. */
static void a_server_ends_with_clients_waiting(void) {
    open_server(false, NULL);
    struct memory_peer *first = connect_peer(), *second = connect_peer();
    say(first, "BLMOVE a b LEFT LEFT 0\r\n");
    say(second, "BLMPOP 10 3 c b a LEFT\r\n");
    settle();
    CHECK(server->clients.blocked == 2 && server->clients.deadlines.count == 1);
    close_server();
}

static void a_wait_ends_at_its_deadline_and_leaves_all_keys(void) {
    open_server(false, NULL);
    struct memory_peer *waiting = connect_peer(), *pusher = connect_peer();
    say(waiting, "BRPOP a b c 100\r\n");
    settle();
    server->clients.deadlines.heap[0]->deadline_us = 0;
    settle();
    CHECK(received(waiting, "*-1\r\n") && server->clients.blocked == 0 && server->clients.deadlines.count == 0);
    CHECK(answers(pusher, "RPUSH a 1\r\nRPUSH b 1\r\n", ":1\r\n:1\r\n") && received(waiting, ""));
    close_server();
}

/* More than a turn's time of waiters: all are served, each from one push. */
static void many_waiters_are_served_in_order(void) {
    enum { MANY = 3000 };
    static struct memory_peer *waiting[MANY];
    open_server(false, NULL);
    struct memory_peer *pusher = connect_peer();
    for (int i = 0; i < MANY; i++) {
        waiting[i] = connect_peer();
        say(waiting[i], "BLPOP a 0\r\n");
        settle();
    }
    send_arguments(pusher, MANY + 2);
    send_word(pusher, "RPUSH");
    send_word(pusher, "a");
    char text[32];
    for (int i = 0; i < MANY; i++) {
        sprintf(text, "%d", i + 1000);
        send_word(pusher, text);
    }
    settle();
    sprintf(text, ":%d\r\n", MANY);
    CHECK(received(pusher, text) && server->clients.blocked == 0);
    for (int i = 0; i < MANY; i++) {
        sprintf(text, "*2\r\n$1\r\na\r\n$4\r\n%d\r\n", i + 1000);
        CHECK(received(waiting[i], text));
    }
    close_server();
}

int main(void) {
    a_client_named_twice_in_a_queue_is_served_once();
    clients_leave_from_any_place_of_a_queue();
    a_server_ends_with_clients_waiting();
    a_wait_ends_at_its_deadline_and_leaves_all_keys();
    many_waiters_are_served_in_order();
    return 0;
}

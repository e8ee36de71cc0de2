/* test_tracking: clients that keep copies of keys are told of changes, whatever comes in between; what is remembered stays
 * bounded and goes with its clients. */
#include "server/redis/redis_subsystem.h"
#include "server/redis/tracking/tracking.h"
#include "server_stage.h"

#define TOLD(key) ">2\r\n$10\r\ninvalidate\r\n*1\r\n$" key "\r\n"
#define EVERYTHING ">2\r\n$10\r\ninvalidate\r\n_\r\n"

static struct memory_peer *connect_tracker(const char *options) {
    struct memory_peer *peer = connect_peer();
    char line[128];
    snprintf(line, sizeof line, "CLIENT TRACKING ON %s\r\n", options);
    say(peer, "HELLO 3\r\n");
    settle();
    memory_peer_forget_received(peer);
    CHECK(answers(peer, line, "+OK\r\n"));
    return peer;
}

static const struct tracking *tracking(void) {
    return server->redis->tracking;
}

static void few_keys(struct server_config *config) {
    config->tracking_table_max_keys = 10;
}

static void the_table_keeps_to_its_limit_and_tells_of_what_it_forgets(void) {
    open_server(false, few_keys);
    struct memory_peer *reader = connect_tracker("");
    char line[64];
    size_t told = 0;
    for (int i = 0; i < 100; i++) {
        snprintf(line, sizeof line, "GET key:%d\r\n", i);
        say(reader, line);
        settle();
        size_t length;
        const char *bytes = (const char *)memory_peer_received(reader, &length);
        for (size_t at = 0; at + 10 <= length; at++) told += memcmp(bytes + at, "invalidate", 10) == 0;
        memory_peer_forget_received(reader);
        CHECK(dict_count(&tracking()->keys) <= 10);
    }
    CHECK(told == 90 && tracking()->items == 10);
    close_server();
}

static void messages_stand_between_replies(void) {
    open_server(false, NULL);
    struct memory_peer *reader = connect_tracker("");
    CHECK(answers(reader, "GET a\r\nSET a 1\r\nGET a\r\nMULTI\r\nSET a 2\r\nGET a\r\nEXEC\r\n",
                  "_\r\n+OK\r\n" TOLD("1\r\na") "$1\r\n1\r\n+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n$1\r\n2\r\n" TOLD(
                      "1\r\na")));
    close_server();
}

static void with_debug(struct server_config *config) {
    config->enable_debug_command = DEBUG_ALLOWED;
}

/* A transaction that takes several turns: it is not whole when another client's key goes. */
static void nothing_comes_into_a_reply_that_takes_turns(void) {
    open_server(false, with_debug);
    struct memory_peer *reader = connect_tracker("BCAST");
    CHECK(answers(reader, "MULTI\r\nSET a 1\r\nDEBUG SLEEP 0.02\r\nSET b 1\r\nEXEC\r\n",
                  "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n+OK\r\n+OK\r\n+OK\r\n" EVERYTHING TOLD("1\r\nb")));
    close_server();
}

static void a_client_that_leaves_leaves_nothing(void) {
    open_server(false, NULL);
    struct memory_peer *stays = connect_tracker("");
    for (int i = 0; i < 100; i++) {
        struct memory_peer *reader = connect_tracker(i % 2 ? "" : "NOLOOP");
        CHECK(answers(reader, "GET a\r\n", "_\r\n"));
        memory_peer_vanish(reader);
        settle();
    }
    CHECK(dict_count(&tracking()->trackers) == 1 && dict_count(&tracking()->keys) == 1);
    CHECK(tracking()->items <= 2); /* readers that have gone make room for those that come */
    memory_peer_vanish(stays);
    settle();
    CHECK(dict_count(&tracking()->keys) == 0 && dict_count(&tracking()->leaving) == 0 && tracking()->items == 0);
    close_server();
}

static void whoever_is_told_for_others_may_leave(void) {
    open_server(false, NULL);
    struct memory_peer *target = connect_peer(), *reader = connect_peer(), *writer = connect_peer();
    CHECK(answers(target, "CLIENT ID\r\n", ":1\r\n"));
    say(target, "SUBSCRIBE __redis__:invalidate\r\n");
    say(reader, "HELLO 3\r\nCLIENT TRACKING ON REDIRECT 1\r\nGET a\r\n");
    settle();
    memory_peer_forget_received(target);
    memory_peer_forget_received(reader);
    CHECK(answers(writer, "SET a 1\r\n", "+OK\r\n") && received(reader, ""));
    CHECK(received(target, "*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n*1\r\n$1\r\na\r\n"));
    CHECK(answers(reader, "GET a\r\n", "$1\r\n1\r\n"));
    memory_peer_vanish(target);
    settle();
    CHECK(answers(writer, "SET a 2\r\n", "+OK\r\n"));
    CHECK(received(reader, ">2\r\n$21\r\ntracking-redir-broken\r\n:1\r\n"));
    close_server();
}

/* More changes in one turn than are kept: the reader is told that everything has changed. */
static void more_changes_than_are_kept_are_everything(void) {
    open_server(false, NULL);
    struct memory_peer *reader = connect_tracker("BCAST"), *writer = connect_peer();
    char word[32];
    server->exclusive.hurried = true; /* not in slices */
    send_arguments(writer, 3 + 2 * (int)LIMIT_TRACKING_CHANGED);
    send_word(writer, "MSET");
    for (uint32_t i = 0; i <= LIMIT_TRACKING_CHANGED; i++) {
        snprintf(word, sizeof word, "key:%u", i);
        send_word(writer, word);
        send_word(writer, "1");
    }
    settle();
    CHECK(has_received(reader, EVERYTHING));
    close_server();
}

static void a_flush_forgets_the_table(void) {
    open_server(false, NULL);
    struct memory_peer *reader = connect_tracker("");
    char line[64];
    for (int i = 0; i < 2000; i++) {
        snprintf(line, sizeof line, "GET key:%d\r\n", i);
        say(reader, line);
    }
    settle();
    CHECK(dict_count(&tracking()->keys) == 2000);
    memory_peer_forget_received(reader);
    CHECK(answers(reader, "FLUSHALL\r\n", "+OK\r\n" EVERYTHING));
    CHECK(dict_count(&tracking()->keys) == 0 && dict_count(&tracking()->leaving) == 0 && tracking()->items == 0);
    close_server();
}

static void a_silent_client_is_told_all_the_same(void) {
    open_server(false, NULL);
    struct memory_peer *reader = connect_tracker(""), *writer = connect_peer();
    CHECK(answers(reader, "GET a\r\nCLIENT REPLY OFF\r\n", "_\r\n"));
    CHECK(answers(writer, "SET a 1\r\n", "+OK\r\n") && received(reader, TOLD("1\r\na")));
    close_server();
}

int main(void) {
    the_table_keeps_to_its_limit_and_tells_of_what_it_forgets();
    messages_stand_between_replies();
    nothing_comes_into_a_reply_that_takes_turns();
    a_client_that_leaves_leaves_nothing();
    whoever_is_told_for_others_may_leave();
    more_changes_than_are_kept_are_everything();
    a_flush_forgets_the_table();
    a_silent_client_is_told_all_the_same();
    return 0;
}

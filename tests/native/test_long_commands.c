/* Tests of commands that have much to do in one request: many arguments, many elements, a long string. Their turns are short, by a
 * clock that counts work. For other clients they are one step, whatever becomes of their own, and in the append-only file. */
#include <strings.h>

#include "counted_work.h"
#include "own_folder.h"
#include "server/core/command_table.h"
#include "server/durability/append_log.h"
#include "server/durability/append_rewrite.h"
#include "server/durability/durability_subsystem.h"
#include "store/store.h"

#define MANY 30000u

static size_t length_received(const struct memory_peer *peer) {
    size_t length;
    memory_peer_received(peer, &length);
    return length;
}

/* The words of `head`, and then so many times a word that begins with `first` and ends with the number, and one that begins with
 * `second`, if there is one. All but the end of it has been received by then. */
static void send_many(struct memory_peer *peer, const char *head, const char *first, const char *second,
                      uint32_t count) {
    char words[64], word[64], *rest = words;
    int heads = 1;
    strcpy(words, head);
    for (const char *at = head; *at; at++) heads += *at == ' ';
    send_arguments(peer, heads + (int)count * (second ? 2 : 1));
    for (char *next; (next = strtok_r(rest, " ", &rest));) send_word(peer, next);
    for (uint32_t i = 0; i < count; i++) {
        bool is_last = i + 1 == count;
        int length = sprintf(word, "%s%u", first, i);
        if (is_last && !second)
            send_last(peer, word, (size_t)length);
        else
            send_word(peer, word);
        if (!second) continue;
        length = sprintf(word, "%s%u", second, i);
        if (is_last)
            send_last(peer, word, (size_t)length);
        else
            send_word(peer, word);
    }
}

static void until_amid_command(void) {
    for (int turns = 0; !server->exclusive.on; turns++) {
        CHECK(turns < 1000);
        take_turn();
    }
}

/* The command that is about to run takes several turns, none of them long. What another client asks meanwhile is answered when the
 * command has ended. */
static void is_one_step_of_short_turns(struct memory_peer *other, const char *question, const char *answer) {
    uint32_t turns = 0;
    server->stats.turn_us_max = 0;
    until_amid_command();
    say(other, question);
    for (; server->exclusive.on; turns++) {
        take_turn();
        if (server->exclusive.on) CHECK(length_received(other) == 0);
    }
    settle();
    CHECK(server->stats.turn_us_max <= LATEST_TURN_US);
    CHECK(turns >= 2 && received(other, answer));
}

static const struct many_case {
    const char *head, *first, *second, *reply, *question, *answer;
} cases[] = {
    {"MSET", "k:", "v:", "+OK\r\n", "EXISTS k:0 k:29999\r\n", ":2\r\n"},
    {"MGET", "k:", NULL, "*30000\r\n$3\r\nv:0\r\n", "PING\r\n", "+PONG\r\n"},
    {"EXISTS", "k:", NULL, ":30000\r\n", "PING\r\n", "+PONG\r\n"},
    {"TOUCH", "k:", NULL, ":30000\r\n", "PING\r\n", "+PONG\r\n"},
    {"WATCH", "k:", NULL, "+OK\r\n", "PING\r\n", "+PONG\r\n"},
    {"MSETNX", "n:", "v:", ":1\r\n", "EXISTS n:0 n:29999\r\n", ":2\r\n"},
    {"DEL", "k:", NULL, ":30000\r\n", "EXISTS k:0 k:29999\r\n", ":0\r\n"},
    {"UNLINK", "n:", NULL, ":30000\r\n", "EXISTS n:0 n:29999\r\n", ":0\r\n"},
    {"SADD s", "m:", NULL, ":30000\r\n", "SCARD s\r\n", ":30000\r\n"},
    {"SADD s", "m:", NULL, ":0\r\n", "SCARD s\r\n", ":30000\r\n"},
    {"SMISMEMBER s", "m:", NULL, "*30000\r\n:1\r\n", "PING\r\n", "+PONG\r\n"},
    {"SREM s", "m:", NULL, ":30000\r\n", "EXISTS s\r\n", ":0\r\n"},
    {"HSET h", "f:", "v:", ":30000\r\n", "HLEN h\r\n", ":30000\r\n"},
    {"HMSET h", "f:", "v:", "+OK\r\n", "HLEN h\r\n", ":30000\r\n"},
    {"HMGET h", "f:", NULL, "*30000\r\n$3\r\nv:0\r\n", "PING\r\n", "+PONG\r\n"},
    {"HDEL h", "f:", NULL, ":30000\r\n", "EXISTS h\r\n", ":0\r\n"},
    {"RPUSH l", "e:", NULL, ":30000\r\n", "LLEN l\r\n", ":30000\r\n"},
    {"LPUSH l", "e:", NULL, ":60000\r\n", "LINDEX l 0\r\n", "$7\r\ne:29999\r\n"},
    {"RPUSHX l", "e:", NULL, ":90000\r\n", "LLEN l\r\n", ":90000\r\n"},
    {"LPUSHX l", "e:", NULL, ":120000\r\n", "LLEN l\r\n", ":120000\r\n"},
    {"ZADD z", "", "m:", ":30000\r\n", "ZCARD z\r\n", ":30000\r\n"},
    {"ZMSCORE z", "m:", NULL, "*30000\r\n$1\r\n0\r\n", "PING\r\n", "+PONG\r\n"},
    {"GEOHASH z", "m:", NULL, "*30000\r\n", "PING\r\n", "+PONG\r\n"},
    {"GEOPOS z", "m:", NULL, "*30000\r\n", "PING\r\n", "+PONG\r\n"},
    {"ZREM z", "m:", NULL, ":30000\r\n", "EXISTS z\r\n", ":0\r\n"},
    {"PFADD p", "e:", NULL, ":1\r\n", "EXISTS p\r\n", ":1\r\n"},
    {"XDEL x", "1-", NULL, ":0\r\n", "XLEN x\r\n", ":1\r\n"},
    {"XACK x g", "1-", NULL, ":0\r\n", "PING\r\n", "+PONG\r\n"},
    {"SUBSCRIBE", "c:", NULL, "*3\r\n$9\r\nsubscribe\r\n$3\r\nc:0\r\n:1\r\n", "PING\r\n", "+PONG\r\n"},
    {"UNSUBSCRIBE", "c:", NULL, "*3\r\n$11\r\nunsubscribe\r\n$3\r\nc:0\r\n:29999\r\n", "PING\r\n", "+PONG\r\n"},
    {"PSUBSCRIBE", "p:", NULL, "*3\r\n$10\r\npsubscribe\r\n$3\r\np:0\r\n:1\r\n", "PING\r\n", "+PONG\r\n"},
    {"PUNSUBSCRIBE", "p:", NULL, "*3\r\n$12\r\npunsubscribe\r\n$3\r\np:0\r\n:29999\r\n", "PING\r\n", "+PONG\r\n"},
    {"SSUBSCRIBE", "s:", NULL, "*3\r\n$10\r\nssubscribe\r\n$3\r\ns:0\r\n:1\r\n", "PING\r\n", "+PONG\r\n"},
    {"SUNSUBSCRIBE", "s:", NULL, "*3\r\n$12\r\nsunsubscribe\r\n$3\r\ns:0\r\n:29999\r\n", "PING\r\n", "+PONG\r\n"},
};

#define CASES (sizeof cases / sizeof *cases)

static bool has_case(const char *name) {
    size_t length = strlen(name);
    for (size_t i = 0; i < CASES; i++)
        if (strncasecmp(cases[i].head, name, length) == 0 && strchr(" ", cases[i].head[length])) return true;
    return strcmp(name, "geoadd") == 0; /* adds as ZADD does */
}

static void each_command_that_rests_has_a_case(void) {
    open_server(false, NULL);
    for (size_t i = 0; i < command_table_count(server->commands); i++) {
        const struct command *command = command_table_at(server->commands, i)->command;
        CHECK(!(command->flags & COMMAND_RESTS) || has_case(command->name));
    }
    close_server();
}

static void many_arguments_are_one_step_of_short_turns(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer(), *other = connect_peer();
    say(peer, "XADD x 2-1 f v\r\nXGROUP CREATE x g 0\r\n");
    settle();
    memory_peer_forget_received(peer);
    for (size_t i = 0; i < CASES; i++) {
        const struct many_case *many = &cases[i];
        send_many(peer, many->head, many->first, many->second, MANY);
        is_one_step_of_short_turns(other, many->question, many->answer);
        CHECK(received_prefix(peer, many->reply));
    }
    close_server();
}

static void many_elements_are_one_step_of_short_turns(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer(), *other = connect_peer();
    send_many(peer, "SADD s", "m:", NULL, MANY);
    send_many(peer, "RPUSH l", "e:", NULL, MANY);
    send_many(peer, "ZADD z", "", "m:", MANY);
    settle();
    memory_peer_forget_received(peer);
    say(peer, "SRANDMEMBER s 20000\r\n");
    is_one_step_of_short_turns(other, "PING\r\n", "+PONG\r\n");
    CHECK(received_prefix(peer, "*20000\r\n"));
    say(peer, "SRANDMEMBER s 7000\r\n");
    is_one_step_of_short_turns(other, "PING\r\n", "+PONG\r\n");
    CHECK(received_prefix(peer, "*7000\r\n"));
    say(peer, "SRANDMEMBER s 30000\r\n");
    is_one_step_of_short_turns(other, "PING\r\n", "+PONG\r\n");
    CHECK(received_prefix(peer, "*30000\r\n"));
    say(peer, "SPOP s 20000\r\n");
    is_one_step_of_short_turns(other, "SCARD s\r\n", ":10000\r\n");
    CHECK(received_prefix(peer, "*20000\r\n"));
    say(peer, "SPOP s 20000\r\n");
    is_one_step_of_short_turns(other, "EXISTS s\r\n", ":0\r\n");
    CHECK(received_prefix(peer, "*10000\r\n"));
    say(peer, "LPOP l 10000\r\n");
    is_one_step_of_short_turns(other, "LINDEX l 0\r\n", "$7\r\ne:10000\r\n");
    CHECK(received_prefix(peer, "*10000\r\n$3\r\ne:0\r\n"));
    say(peer, "LMPOP 1 l LEFT COUNT 8000\r\n");
    is_one_step_of_short_turns(other, "LINDEX l 0\r\n", "$7\r\ne:18000\r\n");
    CHECK(received_prefix(peer, "*2\r\n$1\r\nl\r\n*8000\r\n$7\r\ne:10000\r\n"));
    say(peer, "RPOP l 30000\r\n");
    is_one_step_of_short_turns(other, "EXISTS l\r\n", ":0\r\n");
    CHECK(received_prefix(peer, "*12000\r\n$7\r\ne:29999\r\n"));
    say(peer, "ZPOPMIN z 8000\r\n");
    is_one_step_of_short_turns(other, "ZRANGE z 0 0\r\n", "*1\r\n$6\r\nm:8000\r\n");
    CHECK(received_prefix(peer, "*16000\r\n$3\r\nm:0\r\n$1\r\n0\r\n"));
    say(peer, "ZPOPMAX z 8000\r\n");
    is_one_step_of_short_turns(other, "ZRANGE z -1 -1\r\n", "*1\r\n$7\r\nm:21999\r\n");
    CHECK(received_prefix(peer, "*16000\r\n$7\r\nm:29999\r\n$5\r\n29999\r\n"));
    say(peer, "ZMPOP 1 z MIN COUNT 30000\r\n");
    is_one_step_of_short_turns(other, "EXISTS z\r\n", ":0\r\n");
    CHECK(received_prefix(peer, "*2\r\n$1\r\nz\r\n*14000\r\n*2\r\n$6\r\nm:8000\r\n"));
    close_server();
}

#define LONG_STRING "33554432" /* bytes */

static void a_long_string_is_written_in_short_turns(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer(), *other = connect_peer();
    say(peer, "SETRANGE k 33554431 x\r\n");
    is_one_step_of_short_turns(other, "STRLEN k\r\n", ":" LONG_STRING "\r\n");
    CHECK(received(peer, ":" LONG_STRING "\r\n"));
    say(peer, "SETRANGE k 0 ab\r\n"); /* in place */
    take_turn();
    take_turn();
    CHECK(received(peer, ":" LONG_STRING "\r\n"));
    say(peer, "APPEND k cd\r\n"); /* comes to lie elsewhere */
    is_one_step_of_short_turns(other, "GETRANGE k -3 -1\r\n", "$3\r\nxcd\r\n");
    CHECK(received(peer, ":33554434\r\n") && answers(peer, "GETRANGE k 0 1\r\n", "$2\r\nab\r\n"));
    say(peer, "SETBIT b 268435455 1\r\n");
    is_one_step_of_short_turns(other, "BITCOUNT b\r\n", ":1\r\n");
    CHECK(received(peer, ":0\r\n"));
    close_server();
}

static void a_command_that_changes_keys_goes_on_without_its_client(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer(), *other = connect_peer();
    send_many(peer, "MSET", "k:", "v:", MANY);
    until_amid_command();
    memory_peer_vanish(peer);
    take_turn();
    take_turn();
    CHECK(server->exclusive.on && server->exclusive.orphaned && server->clients.count == 1);
    settle();
    CHECK(answers(other, "DBSIZE\r\n", ":30000\r\n"));
    peer = connect_peer();
    send_many(peer, "MGET", "k:", NULL, MANY); /* one that changes none ends */
    until_amid_command();
    memory_peer_vanish(peer);
    settle();
    CHECK(!server->exclusive.on && server->clients.count == 1);
    close_server();
}

/* Of a client that sends no more, as in `printf … | nc`. */
static void a_command_and_what_follows_it_is_answered_after_the_end_of_the_input(const char *head, const char *second,
                                                                                 const char *replies) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    send_many(peer, head, "k:", second, MANY);
    say(peer, "DBSIZE\r\n");
    memory_peer_finish(peer);
    until_amid_command();
    settle();
    CHECK(received(peer, replies) && memory_peer_is_closed(peer));
    close_server();
}

static void a_client_that_is_lost_amid_its_subscriptions_has_none(bool in_transaction) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer(), *other = connect_peer();
    if (in_transaction) say(peer, "MULTI\r\n");
    send_many(peer, "SUBSCRIBE", "c:", NULL, MANY);
    if (in_transaction) say(peer, "EXEC\r\n");
    until_amid_command();
    memory_peer_vanish(peer);
    settle();
    CHECK(server->clients.count == 1 && answers(other, "PUBSUB CHANNELS\r\n", "*0\r\n"));
    close_server();
}

static void a_server_ends_in_the_midst_of_a_command(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    send_many(peer, "MSET", "k:", "v:", MANY);
    until_amid_command();
    close_server();
}

/* The next request of the same client has come by then, too. */
static void whoever_waits_for_a_list_is_served_before_the_requests_that_come_after_the_push(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer(), *waiter = connect_peer(), *other = connect_peer();
    say(waiter, "BLPOP l 0\r\n");
    settle();
    send_many(peer, "RPUSH l", "e:", NULL, MANY);
    say(peer, "LPOP l\r\n");
    until_amid_command();
    say(other, "LLEN l\r\n");
    settle();
    CHECK(received(waiter, "*2\r\n$1\r\nl\r\n$3\r\ne:0\r\n"));
    CHECK(received(peer, ":30000\r\n$3\r\ne:1\r\n"));
    CHECK(received_prefix(other, ":2999"));
    close_server();
}

/* ---- what subscribers are told --------------------------------------------------------------------------------------- */

static uint32_t count_received(const struct memory_peer *peer, const char *text) {
    size_t length;
    const char *at = (const char *)memory_peer_received(peer, &length), *end = at + length;
    uint32_t count = 0;
    for (; at && (at = memmem(at, (size_t)(end - at), text, strlen(text))); at++) count++;
    return count;
}

static void subscribers_are_told_once_of_a_key_that_many_slices_change(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer(), *subscriber = connect_peer();
    CHECK(answers(peer, "CONFIG SET notify-keyspace-events EA\r\n", "+OK\r\n"));
    say(subscriber, "PSUBSCRIBE __keyevent@0__:*\r\n");
    settle();
    memory_peer_forget_received(subscriber);
    send_many(peer, "HSET h", "f:", "v:", MANY);
    send_many(peer, "RPUSH l", "e:", NULL, MANY);
    settle();
    CHECK(received(peer, ":30000\r\n:30000\r\n"));
    CHECK(count_received(subscriber, "pmessage") == 2);
    CHECK(has_received(subscriber, ":hset\r\n$1\r\nh\r\n") && has_received(subscriber, ":rpush\r\n$1\r\nl\r\n"));
    memory_peer_forget_received(subscriber);
    close_server();
}

#define IN_A_SCRIPT 7000u /* as many as Lua's unpack gives */

static void subscribers_are_told_of_each_key(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer(), *subscriber = connect_peer();
    CHECK(answers(peer, "CONFIG SET notify-keyspace-events Eg\r\n", "+OK\r\n"));
    say(subscriber, "SUBSCRIBE __keyevent@0__:del\r\n");
    settle();
    memory_peer_forget_received(subscriber);
    send_many(peer, "MSET", "k:", "v:", MANY);
    settle();
    say(peer, "MULTI\r\n");
    send_many(peer, "DEL", "k:", NULL, MANY / 2);
    say(peer, "EXEC\r\n");
    settle();
    CHECK(received_prefix(peer, "+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n:15000\r\n"));
    send_many(peer, "DEL", "k:", NULL, MANY);
    settle();
    CHECK(received(peer, ":15000\r\n") && count_received(subscriber, "__keyevent@0__:del\r\n") == MANY);
    memory_peer_forget_received(subscriber);
    close_server();
}

static void subscribers_are_told_of_each_key_that_a_script_removes(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer(), *subscriber = connect_peer();
    CHECK(answers(peer, "CONFIG SET notify-keyspace-events Eg\r\n", "+OK\r\n"));
    say(subscriber, "SUBSCRIBE __keyevent@0__:del\r\n");
    settle();
    memory_peer_forget_received(subscriber);
    send_many(peer, "MSET", "k:", "v:", IN_A_SCRIPT);
    settle();
    memory_peer_forget_received(peer);
    eval(peer, "local t = {} for i = 1, 7000 do t[i] = 'k:' .. i - 1 end return redis.call('DEL', unpack(t))");
    settle();
    CHECK(received(peer, ":7000\r\n") && count_received(subscriber, "__keyevent@0__:del\r\n") == IN_A_SCRIPT);
    close_server();
}

/* ---- the append-only file ---------------------------------------------------------------------------------------------- */

static void keep_log(struct server_config *config) {
    config->appendonly = 1;
    config->enable_debug_command = DEBUG_ALLOWED;
}

static void sync_always(struct server_config *config) {
    keep_log(config);
    config->appendfsync = APPEND_SYNC_ALWAYS;
}

static struct append_writer *start(void (*configure)(struct server_config *config)) {
    struct error error;
    struct text said = {0};
    open_server(false, configure);
    struct append_log *log = server->durability->append_log;
    CHECK(append_log_start(log, &said, &error) == 0);
    text_free(&said);
    return log->writer;
}

static void restart(void) {
    close_server();
    start(keep_log);
}

/* The next test begins with no file. */
static void finish(void) {
    say(connect_peer(), "FLUSHALL\r\n");
    settle();
    close_server();
}

static void send_and_settle(struct memory_peer *peer, const char *head, const char *first, const char *second,
                            uint32_t count) {
    send_many(peer, head, first, second, count);
    settle();
    memory_peer_forget_received(peer);
}

static void digest(char text[64]) {
    struct memory_peer *peer = connect_peer();
    size_t length;
    say(peer, "DEBUG DIGEST\r\n");
    settle();
    const uint8_t *bytes = memory_peer_received(peer, &length);
    CHECK(length > 40 && length < 64);
    memcpy(text, bytes, length);
    text[length] = '\0';
}

static void check_that_a_restart_brings_the_same(void) {
    char before[64], after[64];
    digest(before);
    restart();
    digest(after);
    CHECK(strcmp(before, after) == 0);
}

/* In its last slices it finds no key any more. */
static void a_command_is_recorded_at_its_end_though_only_earlier_slices_have_changed_something(void) {
    struct append_writer *writer = start(keep_log);
    struct memory_peer *peer = connect_peer();
    send_and_settle(peer, "MSET", "k:", "v:", 1000);
    send_and_settle(peer, "MSET", "other:", "v:", 10);
    uint64_t appended = writer->appended;
    send_many(peer, "DEL", "k:", NULL, MANY);
    until_amid_command();
    for (; server->exclusive.on; take_turn()) CHECK(writer->appended == appended);
    settle();
    CHECK(received(peer, ":1000\r\n") && writer->appended > appended);
    restart();
    CHECK(answers(connect_peer(), "DBSIZE\r\n", ":10\r\n"));
    finish();
}

static void a_command_that_goes_on_without_its_client_is_recorded(void) {
    start(keep_log);
    struct memory_peer *peer = connect_peer();
    send_and_settle(peer, "MSET", "k:", "v:", 1000);
    send_many(peer, "DEL", "k:", NULL, MANY);
    until_amid_command();
    memory_peer_vanish(peer);
    settle();
    check_that_a_restart_brings_the_same();
    CHECK(answers(connect_peer(), "DBSIZE\r\n", ":0\r\n"));
    finish();
}

static void a_stop_brings_a_command_to_its_end(bool without_client) {
    start(keep_log);
    struct memory_peer *peer = connect_peer();
    send_and_settle(peer, "MSET", "k:", "v:", 1000);
    send_many(peer, "DEL", "k:", NULL, MANY);
    until_amid_command();
    if (without_client) memory_peer_vanish(peer);
    if (without_client) take_turn();
    CHECK(server->exclusive.on);
    server_ask_stop(server);
    server_run(server);
    CHECK(!server->exclusive.on && (without_client || received(peer, ":1000\r\n")));
    restart();
    CHECK(answers(connect_peer(), "DBSIZE\r\n", ":0\r\n"));
    finish();
}

static void what_chance_picked_is_recorded_over_all_slices(void) {
    start(keep_log);
    struct memory_peer *peer = connect_peer();
    send_and_settle(peer, "SADD s", "m:", NULL, MANY);
    say(peer, "SPOP s 20000\r\n");
    settle();
    CHECK(received_prefix(peer, "*20000\r\n"));
    check_that_a_restart_brings_the_same();
    CHECK(answers(connect_peer(), "SCARD s\r\n", ":10000\r\n"));
    finish();
}

static void what_is_only_read_is_not_recorded_because_a_key_ran_out(void) {
    struct append_writer *writer = start(keep_log);
    struct memory_peer *peer = connect_peer();
    server->store->leaves_expired = true;
    send_and_settle(peer, "MSET", "k:", "v:", MANY);
    say(peer, "PEXPIRE k:0 1\r\nPEXPIRE k:29999 1\r\n");
    settle();
    memory_peer_forget_received(peer);
    looked_ns += 5000000;
    uint64_t appended = writer->appended;
    send_many(peer, "MGET", "k:", NULL, MANY);
    settle();
    CHECK(received_prefix(peer, "*30000\r\n$-1\r\n"));
    CHECK(writer->appended > appended && writer->appended < appended + 1000); /* each as removed */
    finish();
}

static void until_rewritten(struct append_log *log) {
    while (log->rewrite_wanted || append_rewrite_is_running(log)) take_turn();
}

/* The base would have a part of what it changes, and the file behind the base the whole. */
static void the_file_is_not_rewritten_amid_a_command_that_changes_keys(void) {
    start(keep_log);
    struct append_log *log = server->durability->append_log;
    struct memory_peer *peer = connect_peer();
    send_many(peer, "RPUSH l", "e:", NULL, MANY);
    until_amid_command();
    append_rewrite_want(log); /* as when the file has grown */
    for (; server->exclusive.on; take_turn()) CHECK(!append_rewrite_is_running(log));
    until_rewritten(log);
    CHECK(log->rewrites == 1 && received(peer, ":30000\r\n"));
    check_that_a_restart_brings_the_same();
    CHECK(answers(connect_peer(), "LLEN l\r\n", ":30000\r\n"));
    finish();
}

/* Nothing of its reply is sent before what it changed is on the disk. */
static void a_command_is_answered_when_its_end_is_in_the_file(void) {
    struct append_writer *writer = start(sync_always);
    struct memory_peer *peer = connect_peer();
    send_many(peer, "SADD s", "m:", NULL, MANY);
    while (length_received(peer) == 0) {
        append_writer_wait(writer);
        take_turn();
    }
    memory_peer_forget_received(peer);
    say(peer, "SPOP s 20000\r\n");
    until_amid_command();
    for (; server->exclusive.on; take_turn()) CHECK(length_received(peer) == 0);
    while (length_received(peer) == 0) {
        append_writer_wait(writer);
        take_turn();
    }
    CHECK(writer->synced == writer->appended && received_prefix(peer, "*20000\r\n"));
    finish();
}

/* What was to be recorded in its place is not recorded in the place of another. */
static void a_file_that_breaks_amid_a_command_has_the_commands_that_come_after_it(void) {
    start(keep_log);
    struct append_log *log = server->durability->append_log;
    struct memory_peer *peer = connect_peer();
    send_and_settle(peer, "SADD s", "m:", NULL, MANY);
    say(peer, "SPOP s 20000\r\n");
    until_amid_command();
    append_log_break(log, "as a test wants it");
    while (!log->renewing) take_turn();
    CHECK(!server->exclusive.on);
    until_rewritten(log);
    CHECK(!log->broken && received_prefix(peer, "*20000\r\n"));
    CHECK(answers(peer, "SET k v\r\n", "+OK\r\n"));
    check_that_a_restart_brings_the_same();
    CHECK(answers(connect_peer(), "GET k\r\n", "$1\r\nv\r\n"));
    finish();
}

int main(void) {
    enter_own_folder();
    RUN(each_command_that_rests_has_a_case);
    RUN(many_arguments_are_one_step_of_short_turns);
    RUN(many_elements_are_one_step_of_short_turns);
    RUN(a_long_string_is_written_in_short_turns);
    RUN(a_command_that_changes_keys_goes_on_without_its_client);
    a_command_and_what_follows_it_is_answered_after_the_end_of_the_input("MSET", "v:", "+OK\r\n:30000\r\n");
    a_command_and_what_follows_it_is_answered_after_the_end_of_the_input("EXISTS", NULL, ":0\r\n:0\r\n");
    a_client_that_is_lost_amid_its_subscriptions_has_none(false);
    a_client_that_is_lost_amid_its_subscriptions_has_none(true);
    RUN(a_server_ends_in_the_midst_of_a_command);
    RUN(whoever_waits_for_a_list_is_served_before_the_requests_that_come_after_the_push);
    RUN(subscribers_are_told_of_each_key);
    RUN(subscribers_are_told_once_of_a_key_that_many_slices_change);
    if (has_lua()) RUN(subscribers_are_told_of_each_key_that_a_script_removes);
    RUN(a_command_is_recorded_at_its_end_though_only_earlier_slices_have_changed_something);
    RUN(a_command_that_goes_on_without_its_client_is_recorded);
    a_stop_brings_a_command_to_its_end(false);
    a_stop_brings_a_command_to_its_end(true);
    RUN(what_chance_picked_is_recorded_over_all_slices);
    RUN(what_is_only_read_is_not_recorded_because_a_key_ran_out);
    RUN(the_file_is_not_rewritten_amid_a_command_that_changes_keys);
    RUN(a_command_is_answered_when_its_end_is_in_the_file);
    RUN(a_file_that_breaks_amid_a_command_has_the_commands_that_come_after_it);
    return 0;
}

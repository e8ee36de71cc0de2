/* test_scripts: fibers, names of scripts, and scripts and transactions that take several turns of the loop. */
#include "base/fiber.h"
#include "base/sha1.h"
#include "server/core/exclusive_execution.h"
#include "server/redis/script/scripts.h"
#include "server_stage.h"
#include "store/store.h"

/* ---- parts -------------------------------------------------------------------------------------------- */

static struct fiber *fiber;
static int steps;

static int deep(int depth) {
    volatile char room[512];
    memset((void *)(uintptr_t)room, depth, sizeof room);
    if (depth == 0) fiber_yield(fiber);
    return depth == 0 ? room[0] : deep(depth - 1) + 1;
}

static void count_steps(void *context) {
    int *most = context;
    while (steps < *most) {
        steps++;
        CHECK(deep(200) == 200);
    }
}

static void a_fiber_is_put_down_and_taken_up_again(void) {
    fiber = fiber_new();
    CHECK(fiber);
    for (int round = 1; round <= 3; round++) {
        int most = 5;
        steps = 0;
        bool ended = fiber_start(fiber, count_steps, &most);
        for (int i = 1; i <= 5; i++) {
            CHECK(!ended && steps == i);
            ended = fiber_resume(fiber);
        }
        CHECK(ended);
    }
    int most = 2;
    steps = 0;
    CHECK(!fiber_start(fiber, count_steps, &most));
    fiber_free(fiber); /* in its midst */
}

/* Whose guard page nobody may write to, not even the reclaimer, which writes into what it is to give back. */
static void a_fiber_goes_while_the_reclaimer_runs(void) {
    size_t before = memory_mapped_bytes();
    CHECK(memory_start_reclaimer());
    for (int i = 0; i < 3; i++) fiber_free(fiber_new());
    memory_stop_reclaimer();
    CHECK(memory_mapped_bytes() == before);
}

/* The examples of FIPS 180. */
static void names_are_sha1(void) {
    char hex[SHA1_HEX_BYTES];
    sha1_hex("abc", 3, hex);
    CHECK(strcmp(hex, "a9993e364706816aba3e25717850c26c9cd0d89d") == 0);
    sha1_hex("", 0, hex);
    CHECK(strcmp(hex, "da39a3ee5e6b4b0d3255bfef95601890afd80709") == 0);
    const char *two_blocks = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    sha1_hex(two_blocks, strlen(two_blocks), hex);
    CHECK(strcmp(hex, "84983e441c3bd26ebaae4aa1f95129e5e54670f1") == 0);
    char *million = malloc(1000000);
    memset(million, 'a', 1000000);
    sha1_hex(million, 1000000, hex);
    free(million);
    CHECK(strcmp(hex, "34aa973cd4c4daa4f61eeb2bdbad27316534016f") == 0);
}

/* ---- scripts ------------------------------------------------------------------------------------------ */

/* On a busy machine a turn may end before the last of several requests. */
static void until_put_down(void) {
    for (int turns = 0; !server->exclusive.on; turns++) {
        CHECK(turns < 1000);
        take_turn();
    }
}

#define FOREVER "while true do end"
#define LONG "local n = 0 for i = 1, 3000000 do n = n + i end "

static void commands_wait_until_a_script_has_ended(void) {
    open_server(false, NULL);
    struct memory_peer *caller = connect_peer(), *other = connect_peer();
    eval(caller, LONG "redis.call('set', 'k', 'v') return n");
    until_put_down();
    say(other, "GET k\r\n");
    say(caller, "PING\r\n");
    for (int i = 0; i < 3; i++) take_turn();
    size_t length;
    memory_peer_received(other, &length);
    CHECK(server->exclusive.on && length == 0);
    settle();
    CHECK(!server->exclusive.on);
    CHECK(received(other, "$1\r\nv\r\n"));
    CHECK(received(caller, ":4500001500000\r\n+PONG\r\n"));
    close_server();
}

static void be_busy_soon(struct server_config *config) {
    config->busy_reply_threshold_ms = 1;
}

static void a_script_is_killed(void) {
    open_server(false, be_busy_soon);
    struct memory_peer *caller = connect_peer(), *other = connect_peer();
    eval(caller, "while true do pcall(function() while true do local t = {} end end) end");
    while (!server->exclusive.busy) take_turn();
    say(other, "GET k\r\nMULTI\r\nGET k\r\nEXEC\r\nSCRIPT KILL\r\n");
    settle();
    CHECK(has_received(caller, "-ERR Script killed by user with SCRIPT KILL"));
    CHECK(has_received(other, "-BUSY ") && has_received(other, "-EXECABORT ") && received_prefix(other, "-BUSY"));
    CHECK(answers(other, "GET k\r\n", "$-1\r\n"));
    close_server();
}

#define VALUES 100000

static void push_values(struct memory_peer *peer) {
    for (int pushed = 0; pushed < VALUES; pushed += 1000) {
        send_arguments(peer, 1002);
        send_word(peer, "RPUSH");
        send_word(peer, "l");
        for (int i = 0; i < 1000; i++) {
            char value[64];
            snprintf(value, sizeof value, "a value as long as a line, of which there is but one: %d", pushed + i);
            send_word(peer, value);
        }
        settle();
    }
    memory_peer_forget_received(peer);
}

#define TAKE "local n = #redis.call('lrange', 'l', 0, -1) redis.call('set', 'taken', n) return n"
#define TAKEN_BYTES (VALUES * 80) /* less than the values take in Lua */

static bool is_taken(void) {
    return dict_count(&server->store->databases[0].keys) == 2;
}

static void a_large_reply_is_taken_in_slices(void) {
    open_server(false, NULL);
    struct memory_peer *caller = connect_peer();
    push_values(caller);
    eval(caller, TAKE);
    int grew = 0;
    while (!is_taken()) {
        size_t before = scripts_memory_bytes(server);
        take_turn();
        grew += scripts_memory_bytes(server) > before;
    }
    settle();
    CHECK(grew > 5 && received(caller, ":100000\r\n"));
    close_server();
}

static void a_script_is_killed_while_it_takes_a_large_reply(void) {
    open_server(false, be_busy_soon);
    struct memory_peer *caller = connect_peer(), *other = connect_peer();
    push_values(caller);
    eval(caller, TAKE);
    while (!is_taken() && scripts_memory_bytes(server) < TAKEN_BYTES / 8) take_turn();
    CHECK(!is_taken() && scripts_memory_bytes(server) < TAKEN_BYTES);
    say(other, "PING\r\nSCRIPT KILL\r\n");
    settle();
    CHECK(has_received(caller, "-ERR Script killed by user with SCRIPT KILL"));
    CHECK(has_received(other, "+OK") && received_prefix(other, "-BUSY"));
    CHECK(!is_taken());
    close_server();
}

/* Short and long ones, made in two ways, while garbage is collected and the table of strings grows and shrinks. */
static void equal_strings_are_the_same(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    eval(peer, "for round = 1, 4 do "
               "  local t, n = {}, 0 "
               "  for i = 1, 4000 * (round % 2) + 500 do t[string.rep('x', i % 300) .. i] = i end "
               "  collectgarbage(round < 3 and 'collect' or 'step') "
               "  for i = 1, 4000 * (round % 2) + 500 do "
               "    local parts = {} for j = 1, i % 300 do parts[j] = 'x' end parts[#parts + 1] = i "
               "    if t[table.concat(parts)] ~= i then return i end "
               "    t[table.concat(parts)] = nil "
               "  end "
               "  if next(t) then return next(t) end "
               "end return ('').rep('', 3) == '' and 'same'");
    settle();
    CHECK(received(peer, "$4\r\nsame\r\n"));
    close_server();
}

static void a_script_outlives_its_client(void) {
    open_server(false, NULL);
    struct memory_peer *caller = connect_peer(), *other = connect_peer();
    eval(caller, LONG "redis.call('set', 'k', n) return {1, {2, redis.call('get', 'k')}}");
    until_put_down();
    memory_peer_vanish(caller);
    for (int i = 0; i < 3; i++) take_turn();
    CHECK(server->exclusive.on && server->exclusive.orphaned && server->clients.count == 1);
    settle();
    CHECK(!server->exclusive.on && answers(other, "GET k\r\n", "$13\r\n4500001500000\r\n"));
    close_server();
}

static void a_transaction_outlives_its_client(void) {
    open_server(false, NULL);
    struct memory_peer *caller = connect_peer(), *other = connect_peer();
    say(caller, "MULTI\r\nSET k 1\r\n");
    eval(caller, LONG "return n");
    say(caller, "CLIENT INFO\r\nINCR k\r\nEXEC\r\n");
    until_put_down();
    memory_peer_vanish(caller);
    settle();
    CHECK(!server->exclusive.on && answers(other, "GET k\r\n", "$1\r\n2\r\n"));
    close_server();
}

static void a_server_ends_in_the_midst_of_a_script(void) {
    for (int in_transaction = 0; in_transaction < 2; in_transaction++) {
        open_server(false, NULL);
        struct memory_peer *caller = connect_peer(), *other = connect_peer();
        if (in_transaction) say(caller, "MULTI\r\nSET k 1\r\n");
        eval(caller, "local s = string.rep('x', 100000) redis.call('set', 'k', s) " FOREVER);
        if (in_transaction) say(caller, "EXEC\r\n");
        until_put_down();
        say(other, "GET k\r\n");
        take_turn();
        close_server();
    }
}

static void a_server_stops_in_the_midst_of_a_script(void) {
    open_server(false, NULL);
    struct memory_peer *caller = connect_peer();
    eval(caller, FOREVER);
    take_turn();
    server_ask_stop(server);
    server_run(server);
    CHECK(server->clients.count == 0);
    (void)caller;
    close_server();
}

/* What is cut off by memory at any moment leaves the state usable. */
static void little_memory(struct server_config *config) {
    config->script_memory_limit_bytes = 1 << 20;
}

/* Of a script that takes a size, at any size: the server answers the next one. */
static void check_little_memory(const char *format) {
    open_server(false, little_memory);
    struct memory_peer *peer = connect_peer();
    for (int size = 100; size < 400000; size += size / 3) {
        char script[300];
        snprintf(script, sizeof script, format, size);
        eval(peer, script);
        settle();
        memory_peer_forget_received(peer);
        if (memory_peer_is_closed(peer)) peer = connect_peer();
    }
    eval(peer, "return cjson.encode({1})");
    settle();
    CHECK(received(peer, "$3\r\n[1]\r\n"));
    close_server();
}

static void memory_runs_out_anywhere(void) {
    check_little_memory(
        "local t = {} for i = 1, 20 do t[i] = string.rep('x', %d) .. i redis.call('set', 'k' .. i, t[i]) end "
        "return {t, redis.call('mget', 'k1', 'k2', 'k3')}");
}

/* What the libraries put together is cut off by memory at any moment, too. */
static void memory_runs_out_in_libraries(void) {
    check_little_memory("local t = {} for i = 1, 5 do t[i] = string.rep('/', %d) .. i end local text = cjson.encode(t) "
                        "return {struct.pack('sss', t[1], t[2], text), cjson.decode(text), "
                        "cmsgpack.unpack(cmsgpack.pack(t))}");
}

/* What Lua's own limit ends, where a script raises those of cjson, leaves room on the stack that scripts run on. */
static void nesting_has_an_end(void) {
    static const char *const scripts[] = {
        "local t = {} for i = 1, 7900 do t = {t} end return #c.encode(t) == 15802 and 1",
        "local t = {} for i = 1, 9000 do t = {t} end return not pcall(c.encode, t) and 1",
        "local t = {} for i = 1, 9000 do t = {a=t} end return not pcall(c.encode, t) and 1",
        "return not pcall(c.decode, string.rep('[', 9000)) and 1",
        "return not pcall(c.decode, string.rep('{\"a\":', 9000)) and 1",
        "return not pcall(cmsgpack.unpack, string.rep('\\145', 9000)) and 1",
        "return not pcall(cmsgpack.unpack, string.rep('\\129', 9000)) and 1",
    };
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++) {
        char script[300];
        snprintf(script, sizeof script,
                 "local c = cjson.new() c.encode_max_depth(100000) c.decode_max_depth(100000) %s", scripts[i]);
        eval(peer, script);
        settle();
        CHECK(received(peer, ":1\r\n"));
        memory_peer_forget_received(peer);
    }
    close_server();
}

/* It is waiting already, for its next turn; what waits in it is over at once, as in any transaction. */
static void nothing_waits_in_a_transaction_of_several_turns(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    create_table(peer);
    say(peer, "MULTI\r\n");
    eval(peer, LONG "return 1");
    say(peer, "BLPOP l 0\r\nBRPOPLPUSH l k 0\r\nBLMPOP 0 1 l LEFT\r\nBZPOPMIN z 0\r\nWAIT 1 0\r\n");
    say(peer, "REPLAY.AWAIT t SINCE 0 BLOCK 0\r\nREPLAY.SAMPLE t 1 BLOCK 0\r\nGRAD.TAKE g 1 BLOCK 0\r\nEXEC\r\n");
    until_put_down();
    settle();
    CHECK(received_prefix(peer, "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n"
                                "+QUEUED\r\n+QUEUED\r\n*9\r\n:1\r\n*-1\r\n$-1\r\n*-1\r\n*-1\r\n:0\r\n-TIMEOUT "));
    CHECK(answers(peer, "PING\r\n", "+PONG\r\n"));
    close_server();
}

static void a_script_takes_the_least_integer(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    eval(peer, "redis.call('SET', 'k', '-9223372036854775807') return redis.call('DECR', 'k') == -2^63");
    settle();
    CHECK(received(peer, ":1\r\n"));
    close_server();
}

int main(void) {
    size_t before = memory_used_bytes();
    RUN(a_fiber_is_put_down_and_taken_up_again);
    RUN(a_fiber_goes_while_the_reclaimer_runs);
    RUN(names_are_sha1);
    if (!has_lua()) return 0;
    RUN(commands_wait_until_a_script_has_ended);
    RUN(a_script_is_killed);
    RUN(a_large_reply_is_taken_in_slices);
    RUN(a_script_is_killed_while_it_takes_a_large_reply);
    RUN(equal_strings_are_the_same);
    RUN(a_script_outlives_its_client);
    RUN(a_transaction_outlives_its_client);
    RUN(nothing_waits_in_a_transaction_of_several_turns);
    RUN(a_server_ends_in_the_midst_of_a_script);
    RUN(a_server_stops_in_the_midst_of_a_script);
    RUN(memory_runs_out_anywhere);
    RUN(nesting_has_an_end);
    RUN(memory_runs_out_in_libraries);
    RUN(a_script_takes_the_least_integer);
    CHECK(memory_used_bytes() == before);
    return 0;
}

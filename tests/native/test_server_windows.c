/* test_server_windows: steps and windows over the in-memory transport: replies are the same however slowly they are
 * taken, and a client that vanishes leaves nothing behind. */
#include "server_stage.h"

#define STEPS 60u
#define ITEMS 40u
#define MANY (ITEMS * 8u)
#define MOST_STEP_BYTES 7056u

/* Part repeats, so that it can be compressed; part does not. */
static void make_frame(uint8_t *frame, size_t step_bytes, uint32_t number) {
    for (size_t i = 0; i < step_bytes; i++)
        frame[i] = (uint8_t)(i < step_bytes / 4 ? (number * 2654435761u + i * i) >> 7 : number);
}

static void send_append(struct memory_peer *peer, size_t step_bytes) {
    static uint8_t frames[STEPS * MOST_STEP_BYTES];
    uint32_t streams[STEPS];
    uint8_t flags[STEPS] = {0};
    for (uint32_t i = 0; i < STEPS; i++) {
        make_frame(frames + i * step_bytes, step_bytes, i);
        streams[i] = i % 2;
        flags[i] = i == 20 || i == 21 ? 2 : 0;
    }
    send_arguments(peer, 9);
    send_word(peer, "REPLAY.APPEND");
    send_word(peer, "t");
    send_word(peer, "60");
    send_bulk(peer, streams, sizeof streams);
    send_bulk(peer, flags, sizeof flags);
    send_word(peer, "COLUMNS");
    send_word(peer, "1");
    send_word(peer, "frame");
    send_bulk(peer, frames, STEPS * step_bytes);
}

static void send_items(struct memory_peer *peer) {
    uint32_t streams[ITEMS];
    uint64_t steps[ITEMS];
    uint8_t rewards[ITEMS] = {0};
    for (uint32_t i = 0; i < ITEMS; i++) {
        streams[i] = i % 2;
        steps[i] = i / 2;
    }
    send_arguments(peer, 10);
    send_word(peer, "REPLAY.ITEM");
    send_word(peer, "t");
    send_word(peer, "40");
    send_bulk(peer, streams, sizeof streams);
    send_bulk(peer, steps, sizeof steps);
    send_bulk(peer, "", 0);
    send_word(peer, "COLUMNS");
    send_word(peer, "1");
    send_word(peer, "reward");
    send_bulk(peer, rewards, sizeof rewards);
}

/* Each item many times, so that replies are long. */
static const uint64_t *ask_many(const uint64_t *ids) {
    static uint64_t asked[MANY];
    for (uint32_t i = 0; i < MANY; i++) asked[i] = ids[i * 7 % ITEMS];
    return asked;
}

static void send_get(struct memory_peer *peer, const uint64_t *ids, bool coded) {
    send_arguments(peer, coded ? 4 : 3);
    send_word(peer, "REPLAY.GET");
    send_word(peer, "t");
    send_bulk(peer, ask_many(ids), MANY * sizeof *ids);
    if (coded) send_word(peer, "CODED");
}

static void send_get_in_script(struct memory_peer *peer, const uint64_t *ids, bool coded) {
    send_arguments(peer, coded ? 5 : 4);
    send_word(peer, "EVAL");
    send_word(peer, "return redis.call('REPLAY.GET', 't', unpack(ARGV))");
    send_word(peer, "0");
    send_bulk(peer, ask_many(ids), MANY * sizeof *ids);
    if (coded) send_word(peer, "CODED");
}

/* Takes a reply `window` bytes at a time; the caller frees it. */
static uint8_t *take(struct memory_peer *peer, size_t window, bool held, size_t *length) {
    size_t before = 0;
    const uint8_t *bytes;
    for (;;) {
        memory_peer_open_window(peer, window);
        settle();
        if (held) memory_peer_release(peer, memory_peer_held(peer));
        bytes = memory_peer_received(peer, length);
        if (*length == before) break;
        before = *length;
    }
    uint8_t *copy = malloc(*length);
    memcpy(copy, bytes, *length);
    memory_peer_forget_received(peer);
    return copy;
}

static void fill(struct memory_peer *peer, size_t step_bytes, const char *compression, bool held, uint64_t *ids) {
    size_t length;
    memory_peer_open_window(peer, 1u << 20);
    create_windows(peer, 1000, step_bytes, 4, compression);
    uint8_t *reply = take(peer, 1u << 20, held, &length);
    CHECK(length == 5 && memcmp(reply, "+OK\r\n", 5) == 0);
    free(reply);
    send_append(peer, step_bytes);
    reply = take(peer, 1u << 20, held, &length);
    CHECK(length == 5 && memcmp(reply, ":60\r\n", 5) == 0);
    free(reply);
    send_items(peer);
    reply = take(peer, 1u << 20, held, &length);
    CHECK(length == 6 + ITEMS * sizeof *ids + 2 && memcmp(reply, "$320\r\n", 6) == 0);
    memcpy(ids, reply + 6, ITEMS * sizeof *ids);
    free(reply);
}

static void replies_are_the_same_however_slowly_they_are_taken(void) {
    static const char *const compressions[] = {"none", "lz4", "zstd"};
    static const size_t sizes[] = {50, 700, 2048, MOST_STEP_BYTES};
    static const size_t windows[] = {997, 70001, 1u << 22};
    for (int round = 0; round < 3 * 4 * 2; round++) {
        bool held = round % 2;
        size_t step_bytes = sizes[round / 2 % 4];
        uint64_t ids[ITEMS];
        open_server(held, NULL);
        struct memory_peer *peer = connect_peer();
        fill(peer, step_bytes, compressions[round / 8], held, ids);
        for (int coded = 0; coded < 2; coded++) {
            uint8_t *whole = NULL;
            size_t whole_length = 0;
            for (int i = 0; i < 3; i++) {
                size_t length;
                memory_peer_open_window(peer, 0);
                send_get(peer, ids, coded);
                uint8_t *reply = take(peer, windows[2 - i], held, &length);
                CHECK(length > ITEMS * 8 * (coded ? 4 : 8 * step_bytes));
                CHECK(!whole || (length == whole_length && memcmp(reply, whole, length) == 0));
                free(i ? reply : NULL);
                whole = i ? whole : reply;
                whole_length = length;
            }
            free(whole);
        }
        close_server();
    }
}

/* Takes a reply that begins with `head`, which is cut off; the caller frees what follows it. */
static uint8_t *take_behind(struct memory_peer *peer, const char *head, bool held, size_t *length) {
    uint8_t *reply = take(peer, 1u << 22, held, length);
    size_t cut = strlen(head);
    CHECK(*length > cut && memcmp(reply, head, cut) == 0);
    *length -= cut;
    memmove(reply, reply + cut, *length);
    return reply;
}

static void scripts_and_transactions_read_what_their_client_would(void) {
    static const char *const compressions[] = {"none", "lz4", "zstd"};
    static const size_t sizes[] = {50, 700, 2048, MOST_STEP_BYTES};
    bool lua = has_lua();
    for (int round = 0; round < 3 * 4 * 2 * 2; round++) {
        bool held = round % 2, coded = round / 2 % 2;
        uint64_t ids[ITEMS];
        size_t length, direct_length;
        open_server(held, NULL);
        struct memory_peer *peer = connect_peer();
        fill(peer, sizes[round / 4 % 4], compressions[round / 16], held, ids);
        send_get(peer, ids, coded);
        uint8_t *direct = take_behind(peer, "", held, &direct_length);
        for (int in_script = 0; in_script <= lua; in_script++) {
            say(peer, "MULTI\r\n");
            (in_script ? send_get_in_script : send_get)(peer, ids, coded);
            say(peer, "EXEC\r\n");
            uint8_t *reply = take_behind(peer, "+OK\r\n+QUEUED\r\n*1\r\n", held, &length);
            CHECK(length == direct_length && memcmp(reply, direct, length) == 0);
            free(reply);
        }
        if (lua) {
            send_get_in_script(peer, ids, coded);
            uint8_t *reply = take_behind(peer, "", held, &length);
            CHECK(length == direct_length && memcmp(reply, direct, length) == 0);
            free(reply);
        }
        free(direct);
        close_server();
    }
}

static void a_transaction_whose_client_has_gone_reads_on(void) {
    if (!has_lua()) return; /* nothing else is so slow that a transaction is suspended */
    for (int held = 0; held < 2; held++) {
        uint64_t ids[ITEMS];
        open_server(held, NULL);
        struct memory_peer *peer = connect_peer(), *other = connect_peer();
        memory_peer_open_window(other, 1u << 20);
        fill(peer, 700, "lz4", held, ids);
        say(peer, "MULTI\r\n");
        eval(peer, "local n = 0 for i = 1, 3000000 do n = n + i end return n");
        send_get(peer, ids, false);
        send_get(peer, ids, true);
        say(peer, "REPLAY.SAMPLE t 20\r\nREPLAY.SAMPLE t 20 SHARED\r\nREPLAY.SAMPLE t 20 CODED\r\nREPLAY.INFO t\r\n");
        say(peer, "REPLAY.END t x\r\nREPLAY.CLOSE t x\r\nREPLAY.RELEASE 1\r\nSET done yes\r\nEXEC\r\n");
        /* A busy machine may need several. */
        for (int turn = 0; turn < 100 && !server->exclusive.on; turn++) take_turn();
        CHECK(server->exclusive.on);
        memory_peer_vanish(peer);
        settle();
        CHECK(!server->exclusive.on);
        say(other, "GET done\r\nREPLAY.INFO t\r\n");
        settle();
        if (held) release_all(other);
        CHECK(has_received(other, "$3\r\nyes\r\n") && has_received(other, "$12\r\npinned_slots\r\n:0\r\n"));
        CHECK(has_received(other, "$7\r\nsampled\r\n:60\r\n"));
        close_server();
    }
}

static void a_client_that_vanishes_gives_its_streams_and_pins_back(void) {
    for (int coded = 0; coded < 2; coded++) {
        uint64_t ids[ITEMS];
        open_server(false, NULL);
        struct memory_peer *peer = connect_peer(), *other = connect_peer();
        memory_peer_open_window(other, SIZE_MAX);
        fill(peer, MOST_STEP_BYTES, "lz4", false, ids);
        memory_peer_open_window(peer, 5000);
        send_get(peer, ids, coded);
        settle();
        memory_peer_vanish(peer);
        settle();
        say(other, "REPLAY.INFO t\r\n");
        settle();
        CHECK(has_received(other, "$7\r\nstreams\r\n:0\r\n") && has_received(other, "$12\r\npinned_slots\r\n:0\r\n"));
        memory_peer_forget_received(other);
        CHECK(answers(other, "REPLAY.DROP t\r\n", "+OK\r\n"));
        close_server();
    }
}

/* Requests cut off at any byte: nothing of them stays. */
static void an_append_that_is_cut_off_leaves_nothing(void) {
    open_server(false, NULL);
    struct memory_peer *other = connect_peer();
    memory_peer_open_window(other, SIZE_MAX);
    create_windows(other, 1000, 700, 4, "none");
    settle();
    CHECK(received(other, "+OK\r\n"));
    for (size_t cut = 1; cut < 50000; cut += cut < 700 ? 13 : 4999) {
        struct memory_peer *peer = connect_peer();
        memory_peer_cut_input(peer, cut);
        send_append(peer, 700);
        take_turn();
        memory_peer_vanish(peer);
        settle();
    }
    say(other, "REPLAY.INFO t\r\n");
    settle();
    CHECK(has_received(other, "$7\r\nstreams\r\n:0\r\n") && has_received(other, "$5\r\nsteps\r\n:0\r\n"));
    close_server();
}

int main(void) {
    RUN(replies_are_the_same_however_slowly_they_are_taken);
    RUN(scripts_and_transactions_read_what_their_client_would);
    RUN(a_transaction_whose_client_has_gone_reads_on);
    RUN(a_client_that_vanishes_gives_its_streams_and_pins_back);
    RUN(an_append_that_is_cut_off_leaves_nothing);
    return 0;
}

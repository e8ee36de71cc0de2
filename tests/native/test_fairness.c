/* test_fairness: over the in-memory transport, where turns are counted instead of time: who has little to say is answered
 * while large replies and requests are on their way, and who does not read cannot keep items from the others. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "check.h"
#include "memory_transport.h"
#include "server/core/client.h"
#include "server/replay/replay_registry.h"
#include "server_stage.h"

#define ITEM 4096u
#define ITEMS 16384u /* 64 MB */

/* ---- the stage --------------------------------------------------------------------------------------- */

static bool turn(void) {
    int handled = transport->operations->poll(transport, 0);
    return server_step(server) == 0 || handled > 0;
}

static size_t received_bytes(const struct memory_peer *peer) {
    size_t length;
    memory_peer_received(peer, &length);
    return length;
}

/* REPLAY.ADD of `count` items, of whose bytes only `sent` come. */
static void send_items(struct memory_peer *peer, unsigned count, size_t sent) {
    char head[160];
    uint8_t *items = calloc(count, ITEM);
    int digits = snprintf(NULL, 0, "%u", count);
    memory_peer_send(peer, head,
                     (size_t)sprintf(head,
                                     "*8\r\n$10\r\nREPLAY.ADD\r\n$1\r\nt\r\n$%d\r\n%u\r\n$0\r\n\r\n$7\r\n"
                                     "COLUMNS\r\n$1\r\n1\r\n$3\r\nobs\r\n",
                                     digits, count));
    if (sent == (size_t)count * ITEM) {
        send_bulk(peer, items, sent);
    } else {
        memory_peer_send(peer, head, (size_t)sprintf(head, "$%zu\r\n", (size_t)count * ITEM));
        memory_peer_send(peer, items, sent);
    }
    free(items);
}

static void fill_table(struct memory_peer *peer) {
    static const char spec[] = "\x83\xa8"
                               "capacity\xcd\x40\x00\xa9signature\x81\xa3obs\x92\xa5uint8\x91\xcd\x10\x00"
                               "\xa7sampler\xa7uniform";
    say(peer, "*3\r\n$13\r\nREPLAY.CREATE\r\n$1\r\nt\r\n");
    send_bulk(peer, spec, sizeof spec - 1);
    settle();
    CHECK(received_prefix(peer, "+OK\r\n"));
    for (unsigned i = 0; i < ITEMS / 4096; i++) {
        send_items(peer, 4096, 4096 * (size_t)ITEM);
        settle();
        CHECK(received_prefix(peer, "$32768\r\n"));
    }
}

/* ---- small requests beside large ones ---------------------------------------------------------------- */

/* Twelve learners at once: what is written in a turn does not grow with their number, and each gets its part. */
static void a_turn_writes_no_more_for_many_readers_than_for_one(void) {
    enum { LEARNERS = 12 };
    open_server(false, NULL);
    struct memory_peer *learners[LEARNERS], *other = connect_peer();
    fill_table(other);
    for (int i = 0; i < LEARNERS; i++) {
        learners[i] = connect_peer();
        say(learners[i], "REPLAY.SAMPLE t 1000 REPLACE 0\r\n");
        memory_peer_open_window(learners[i], 1000); /* the reply stands, and waits for room */
    }
    settle();
    for (int i = 0; i < LEARNERS; i++) {
        CHECK(server->clients.writers == LEARNERS && received_bytes(learners[i]) == 1000);
        memory_peer_open_window(learners[i], SIZE_MAX);
    }
    int turns = 0;
    for (; server->clients.writers > 0; turns++) {
        size_t before = 0, least = SIZE_MAX, most = 0;
        for (int i = 0; i < LEARNERS; i++) before += received_bytes(learners[i]);
        say(other, "PING\r\n");
        turn();
        CHECK(received_prefix(other, "+PONG\r\n") && turns < 1000);
        size_t after = 0;
        for (int i = 0; i < LEARNERS; i++) {
            size_t bytes = received_bytes(learners[i]);
            after += bytes;
            least = bytes < least ? bytes : least;
            most = bytes > most ? bytes : most;
        }
        CHECK(after - before <= LIMIT_TURN_WRITE_BYTES + LEARNERS * ITEM);
        CHECK(server->clients.writers < LEARNERS || most - least <= LIMIT_TURN_WRITE_BYTES / LEARNERS);
    }
    CHECK(turns >= (int)(LEARNERS * 1000 / (LIMIT_TURN_WRITE_BYTES / ITEM)));
    for (int i = 0; i < LEARNERS; i++) CHECK(received_bytes(learners[i]) > 1000 * ITEM);
    close_server();
}

static void a_turn_reads_no_more_from_many_pushers_than_from_one(void) {
    enum { PUSHERS = 8 };
    open_server(false, NULL);
    struct memory_peer *pushers[PUSHERS], *other = connect_peer();
    fill_table(other);
    for (int i = 0; i < PUSHERS; i++) {
        pushers[i] = connect_peer();
        send_items(pushers[i], 1000, 1000 * ITEM);
    }
    settle(); /* all of them begin in the same turn, so that the first is not yet shared */
    for (int i = 0; i < PUSHERS; i++) {
        CHECK(received_prefix(pushers[i], "$8000\r\n"));
        send_items(pushers[i], 1000, 1000 * ITEM);
    }
    turn();
    turn();
    int turns = 0;
    for (; turns < 1000 && received_bytes(pushers[0]) == 0; turns++) {
        uint64_t before = server->stats.input_bytes;
        say(other, "PING\r\n");
        turn();
        CHECK(received_prefix(other, "+PONG\r\n"));
        CHECK(server->stats.input_bytes - before <=
              LIMIT_TURN_READ_BYTES + PUSHERS * (size_t)LIMIT_PENDING_INPUT_BYTES);
    }
    CHECK(turns > PUSHERS && turns < 1000);
    close_server();
}

/* ---- many requests at once ---------------------------------------------------------------------------- */

/* All of them together take many times as long as one client may run commands in a turn, however fast the machine is. */
static void a_pipelining_client_runs_no_more_in_a_turn_than_its_share(void) {
    enum { REQUESTS = 3000 };
    open_server(false, NULL);
    struct memory_peer *other = connect_peer(), *pipelining = connect_peer();
    CHECK(answers(other, "SETRANGE k 200000 x\r\n", ":200001\r\n"));
    for (int i = 0; i < REQUESTS; i++) say(pipelining, "BITCOUNT k\r\n");
    uint64_t most = 0, before = 0;
    const struct client *client = server->clients.tail;
    for (int turns = 0; client->commands < REQUESTS; turns++) {
        CHECK(turns < REQUESTS);
        say(other, "PING\r\n");
        transport->operations->poll(transport, 0);
        uint64_t ran = client->commands - before;
        most = ran > most ? ran : most;
        before = client->commands;
        server_step(server);
        CHECK(received(other, "+PONG\r\n"));
    }
    CHECK(most < REQUESTS / 2);
    settle();
    CHECK(received_bytes(pipelining) == REQUESTS * strlen(":4\r\n"));
    close_server();
}

/* ---- slow readers ------------------------------------------------------------------------------------ */

/* Two readers that stop once held every item that may be pinned, and whoever else sampled was refused for a minute. */
static void readers_that_stop_do_not_keep_items_from_others(void) {
    open_server(false, NULL);
    struct memory_peer *stalled[2], *other = connect_peer(), *large = connect_peer();
    fill_table(other);
    for (int i = 0; i < 2; i++) {
        stalled[i] = connect_peer();
        memory_peer_open_window(stalled[i], 100);
        say(stalled[i], "REPLAY.SAMPLE t 8192 REPLACE 0 BLOCK 0\r\n");
        settle();
    }
    CHECK(server->clients.blocked == 1); /* the second waits: the quarter that is left is for small replies */
    say(other, "REPLAY.SAMPLE t 1000 REPLACE 0\r\n");
    settle();
    CHECK(received_prefix(other, "*5\r\n"));
    say(other, "REPLAY.SAMPLE t 8000\r\n");
    settle();
    CHECK(received_prefix(other, "-TIMEOUT replies in flight hold 8192 items"));
    say(large, "REPLAY.SAMPLE t 4096 REPLACE 0 BLOCK 0\r\n");
    settle();
    CHECK(server->clients.blocked == 2 && received_bytes(large) == 0);
    say(other, "REPLAY.INFO t\r\n");
    settle();
    size_t length;
    const uint8_t *info = memory_peer_received(other, &length);
    CHECK(memmem(info, length, "replies in flight hold as many items", 36));
    memory_peer_forget_received(other);
    /* A second without any progress, and the first is closed; then the second has its turn, and stalls as well. */
    for (int i = 0; i < 2; i++) {
        CHECK(!memory_peer_is_closed(stalled[i]));
        for (struct client *client = server->clients.head; client; client = client->next)
            client->output_us -= LIMIT_PINNED_STALL_US + 1;
        server->clients.next_sweep_us = 0;
        settle();
        CHECK(memory_peer_is_closed(stalled[i]));
    }
    CHECK(received_prefix(large, "*5\r\n") && server->stats.stall_closes == 2 && server->clients.blocked == 0);
    close_server();
}

static void a_reader_that_only_trickles_goes_when_others_lack_items(void) {
    open_server(false, NULL);
    struct memory_peer *slow = connect_peer(), *other = connect_peer();
    fill_table(other);
    memory_peer_open_window(slow, 100);
    say(slow, "REPLAY.SAMPLE t 8192 REPLACE 0\r\n");
    settle();
    for (int second = 0; second < 30; second++) { /* nobody lacks anything: it may take its time */
        server->clients.head->next->pinned_us -= 1000000;
        server->clients.head->pinned_us -= 1000000;
        memory_peer_open_window(slow, 100);
        server->clients.next_sweep_us = 0;
        settle();
    }
    CHECK(!memory_peer_is_closed(slow));
    say(other, "REPLAY.SAMPLE t 8192 REPLACE 0 BLOCK 0\r\n");
    settle();
    memory_peer_open_window(slow, 100);
    server->clients.next_sweep_us = 0;
    settle();
    CHECK(memory_peer_is_closed(slow) && received_prefix(other, "*5\r\n"));
    close_server();
}

int main(void) {
    size_t before = memory_used_bytes();
    RUN(a_turn_writes_no_more_for_many_readers_than_for_one);
    RUN(a_turn_reads_no_more_from_many_pushers_than_from_one);
    RUN(a_pipelining_client_runs_no_more_in_a_turn_than_its_share);
    RUN(readers_that_stop_do_not_keep_items_from_others);
    RUN(a_reader_that_only_trickles_goes_when_others_lack_items);
    CHECK(memory_used_bytes() == before);
    return 0;
}

/* test_server_tables: tables over the in-memory transport: whoever vanishes lets go of everything, and replies pin
 * their items for as long as they are on their way. */
#include "replay/table_state.h"
#include "server/replay/replay_registry.h"
#include "server/replay/replay_subsystem.h"
#include "server_stage.h"

static void whoever_vanishes_in_mid_request_gives_its_reservation_back(void) {
    open_server(false, NULL);
    struct memory_peer *watcher = connect_peer();
    create_table(watcher);
    size_t cuts[] = {0, 1, OBSERVATION, 5 * OBSERVATION + 17, 16 * OBSERVATION - 1};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        for (int way = 0; way < 3; way++) {
            struct memory_peer *peer = connect_peer();
            memory_peer_cut_input(peer, way == 0 ? 1000 : SIZE_MAX);
            send_add(peer, 16, cuts[i]);
            settle();
            CHECK(table_field(watcher, "reserved_slots") == 16);
            if (way == 2) { /* one that merely stalls is cut off in the end */
                server->clients.tail->input_us -= (LIMIT_CLIENT_STALL_TIMEOUT_S + 1) * 1000000ull;
                server->clients.next_sweep_us = 0;
            } else if (way == 1) {
                memory_peer_finish(peer);
            } else {
                memory_peer_vanish(peer);
            }
            settle();
            CHECK(memory_peer_is_closed(peer) && table_field(watcher, "reserved_slots") == 0);
        }
    }
    CHECK(table_field(watcher, "size") == 0 && table_field(watcher, "added") == 0);
    close_server();
}

static void a_refused_add_keeps_the_connection_in_step(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    create_table(peer);
    static uint8_t column[8 * OBSERVATION];
    const char *wrong[][3] = {{"nosuch", "8", "obs"}, {"t", "7", "obs"}, {"t", "8", "other"}};
    const char *errors[] = {"-NOTABLE ", "-BADSHAPE ", "-BADSCHEMA "};
    for (int i = 0; i < 3; i++) {
        send_arguments(peer, 8);
        send_word(peer, "REPLAY.ADD");
        send_word(peer, wrong[i][0]);
        send_word(peer, wrong[i][1]);
        send_word(peer, "");
        send_word(peer, "COLUMNS");
        send_word(peer, "1");
        send_word(peer, wrong[i][2]);
        send_bulk(peer, column, sizeof column);
        settle();
        CHECK(received_prefix(peer, errors[i]));
        CHECK(answers(peer, "PING\r\n", "+PONG\r\n"));
    }
    CHECK(table_field(peer, "reserved_slots") == 0 && table_field(peer, "size") == 0);
    add(peer, 8);
    close_server();
}

/* The observations of a reply to REPLAY.SAMPLE t 32, each of which is one value throughout. */
static void check_observations(struct memory_peer *peer) {
    size_t length;
    const uint8_t *bytes = memory_peer_received(peer, &length);
    CHECK(length > 32 * OBSERVATION);
    const uint8_t *column = bytes + length - 2 - 32 * OBSERVATION;
    for (uint32_t i = 0; i < 32; i++)
        for (uint32_t j = 1; j < OBSERVATION; j++) CHECK(column[i * OBSERVATION + j] == column[i * OBSERVATION]);
    memory_peer_forget_received(peer);
}

static void sampled_items_are_pinned_until_their_bytes_are_sent(void) {
    open_server(false, NULL);
    struct memory_peer *watcher = connect_peer(), *peer = connect_peer();
    create_table(watcher);
    add(watcher, 64);
    memory_peer_open_window(peer, 100);
    say(peer, "REPLAY.SAMPLE t 32\r\n");
    settle();
    CHECK(table_field(watcher, "pinned_slots") > 0);
    /* Items that leave while they are on their way: the bytes sent are still theirs. */
    CHECK(answers(watcher, "REPLAY.RESET t\r\n", "+OK\r\n"));
    add(watcher, 64);
    memory_peer_open_window(peer, SIZE_MAX);
    settle();
    check_observations(peer);
    CHECK(table_field(watcher, "pinned_slots") == 0);
    memory_peer_open_window(peer, 1000);
    say(peer, "REPLAY.SAMPLE t 32\r\n");
    settle();
    CHECK(table_field(watcher, "pinned_slots") > 0);
    memory_peer_vanish(peer);
    settle();
    CHECK(table_field(watcher, "pinned_slots") == 0 && server->clients.count == 1);
    close_server();
}

static void sampled_items_are_pinned_until_the_transport_releases_them(void) {
    open_server(true, NULL);
    struct memory_peer *peer = connect_peer();
    struct memory_peer *watcher = connect_peer();
    send_create_table(peer);
    send_add(peer, 64, 64 * OBSERVATION);
    settle();
    release_all(peer);
    memory_peer_forget_received(peer);
    say(peer, "REPLAY.SAMPLE t 32\r\n");
    settle();
    size_t held = memory_peer_held(peer);
    CHECK(held > 32 * OBSERVATION);
    say(watcher, "REPLAY.RESET t\r\n");
    send_add(watcher, 64, 64 * OBSERVATION);
    settle();
    memory_peer_release(peer, held / 2);
    settle();
    release_all(peer);
    check_observations(peer);
    say(peer, "REPLAY.SAMPLE t 32\r\n");
    settle();
    memory_peer_vanish(peer);
    memory_peer_vanish(watcher);
    settle();
    CHECK(server->clients.count == 0);
    peer = connect_peer();
    say(peer, "REPLAY.INFO t\r\n");
    settle();
    release_all(peer);
    CHECK(info_field(peer, "pinned_slots") == 0);
    close_server();
}

/* Adds would wait for ever, or nearly. */
static void draws_are_given_back_as_many_at_once_as_many_answers_have(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    create_floats(peer, 16);
    CHECK(answers(peer, "REPLAY.SAMPLE t 1 TIMED 0 1 UNUSED 9223372036854775807\r\n",
                  "-LIMIT UNUSED: expected at most 8388608 draws that were left over, got 9223372036854775807\r\n"));
    say(peer, "REPLAY.SAMPLE t 1 TIMED 0 1 UNUSED 8388608\r\n");
    settle();
    CHECK(received_prefix(peer, "*7\r\n"));
    CHECK(rate_limiter_samples(&server->replay->tables->entries->table->limiter) == -8388608);
    close_server();
}

int main(void) {
    size_t before = memory_used_bytes();
    RUN(whoever_vanishes_in_mid_request_gives_its_reservation_back);
    RUN(a_refused_add_keeps_the_connection_in_step);
    RUN(sampled_items_are_pinned_until_their_bytes_are_sent);
    RUN(sampled_items_are_pinned_until_the_transport_releases_them);
    RUN(draws_are_given_back_as_many_at_once_as_many_answers_have);
    CHECK(memory_used_bytes() == before);
    return 0;
}

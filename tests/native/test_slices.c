/* Tests of what else happens to a server, or to a client, while a request is served in slices: the server follows another
 * one, it stops, writes are paused, a client goes. */
#include "counted_work.h"
#include "own_folder.h"
#include "replay/table_state.h"
#include "server/durability/append_log.h"
#include "server/durability/durability_subsystem.h"
#include "server/durability/snapshots.h"
#include "server/replay/replay_registry.h"
#include "server/replay/replay_subsystem.h"
#include "server/replication/replicas.h"
#include "server/replication/replication_subsystem.h"
#include "store/store.h"

static void take_turn(void) {
    server_step(server);
    transport->operations->poll(transport, 0);
}

static struct replay_registry *tables(void) {
    return server->replay->tables;
}

/* Turns until a part of the batch has entered. */
static void begin_parts(void) {
    while (!replay_registry_is_amid(tables())) take_turn();
}

/* A table of floats, and a client that adds so many of them, the first of which have entered. */
static struct memory_peer *begin_to_add(uint32_t n) {
    struct memory_peer *adder = connect_peer();
    create_floats(adder, n);
    send_floats(adder, n);
    begin_parts();
    return adder;
}

static size_t length_received(const struct memory_peer *peer) {
    size_t length;
    memory_peer_received(peer, &length);
    return length;
}

static void write_limiter(struct msgpack_writer *writer, const char *kind, const char *setting, uint64_t value) {
    write_text(writer, "rate_limiter");
    msgpack_write_map(writer, 2);
    write_text(writer, "kind");
    write_text(writer, kind);
    write_text(writer, setting);
    msgpack_write_unsigned(writer, value);
}

static void pause_writes(struct memory_peer *peer) {
    CHECK(answers(peer, "CLIENT PAUSE 1000000000 WRITE\r\n", "+OK\r\n"));
}

static void end_pause(struct memory_peer *peer) {
    CHECK(answers(peer, "CLIENT UNPAUSE\r\n", "+OK\r\n"));
}

/* ---- following another server ------------------------------------------------------------------------ */

static void a_client_whose_items_have_entered_in_part_is_not_told_that_it_was_unblocked(void) {
    open_server(false, NULL);
    struct memory_peer *adder = begin_to_add(ITEMS), *other = connect_peer();
    CHECK(answers(other, "REPLICAOF 127.0.0.1 1\r\n", "+OK\r\n"));
    CHECK(length_received(adder) == 0 && memory_peer_is_closed(adder));
    uint64_t size = table_field(other, "size");
    CHECK(size > 0 && size < ITEMS);
    close_server();
}

/* ---- writes that are held back ----------------------------------------------------------------------- */

static struct memory_peer *append_steps(uint32_t n) {
    struct memory_peer *peer = connect_peer();
    create_windows(peer, STEPS, 1, WINDOW, "none");
    settle();
    CHECK(received(peer, "+OK\r\n"));
    send_steps(peer, 1, n);
    settle();
    CHECK(received_prefix(peer, ":"));
    return peer;
}

static void items_that_were_being_bound_enter_after_a_pause(const char *block) {
    open_server(false, NULL);
    struct memory_peer *maker = append_steps(STEPS), *other = connect_peer();
    send_items(maker, STEPS, block);
    while (server->slices.working.length == 0) take_turn();
    pause_writes(other);
    CHECK(length_received(maker) == 0 && table_field(other, "size") == 0);
    end_pause(other);
    CHECK(received_prefix(maker, "$1048576\r\n") && table_field(other, "size") == STEPS);
    close_server();
}

static void send_delete(struct memory_peer *peer, const uint64_t *ids, uint32_t n) {
    send_arguments(peer, 3);
    send_word(peer, "REPLAY.DEL");
    send_word(peer, "t");
    send_bulk(peer, ids, n * sizeof *ids);
}

/* A batch that was amid its parts makes room meanwhile. */
static void whoever_waits_for_room_adds_after_a_pause(void) {
    struct msgpack_writer writer = {0};
    size_t length;
    open_server(false, NULL);
    struct memory_peer *maker = connect_peer(), *waiting = connect_peer(), *other = connect_peer();
    write_windows(&writer, STEPS, 1, WINDOW, "none", 1);
    write_limiter(&writer, "queue", "size", STEPS);
    send_spec(maker, "REPLAY.CREATE", &writer);
    send_steps(maker, 1, STEPS);
    settle();
    memory_peer_forget_received(maker);
    send_items(maker, STEPS, NULL);
    send_steps(waiting, 1, 1000);
    settle();
    memory_peer_forget_received(waiting);
    send_items(waiting, 1000, "0");
    settle();
    uint64_t *ids = malloc(STEPS * sizeof *ids);
    const uint8_t *bytes = memory_peer_received(maker, &length);
    CHECK(length == 10 + STEPS * sizeof *ids + 2);
    memcpy(ids, bytes + 10, STEPS * sizeof *ids);
    memory_peer_forget_received(maker);
    send_delete(maker, ids, STEPS);
    free(ids);
    begin_parts();
    pause_writes(other);
    CHECK(received(maker, ":131072\r\n") && length_received(waiting) == 0 && table_field(other, "size") == 0);
    end_pause(other);
    CHECK(received_prefix(waiting, "$8000\r\n") && table_field(other, "size") == 1000);
    close_server();
}

static void whoever_waits_for_items_samples_after_a_pause(void) {
    struct msgpack_writer writer = {0};
    open_server(false, NULL);
    struct memory_peer *maker = connect_peer(), *sampler = connect_peer(), *other = connect_peer();
    write_windows(&writer, STEPS, 1, WINDOW, "none", 1);
    write_limiter(&writer, "min_size", "min_size_to_sample", STEPS);
    send_spec(maker, "REPLAY.CREATE", &writer);
    send_steps(maker, 1, STEPS);
    settle();
    memory_peer_forget_received(maker);
    say(sampler, "REPLAY.SAMPLE t 1 BLOCK 0\r\n");
    send_items(maker, STEPS, NULL);
    begin_parts();
    pause_writes(other);
    CHECK(received_prefix(maker, "$1048576\r\n") && length_received(sampler) == 0);
    CHECK(table_field(other, "sampled") == 0);
    end_pause(other);
    CHECK(received_prefix(sampler, "*") && table_field(other, "sampled") == 1);
    close_server();
}

static void a_table_is_reset_after_a_pause(void) {
    open_server(false, NULL);
    struct memory_peer *adder = begin_to_add(ITEMS), *resetter = connect_peer(), *other = connect_peer();
    say(resetter, "REPLAY.RESET t\r\n");
    take_turn();
    pause_writes(other);
    CHECK(received_prefix(adder, "$8388608\r\n"));
    CHECK(length_received(resetter) == 0 && table_field(other, "size") == ITEMS);
    end_pause(other);
    CHECK(received(resetter, "+OK\r\n") && table_field(other, "size") == 0);
    close_server();
}

/* ---- the end of a server, or of its time as a primary ------------------------------------------------- */

static void what_was_acknowledged_is_in_the_snapshot_of_a_stop(void) {
    struct error error;
    struct text said = {0};
    open_server(false, NULL);
    struct memory_peer *adder = begin_to_add(ITEMS), *other = connect_peer();
    say(other, "SHUTDOWN SAVE\r\n");
    while (!server->ending.asked) take_turn();
    CHECK(received_prefix(adder, "$8388608\r\n"));
    close_server();
    open_server(false, NULL);
    CHECK(snapshots_restore_at_start(server->durability->snapshots, "latest", &said, &error) == 0);
    text_free(&said);
    CHECK(table_field(connect_peer(), "size") == ITEMS);
    close_server();
}

static void a_failover_waits_for_the_end_of_a_batch(void) {
    char words[64] = "";
    open_server(false, NULL);
    struct memory_peer *replica = connect_peer(), *other = connect_peer();
    say(replica, "REPLCONF listening-port 1\r\nREPLCONF capa eof capa psync2\r\nPSYNC ? -1\r\n");
    const struct replication_subsystem *replication = server->replication;
    while (!replication->replicas || replication->replicas->state != REPLICA_ONLINE) take_turn();
    struct memory_peer *adder = begin_to_add(ITEMS);
    say(other, "FAILOVER\r\n");
    while (!server->place.is_replica) {
        say(replica, words);
        take_turn();
        sprintf(words, "REPLCONF ACK %" PRIu64 "\r\n", replication->failover.wanted);
    }
    CHECK(received_prefix(adder, "$8388608\r\n"));
    close_server();
}

/* ---- a client that goes -------------------------------------------------------------------------------- */

#define HELD 20000u

/* The first peer fills a queue with items whose steps no stream keeps any more, the second one waits for room in it, and
 * the third appends more steps than fit beside those. */
static void whoever_waits_for_room_gets_what_an_append_made_although_its_client_goes(void) {
    struct msgpack_writer writer = {0};
    open_server(false, NULL);
    struct memory_peer *maker = connect_peer(), *waiting = connect_peer(), *appender = connect_peer();
    write_windows(&writer, 2 * HELD, 1, WINDOW, "none", 2);
    write_text(&writer, "max_bytes");
    msgpack_write_unsigned(&writer, STEPS + 100);
    write_limiter(&writer, "queue", "size", HELD);
    send_spec(maker, "REPLAY.CREATE", &writer);
    send_steps(maker, 1, HELD);
    settle();
    memory_peer_forget_received(maker);
    send_items(maker, HELD, NULL);
    send_steps(waiting, 1, 2);
    settle();
    memory_peer_finish(maker);
    memory_peer_forget_received(waiting);
    send_items(waiting, 1, "0");
    settle();
    CHECK(length_received(waiting) == 0);
    send_steps(appender, 1, STEPS);
    while (tables()->entries->table->items.live == HELD) take_turn();
    CHECK(length_received(appender) == 0);
    memory_peer_vanish(appender);
    settle();
    CHECK(received_prefix(waiting, "$8\r\n"));
    close_server();
}

/* ---- a reply that waits for the disk ------------------------------------------------------------------- */

static void sync_always(struct server_config *config) {
    config->appendonly = 1;
    config->appendfsync = APPEND_SYNC_ALWAYS;
}

/* Looks at the clock take no time until a script has made its change. Then a slice is over with the next look. */
static uint64_t take_time_behind_a_change(void) {
    return server->store->changes > 0 ? 1000000 : 1;
}

/* It replies within its first slice, and collects its garbage in others. The last one records the end of its changes. */
static void a_script_is_answered_when_its_end_is_in_the_file(void) {
    struct error error;
    struct text said = {0};
    open_server(false, sync_always);
    struct append_log *log = server->durability->append_log;
    CHECK(append_log_start(log, &said, &error) == 0);
    text_free(&said);
    struct memory_peer *peer = connect_peer();
    look_ns = take_time_behind_a_change;
    eval(peer, "local s, t = string.rep('x', 500), {} for i = 1, 60000 do t[i] = s .. i end "
               "redis.call('SET', 'key', 'value') return 'there'");
    while (!server->exclusive.on) take_turn();
    CHECK(server->clients.head->held && server->clients.head->held_until == UINT64_MAX);
    for (; server->exclusive.on; take_turn()) {
        append_writer_wait(log->writer);
        CHECK(length_received(peer) == 0);
    }
    while (length_received(peer) == 0) {
        append_writer_wait(log->writer);
        take_turn();
    }
    CHECK(received(peer, "$5\r\nthere\r\n"));
    look_ns = NULL;
    close_server();
}

int main(void) {
    enter_own_folder();
    a_client_whose_items_have_entered_in_part_is_not_told_that_it_was_unblocked();
    items_that_were_being_bound_enter_after_a_pause(NULL);
    items_that_were_being_bound_enter_after_a_pause("0");
    whoever_waits_for_room_adds_after_a_pause();
    whoever_waits_for_items_samples_after_a_pause();
    a_table_is_reset_after_a_pause();
    what_was_acknowledged_is_in_the_snapshot_of_a_stop();
    a_failover_waits_for_the_end_of_a_batch();
    whoever_waits_for_room_gets_what_an_append_made_although_its_client_goes();
    if (has_lua()) a_script_is_answered_when_its_end_is_in_the_file();
    return 0;
}

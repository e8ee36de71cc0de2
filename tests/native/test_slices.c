/* Tests of what else happens to a server, or to a client, while a request is served in slices: the server follows another
 * one, it stops, writes are paused, a client goes. */
#include "counted_work.h"
#include "own_folder.h"
#include "replay/table_state.h"
#include "server/durability/append_log.h"
#include "server/durability/durability_subsystem.h"
#include "server/durability/snapshots.h"
#include "server/durability/stop.h"
#include "server/replay/replay_follow.h"
#include "server/replay/replay_registry.h"
#include "server/replay/replay_subsystem.h"
#include "server/replication/primary_link.h"
#include "server/replication/replicas.h"
#include "server/replication/replication_subsystem.h"
#include "store/store.h"

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

static void steps_that_were_given_slots_enter_after_a_pause(void) {
    open_server(false, NULL);
    struct memory_peer *maker = append_steps(2), *other = connect_peer();
    send_steps(maker, 1, STEPS);
    while (server->slices.working.length == 0) take_turn();
    pause_writes(other);
    CHECK(length_received(maker) == 0 && table_field(other, "steps") == 2);
    end_pause(other);
    CHECK(received(maker, ":131072\r\n") && table_field(other, "steps") == STEPS);
    close_server();
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

#define LARGE_BATCH (1u << 15)

/* A queue that is full. A client waits for room for one item, and another with a large batch behind it. Steps are those of
 * table t. */
static struct memory_peer *begin_to_wait(const char *table) {
    struct msgpack_writer writer = {0};
    struct memory_peer *filler = connect_peer(), *first = connect_peer(), *large = connect_peer();
    write_windows(&writer, STEPS, 1, WINDOW, "none", 2);
    write_text(&writer, "steps_of");
    write_text(&writer, "t");
    write_limiter(&writer, "queue", "size", LARGE_BATCH);
    send_spec_of(filler, table, "REPLAY.CREATE", &writer);
    send_steps(filler, 1, LARGE_BATCH);
    send_items_of(filler, table, LARGE_BATCH, NULL);
    send_steps(first, 1, STREAMS);
    send_items_of(first, table, 1, "0");
    send_steps(large, 1, LARGE_BATCH);
    send_items_of(large, table, LARGE_BATCH, "0");
    settle();
    return first;
}

static uint32_t bound_of(const struct replay_entry *entry) {
    const struct replay_request *request = client_state(entry->adders.head);
    return request->done;
}

static void large_batches_that_wait_are_made_ready_in_turn_over_the_tables(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    create_windows(peer, STEPS, 1, WINDOW, "none");
    settle();
    struct memory_peer *first_of_a = begin_to_wait("a"), *first_of_b = begin_to_wait("b");
    const struct replay_entry *a = tables()->entries->next, *b = a->next;
    CHECK(a->adders.length == 2 && b->adders.length == 2);
    memory_peer_vanish(first_of_a);
    memory_peer_vanish(first_of_b);
    while (a->adders.length == 2 || b->adders.length == 2) take_turn();
    uint32_t part = bound_of(a) < bound_of(b) ? bound_of(a) : bound_of(b);
    for (int turns = 0; turns < 3; turns++) {
        uint32_t before_a = bound_of(a), before_b = bound_of(b);
        take_turn();
        CHECK(bound_of(a) < LARGE_BATCH && bound_of(a) > before_a && bound_of(b) > before_b);
        uint32_t apart = bound_of(a) > bound_of(b) ? bound_of(a) - bound_of(b) : bound_of(b) - bound_of(a);
        CHECK(part > 0 && apart <= 2 * part);
    }
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

static void restore_latest(void) {
    struct error error;
    struct text said = {0};
    close_server();
    open_server(false, NULL);
    CHECK(snapshots_restore_at_start(server->durability->snapshots, "latest", &said, &error) == 0);
    text_free(&said);
}

static void what_was_acknowledged_is_in_the_snapshot_of_a_stop(void) {
    open_server(false, NULL);
    struct memory_peer *adder = begin_to_add(ITEMS), *other = connect_peer();
    say(other, "SHUTDOWN SAVE\r\n");
    while (!server->ending.asked) take_turn();
    CHECK(received_prefix(adder, "$8388608\r\n"));
    restore_latest();
    CHECK(table_field(connect_peer(), "size") == ITEMS);
    close_server();
}

#define MEMBERS 20000u

static void what_a_command_in_slices_changed_is_in_the_snapshot_of_a_stop(void) {
    char line[64];
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    for (uint32_t i = 0; i < MEMBERS; i++) {
        sprintf(line, "ZADD a %u member:%u\r\n", i, i);
        say(peer, line);
    }
    settle();
    memory_peer_forget_received(peer);
    say(peer, "ZUNIONSTORE b 1 a\r\n");
    while (!server->exclusive.on) take_turn();
    stop_after_saving(server, false); /* as a signal does */
    while (!server->ending.asked) take_turn();
    CHECK(received(peer, ":20000\r\n"));
    restore_latest();
    CHECK(answers(connect_peer(), "ZCARD b\r\n", ":20000\r\n"));
    close_server();
}

static void a_snapshot_that_has_begun_is_not_said_to_be_unblocked(void) {
    open_server(false, NULL);
    struct memory_peer *saver = connect_peer(), *behind = connect_peer(), *other = connect_peer();
    create_floats(other, ITEMS);
    send_floats(other, ITEMS);
    settle();
    memory_peer_forget_received(other);
    say(saver, "REPLAY.SAVE\r\n");
    while (!server->durability->snapshots->running) take_turn();
    say(behind, "REPLAY.SAVE\r\n");
    take_turn();
    take_turn();
    say(other, "CLIENT UNBLOCK 1 ERROR\r\nCLIENT UNBLOCK 2 ERROR\r\n");
    settle();
    CHECK(received(other, ":1\r\n:1\r\n"));
    CHECK(received_prefix(saver, "-ERR the client was unblocked, but the snapshot continues"));
    CHECK(received(behind, "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n"));
    while (server->durability->snapshots->running) take_turn();
    CHECK(server->durability->snapshots->saved == 1);
    close_server();
}

/* A batch of items, or of steps. */
static void a_failover_waits_for_the_end_of_a_batch(bool of_steps) {
    char words[64] = "";
    open_server(false, NULL);
    struct memory_peer *replica = connect_peer(), *other = connect_peer();
    say(replica, "REPLCONF listening-port 1\r\nREPLCONF capa eof capa psync2\r\nPSYNC ? -1\r\n");
    const struct replication_subsystem *replication = server->replication;
    while (!replication->replicas || replication->replicas->state != REPLICA_ONLINE) take_turn();
    struct memory_peer *adder = of_steps ? append_steps(2) : begin_to_add(ITEMS);
    if (of_steps) send_steps(adder, 1, STEPS);
    while (of_steps && tables()->entries->table->own_steps.occupied == 2) take_turn();
    say(other, "FAILOVER\r\n");
    while (!server->place.is_replica) {
        say(replica, words);
        take_turn();
        sprintf(words, "REPLCONF ACK %" PRIu64 "\r\n", replication->failover.wanted);
    }
    CHECK(received_prefix(adder, of_steps ? ":131072\r\n" : "$8388608\r\n"));
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

/* Symptom: steps of an owner were refused although more of its items could leave for them, where a table that shares them has
 * just let them go. */
static void steps_wait_until_the_items_of_an_owner_have_left_for_them(void) {
    open_server(false, NULL);
    struct memory_peer *maker = connect_peer(), *appender = connect_peer();
    create_windows(maker, 2 * HELD, 1, WINDOW, "none");
    send_steps(maker, 1, HELD);
    send_items(maker, HELD, NULL);
    settle();
    memory_peer_finish(maker);
    settle();
    struct table *table = tables()->entries->table;
    CHECK(table->items.live == HELD);
    table->sharers = 1;
    table->config.max_bytes = table_bytes(table) / 2;
    send_steps(appender, 1, 1);
    settle();
    CHECK(received(appender, ":1\r\n"));
    CHECK(table->items.live > HELD / 4 && table_bytes(table) <= table->config.max_bytes);
    table->sharers = 0;
    close_server();
}

/* ---- a replica at work --------------------------------------------------------------------------------- */

/* Symptom: nothing was acknowledged during a long RESET, nor was anything read, so that both ends closed the link. */
static void a_replica_at_work_is_alive_and_acknowledges_what_it_has_done(void) {
    open_server(false, NULL);
    struct memory_peer *primary = connect_peer();
    create_floats(primary, 10000);
    send_floats(primary, 10000);
    settle();
    memory_peer_forget_received(primary);
    struct client *client = server->clients.head;
    struct primary_link *link = &server->replication->link;
    CHECK(change_stream_begin(&server->replication->stream, 100));
    link->client = client;
    link->state = LINK_UP;
    struct replay_entry *entry = tables()->entries;
    entry->followed = true;
    table_begin_reset(entry->table);
    client->is_resting = replay_follow_step(tables());
    CHECK(client->is_resting);
    client->argc = 0;
    client->request_bytes = 4; /* of the record */
    replication_applied(client);
    server->now_us += 1000 * 1000000ull;
    link_each_second(server);
    CHECK(link->client == client && link->state == LINK_UP);
    settle();
    CHECK(received(primary, "*3\r\n$8\r\nREPLCONF\r\n$3\r\nACK\r\n$3\r\n100\r\n"));
    CHECK(!table_has_work(entry->table) && link_step(server) == CLOCK_NEVER && !client->is_resting);
    link_each_second(server);
    settle();
    CHECK(received(primary, "*3\r\n$8\r\nREPLCONF\r\n$3\r\nACK\r\n$3\r\n104\r\n"));
    entry->followed = false;
    link->client = NULL;
    link->state = LINK_NONE;
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
    steps_that_were_given_slots_enter_after_a_pause();
    whoever_waits_for_room_adds_after_a_pause();
    large_batches_that_wait_are_made_ready_in_turn_over_the_tables();
    whoever_waits_for_items_samples_after_a_pause();
    a_table_is_reset_after_a_pause();
    what_was_acknowledged_is_in_the_snapshot_of_a_stop();
    what_a_command_in_slices_changed_is_in_the_snapshot_of_a_stop();
    a_snapshot_that_has_begun_is_not_said_to_be_unblocked();
    a_failover_waits_for_the_end_of_a_batch(false);
    a_failover_waits_for_the_end_of_a_batch(true);
    steps_wait_until_the_items_of_an_owner_have_left_for_them();
    a_replica_at_work_is_alive_and_acknowledges_what_it_has_done();
    whoever_waits_for_room_gets_what_an_append_made_although_its_client_goes();
    if (has_lua()) a_script_is_answered_when_its_end_is_in_the_file();
    return 0;
}

/* Tests that no turn of the loop lasts longer than a millisecond, by a clock that counts work. */
#include "counted_work.h"
#include "replay/table_apply.h"
#include "replay/table_state.h"
#include "server/core/command_table.h"
#include "server/core/propagate.h"
#include "server/redis/pubsub/pubsub.h"
#include "server/replay/replay_follow.h"
#include "server/replay/replay_registry.h"
#include "server/replay/replay_subsystem.h"
#include "server/replay/weights_registry.h"
#include "server/replication/table_replication.h"
#include "store/store.h"

#define KEYS 60000

/* Turns until nothing happens any more; none of them may be long, and there are several. */
static void settle_in_short_turns(uint64_t least_turns) {
    uint64_t before = server->stats.turns;
    server->stats.turn_us_max = 0;
    settle();
    CHECK(server->stats.turn_us_max <= LIMIT_TURN_US);
    CHECK(server->stats.turns - before >= least_turns);
}

static void a_million_items_are_added_changed_drawn_read_and_deleted_in_short_turns(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    create_floats(peer, ITEMS);
    send_floats(peer, ITEMS);
    settle_in_short_turns(16);
    size_t length;
    const uint8_t *bytes = memory_peer_received(peer, &length);
    CHECK(length > ITEMS * sizeof(uint64_t));
    uint64_t *ids = malloc(ITEMS * sizeof *ids);
    memcpy(ids, bytes + length - 2 - ITEMS * sizeof *ids, ITEMS * sizeof *ids);
    memory_peer_forget_received(peer);

    double *priorities = malloc(ITEMS * sizeof *priorities);
    for (uint32_t i = 0; i < ITEMS; i++) priorities[i] = i;
    send_arguments(peer, 4);
    send_word(peer, "REPLAY.UPDATE");
    send_word(peer, "t");
    send_bulk(peer, ids, ITEMS * sizeof *ids);
    send_bulk(peer, priorities, ITEMS * sizeof *priorities);
    settle_in_short_turns(16);
    CHECK(received(peer, "*2\r\n:1048576\r\n:0\r\n"));
    free(priorities);

    say(peer, "REPLAY.SAMPLE t 1048576\r\n");
    settle_in_short_turns(16);
    CHECK(received_prefix(peer, "*5\r\n$8388608\r\n"));
    memory_peer_forget_received(peer);

    send_delete(peer, ids, ITEMS);
    settle_in_short_turns(16);
    CHECK(received(peer, ":1048576\r\n"));
    free(ids);
    close_server();
}

static void fill(struct memory_peer *peer, const char *name, const char *ends) {
    char line[96];
    for (int i = 0; i < KEYS; i++) {
        sprintf(line, "SET %s:%d 1%s\r\n", name, i, ends);
        say(peer, line);
        if (i % 64 == 0) settle();
    }
    settle();
    memory_peer_forget_received(peer);
}

static void a_step_of_a_scan_is_short_however_large_its_count(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    char request[96], cursor[32] = "0";
    uint32_t found = 0, most = 0, steps = 0, count;
    int head;
    fill(peer, "key", "");
    do {
        sprintf(request, "SCAN %s COUNT 9223372036854775807\r\n", cursor);
        say(peer, request);
        settle();
        size_t length;
        CHECK(sscanf((const char *)memory_peer_received(peer, &length), "*2\r\n$%d\r\n%31[0-9]\r\n*%u\r\n", &head,
                     cursor, &count) == 3);
        memory_peer_forget_received(peer);
        found += count;
        most = count > most ? count : most;
        steps++;
    } while (strcmp(cursor, "0") != 0);
    CHECK(found >= KEYS && most >= 1000 && most < 1100 && steps >= KEYS / 1100);
    close_server();
}

/* A table of a million items is reset and another such batch changes priorities, keys are searched, run out, and are freed:
 * together they get what one of them would. */
static void whatever_is_to_be_done_at_once_shares_the_time_of_one_turn(void) {
    open_server(false, NULL);
    struct memory_peer *adder = connect_peer(), *searcher = connect_peer(), *resetter = connect_peer();
    create_floats(adder, ITEMS);
    send_floats(adder, ITEMS);
    settle();
    memory_peer_forget_received(adder);
    fill(searcher, "short", " PX 3600000");
    say(searcher, "SELECT 1\r\n");
    fill(searcher, "freed", "");
    say(searcher, "FLUSHDB ASYNC\r\nSELECT 2\r\n");
    fill(searcher, "found", "");
    looked_ns += 3600 * 1000000000ull; /* all that may run out has */
    say(searcher, "KEYS *\r\n");
    say(resetter, "REPLAY.RESET t\r\n");
    settle_in_short_turns(32);
    CHECK(received_prefix(searcher, "*60000\r\n") && received(resetter, "+OK\r\n"));
    CHECK(server->store->expired_keys == KEYS);
    close_server();
}

/* Turns, none of them long, until the peer is answered. */
static uint32_t short_turns_until_answered(struct memory_peer *peer) {
    size_t length = 0;
    uint32_t turns = 0;
    for (server->stats.turn_us_max = 0; length == 0; turns++) {
        CHECK(turns < 1000000);
        take_turn();
        memory_peer_received(peer, &length);
    }
    settle();
    CHECK(server->stats.turn_us_max <= LIMIT_TURN_US);
    return turns;
}

#define ASKED 8192u /* of so many items two windows show as many steps as may be asked for at once with CODED */

static void many_steps_are_appended_seen_and_shown_in_short_turns(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    create_windows(peer, STEPS, 1, WINDOW, "none");
    settle();
    CHECK(received(peer, "+OK\r\n"));
    send_steps(peer, 1, STEPS);
    CHECK(short_turns_until_answered(peer) >= 8);
    CHECK(received(peer, ":131072\r\n"));
    send_items(peer, STEPS, NULL);
    CHECK(short_turns_until_answered(peer) >= 16);
    size_t length;
    const uint8_t *bytes = memory_peer_received(peer, &length);
    CHECK(length == 10 + STEPS * sizeof(uint64_t) + 2 && memcmp(bytes, "$1048576\r\n", 10) == 0);
    uint64_t *ids = malloc(ASKED * sizeof *ids);
    memcpy(ids, bytes + 10, ASKED * sizeof *ids);
    memory_peer_forget_received(peer);
    send_arguments(peer, 4);
    send_word(peer, "REPLAY.GET");
    send_word(peer, "t");
    send_bulk(peer, ids, ASKED * sizeof *ids);
    free(ids);
    settle();
    send_last(peer, "CODED", 5);
    CHECK(short_turns_until_answered(peer) >= 8);
    CHECK(received_prefix(peer, "*7\r\n$65536\r\n"));
    close_server();
}

static void create_sharing(struct memory_peer *peer, const char *name) {
    struct msgpack_writer writer = {0};
    write_windows(&writer, STEPS, 1, WINDOW, "none", 1);
    write_text(&writer, "steps_of");
    write_text(&writer, "t");
    send_spec_of(peer, name, "REPLAY.CREATE", &writer);
    settle();
    CHECK(received(peer, "+OK\r\n"));
}

/* Items of a table that shares the steps of t show new ones. */
static void fill_sharing(struct memory_peer *peer, const char *name) {
    send_steps(peer, 1, STEPS);
    settle();
    CHECK(received(peer, ":131072\r\n"));
    send_items_of(peer, name, STEPS, NULL);
    settle();
    memory_peer_forget_received(peer);
}

static void a_dropped_table_lets_go_of_shared_steps_in_short_turns_and_may_be_created_at_once(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    create_windows(peer, STEPS, 1, WINDOW, "none");
    settle();
    CHECK(received(peer, "+OK\r\n"));
    create_sharing(peer, "a");
    create_sharing(peer, "b");
    create_sharing(peer, "c"); /* as many as there may be */
    fill_sharing(peer, "c");
    say(peer, "REPLAY.CLOSE t \"\\x00\\x00\\x00\\x00\\x01\\x00\\x00\\x00\"\r\n");
    settle();
    CHECK(received(peer, ":2\r\n") && table_field(peer, "steps") == STEPS);
    say(peer, "REPLAY.DROP c\r\n");
    settle_in_short_turns(64);
    CHECK(received(peer, "+OK\r\n") && table_field(peer, "steps") == 0);

    create_sharing(peer, "c");
    fill_sharing(peer, "c");
    say(peer, "REPLAY.DROP c\r\n");
    for (int i = 0; i < 3; i++) take_turn();
    CHECK(received(peer, "+OK\r\n") && server->replay->tables->dropped);
    create_sharing(peer, "c");
    say(peer, "REPLAY.DROP c\r\n");
    settle();
    CHECK(received(peer, "+OK\r\n"));
    close_server();
}

/* Steps that take some 0.2 ms each: the clock is looked at behind every one. */
static void large_steps_are_compressed_in_short_turns(const char *compression) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    create_windows(peer, 1000, 100000, 4, compression);
    settle();
    if (received_prefix(peer, "+OK\r\n")) {
        send_steps(peer, 100000, 300);
        CHECK(short_turns_until_answered(peer) >= 8);
        CHECK(received(peer, ":300\r\n"));
    }
    close_server();
}

static void long_replies_of_scripts_are_made_in_short_turns(const char *script, const char *begins,
                                                            uint64_t least_turns) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    eval(peer, script);
    settle_in_short_turns(least_turns);
    CHECK(received_prefix(peer, begins));
    close_server();
}

static void check_free_slots_are_there_once(const struct slot_store *store) {
    uint8_t *seen = calloc(store->fresh, 1);
    for (uint32_t i = 0; i < store->returned_count; i++) {
        CHECK(!seen[store->returned[i]] && *slot_references(store, store->returned[i]) == 0);
        seen[store->returned[i]] = 1;
    }
    CHECK(store->uncollected == 0 && store->uncollected_free == 0);
    CHECK(store->returned_count + store->occupied + store->reserved + store->retired == store->fresh);
    free(seen);
}

/* Free slots are between those of items, at their end, and all there are: those that were never used come last. */
static void tables_of_a_promoted_replica_find_their_free_slots_in_short_turns(void) {
    size_t length;
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    create_floats(peer, ITEMS);
    send_floats(peer, ITEMS);
    settle();
    uint64_t *ids = malloc(ITEMS * sizeof *ids), gone[1000];
    const uint8_t *bytes = memory_peer_received(peer, &length);
    memcpy(ids, bytes + length - 2 - ITEMS * sizeof *ids, ITEMS * sizeof *ids);
    for (uint32_t i = 0; i < 1000; i++) gone[i] = ids[i * 1000];
    memory_peer_forget_received(peer);
    send_delete(peer, gone, 1000);
    settle();
    CHECK(received(peer, ":1000\r\n"));
    uint64_t free_slots = table_field(peer, "free_slots");

    struct replay_entry *entry = server->replay->tables->entries;
    struct slot_store *items = &entry->table->items;
    table_apply_begin(entry->table);
    entry->followed = true;
    replay_follow_end(server->replay->tables, false);
    CHECK(table_has_work(entry->table) && table_field(peer, "free_slots") == free_slots);
    send_delete(peer, ids, 1000); /* one of them is gone */
    send_floats(peer, 5000);
    settle_in_short_turns(4);
    CHECK(received_prefix(peer, ":999\r\n$40000\r\n"));
    CHECK(!table_has_work(entry->table) && items->live == ITEMS &&
          table_field(peer, "free_slots") == free_slots - 1000);
    check_free_slots_are_there_once(items);
    free(ids);
    close_server();
}

#define SHOWN 1000u

static void send_get(struct memory_peer *peer, const uint64_t *ids, uint32_t n) {
    send_arguments(peer, 3);
    send_word(peer, "REPLAY.GET");
    send_word(peer, "t");
    send_last(peer, ids, n * sizeof *ids);
}

static void a_replica_reads_many_items_in_short_turns_as_its_primary_does(void) {
    size_t length, expected_length;
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    create_windows(peer, SHOWN, 10000, 4, "none");
    send_steps(peer, 10000, SHOWN);
    settle();
    memory_peer_forget_received(peer);
    send_items(peer, SHOWN, NULL);
    settle();
    uint64_t ids[SHOWN];
    memcpy(ids, memory_peer_received(peer, &length) + 7, sizeof ids);
    CHECK(length == 7 + sizeof ids + 2);
    memory_peer_forget_received(peer);
    send_get(peer, ids, SHOWN);
    settle();
    const uint8_t *bytes = memory_peer_received(peer, &expected_length);
    CHECK(expected_length > SHOWN * 8 * 10000);
    uint8_t *expected = malloc(expected_length);
    memcpy(expected, bytes, expected_length);
    memory_peer_forget_received(peer);

    struct replay_entry *entry = server->replay->tables->entries;
    entry->followed = true;
    send_get(peer, ids, SHOWN);
    CHECK(short_turns_until_answered(peer) >= 8);
    bytes = memory_peer_received(peer, &length);
    CHECK(length == expected_length && memcmp(bytes, expected, length) == 0);
    memory_peer_forget_received(peer);

    send_get(peer, ids, SHOWN); /* it becomes a primary meanwhile */
    take_turn();
    entry->followed = false;
    CHECK(short_turns_until_answered(peer) >= 8);
    bytes = memory_peer_received(peer, &length);
    CHECK(length == expected_length && memcmp(bytes, expected, length) == 0);
    memory_peer_forget_received(peer);
    entry->followed = true;

    send_get(peer, ids, SHOWN); /* an item leaves meanwhile */
    take_turn();
    uint32_t slot = table_slot(entry->table, ids[SHOWN - 1]);
    CHECK(slot != SLOT_NONE);
    table_remove(entry->table, slot);
    table_repair(entry->table);
    settle();
    CHECK(received_prefix(peer, "-ERR "));
    entry->followed = false;
    free(expected);
    close_server();
}

#define RAGGED 1000u
#define ROWS 60000u

/* {x: [uint8, [nil]]} */
static void create_ragged(struct memory_peer *peer) {
    struct msgpack_writer spec = {0};
    msgpack_write_map(&spec, 2);
    write_text(&spec, "capacity");
    msgpack_write_unsigned(&spec, RAGGED);
    write_text(&spec, "signature");
    msgpack_write_map(&spec, 1);
    write_text(&spec, "x");
    msgpack_write_array(&spec, 2);
    write_text(&spec, "uint8");
    msgpack_write_array(&spec, 1);
    msgpack_write_nil(&spec);
    send_spec(peer, "REPLAY.CREATE", &spec);
    settle();
    CHECK(received(peer, "+OK\r\n"));
}

/* Items of no rows and of many in turn. */
static void send_ragged(struct memory_peer *peer, uint64_t ids[RAGGED]) {
    size_t length, rows = RAGGED / 2 * ROWS, bytes = (RAGGED + 1) * sizeof(int64_t) + rows;
    int64_t *offsets = malloc(bytes);
    for (uint32_t i = 0; i <= RAGGED; i++) offsets[i] = i / 2 * ROWS;
    for (size_t i = 0; i < rows; i++) ((uint8_t *)(offsets + RAGGED + 1))[i] = (uint8_t)(i * 7 + i / ROWS);
    send_add_head(peer, RAGGED, "x");
    send_bulk(peer, offsets, bytes);
    free(offsets);
    settle();
    memcpy(ids, memory_peer_received(peer, &length) + 7, RAGGED * sizeof *ids);
    CHECK(length == 7 + RAGGED * sizeof *ids + 2);
    memory_peer_forget_received(peer);
}

static void a_replica_reads_many_rows_in_short_turns_as_its_primary_does(void) {
    size_t length, expected_length;
    uint64_t ids[RAGGED];
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer(), *other = connect_peer();
    create_ragged(peer);
    send_ragged(peer, ids);
    send_get(peer, ids, RAGGED);
    settle();
    const uint8_t *bytes = memory_peer_received(peer, &expected_length);
    CHECK(expected_length > RAGGED / 2 * ROWS);
    uint8_t *expected = malloc(expected_length);
    memcpy(expected, bytes, expected_length);
    memory_peer_forget_received(peer);

    struct replay_entry *entry = server->replay->tables->entries;
    entry->followed = true;
    send_get(peer, ids, RAGGED);
    CHECK(short_turns_until_answered(peer) >= 4);
    bytes = memory_peer_received(peer, &length);
    CHECK(length == expected_length && memcmp(bytes, expected, length) == 0);
    memory_peer_forget_received(peer);

    send_get(peer, ids, RAGGED); /* an item leaves meanwhile */
    server_step(server);
    transport->operations->poll(transport, 0);
    uint32_t slot = table_slot(entry->table, ids[RAGGED - 1]);
    CHECK(slot != SLOT_NONE);
    table_remove(entry->table, slot);
    table_repair(entry->table);
    settle();
    CHECK(received_prefix(peer, "-ERR ") && answers(other, "PING\r\n", "+PONG\r\n"));
    entry->followed = false;
    free(expected);
    close_server();
}

/* The table was to be emptied by the last record of its primary. */
static void a_replica_is_promoted_in_short_turns_amid_a_reset(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer(), *other = connect_peer();
    create_floats(peer, ITEMS);
    send_floats(peer, ITEMS);
    settle();
    memory_peer_forget_received(peer);
    struct replay_entry *entry = server->replay->tables->entries;
    table_apply_begin(entry->table);
    entry->followed = server->place.is_replica = server->place.follows_tables = true;
    table_begin_reset(entry->table);
    say(peer, "REPLICAOF NO ONE\r\n");
    server_step(server);
    transport->operations->poll(transport, 0);
    server_step(server);
    CHECK(server->exclusive.on && entry->followed);
    uint64_t before = server->stats.turns;
    server->stats.turn_us_max = 0;
    settle();
    CHECK(server->stats.turns - before >= 16 && server->stats.turn_us_max <= LATEST_TURN_US);
    CHECK(received(peer, "+OK\r\n") && !entry->followed && !server->place.is_replica);
    CHECK(table_field(other, "size") == 0);
    close_server();
}

#define CHANNELS 20000

static void subscribe_to_many(struct memory_peer *subscriber) {
    char line[64];
    for (int i = 0; i < CHANNELS; i++) {
        sprintf(line, "SUBSCRIBE channel:%d\r\n", i);
        say(subscriber, line);
        if (i % 64 == 0) settle();
    }
    settle();
    memory_peer_forget_received(subscriber);
}

static void begin_to_unsubscribe(struct memory_peer *subscriber, const char *request) {
    say(subscriber, request);
    for (int i = 0; i < 3; i++) take_turn();
    CHECK(pubsub_topics(server, PUBSUB_CHANNEL) > 0 && pubsub_topics(server, PUBSUB_CHANNEL) < CHANNELS);
}

static void a_client_unsubscribes_from_many_channels_in_short_turns(void) {
    open_server(false, NULL);
    struct memory_peer *subscriber = connect_peer(), *other = connect_peer();
    subscribe_to_many(subscriber);
    begin_to_unsubscribe(subscriber, "UNSUBSCRIBE\r\nECHO over\r\n");
    settle_in_short_turns(6);
    CHECK(has_received(subscriber, "$13\r\nchannel:19999\r\n:0\r\n$4\r\nover\r\n"));
    CHECK(answers(other, "PUBSUB NUMSUB channel:0\r\nPUBSUB CHANNELS\r\n", "*2\r\n$9\r\nchannel:0\r\n:0\r\n*0\r\n"));

    say(subscriber, "HELLO 3\r\n");
    subscribe_to_many(subscriber);
    begin_to_unsubscribe(subscriber, "MULTI\r\nUNSUBSCRIBE\r\nEXEC\r\n");
    memory_peer_vanish(subscriber);
    settle();
    CHECK(pubsub_topics(server, PUBSUB_CHANNEL) == 0 && server->clients.count == 1);
    close_server();
}

/* A command, its first arguments, and so many names. */
static void send_names(struct memory_peer *peer, const char *command, const char *key, int count) {
    char name[32];
    send_arguments(peer, 1 + (key != NULL) + count);
    send_word(peer, command);
    if (key) send_word(peer, key);
    for (int i = 1; i <= count; i++) {
        sprintf(name, "%d", i);
        send_word(peer, name);
    }
    settle();
}

static void requests_that_name_more_than_there_can_be_are_refused(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    CHECK(answers(peer, "WEIGHTS.PUBLISH 1 * blob\r\n", ":1\r\n"));
    CHECK(answers(peer, "GRAD.PUSH g 1 1 float32 abcd\r\n", ":1\r\n"));
    send_names(peer, "WEIGHTS.DEL", NULL, 4097);
    CHECK(received(peer, "-LIMIT expected at most 4096 keys of weights in one request, got 4097\r\n"));
    send_names(peer, "GRAD.DROP", "g", 1025);
    CHECK(received(peer, "-LIMIT expected at most 1024 names in one request, got 1025\r\n"));
    send_names(peer, "GRAD.STATE", "g", 5121);
    CHECK(received(peer, "-LIMIT expected at most 5120 names in one request, got 5121\r\n"));
    send_names(peer, "GRAD.DEL", NULL, 257);
    CHECK(received(peer, "-LIMIT expected at most 256 keys of gradients in one request, got 257\r\n"));
    send_names(peer, "REPLAY.RELEASE", NULL, 65);
    CHECK(received(peer, "-LIMIT expected at most 64 leases in one request, got 65\r\n"));
    CHECK(answers(peer, "WEIGHTS.LIST\r\nGRAD.STATE g 1\r\n", "*1\r\n$1\r\n1\r\n*1\r\n$7\r\nwaiting\r\n"));

    send_names(peer, "GRAD.STATE", "g", 5120);
    CHECK(received_prefix(peer, "*5120\r\n$7\r\nwaiting\r\n$-1\r\n"));
    send_names(peer, "REPLAY.RELEASE", NULL, 64);
    CHECK(received(peer, ":0\r\n"));
    send_names(peer, "GRAD.DROP", "g", 1024);
    CHECK(received(peer, ":1\r\n"));
    send_names(peer, "GRAD.DEL", NULL, 256);
    CHECK(received(peer, ":0\r\n"));
    send_names(peer, "WEIGHTS.DEL", NULL, 4096);
    CHECK(received(peer, ":1\r\n"));
    close_server();
}

static void a_key_of_weights_is_found_among_few_and_keys_keep_their_order(void) {
    char line[64], key[16];
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    const struct weights_registry *registry = server->replay->weights;
    for (uint32_t i = 0; i < WEIGHTS_MAX_KEYS; i++) {
        sprintf(line, "WEIGHTS.PUBLISH %u * blob\r\n", i);
        CHECK(answers(peer, line, ":1\r\n"));
    }
    for (uint32_t bucket = 0; bucket < WEIGHTS_BUCKETS; bucket++) {
        uint32_t length = 0;
        for (const struct weights_entry *entry = registry->buckets[bucket]; entry; entry = entry->chain) length++;
        CHECK(length <= 32);
    }
    for (uint32_t i = 0; i < WEIGHTS_MAX_KEYS; i++) {
        if (i % 3 == 1) continue;
        sprintf(line, "WEIGHTS.DEL %u\r\n", i);
        CHECK(answers(peer, line, ":1\r\n"));
    }
    CHECK(answers(peer, "WEIGHTS.PUBLISH 0 7 blob\r\n", ":7\r\n"));
    const struct weights_entry *entry = registry->entries;
    for (uint32_t i = 1; i < WEIGHTS_MAX_KEYS; i += 3, entry = entry->next) {
        int length = sprintf(key, "%u", i);
        CHECK(entry->key_length == (size_t)length && memcmp(entry->key, key, (size_t)length) == 0);
    }
    CHECK(entry == registry->newest && entry->version == 7 && registry->count == (WEIGHTS_MAX_KEYS + 1) / 3 + 1);
    CHECK(answers(peer, "WEIGHTS.GET 4\r\n", "*2\r\n:1\r\n$4\r\nblob\r\n"));
    close_server();
}

#define WEIGHTS_BYTES (16u << 20)

static void send_publication(struct memory_peer *peer, const uint8_t *blob) {
    send_arguments(peer, 4);
    send_word(peer, "WEIGHTS.PUBLISH");
    send_word(peer, "w");
    send_word(peer, "7");
    send_last(peer, blob, WEIGHTS_BYTES);
}

static void weights_that_come_again_are_compared_in_short_turns(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer(), *other = connect_peer();
    uint8_t *blob = calloc(1, WEIGHTS_BYTES);
    send_publication(peer, blob);
    settle();
    CHECK(received(peer, ":7\r\n"));
    send_publication(peer, blob);
    CHECK(short_turns_until_answered(peer) >= 8);
    CHECK(received(peer, ":7\r\n"));

    blob[WEIGHTS_BYTES - 1] = 1;
    send_publication(peer, blob);
    CHECK(short_turns_until_answered(peer) >= 8);
    CHECK(received(peer, "-STALEVERSION expected a version above 7, the current one, got 7\r\n"));
    blob[0] = 1;
    send_publication(peer, blob);
    CHECK(short_turns_until_answered(peer) <= 2);
    CHECK(received(peer, "-STALEVERSION expected a version above 7, the current one, got 7\r\n"));

    blob[0] = blob[WEIGHTS_BYTES - 1] = 0;
    send_publication(peer, blob);
    take_turn();
    CHECK(answers(other, "WEIGHTS.DEL w\r\n", ":1\r\n")); /* meanwhile: they were there when the request began */
    CHECK(received(peer, ":7\r\n") && answers(other, "WEIGHTS.GET w\r\n", "*-1\r\n"));
    free(blob);
    close_server();
}

/* Symptom: the rest of a comparison of weights was done when the request that had carried them was gone. */
static void a_change_that_a_primary_sends_is_done_when_the_next_one_comes(void) {
    static const char words[] =
        PROPAGATE_COMMANDS "\0*4\r\n$15\r\nWEIGHTS.PUBLISH\r\n$1\r\nw\r\n$1\r\n7\r\n$16777216\r\n";
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    size_t length = sizeof words - 1 + WEIGHTS_BYTES + 2;
    uint8_t *carried = calloc(1, length);
    memcpy(carried, words, sizeof words - 1);
    memcpy(carried + length - 2, "\r\n", 2);
    send_publication(peer, carried + sizeof words - 1);
    settle();
    CHECK(received(peer, ":7\r\n"));
    struct client *client = server->clients.head;
    struct resp_argument arguments[] = {{.data = (uint8_t *)(uintptr_t)"PING", .length = 4},
                                        {.data = carried, .length = length}};
    struct client before = *client;
    client->argc = 2;
    client->argv = arguments;
    client->entry = command_table_find(server->commands, arguments[0].data, arguments[0].length);
    client->command = client->entry->command;
    server->place.follows_tables = true;
    CHECK(table_replication_apply(client) && !client->blocked && !client->deny_blocking && !client->error_replied);
    server->place.follows_tables = false;
    client->argc = before.argc;
    client->argv = before.argv;
    client->entry = before.entry;
    client->command = before.command;
    free(carried);
    CHECK(answers(peer, "PING\r\n", ":7\r\n+PONG\r\n"));
    close_server();
}

int main(void) {
    a_replica_reads_many_items_in_short_turns_as_its_primary_does();
    a_replica_reads_many_rows_in_short_turns_as_its_primary_does();
    a_replica_is_promoted_in_short_turns_amid_a_reset();
    tables_of_a_promoted_replica_find_their_free_slots_in_short_turns();
    a_step_of_a_scan_is_short_however_large_its_count();
    weights_that_come_again_are_compared_in_short_turns();
    a_change_that_a_primary_sends_is_done_when_the_next_one_comes();
    requests_that_name_more_than_there_can_be_are_refused();
    a_key_of_weights_is_found_among_few_and_keys_keep_their_order();
    a_client_unsubscribes_from_many_channels_in_short_turns();
    a_million_items_are_added_changed_drawn_read_and_deleted_in_short_turns();
    many_steps_are_appended_seen_and_shown_in_short_turns();
    a_dropped_table_lets_go_of_shared_steps_in_short_turns_and_may_be_created_at_once();
    large_steps_are_compressed_in_short_turns("lz4");
    large_steps_are_compressed_in_short_turns("zstd");
    whatever_is_to_be_done_at_once_shares_the_time_of_one_turn();
    if (!has_lua()) return 0;
    long_replies_of_scripts_are_made_in_short_turns("local t = {} for i = 1, 2^18 do t[i] = i end return t",
                                                    "*262144\r\n:1\r\n", 64);
    long_replies_of_scripts_are_made_in_short_turns(
        "local t = {} for i = 1, 400 do t = {t} end local a = {} for i = 1, 500 do a[i] = t end return a",
        "*500\r\n*1\r\n", 16);
    return 0;
}

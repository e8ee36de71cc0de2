/* Tests of batches that are done in parts: the server works at them turn by turn, answers others meanwhile, and whoever goes in
 * the midst of one takes nothing along. */
#include "replay/table_state.h"
#include "server/replay/replay_registry.h"
#include "server/replay/replay_subsystem.h"
#include "server_stage.h"

#define ITEMS (1u << 20)
#define CAPACITY (ITEMS + ITEMS / 2) /* all of a batch, and half as many items more */
#define LEAST_TURNS 16u /* a machine that did it in fewer would need less than a nanosecond for each item */

static struct error error;

static struct table *table_t(void) {
    return server->replay->tables->entries->table;
}

static uint64_t size_of_t(void) {
    struct table_info info;
    table_info(table_t(), &info);
    return info.size;
}

/* Whether a batch is between its parts. */
static bool is_amid_parts(const struct table *table) {
    return table->entering > 0 || table->drawing > 0;
}

static bool has_answer(struct memory_peer *peer) {
    size_t length;
    memory_peer_received(peer, &length);
    return length > 0;
}

/* Turns until the worker is answered, in each of which the other asks and is answered. */
static uint32_t turns_beside(struct memory_peer *worker, struct memory_peer *other) {
    uint32_t turns = 0;
    for (; !has_answer(worker); turns++) {
        CHECK(turns < 1000000);
        say(other, "PING\r\n");
        for (int i = 0; i < 3 && !has_answer(other); i++) take_turn();
        CHECK(received(other, "+PONG\r\n"));
    }
    return turns;
}

static uint64_t *take_ids(struct memory_peer *peer, uint32_t n) {
    size_t length;
    settle();
    const uint8_t *bytes = memory_peer_received(peer, &length);
    char head[32];
    size_t head_length = (size_t)sprintf(head, "$%u\r\n", n * 8);
    CHECK(length == head_length + n * 8 + 2 && memcmp(bytes, head, head_length) == 0);
    uint64_t *ids = malloc(n * sizeof *ids);
    memcpy(ids, bytes + head_length, n * sizeof *ids);
    memory_peer_forget_received(peer);
    return ids;
}

static void others_are_answered_while_a_million_items_are_added_changed_drawn_and_deleted(void) {
    open_server(false, NULL);
    struct memory_peer *worker = connect_peer(), *other = connect_peer();
    create_floats(worker, CAPACITY);
    send_floats(worker, ITEMS);
    CHECK(turns_beside(worker, other) >= LEAST_TURNS);
    uint64_t *ids = take_ids(worker, ITEMS);
    CHECK(size_of_t() == ITEMS);

    double *priorities = malloc(ITEMS * sizeof *priorities);
    for (uint32_t i = 0; i < ITEMS; i++) priorities[i] = i;
    send_arguments(worker, 4);
    send_word(worker, "REPLAY.UPDATE");
    send_word(worker, "t");
    send_bulk(worker, ids, ITEMS * sizeof *ids);
    send_bulk(worker, priorities, ITEMS * sizeof *priorities);
    CHECK(turns_beside(worker, other) >= LEAST_TURNS);
    CHECK(received(worker, "*2\r\n:1048576\r\n:0\r\n"));
    free(priorities);

    say(worker, "REPLAY.SAMPLE t 1048576\r\n");
    CHECK(turns_beside(worker, other) >= LEAST_TURNS);
    settle();
    CHECK(received_prefix(worker, "*5\r\n$8388608\r\n"));
    memory_peer_forget_received(worker);

    send_arguments(worker, 3);
    send_word(worker, "REPLAY.DEL");
    send_word(worker, "t");
    send_bulk(worker, ids, ITEMS * sizeof *ids);
    CHECK(turns_beside(worker, other) >= LEAST_TURNS);
    CHECK(received(worker, ":1048576\r\n"));
    CHECK(size_of_t() == 0);
    free(ids);
    close_server();
}

/* Turns until some of the batch have entered, but not all. */
static void until_amid_parts(void) {
    for (int turns = 0; !is_amid_parts(table_t()); turns++) {
        CHECK(turns < 1000000);
        take_turn();
    }
    take_turn();
    CHECK(is_amid_parts(table_t()));
}

static void whoever_vanishes_amid_parts_leaves_what_has_entered_and_lets_changes_go_on(void) {
    open_server(false, NULL);
    struct memory_peer *worker = connect_peer(), *other = connect_peer();
    create_floats(worker, CAPACITY);
    send_floats(worker, ITEMS);
    until_amid_parts();
    uint64_t entered = size_of_t();
    CHECK(entered > 0 && entered < ITEMS);
    say(other, "REPLAY.RESET t\r\n");
    take_turn();
    take_turn();
    CHECK(!has_answer(other) && is_amid_parts(table_t()) && size_of_t() >= entered);
    memory_peer_vanish(worker);
    settle();
    CHECK(received(other, "+OK\r\n"));
    CHECK(!is_amid_parts(table_t()) && size_of_t() == 0);
    send_floats(other, 100);
    settle();
    CHECK(received_prefix(other, "$800\r\n"));
    CHECK(size_of_t() == 100);
    close_server();
}

static void a_table_that_is_dropped_amid_parts_ends_the_batch(void) {
    open_server(false, NULL);
    struct memory_peer *worker = connect_peer(), *other = connect_peer();
    create_floats(worker, CAPACITY);
    send_floats(worker, ITEMS);
    until_amid_parts();
    say(other, "REPLAY.DROP t\r\n");
    settle();
    CHECK(received(other, "+OK\r\n"));
    CHECK(received_prefix(worker, "-NOTABLE table 't' was dropped meanwhile"));
    CHECK(!server->replay->tables->dropped);
    close_server();
}

/* ---- a table alone ------------------------------------------------------------------------------------------------------ */

#define MANY 5000u

static struct table *make_queue(uint64_t queue_size) {
    struct table_config config = {.capacity = 4 * MANY,
                                  .columns = 1,
                                  .sampler = SELECTOR_FIFO,
                                  .remover = SELECTOR_FIFO,
                                  .limiter = LIMITER_QUEUE,
                                  .queue_size = queue_size,
                                  .max_times_sampled = 1,
                                  .max_staleness = -1,
                                  .seed = 7};
    strcpy(config.name, "t");
    config.column[0] = (struct column){.name = "x", .type = COLUMN_UINT32, .item_bytes = 4};
    struct table *table = table_new(&config, &error);
    CHECK(table);
    return table;
}

static struct reservation *reserve_numbers(struct table *table, uint32_t n, uint32_t first) {
    struct reservation *reservation = table_reserve(table, n, &error);
    uint32_t *values = malloc(n * sizeof *values);
    CHECK(reservation && values);
    for (uint32_t i = 0; i < n; i++) values[i] = first + i;
    reservation_fill(reservation, 0, values);
    free(values);
    return reservation;
}

static uint32_t number_of(const struct table *table, uint32_t slot) {
    uint32_t value;
    table_gather(table, 0, &slot, 1, &value);
    return value;
}

static void a_queue_keeps_room_for_what_has_still_to_enter(void) {
    struct table *table = make_queue(MANY + 10);
    uint64_t ids[MANY];
    struct reservation *large = reserve_numbers(table, MANY, 0);
    CHECK(table_begin_commit(table, large, &error) == 0);
    CHECK(table_commit_part(table, large, NULL, ids) > 0);
    CHECK(is_amid_parts(table));
    CHECK(table_admits(table, 100) == 10 && !table_can_add(table, 11, &error));
    struct reservation *small = reserve_numbers(table, 10, MANY);
    CHECK(table_commit(table, small, NULL, ids, &error) == 0);
    uint32_t entered = 0;
    struct table_info info;
    table_info(table, &info);
    entered = (uint32_t)info.size - 10;
    while (entered < MANY) {
        uint32_t part = reservation_part(large);
        CHECK(part >= 1 && part <= 1024);
        CHECK(table_commit_part(table, large, NULL, ids + entered) == (int)part);
        entered += part;
    }
    CHECK(!is_amid_parts(table) && table_admits(table, 1) == 0);
    table_free(table);
}

static void what_is_given_up_amid_parts_leaves_room_again(void) {
    struct table *table = make_queue(MANY);
    uint64_t ids[MANY];
    struct reservation *large = reserve_numbers(table, MANY, 0);
    CHECK(table_begin_commit(table, large, &error) == 0 && table_commit_part(table, large, NULL, ids) > 0);
    CHECK(table_admits(table, 1) == 0);
    struct table_info info;
    table_info(table, &info);
    uint64_t entered = info.size;
    reservation_release(large);
    CHECK(!is_amid_parts(table) && table_admits(table, MANY) == MANY - entered);
    table_info(table, &info);
    CHECK(info.size == entered && info.added == entered && info.reserved_slots == 0);
    table_free(table);
}

static void draws_that_were_let_through_are_not_taken_by_others(void) {
    struct table *table = make_queue(2 * MANY);
    uint64_t ids[MANY];
    uint32_t slots[MANY];
    struct reservation *reservation = reserve_numbers(table, MANY, 0);
    CHECK(table_commit(table, reservation, NULL, ids, &error) == 0);
    CHECK(table_samples_in_parts(table, true));
    CHECK(table_begin_sample(table, MANY - 10, 0, true, &error) == 0);
    CHECK(table_sample_part(table, 1000, slots, ids, NULL, NULL, &error) == 0);
    for (uint32_t i = 0; i < 1000; i++) CHECK(number_of(table, slots[i]) == i);
    table_unpin(table, slots, 1000);
    CHECK(!table_can_sample(table, 11, true, &error));
    CHECK(table_sample(table, 10, 0, true, slots, NULL, NULL, NULL, NULL, &error) == 0);
    table_unpin(table, slots, 10);
    CHECK(table_sample_part(table, 1000, slots, ids, NULL, NULL, &error) == 0);
    CHECK(number_of(table, slots[0]) == 1010);
    table_unpin(table, slots, 1000);
    table_end_sample(table, MANY - 10 - 2000); /* given up: others may have them */
    CHECK(!is_amid_parts(table) && table_can_sample(table, MANY - 2010, true, &error));
    CHECK(table_begin_sample(table, MANY - 2010, 0, true, &error) == 0);
    table_reset(table); /* as if all had been deleted by others */
    CHECK(table_sample_part(table, 1000, slots, ids, NULL, NULL, &error) == -1);
    table_end_sample(table, MANY - 2010);
    table_free(table);
}

/* The remover would choose the newest, which are those of the batch itself. */
static void a_batch_does_not_drive_out_its_own_items(void) {
    for (int kind = SELECTOR_UNIFORM; kind < SELECTOR_KINDS; kind++) {
        struct table_config config = {.capacity = MANY,
                                      .columns = 1,
                                      .sampler = SELECTOR_UNIFORM,
                                      .remover = (enum selector_kind)kind,
                                      .min_size_to_sample = 1,
                                      .max_staleness = -1,
                                      .seed = 7};
        strcpy(config.name, "t");
        config.column[0] = (struct column){.name = "x", .type = COLUMN_UINT32, .item_bytes = 4};
        struct table *table = table_new(&config, &error);
        uint64_t ids[MANY];
        for (uint32_t first = 0; first < 3 * MANY; first += MANY - 7) {
            CHECK(table_commit(table, reserve_numbers(table, MANY - 7, first), NULL, ids, &error) == 0);
            CHECK(table_delete(table, 1, &ids[MANY - 8]) == 1 && table_delete(table, 1, &ids[0]) == 1);
            for (uint32_t i = 1; i < MANY - 8; i++) {
                uint32_t slot;
                CHECK(table_get(table, 1, &ids[i], 0, &slot, NULL, &error) == 0);
                table_unpin(table, &slot, 1);
            }
        }
        table_free(table);
    }
}

/* Whoever has sent a large batch, and does not read what it is owed, is served all the same, and holds up no change. */
static void a_client_that_does_not_read_does_not_keep_a_batch_between_its_parts(void) {
    open_server(false, NULL);
    struct memory_peer *worker = connect_peer(), *other = connect_peer();
    create_floats(worker, CAPACITY);
    store_large(worker);
    memory_peer_open_window(worker, 0);
    while (server->clients.head->output.unsent_bytes <= 2 * LIMIT_SLICES_BACKLOG_BYTES) {
        say(worker, "GET large\r\n");
        settle();
    }
    send_floats(worker, ITEMS / 4);
    settle();
    CHECK(size_of_t() == ITEMS / 4);
    CHECK(answers(other, "REPLAY.RESET t\r\n", "+OK\r\n"));
    CHECK(size_of_t() == 0);
    close_server();
}

/* `… | nc`: what was asked is answered, though nothing more will be. */
static void whoever_has_finished_its_input_is_answered(void) {
    open_server(false, NULL);
    struct memory_peer *worker = connect_peer();
    create_floats(worker, CAPACITY);
    send_floats(worker, ITEMS / 4);
    memory_peer_finish(worker);
    for (int turns = 0; !memory_peer_is_closed(worker); turns++) {
        CHECK(turns < 1000000);
        take_turn();
    }
    CHECK(received_prefix(worker, "$2097152\r\n"));
    close_server();
}

int main(void) {
    size_t before = memory_used_bytes();
    RUN(others_are_answered_while_a_million_items_are_added_changed_drawn_and_deleted);
    RUN(whoever_vanishes_amid_parts_leaves_what_has_entered_and_lets_changes_go_on);
    RUN(a_table_that_is_dropped_amid_parts_ends_the_batch);
    RUN(a_queue_keeps_room_for_what_has_still_to_enter);
    RUN(what_is_given_up_amid_parts_leaves_room_again);
    RUN(draws_that_were_let_through_are_not_taken_by_others);
    RUN(a_batch_does_not_drive_out_its_own_items);
    RUN(a_client_that_does_not_read_does_not_keep_a_batch_between_its_parts);
    RUN(whoever_has_finished_its_input_is_answered);
    CHECK(memory_used_bytes() == before);
    return 0;
}

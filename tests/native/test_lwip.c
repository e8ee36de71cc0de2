/* test_lwip: the parts of the transport over lwIP that need no device: its pools, how it finds connections, what it reads
 * out of options. */
#include <arpa/inet.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <lwip/opt.h>

#include <lwip/priv/tcp_priv.h>

#include "check.h"
#include "net/dpdk/memif.h"
#include "net/dpdk/port.h"
#include "net/lwip/connection.h"
#include "net/lwip/demultiplex.h"
#include "net/lwip/hooks.h"
#include "net/lwip/out_of_order.h"
#include "net/lwip/pools.h"
#include "net/lwip/receive_window.h"
#include "net/lwip/recovery.h"
#include "net/lwip/sending.h"
#include "net/lwip/stack.h"

#define CONNECTIONS 100u
#define MTU 1500u

/* ---- pools ----------------------------------------------------------------------------------------------------- */

static void open_pools(void) {
    struct error error;
    CHECK(pools_open(CONNECTIONS, MTU, &error) == 0);
}

static void test_a_piece_given_back_is_taken_again(void) {
    open_pools();
    void *first = pools_take(40), *second = pools_take(40);
    CHECK(first && second && first != second);
    memset(first, 0xff, 40);
    pools_give(first);
    CHECK(pools_take(40) == first);
    uint8_t *zeroed = pools_take_zeroed(3, 16);
    for (int i = 0; i < 48; i++) CHECK(zeroed[i] == 0);
    pools_close();
}

static void test_every_size_that_lwip_may_ask_for_has_a_pool(void) {
    open_pools();
    static const size_t sizes[] = {1, 24, 64, 65, 128, 129, 1100, 1152, MTU + 200, 65535 + 128};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint8_t *piece = pools_take(sizes[i]);
        CHECK(piece);
        CHECK((uintptr_t)piece % MEM_ALIGNMENT == 0);
        memset(piece, (int)i, sizes[i]);
        pools_give(piece);
    }
    CHECK(!pools_take(70000));
    CHECK(pools_refusals() == 1);
    pools_close();
}

static void test_control_blocks_are_bounded_by_the_number_of_connections(void) {
    open_pools();
    static void *taken[10 * CONNECTIONS + 2000];
    size_t count = 0;
    while (count < sizeof taken / sizeof *taken && (taken[count] = pools_take(sizeof(struct tcp_pcb)))) count++;
    CHECK(count >= CONNECTIONS && count < sizeof taken / sizeof *taken);
    CHECK(pools_take(64)); /* others are not touched by it */
    pools_give(taken[0]);
    CHECK(pools_take(sizeof(struct tcp_pcb)) == taken[0]);
    pools_close();
}

static void test_pools_are_low_before_they_are_empty(void) {
    open_pools();
    CHECK(!pools_are_low());
    uint32_t until_low = 0, after = 0;
    while (!pools_are_low()) {
        CHECK(pools_take(128));
        until_low++;
    }
    while (pools_take(128)) after++;
    CHECK(after > 0 && after < until_low / 4);
    pools_close();
}

static void test_copies_of_frames_have_memory_of_their_own(void) {
    open_pools();
    size_t room = pools_copy_room();
    CHECK(room > 1 << 20);
    void *piece = pools_take_copy(MTU);
    CHECK(piece && pools_copy_room() < room);
    while (pools_take_copy(MTU)) continue;
    CHECK(pools_copy_room() == 0);
    CHECK(pools_refusals() == 0 && pools_take(64) && !pools_are_low());
    pools_give_copy(piece);
    CHECK(pools_take_copy(MTU) == piece);
    pools_close();
}

/* ---- finding connections --------------------------------------------------------------------------------------- */

#define OURS 6379
#define MANY 64

static struct tcp_pcb blocks[MANY];
static struct lwip_connection connections[MANY];

static void open_connection(int i) {
    struct tcp_pcb *pcb = &blocks[i];
    *pcb = (struct tcp_pcb){.state = ESTABLISHED, .local_port = OURS, .remote_port = (uint16_t)(40000 + i)};
    ip4_addr_set_u32(ip_2_ip4(&pcb->remote_ip), htonl(0x0a000001u));
    connections[i].pcb = pcb;
    TCP_REG(&tcp_active_pcbs, pcb);
    demultiplex_add(&connections[i]);
}

static struct ends ends_of(int i) {
    return (struct ends){
        .remote_address = htonl(0x0a000001u), .remote_port = htons((uint16_t)(40000 + i)), .local_port = htons(OURS)};
}

static void open_many(void) {
    struct error error;
    tcp_active_pcbs = NULL;
    CHECK(demultiplex_open(8, &error) == 0); /* so few that they share buckets */
    for (int i = 0; i < MANY; i++) open_connection(i);
}

/* The list has exactly those from `from` on, newest first. */
static void check_list(int from) {
    const struct tcp_pcb *pcb = tcp_active_pcbs;
    for (int i = MANY - 1; i >= from; i--, pcb = pcb->next) CHECK(pcb == &blocks[i]);
    CHECK(!pcb);
}

static void test_a_frame_finds_its_connection_at_the_front_and_the_list_keeps_its_order(void) {
    open_many();
    for (int i = 0; i < MANY; i++) {
        const struct ends ends = ends_of(i);
        struct shortcut shortcut = demultiplex_begin(&ends);
        CHECK(tcp_active_pcbs == &blocks[i]);
        demultiplex_end(&shortcut);
        check_list(0);
    }
    demultiplex_close();
}

static void test_a_stranger_has_no_shortcut(void) {
    open_many();
    struct ends ends = ends_of(3);
    ends.remote_address = htonl(0x0a000002u);
    struct shortcut shortcut = demultiplex_begin(&ends);
    CHECK(!shortcut.pcb);
    check_list(0);
    demultiplex_end(&shortcut);
    check_list(0);
    demultiplex_close();
}

static void test_a_connection_that_ends_under_its_frame_leaves_the_list_whole(void) {
    open_many();
    for (int i = 0; i < MANY; i++) { /* the oldest, which is last in the list, first */
        const struct ends ends = ends_of(i);
        struct shortcut shortcut = demultiplex_begin(&ends);
        struct tcp_pcb *pcb = &blocks[i];
        TCP_RMV(&tcp_active_pcbs, pcb);
        demultiplex_remove(&connections[i]);
        demultiplex_end(&shortcut);
        check_list(i + 1);
        CHECK(!demultiplex_begin(&ends).pcb);
    }
    demultiplex_close();
}

/* ---- whose data goes next -------------------------------------------------------------------------------------- */

static void test_little_goes_at_once_and_much_waits_for_its_turn(void) {
    struct sending sending;
    sending_open(&sending);
    static struct lwip_connection large[2], small;
    for (int i = 0; i < 2; i++) {
        large[i].written_bytes = 1u << 20;
        CHECK(!sending_may(&sending, &large[i], 20000));
        CHECK(large[i].turn.waits);
    }
    small.written_bytes = 500;
    CHECK(sending_may(&sending, &small, 500));
    sending_sent(&sending, &small, 500, 1);
    CHECK(!small.turn.waits && sending.turn_frames == 0);
    CHECK(round_robin_serve(&sending.line) == &large[0].turn);
    sending.served = &large[0];
    CHECK(sending_may(&sending, &large[0], 20000) && !sending_may(&sending, &large[1], 20000));
    sending_sent(&sending, &large[0], 20000, 14);
    CHECK(sending.turn_frames == 14);
    CHECK(!sending_may(&sending, &large[0], 20000) && large[0].turn.waits); /* behind the other */
    sending.served = NULL;
    CHECK(round_robin_serve(&sending.line) == &large[1].turn);
}

static void test_many_with_little_to_say_are_bounded_in_a_turn(void) {
    struct sending sending;
    sending_open(&sending);
    static struct lwip_connection talkers[1000];
    uint32_t went = 0;
    for (int i = 0; i < 1000; i++) {
        talkers[i].written_bytes = 100;
        if (!sending_may(&sending, &talkers[i], 100)) continue;
        sending_sent(&sending, &talkers[i], 100, 1);
        went++;
    }
    CHECK(went >= 64 && went < 1000 && sending.line.waiting == 1000 - went);
    sending_begin_turn(&sending);
    CHECK(sending_may(&sending, &talkers[999], 100));
}

static bool is_served(struct sending *sending, struct lwip_connection *connection) {
    sending_wait(sending, connection);
    sending_serve(sending);
    bool served = !connection->turn.waits;
    sending_leave(sending, connection);
    return served;
}

static void test_of_long_frames_fewer_go_in_a_turn_and_wait_for_the_device(void) {
    static struct port port;
    static struct tcp_pcb idle = {.state = ESTABLISHED};
    static struct lwip_connection connection = {.pcb = &idle};
    static const uint16_t mtus[] = {576, 1500, 9600, 9601, 16384, MEMIF_MTU_MOST};
    stack.port = &port;
    for (size_t i = 0; i < sizeof mtus / sizeof *mtus; i++) {
        struct sending sending;
        sending_open(&sending);
        port = (struct port){.burst = port_burst(mtus[i])};
        CHECK(mtus[i] <= 9600 ? port.burst == PORT_BURST : port.burst * mtus[i] <= PORT_BURST * 1500u);
        CHECK(port_flush_frames(&port) > 0);
        port.queued = port_flush_frames(&port) - 1;
        sending.turn_frames = 2 * port.burst - 1;
        CHECK(is_served(&sending, &connection));
        port.queued++;
        CHECK(!is_served(&sending, &connection));
        port.queued = 0;
        sending.turn_frames++;
        CHECK(!is_served(&sending, &connection));
    }
    stack.port = NULL;
}

/* ---- frames ahead of a lost one ---------------------------------------------------------------------------------- */

#define FRAME 10u
#define FRAMES 300u

static struct received frames[FRAMES];

static bool hold(struct out_of_order *early, uint32_t left, uint32_t right) {
    struct received *frame = &frames[left / FRAME];
    frame->sequence = left;
    return out_of_order_hold(early, frame, left, right);
}

static bool hold_frame(struct out_of_order *early, uint32_t number) {
    return hold(early, number * FRAME, (number + 1) * FRAME);
}

static void test_early_frames_come_back_in_order_when_the_gap_is_filled(void) {
    struct error error;
    CHECK(out_of_order_open(100, &error) == 0);
    struct out_of_order early = {0};
    static const uint32_t order[] = {5, 7, 3, 6, 9, 4};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) CHECK(hold_frame(&early, order[i]));
    struct received again = {.sequence = 5 * FRAME};
    CHECK(!out_of_order_hold(&early, &again, 5 * FRAME, 6 * FRAME));
    CHECK(early.blocks == 2 && early.frames == 6);
    CHECK(!out_of_order_take(&early, 2 * FRAME));
    for (uint32_t number = 3; number < 8; number++) {
        struct received *frame = out_of_order_take(&early, number * FRAME);
        CHECK(frame && frame->sequence == number * FRAME);
    }
    CHECK(!out_of_order_take(&early, 8 * FRAME) && early.blocks == 1);
    CHECK(out_of_order_take(&early, 9 * FRAME) && early.blocks == 0 && early.frames == 0 && !early.newest);
    out_of_order_close();
}

static void test_reports_begin_with_what_came_last(void) {
    struct error error;
    CHECK(out_of_order_open(100, &error) == 0);
    struct out_of_order early = {0};
    struct out_of_order_range ranges[OUT_OF_ORDER_RANGES];
    CHECK(out_of_order_report(&early, ranges) == 0);
    for (uint32_t number = 1; number < 20; number += 2) CHECK(hold_frame(&early, number));
    CHECK(hold_frame(&early, 12)); /* closes a gap */
    CHECK(out_of_order_report(&early, ranges) == OUT_OF_ORDER_RANGES);
    CHECK(ranges[0].left == 11 * FRAME && ranges[0].right == 14 * FRAME);
    CHECK(ranges[1].left == 1 * FRAME && ranges[2].left == 3 * FRAME && ranges[3].left == 5 * FRAME);
    out_of_order_close();
}

static void test_what_came_twice_ahead_of_a_gap_is_noticed_and_its_block_reported_first(void) {
    struct error error;
    CHECK(out_of_order_open(100, &error) == 0);
    struct out_of_order early = {0};
    struct out_of_order_range ranges[OUT_OF_ORDER_RANGES];
    CHECK(!out_of_order_has(&early, 50, 60));
    CHECK(hold(&early, 50, 60) && hold(&early, 60, 70) && hold(&early, 100, 110));
    CHECK(!out_of_order_has(&early, 40, 60) && !out_of_order_has(&early, 60, 80) && !out_of_order_has(&early, 80, 90));
    CHECK(!out_of_order_has(&early, 50, 110) && !out_of_order_has(&early, 110, 120));
    CHECK(out_of_order_report(&early, ranges) == 2 && ranges[0].left == 100);
    CHECK(out_of_order_has(&early, 60, 70) && out_of_order_has(&early, 55, 65) && out_of_order_has(&early, 50, 70));
    CHECK(out_of_order_report(&early, ranges) == 2 && ranges[0].left == 50 && ranges[0].right == 70);
    CHECK(out_of_order_has(&early, 100, 110) && early.frames == 3);
    out_of_order_close();
}

static void test_frames_that_overlap_are_kept_where_they_add_something(void) {
    struct error error;
    CHECK(out_of_order_open(100, &error) == 0);
    struct out_of_order early = {0};
    CHECK(hold(&early, 50, 60) && hold(&early, 55, 75));
    struct received nothing_new = {.sequence = 60};
    CHECK(!out_of_order_hold(&early, &nothing_new, 60, 75) && early.blocks == 1 && early.first->right == 75);
    CHECK(hold(&early, 30, 90)); /* all of them, and more */
    CHECK(early.blocks == 1 && early.first->left == 30 && early.first->right == 90);
    uint32_t reached = 30, taken = 0;
    while (early.first) {
        struct received *frame = out_of_order_take(&early, reached);
        CHECK(frame && frame->sequence <= reached);
        taken++;
        if (frame == &frames[3]) reached = 90;
    }
    CHECK(taken == 3 && early.frames == 0);
    out_of_order_close();
}

static void test_blocks_of_early_frames_are_bounded(void) {
    struct error error;
    CHECK(out_of_order_open(OUT_OF_ORDER_BLOCKS_MOST + 10, &error) == 0);
    struct out_of_order early = {0}, other = {0};
    for (uint32_t i = 0; i < OUT_OF_ORDER_BLOCKS_MOST; i++) CHECK(hold_frame(&early, 2 * i));
    CHECK(!hold_frame(&early, 2 * OUT_OF_ORDER_BLOCKS_MOST));
    for (uint32_t i = 0; i < 10; i++) CHECK(hold_frame(&other, 200 + 2 * i)); /* of all together, too */
    CHECK(!hold_frame(&other, 250));
    CHECK(hold_frame(&early, 1) && early.blocks == OUT_OF_ORDER_BLOCKS_MOST - 1);
    CHECK(hold_frame(&other, 250));
    out_of_order_close();
}

/* ---- the receive window ------------------------------------------------------------------------------------------ */

/* A client that always fills its window, and is read at once. */
static uint32_t fill(struct receive_window *window, uint32_t round_trip_us, uint32_t round_trips, uint32_t most) {
    uint64_t now_us = 1000000;
    for (uint32_t i = 0; i < round_trips * 10; i++) {
        now_us += round_trip_us / 10;
        uint32_t taken = window->bytes < most ? window->bytes : most;
        window->bytes = receive_window_take(window, taken / 10, round_trip_us, 1000, now_us);
    }
    return window->bytes;
}

static void test_a_window_that_is_used_up_doubles_in_a_round_trip(void) {
    struct receive_window window = {.bytes = 100000};
    uint32_t after = fill(&window, 50000, 4, UINT32_MAX);
    CHECK(after > 8 * 100000 && after < 20 * 100000);
}

static void test_a_window_grows_to_twice_of_what_is_used_and_no_further(void) {
    struct receive_window window = {.bytes = 100000};
    uint32_t after = fill(&window, 50000, 100, 400000);
    CHECK(after >= 2 * 400000 && after < 3 * 400000);
}

static void test_a_window_does_not_grow_by_time_alone(void) {
    struct receive_window window = {.bytes = 100000};
    uint64_t now_us = 1000000;
    for (int i = 0; i < 1000; i++) {
        now_us += 30000; /* a request now and then: many make a window's worth, but not in a round trip */
        window.bytes = receive_window_take(&window, 20000, 20000, 1000, now_us);
    }
    CHECK(window.bytes == 100000);
}

/* ---- options --------------------------------------------------------------------------------------------------- */

static uint32_t read_options(const uint8_t *options, uint32_t length, struct scoreboard_range *told) {
    return recovery_read_blocks(options, length, told);
}

static void test_selective_acknowledgements_are_read_in_their_order(void) {
    const uint8_t options[] = {1, 1, 5, 18, 0, 0, 12, 0, 0, 0, 13, 0, 0, 0, 8, 0, 0, 0, 9, 0};
    struct scoreboard_range told[RECOVERY_BLOCKS];
    CHECK(read_options(options, sizeof options, told) == 2);
    CHECK(told[0].left == 0xc00 && told[0].right == 0xd00);
    CHECK(told[1].left == 0x800 && told[1].right == 0x900);
}

static void test_no_more_blocks_are_read_than_a_header_holds(void) {
    uint8_t options[44] = {5, 42}; /* five: a header has room for 40 bytes of options */
    for (uint8_t i = 2; i < sizeof options; i++) options[i] = i;
    struct scoreboard_range told[RECOVERY_BLOCKS];
    CHECK(read_options(options, sizeof options, told) == RECOVERY_BLOCKS);
    CHECK(told[0].left == 0x02030405 && told[3].right == 0x1e1f2021);
}

static void test_broken_options_tell_nothing(void) {
    static const uint8_t broken[][6] = {
        {5, 10, 0, 0, 1, 0}, /* longer than there is */
        {5, 1, 0, 0, 1, 0}, /* shorter than itself */
        {8, 0, 5, 10, 0, 0}, /* of no length */
        {0, 5, 10, 0, 0, 8}, /* after the end */
        {1, 1, 1, 1, 1, 5}, /* without a length */
        {5, 2, 1, 1, 1, 1}, /* without a block */
    };
    struct scoreboard_range told[RECOVERY_BLOCKS];
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        CHECK(read_options(broken[i], sizeof broken[i], told) == 0);
    CHECK(read_options(NULL, 0, told) == 0);
}

/* ---- round trips ------------------------------------------------------------------------------------------------- */

static void test_an_acknowledgement_within_a_marked_packet_is_a_sample(void) {
    struct round_trips trips = {0};
    round_trips_sent(&trips, 1000, 2000, 0, 10);
    round_trips_sent(&trips, 2000, 3000, 1000, 30);
    CHECK(round_trips_acknowledged(&trips, 1000, 50) == 0); /* nothing of it */
    CHECK(round_trips_acknowledged(&trips, 1500, 110) == 100);
    CHECK(round_trips_acknowledged(&trips, 2000, 120) == 110);
    CHECK(round_trips_acknowledged(&trips, 2001, 90) == 60);
    CHECK(trips.least_us == 60 && trips.smoothed_us > 90 && trips.smoothed_us <= 100);
    CHECK(round_trips_acknowledged(&trips, 4000, 500) == 0); /* its own packet was not marked */
    CHECK(trips.count == 0);
}

static void test_marks_are_spread_over_what_is_under_way(void) {
    struct round_trips trips = {0};
    uint32_t marked = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        uint32_t before = trips.count;
        round_trips_sent(&trips, i * 1000, (i + 1) * 1000, 1000000, i);
        marked += trips.count > before;
    }
    CHECK(marked == 8);
    round_trips_forget(&trips);
    CHECK(round_trips_acknowledged(&trips, 1000, 5) == 0);
}

/* ---- what acknowledgements change -------------------------------------------------------------------------------- */

#define MEGABYTE (1u << 20)
#define HELD 0xfff00000u /* sequence numbers go round */

static struct connections served;
static struct transport transport;

static void *accept_any(void *context, struct connection *connection) {
    (void)context;
    return connection;
}

/* A connection of a peer with SACK, with nothing under way. */
static struct lwip_connection *open_served(struct tcp_pcb *pcb) {
    struct error error;
    transport.events.opened = accept_any;
    CHECK(connections_open(&served, &transport, 4, &error) == 0);
    timer_wheel_open(&stack.silences, 1);
    *pcb = (struct tcp_pcb){.state = ESTABLISHED, .flags = TF_SACK, .mss = 1000, .snd_nxt = HELD, .lastack = HELD};
    pcb->snd_buf = pcb->snd_wnd = pcb->snd_wnd_max = MEGABYTE;
    pcb->rcv_wnd = RECEIVE_WINDOW_FIRST_BYTES;
    struct listener listener = {.connections = &served};
    CHECK(connection_accept(&listener, pcb, ERR_OK) == ERR_OK);
    return connection_of(pcb);
}

static void close_served(struct lwip_connection *connection) {
    recovery_close(&connection->recovery);
    connection->pcb = NULL;
    connections_close(&served);
}

/* Lets `size` more bytes go out, and come. */
static void acknowledge(struct tcp_pcb *pcb, uint32_t size) {
    const struct pbuf data = {0};
    pcb->snd_nxt += size;
    struct tcp_hdr header = {.ackno = pcb->snd_nxt};
    TCPH_HDRLEN_FLAGS_SET(&header, 5, TCP_ACK);
    CHECK(stack_before_input(pcb, &header, 0, &data) == ERR_OK);
    pcb->lastack = pcb->snd_nxt;
}

static void test_no_sequence_number_falls_so_far_behind_that_it_seems_to_lie_ahead(void) {
    struct tcp_pcb pcb;
    struct lwip_connection *connection = open_served(&pcb);
    const struct recovery *recovery = &connection->recovery;
    for (int i = 0; i < 5000; i++) {
        acknowledge(&pcb, MEGABYTE);
        CHECK(TCP_SEQ_GEQ(recovery->acknowledged, recovery->until));
        CHECK(TCP_SEQ_GEQ(recovery->acknowledged, recovery->spared_until));
        CHECK(TCP_SEQ_GEQ(recovery->acknowledged, recovery->resent_until));
        CHECK(TCP_SEQ_GEQ(recovery->acknowledged, recovery->late_until));
    }
    close_served(connection);
}

static void test_a_timeout_stays_doubled_until_a_round_trip_is_measured(void) {
    struct tcp_pcb pcb;
    struct lwip_connection *connection = open_served(&pcb);
    struct round_trips *trips = &connection->recovery.round_trips;
    int16_t first = pcb.rto;
    CHECK(first * TCP_SLOW_INTERVAL >= 1000 && pcb.sv == first && pcb.sa == 0);
    for (int i = 0; i < 100; i++) round_trips_add(trips, 50000);
    acknowledge(&pcb, 1000);
    int16_t once = pcb.rto;
    CHECK(once * TCP_SLOW_INTERVAL >= 250 && once < first && pcb.sv == once);
    pcb.snd_nxt += 1000; /* is under way */
    pcb.flags |= TF_RTO;
    pcb.nrtx = 1;
    recovery_watch_timer(connection);
    CHECK(pcb.rto * TCP_SLOW_INTERVAL >= 500);
    pcb.rttest = 1; /* lwIP would measure what it sends again */
    acknowledge(&pcb, 0);
    CHECK(pcb.rto * TCP_SLOW_INTERVAL >= 500 && pcb.sv == pcb.rto && pcb.rttest == 0);
    pcb.flags &= (tcpflags_t)~TF_RTO;
    round_trips_add(trips, 50000);
    acknowledge(&pcb, 1000);
    CHECK(pcb.rto <= once);
    close_served(connection);
}

/* Tells that everything before `acknowledged` has come, and of one block. */
static void report_block(struct tcp_pcb *pcb, uint32_t acknowledged, uint32_t left, uint32_t right) {
    const struct pbuf data = {0};
    struct {
        struct tcp_hdr header;
        uint8_t options[12];
    } segment = {.header.ackno = acknowledged, .options = {1, 1, 5, 10}};
    TCPH_HDRLEN_FLAGS_SET(&segment.header, 8, TCP_ACK);
    for (int i = 0; i < 4; i++) {
        segment.options[4 + i] = (uint8_t)(left >> (24 - 8 * i));
        segment.options[8 + i] = (uint8_t)(right >> (24 - 8 * i));
    }
    CHECK(stack_before_input(pcb, &segment.header, sizeof segment.options, &data) == ERR_OK);
    pcb->lastack = acknowledged;
}

/* 100 frames are under way when lwIP's timer runs out for the `timeouts`th time, and it sends some again. */
static void time_out(struct lwip_connection *connection, uint8_t timeouts, uint32_t first, uint32_t end) {
    struct tcp_pcb *pcb = connection->pcb;
    if (pcb->snd_nxt == HELD) {
        recovery_sent(connection, HELD, HELD + 100000, false);
        pcb->snd_nxt = HELD + 100000;
    }
    pcb->flags |= TF_RTO;
    pcb->nrtx = timeouts;
    recovery_watch_timer(connection);
    recovery_sent(connection, first, end, true);
}

static void test_what_is_lost_behind_a_needless_timeout_is_probed_for(void) {
    struct tcp_pcb pcb;
    struct lwip_connection *connection = open_served(&pcb);
    const struct recovery *recovery = &connection->recovery;
    time_out(connection, 1, HELD, HELD + 16000);
    CHECK(recovery->timed_out && recovery->timer.due_us == 0);
    report_block(&pcb, HELD + 16000, HELD, HELD + 16000); /* all that was sent again came twice */
    CHECK(!recovery->timed_out && recovery->spared_until == HELD + 100000);
    CHECK(recovery->probe.measured && recovery->timer.due_us > 0);
    close_served(connection);
}

static void test_what_the_timer_sent_again_shows_no_later_timeout_to_be_needless(void) {
    struct tcp_pcb pcb;
    struct lwip_connection *connection = open_served(&pcb);
    const struct recovery *recovery = &connection->recovery;
    time_out(connection, 1, HELD, HELD + 16000);
    report_block(&pcb, HELD + 1000, HELD + 20000, HELD + 21000); /* it was late */
    CHECK(!recovery->timed_out && recovery->spared_until == HELD + 100000);
    time_out(connection, 1, HELD + 1000, HELD + 2000);
    CHECK(recovery->timed_out);
    report_block(&pcb, HELD + 1000, HELD + 10000, HELD + 11000);
    CHECK(recovery->timed_out);
    report_block(&pcb, HELD + 1000, HELD + 30000, HELD + 31000);
    CHECK(!recovery->timed_out);
    close_served(connection);
}

static void test_after_two_timeouts_reports_are_not_believed(void) {
    struct tcp_pcb pcb;
    struct lwip_connection *connection = open_served(&pcb);
    const struct recovery *recovery = &connection->recovery;
    time_out(connection, 1, HELD, HELD + 16000);
    report_block(&pcb, HELD, HELD + 20000, HELD + 21000);
    CHECK(!recovery->timed_out);
    time_out(connection, 2, HELD, HELD + 16000); /* the peer may have forgotten the block, and told of it before */
    report_block(&pcb, HELD, HELD + 20000, HELD + 21000);
    CHECK(recovery->timed_out);
    close_served(connection);
}

int main(void) {
    RUN(test_a_piece_given_back_is_taken_again);
    RUN(test_every_size_that_lwip_may_ask_for_has_a_pool);
    RUN(test_control_blocks_are_bounded_by_the_number_of_connections);
    RUN(test_pools_are_low_before_they_are_empty);
    RUN(test_copies_of_frames_have_memory_of_their_own);
    RUN(test_a_frame_finds_its_connection_at_the_front_and_the_list_keeps_its_order);
    RUN(test_a_stranger_has_no_shortcut);
    RUN(test_a_connection_that_ends_under_its_frame_leaves_the_list_whole);
    RUN(test_little_goes_at_once_and_much_waits_for_its_turn);
    RUN(test_many_with_little_to_say_are_bounded_in_a_turn);
    RUN(test_of_long_frames_fewer_go_in_a_turn_and_wait_for_the_device);
    RUN(test_early_frames_come_back_in_order_when_the_gap_is_filled);
    RUN(test_reports_begin_with_what_came_last);
    RUN(test_what_came_twice_ahead_of_a_gap_is_noticed_and_its_block_reported_first);
    RUN(test_frames_that_overlap_are_kept_where_they_add_something);
    RUN(test_blocks_of_early_frames_are_bounded);
    RUN(test_a_window_that_is_used_up_doubles_in_a_round_trip);
    RUN(test_a_window_grows_to_twice_of_what_is_used_and_no_further);
    RUN(test_a_window_does_not_grow_by_time_alone);
    RUN(test_selective_acknowledgements_are_read_in_their_order);
    RUN(test_no_more_blocks_are_read_than_a_header_holds);
    RUN(test_broken_options_tell_nothing);
    RUN(test_an_acknowledgement_within_a_marked_packet_is_a_sample);
    RUN(test_marks_are_spread_over_what_is_under_way);
    RUN(test_no_sequence_number_falls_so_far_behind_that_it_seems_to_lie_ahead);
    RUN(test_a_timeout_stays_doubled_until_a_round_trip_is_measured);
    RUN(test_what_is_lost_behind_a_needless_timeout_is_probed_for);
    RUN(test_what_the_timer_sent_again_shows_no_later_timeout_to_be_needless);
    RUN(test_after_two_timeouts_reports_are_not_believed);
    return 0;
}

/* counted_work: for tests of what is done in slices: a clock that counts work, and requests with much to do. Each look at
 * the clock takes as long as the largest piece that is done between two looks, so one turn does as many pieces on any
 * machine. */
#ifndef REPLAY_TESTS_COUNTED_WORK_H
#define REPLAY_TESTS_COUNTED_WORK_H

#include "base/clock.h"
#include "server_stage.h"

#define ITEMS (1u << 20)
#define LOOK_NS 20000u
/* Of a turn with a slice of a command, and other work: its last piece ends one look behind its time, and one more sees that. */
#define LATEST_TURN_US (LIMIT_TURN_US + 2 * LOOK_NS / 1000)

static uint64_t looked_ns = 1000000000;
static uint64_t (*look_ns)(void); /* how long the next look takes; NULL: LOOK_NS */

/* In place of base/clock.c. */
uint64_t clock_monotonic_ns(void) {
    return looked_ns += look_ns ? look_ns() : LOOK_NS;
}

uint64_t clock_monotonic_us(void) {
    return clock_monotonic_ns() / 1000;
}

int64_t clock_unix_us(void) {
    return 1700000000000000 + (int64_t)(looked_ns / 1000);
}

int64_t clock_unix_ms(void) {
    return clock_unix_us() / 1000;
}

/* A request's last argument has been received by then, but for its end: what is done with the request is still to
 * come. */
static inline void send_last(struct memory_peer *peer, const void *bytes, size_t length) {
    char head[32];
    memory_peer_send(peer, head, (size_t)sprintf(head, "$%zu\r\n", length));
    memory_peer_send(peer, bytes, length);
    settle();
    memory_peer_send(peer, "\r\n", 2);
}

static inline void send_delete(struct memory_peer *peer, const uint64_t *ids, uint32_t n) {
    send_arguments(peer, 3);
    send_word(peer, "REPLAY.DEL");
    send_word(peer, "t");
    send_bulk(peer, ids, n * sizeof *ids);
}

#define STEPS (1u << 17)
#define STREAMS 2u
#define WINDOW 16u

static inline void send_steps(struct memory_peer *peer, size_t step_bytes, uint32_t n) {
    uint32_t *streams = malloc(n * sizeof *streams);
    uint8_t *flags = calloc(n, 1), *frames = calloc(n, step_bytes);
    char number[32];
    for (uint32_t i = 0; i < n; i++) {
        streams[i] = i % STREAMS;
        flags[i] = i + STREAMS >= n ? 2 : 0;
        memset(frames + i * step_bytes, (int)i, step_bytes);
    }
    send_arguments(peer, 11);
    send_word(peer, "REPLAY.APPEND");
    send_word(peer, "t");
    sprintf(number, "%u", n);
    send_word(peer, number);
    send_bulk(peer, streams, n * sizeof *streams);
    send_bulk(peer, flags, n);
    send_word(peer, "HISTORY");
    send_word(peer, "65536");
    send_word(peer, "COLUMNS");
    send_word(peer, "1");
    send_word(peer, "frame");
    send_last(peer, frames, n * step_bytes);
    free(streams);
    free(flags);
    free(frames);
}

/* Items of steps 0, 1, … of the streams in turn; `block`: milliseconds to wait, NULL: none. */
static inline void send_items_of(struct memory_peer *peer, const char *table, uint32_t n, const char *block) {
    uint32_t *streams = malloc(n * sizeof *streams);
    uint64_t *steps = malloc(n * sizeof *steps);
    uint8_t *rewards = calloc(n, 1);
    char number[32];
    for (uint32_t i = 0; i < n; i++) {
        streams[i] = i % STREAMS;
        steps[i] = i / STREAMS;
    }
    send_arguments(peer, block ? 12 : 10);
    send_word(peer, "REPLAY.ITEM");
    send_word(peer, table);
    sprintf(number, "%u", n);
    send_word(peer, number);
    send_bulk(peer, streams, n * sizeof *streams);
    send_bulk(peer, steps, n * sizeof *steps);
    send_bulk(peer, "", 0);
    if (block) send_word(peer, "BLOCK");
    if (block) send_word(peer, block);
    send_word(peer, "COLUMNS");
    send_word(peer, "1");
    send_word(peer, "reward");
    send_last(peer, rewards, n);
    free(streams);
    free(steps);
    free(rewards);
}

static inline void send_items(struct memory_peer *peer, uint32_t n, const char *block) {
    send_items_of(peer, "t", n, block);
}

#endif

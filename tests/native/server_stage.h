/* server_stage: what the tests of the server over the in-memory transport share: a server, peers that talk to it, large
 * values, a table of observations. Each test program uses some of it. */
#ifndef REPLAY_TESTS_SERVER_STAGE_H
#define REPLAY_TESTS_SERVER_STAGE_H

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/msgpack.h"
#include "check.h"
#include "memory_transport.h"
#include "server/core/client.h"
#include "server/core/server.h"

static struct server *server;
static struct transport *transport;

/* ---- the stage --------------------------------------------------------------------------------------- */

static inline void open_server(bool hold_writes, void (*configure)(struct server_config *config)) {
    struct server_config config;
    struct error error;
    server_config_defaults(&config);
    if (configure) configure(&config);
    server = server_new(&config, &error);
    CHECK(server);
    transport = transport_memory_new(server_events(server));
    CHECK(transport && server_add_transport(server, transport, &error) == 0);
    if (hold_writes) transport_memory_hold_writes(transport);
}

static inline void take_turn(void) {
    server_step(server);
    transport->operations->poll(transport, 0);
}

/* Turns until nothing happens any more. */
static inline void settle(void) {
    int quiet = 0;
    for (int turns = 0; quiet < 2; turns++) {
        CHECK(turns < 1000000);
        uint64_t wait_us = server_step(server);
        bool rests = transport->operations->poll(transport, 0) == 0 && wait_us > 0 && !server->exclusive.on;
        quiet = rests ? quiet + 1 : 0;
    }
}

static inline void close_server(void) {
    server_free(server);
    server = NULL;
}

static inline struct memory_peer *connect_peer(void) {
    struct memory_peer *peer = memory_peer_connect(transport);
    CHECK(peer);
    return peer;
}

static inline bool received(struct memory_peer *peer, const char *expected) {
    size_t length;
    const uint8_t *bytes = memory_peer_received(peer, &length);
    bool equal = length == strlen(expected) && (length == 0 || memcmp(bytes, expected, length) == 0);
    if (!equal)
        fprintf(stderr, "expected %s\nreceived %.*s\n", expected, (int)(length < 2000 ? length : 2000),
                (const char *)bytes);
    memory_peer_forget_received(peer);
    return equal;
}

static inline bool received_prefix(struct memory_peer *peer, const char *expected) {
    size_t length;
    const uint8_t *bytes = memory_peer_received(peer, &length);
    bool equal = length > 0 && length >= strlen(expected) && memcmp(bytes, expected, strlen(expected)) == 0;
    if (!equal)
        fprintf(stderr, "expected %s…\nreceived %.*s\n", expected, (int)(length < 2000 ? length : 2000),
                (const char *)bytes);
    memory_peer_forget_received(peer);
    return equal;
}

static inline bool has_received(struct memory_peer *peer, const char *expected) {
    size_t length;
    const uint8_t *bytes = memory_peer_received(peer, &length);
    return length > 0 && memmem(bytes, length, expected, strlen(expected));
}

static inline void say(struct memory_peer *peer, const char *text) {
    memory_peer_send(peer, text, strlen(text));
}

static inline bool answers(struct memory_peer *peer, const char *request, const char *reply) {
    say(peer, request);
    settle();
    return received(peer, reply);
}

static inline void send_arguments(struct memory_peer *peer, int count) {
    char head[32];
    memory_peer_send(peer, head, (size_t)sprintf(head, "*%d\r\n", count));
}

static inline void send_bulk(struct memory_peer *peer, const void *bytes, size_t length) {
    char head[32];
    memory_peer_send(peer, head, (size_t)sprintf(head, "$%zu\r\n", length));
    memory_peer_send(peer, bytes, length);
    memory_peer_send(peer, "\r\n", 2);
}

static inline void send_word(struct memory_peer *peer, const char *word) {
    send_bulk(peer, word, strlen(word));
}

/* ---- scripts ----------------------------------------------------------------------------------------- */

static inline bool has_lua(void) {
    open_server(false, NULL);
    struct memory_peer *peer = connect_peer();
    say(peer, "*3\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n$1\r\n0\r\n");
    settle();
    bool has = has_received(peer, ":1");
    close_server();
    return has;
}

static inline void eval(struct memory_peer *peer, const char *script) {
    send_arguments(peer, 3);
    send_word(peer, "EVAL");
    send_word(peer, script);
    send_word(peer, "0");
}

/* ---- large values ------------------------------------------------------------------------------------ */

#define LARGE 300000u
#define BACKLOG (1u << 20)

static char large_value[LARGE];
static char large_reply[LARGE + 32];
static size_t large_reply_length;

static inline void make_large_value(void) {
    for (size_t i = 0; i < LARGE; i++) large_value[i] = (char)('a' + i % 23);
}

static inline void store_large(struct memory_peer *peer) {
    make_large_value();
    large_reply_length = (size_t)sprintf(large_reply, "$%u\r\n", LARGE);
    memcpy(large_reply + large_reply_length, large_value, LARGE);
    large_reply_length += LARGE;
    memcpy(large_reply + large_reply_length, "\r\n", 2);
    large_reply_length += 2;
    send_arguments(peer, 3);
    send_word(peer, "SET");
    send_word(peer, "large");
    send_bulk(peer, large_value, LARGE);
    settle();
    CHECK(received(peer, "+OK\r\n"));
}

static inline bool is_large_replies(const uint8_t *bytes, size_t length, size_t count) {
    if (length != count * large_reply_length) return false;
    for (size_t i = 0; i < count; i++)
        if (memcmp(bytes + i * large_reply_length, large_reply, large_reply_length) != 0) return false;
    return true;
}

/* ---- a table of 64 observations, of which 8 must be there before it is sampled ----------------------- */

#define OBSERVATION 4096u

/* The command for table t with that spec, which is freed. */
static inline void send_spec_of(struct memory_peer *peer, const char *table, const char *command,
                                struct msgpack_writer *spec) {
    send_arguments(peer, 3);
    send_word(peer, command);
    send_word(peer, table);
    send_bulk(peer, spec->data, spec->length);
    memory_free(spec->data);
}

static inline void send_spec(struct memory_peer *peer, const char *command, struct msgpack_writer *spec) {
    send_spec_of(peer, "t", command, spec);
}

static inline void send_create_table(struct memory_peer *peer) {
    struct msgpack_writer spec = {0};
    msgpack_write_map(&spec, 4);
    msgpack_write_string(&spec, "capacity", 8);
    msgpack_write_unsigned(&spec, 64);
    msgpack_write_string(&spec, "signature", 9);
    msgpack_write_map(&spec, 1);
    msgpack_write_string(&spec, "obs", 3);
    msgpack_write_array(&spec, 2);
    msgpack_write_string(&spec, "uint8", 5);
    msgpack_write_array(&spec, 1);
    msgpack_write_unsigned(&spec, OBSERVATION);
    msgpack_write_string(&spec, "sampler", 7);
    msgpack_write_string(&spec, "uniform", 7);
    msgpack_write_string(&spec, "rate_limiter", 12);
    msgpack_write_map(&spec, 2);
    msgpack_write_string(&spec, "kind", 4);
    msgpack_write_string(&spec, "min_size", 8);
    msgpack_write_string(&spec, "min_size_to_sample", 18);
    msgpack_write_unsigned(&spec, 8);
    send_spec(peer, "REPLAY.CREATE", &spec);
}

static inline void create_table(struct memory_peer *peer) {
    send_create_table(peer);
    settle();
    CHECK(received(peer, "+OK\r\n"));
}

/* An ADD of n items of one column, to its bytes, which come next. */
static inline void send_add_head(struct memory_peer *peer, uint32_t n, const char *column) {
    char text[32];
    send_arguments(peer, 8);
    send_word(peer, "REPLAY.ADD");
    send_word(peer, "t");
    sprintf(text, "%u", n);
    send_word(peer, text);
    send_word(peer, "");
    send_word(peer, "COLUMNS");
    send_word(peer, "1");
    send_word(peer, column);
}

/* An ADD of n items, of which only the first `bytes` of the column are sent (all: the whole request). */
static inline void send_add(struct memory_peer *peer, uint32_t n, size_t bytes) {
    static uint8_t column[64 * OBSERVATION];
    char text[32];
    for (size_t i = 0; i < sizeof column; i++) column[i] = (uint8_t)(i / OBSERVATION);
    send_add_head(peer, n, "obs");
    if (bytes == n * OBSERVATION) {
        send_bulk(peer, column, bytes);
        return;
    }
    memory_peer_send(peer, text, (size_t)sprintf(text, "$%u\r\n", n * OBSERVATION));
    memory_peer_send(peer, column, bytes);
}

static inline void add(struct memory_peer *peer, uint32_t n) {
    char head[32];
    send_add(peer, n, n * OBSERVATION);
    settle();
    sprintf(head, "$%u\r\n", n * 8);
    CHECK(received_prefix(peer, head));
}

static inline void release_all(struct memory_peer *peer) {
    memory_peer_release(peer, memory_peer_held(peer));
    settle();
}

/* A table t of single floats, and a batch for it, of which nothing has been done yet. */
static inline void create_floats(struct memory_peer *peer, uint32_t capacity) {
    struct msgpack_writer spec = {0};
    msgpack_write_map(&spec, 2);
    msgpack_write_string(&spec, "capacity", 8);
    msgpack_write_unsigned(&spec, capacity);
    msgpack_write_string(&spec, "signature", 9);
    msgpack_write_map(&spec, 1);
    msgpack_write_string(&spec, "x", 1);
    msgpack_write_array(&spec, 2);
    msgpack_write_string(&spec, "float32", 7);
    msgpack_write_array(&spec, 0);
    send_spec(peer, "REPLAY.CREATE", &spec);
    settle();
    CHECK(received(peer, "+OK\r\n"));
}

static inline void send_floats(struct memory_peer *peer, uint32_t n) {
    float *values = malloc(n * sizeof *values);
    for (uint32_t i = 0; i < n; i++) values[i] = (float)i;
    send_add_head(peer, n, "x");
    send_bulk(peer, values, n * sizeof *values);
    free(values);
}

/* A field of the reply to REPLAY.INFO that was received. */
static inline uint64_t info_field(struct memory_peer *peer, const char *name) {
    char pattern[64];
    size_t length;
    const uint8_t *bytes = memory_peer_received(peer, &length);
    int pattern_length = sprintf(pattern, "\r\n%s\r\n:", name);
    const char *found = memmem(bytes, length, pattern, (size_t)pattern_length);
    CHECK(found);
    uint64_t value = strtoull(found + pattern_length, NULL, 10);
    memory_peer_forget_received(peer);
    return value;
}

static inline uint64_t table_field(struct memory_peer *peer, const char *name) {
    say(peer, "REPLAY.INFO t\r\n");
    settle();
    return info_field(peer, name);
}

/* ---- a table of steps and windows -------------------------------------------------------------------- */

static inline void write_text(struct msgpack_writer *writer, const char *text) {
    msgpack_write_string(writer, text, strlen(text));
}

static inline void write_window(struct msgpack_writer *writer, const char *name, uint64_t length, uint64_t offset) {
    write_text(writer, name);
    msgpack_write_map(writer, 3);
    write_text(writer, "window");
    write_text(writer, "frame");
    write_text(writer, "length");
    msgpack_write_unsigned(writer, length);
    write_text(writer, "offset");
    msgpack_write_unsigned(writer, offset);
}

/* Table t with frames of so many bytes, a reward, windows of `length` frames at offsets 0 and 2; so many more settings
 * are for the caller to write. */
static inline void write_windows(struct msgpack_writer *writer, uint64_t capacity, uint64_t step_bytes, uint64_t length,
                                 const char *compression, uint32_t more) {
    msgpack_write_map(writer, 4 + more);
    write_text(writer, "capacity");
    msgpack_write_unsigned(writer, capacity);
    write_text(writer, "sampler");
    write_text(writer, "uniform");
    write_text(writer, "compression");
    write_text(writer, compression);
    write_text(writer, "signature");
    msgpack_write_map(writer, 4);
    write_text(writer, "frame");
    msgpack_write_map(writer, 3);
    write_text(writer, "dtype");
    write_text(writer, "uint8");
    write_text(writer, "shape");
    msgpack_write_array(writer, 1);
    msgpack_write_unsigned(writer, step_bytes);
    write_text(writer, "step_only");
    msgpack_write_boolean(writer, true);
    write_text(writer, "reward");
    msgpack_write_array(writer, 2);
    write_text(writer, "uint8");
    msgpack_write_array(writer, 0);
    write_window(writer, "obs", length, 0);
    write_window(writer, "next", length, 2);
}

static inline void create_windows(struct memory_peer *peer, uint64_t capacity, uint64_t step_bytes, uint64_t length,
                                  const char *compression) {
    struct msgpack_writer writer = {0};
    write_windows(&writer, capacity, step_bytes, length, compression, 0);
    CHECK(!writer.failed);
    send_spec(peer, "REPLAY.CREATE", &writer);
}

#endif

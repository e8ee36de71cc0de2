/* fuzz_parse: however a stream is cut between calls, and wherever large arguments land, the same requests come out. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "resp/parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define LONGEST_STREAM (1u << 20)
#define SCATTER_BYTES (1u << 20)

/* Small limits, so that they are reached. */
static const struct resp_limits limits = {
    .max_request_bytes = 200000, .max_bulk_bytes = 100000, .max_arguments = 40, .max_inline_bytes = 512};

/* Begins of streams that the driver mutates. */
const char *const fuzz_seeds[] = {
    "*1\r\n$4\r\nPING\r\n",
    "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nvalue\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
    "*2\r\n$4\r\nECHO\r\n\xfe\x01*1\r\n$4\r\nPING\r\n",
    "*4\r\n$10\r\nREPLAY.ADD\r\n\xfe\x10\xfe\x20$0\r\n\r\n",
    "PING\r\nSET k \"a \\x41\\n\" 'b \\' c'\r\n\r\nGET k\n",
    "*0\r\n*-1\r\n*2\r\n$-1\r\n",
    "*41\r\n$100001\r\n",
    "*3\r\n\xfe\xff\xfe\xff\xfe\xff",
    NULL,
};

/* 0xfe b stands for a bulk string too long to be found by mutation: RESP_LARGE_BULK + 96 b bytes. */
static size_t expand(const uint8_t *data, size_t size, uint8_t *stream) {
    size_t length = 0;
    for (size_t i = 0; i < size && length + RESP_LARGE_BULK + 96 * 256 + 32 < LONGEST_STREAM; i++) {
        if (data[i] != 0xfe || i + 1 == size) {
            stream[length++] = data[i];
            continue;
        }
        size_t bulk = RESP_LARGE_BULK + 96u * data[++i];
        length += (size_t)sprintf((char *)stream + length, "$%zu\r\n", bulk);
        for (size_t j = 0; j < bulk; j++) stream[length++] = (uint8_t)(j * 31 + i);
        stream[length++] = '\r';
        stream[length++] = '\n';
    }
    return length;
}

struct run {
    uint64_t digest;
    uint8_t *scatter;          /* where scattered bulks land, one after the other */
    size_t scatter_used;
    size_t scattered[64], scattered_length[64];
    uint32_t scattered_index[64];
    size_t scattered_count;
    uint32_t slots[SCATTER_BYTES / 32];
};

static void digest(struct run *run, const void *bytes, size_t length) {
    const uint8_t *p = bytes;
    for (size_t i = 0; i < length; i++) run->digest = (run->digest ^ p[i]) * 1099511628211u;
    run->digest = (run->digest ^ length) * 1099511628211u;
}

/* By length, so that every way of feeding decides alike: blob, discarded, or scattered backwards in items of 32 or 2048
 * bytes. */
static void land(void *context, const struct resp_argument *arguments, uint32_t index, uint32_t count, size_t length,
                 struct resp_landing *landing) {
    struct run *run = context;
    assert(index < count && length >= RESP_LARGE_BULK);
    for (uint32_t i = 0; i < index; i++)
        digest(run, arguments[i].data ? arguments[i].data : (const uint8_t *)"",
               arguments[i].data ? arguments[i].length : 0);
    size_t item_bytes = length % 2048 == 0 ? 2048 : 32;
    if (length % 5 == 0) {
        landing->kind = RESP_LAND_DISCARD;
    } else if (length % 3 != 0 && length % item_bytes == 0 && run->scattered_count < 64 &&
               run->scatter_used + length <= SCATTER_BYTES) {
        uint32_t items = (uint32_t)(length / item_bytes);
        uint32_t *slots = run->slots + run->scatter_used / 32;
        for (uint32_t i = 0; i < items; i++) slots[i] = length % 7 ? items - 1 - i : i;
        *landing = (struct resp_landing){.kind = RESP_LAND_SCATTER,
                                         .base = run->scatter + run->scatter_used,
                                         .stride = item_bytes,
                                         .item_bytes = item_bytes,
                                         .slots = slots};
        run->scattered[run->scattered_count] = run->scatter_used;
        run->scattered_length[run->scattered_count] = length;
        run->scattered_index[run->scattered_count++] = index;
        run->scatter_used += length;
    }
}

static void digest_request(struct run *run, struct resp_parser *parser) {
    digest(run, &parser->refusal, sizeof parser->refusal);
    digest(run, &parser->count, sizeof parser->count);
    digest(run, &parser->request_bytes, sizeof parser->request_bytes);
    for (uint32_t i = 0; i < parser->count; i++) {
        const struct resp_argument *argument = &parser->arguments[i];
        digest(run, &argument->length, sizeof argument->length);
        if (argument->data) digest(run, argument->data, argument->length);
    }
    for (size_t i = 0; i < run->scattered_count; i++)
        digest(run, run->scatter + run->scattered[i], run->scattered_length[i]);
    run->scattered_count = 0;
    run->scatter_used = 0;
}

/* Reads to where the parser says, as a socket would. Returns the bytes taken. */
static size_t read_directly(struct resp_parser *parser, struct random_state *random, const uint8_t *from, size_t left) {
    struct iovec vectors[8];
    int count = resp_parser_landing(parser, 1 + random_below(random, 30000), vectors, 1 + (int)random_below(random, 8));
    size_t got = 0;
    for (int i = 0; i < count && got < left; i++) {
        size_t piece = vectors[i].iov_len < left - got ? vectors[i].iov_len : left - got;
        memcpy(vectors[i].iov_base, from + got, piece);
        got += piece;
    }
    if (got > 0) resp_parser_landed(parser, got);
    return got;
}

/* `random` NULL: all at once. */
static uint64_t follow(const uint8_t *stream, size_t length, struct random_state *random, struct run *run) {
    struct resp_parser parser;
    run->digest = 14695981039346656037u;
    run->scattered_count = run->scatter_used = 0;
    resp_parser_init(&parser, &limits, land, run);
    size_t at = 0;
    bool alive = true;
    while (alive && at < length) {
        if (random && parser.state == RESP_STATE_LANDING && random_below(random, 2))
            at += read_directly(&parser, random, stream + at, length - at);
        size_t piece = length - at;
        if (random && piece > 0)
            piece = 1 + random_below(random, random_below(random, 4) ? (piece < 40 ? piece : 40) : piece);
        /* Its own allocation, so that reading past what was given is seen. */
        uint8_t *copy = memory_alloc(piece);
        memcpy(copy, stream + at, piece);
        size_t consumed;
        enum resp_status status = resp_parser_feed(&parser, copy, piece, &consumed);
        memory_free(copy);
        assert(consumed <= piece && (consumed == piece || status == RESP_REQUEST || status == RESP_PROTOCOL_ERROR));
        at += consumed;
        if (status == RESP_REQUEST) {
            assert(!resp_parser_midway(&parser));
            digest_request(run, &parser);
            resp_parser_next(&parser);
        } else if (status == RESP_PROTOCOL_ERROR) {
            digest(run, parser.error, strlen(parser.error));
            alive = false;
        }
    }
    resp_parser_free(&parser);
    return run->digest;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t stream[LONGEST_STREAM];
    static struct run run;
    if (!run.scatter) run.scatter = memory_map(SCATTER_BYTES);
    size_t length = expand(data, size, stream);
    size_t held = memory_used_bytes();
    uint64_t whole = follow(stream, length, NULL, &run);
    struct random_state random;
    random_seed(&random, whole ^ size);
    for (int i = 0; i < 3; i++)
        if (follow(stream, length, &random, &run) != whole) abort();
    if (memory_used_bytes() != held) abort();
    return 0;
}

/* command_request: a request that is being made: its words, the chance that they follow, and what replies have told. */
#ifndef REPLAY_TESTS_COMMAND_REQUEST_H
#define REPLAY_TESTS_COMMAND_REQUEST_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/crc64.h"
#include "base/random.h"
#include "check.h"

#define REQUEST_BYTES (1u << 20)
#define REQUEST_WORDS 256u

/* The words of one request. What does not fit is left out, which gives a request of another kind. */
struct request {
    uint32_t count;
    size_t start[REQUEST_WORDS + 1];
    uint8_t bytes[REQUEST_BYTES];
};

struct maker {
    struct random_state random;
    struct request *out;
    bool names_private; /* among the names there are those of what the client may not see */
    unsigned depth; /* of scripts in which commands are called */
    uint32_t count; /* of the last repetition */
};

/* What replies have told. Older ones make room. */
#define SEEN_IDS 512u
#define SEEN_NUMBERS 64u
#define SEEN_WORDS 32u
static struct {
    uint64_t ids[SEEN_IDS];
    int64_t numbers[SEEN_NUMBERS];
    char words[SEEN_WORDS][48];
    char nonce[48]; /* of REPLAY.SHARE */
    uint32_t id_count, number_count, word_count; /* ever */
} seen;

/* ---- words ---------------------------------------------------------------------------------------------------------- */

static inline void request_clear(struct request *request) {
    request->count = 0;
    request->start[0] = 0;
}

static inline const uint8_t *request_word(const struct request *request, uint32_t index, size_t *length) {
    *length = request->start[index + 1] - request->start[index];
    return request->bytes + request->start[index];
}

static inline bool request_word_is(const struct request *request, uint32_t index, const char *text) {
    size_t length;
    if (index >= request->count) return false;
    const uint8_t *word = request_word(request, index, &length);
    return length == strlen(text) && strncasecmp((const char *)word, text, length) == 0;
}

/* Room for a word of `length` bytes, or NULL. */
static inline uint8_t *request_open(struct request *request, size_t length) {
    size_t begin = request->start[request->count];
    if (request->count == REQUEST_WORDS || length > REQUEST_BYTES - begin) return NULL;
    request->start[++request->count] = begin + length;
    return request->bytes + begin;
}

static inline void put_bytes(struct maker *maker, const void *bytes, size_t length) {
    uint8_t *word = request_open(maker->out, length);
    if (word && length > 0) memcpy(word, bytes, length);
}

static inline void put(struct maker *maker, const char *text) {
    put_bytes(maker, text, strlen(text));
}

static inline void put_number(struct maker *maker, int64_t number) {
    char text[32];
    put_bytes(maker, text, (size_t)sprintf(text, "%lld", (long long)number));
}

/* ---- chance --------------------------------------------------------------------------------------------------------- */

static inline uint32_t below(struct maker *maker, uint32_t bound) {
    return (uint32_t)random_below(&maker->random, bound);
}

static inline bool one_in(struct maker *maker, uint32_t n) {
    return below(maker, n) == 0;
}

static inline const char *choose_of(struct maker *maker, const char *const *words, size_t count) {
    return words[below(maker, (uint32_t)count)];
}

#define CHOOSE(maker, ...) \
    choose_of(maker, (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

#endif

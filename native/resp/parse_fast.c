/* parse_fast: why one pass is enough: a request that is not there whole, or not well formed, changes nothing. */
#include "resp/parse_fast.h"

#include <assert.h>
#include <string.h>

#include "base/memory.h"
#include "resp/parse.h"

#define MOST_DIGITS 7         /* of a number that is looked at here */
#define LEAST_BULK_BYTES 6u    /* "$0\r\n\r\n": so many bytes at least stand for each argument */
#define ARENA_FIRST_BYTES 256u
#define ARGUMENTS_FIRST 8u

static inline bool is_digit(uint8_t byte) {
    return (uint8_t)(byte - '0') <= 9;
}

/* A number as it must be written, and its line's end; at least LEAST_BULK_BYTES - 1 bytes are there. NULL: anything
 * else. */
static inline const uint8_t *take_number(const uint8_t *at, const uint8_t *end, uint32_t *value) {
    if (is_digit(at[0]) && at[1] == '\r' && at[2] == '\n') {
        *value = (uint32_t)at[0] - '0';
        return at + 3;
    }
    if (at[0] == '0') return NULL;
    if (is_digit(at[0]) && is_digit(at[1]) && at[2] == '\r' && at[3] == '\n') {
        *value = ((uint32_t)at[0] - '0') * 10 + (uint32_t)at[1] - '0';
        return at + 4;
    }
    uint32_t number = 0;
    const uint8_t *begin = at;
    for (; at < end && is_digit(*at); at++) {
        if (at - begin == MOST_DIGITS) return NULL;
        number = number * 10 + ((uint32_t)*at - '0');
    }
    if (at == begin || end - at < 2 || at[0] != '\r' || at[1] != '\n') return NULL;
    *value = number;
    return at + 2;
}

static bool has_room(struct resp_parser *parser, uint32_t count) {
    if (count <= parser->capacity) return true;
    uint32_t capacity = ARGUMENTS_FIRST;
    while (capacity < count) capacity *= 2;
    struct resp_argument *arguments = memory_realloc(parser->arguments, capacity * sizeof *arguments);
    if (!arguments) return false;
    parser->arguments = arguments;
    parser->capacity = capacity;
    return true;
}

static bool has_arena(struct resp_parser *parser, size_t size_bytes) {
    if (size_bytes <= parser->arena_capacity) return true;
    size_t capacity = ARENA_FIRST_BYTES;
    while (capacity < size_bytes) capacity *= 2;
    uint8_t *arena = memory_alloc(capacity);
    if (!arena) return false;
    memory_free(parser->arena);
    parser->arena = arena;
    parser->arena_capacity = capacity;
    return true;
}

size_t resp_parse_fast(struct resp_parser *parser, const uint8_t *data, size_t length) {
    assert(parser->state == RESP_STATE_START && parser->count == 0 && parser->arena_used == 0);
    const struct resp_limits *limits = parser->limits;
    const uint8_t *end = data + length, *at = data + 1;
    uint32_t count;
    if (length < LEAST_BULK_BYTES || !(at = take_number(at, end, &count))) return 0;
    if (count == 0 || count > limits->max_arguments || (size_t)(end - at) / LEAST_BULK_BYTES < count) return 0;
    if (!has_room(parser, count)) return 0;
    const uint8_t *from = at;
    size_t request_bytes = 0;
    struct resp_argument *argument = parser->arguments;
    for (uint32_t i = 0; i < count; i++, argument++) {
        uint32_t bulk;
        if (end - at < (ptrdiff_t)LEAST_BULK_BYTES || *at != '$' || !(at = take_number(at + 1, end, &bulk))) return 0;
        if (bulk >= RESP_LARGE_BULK || bulk > limits->max_bulk_bytes || (size_t)(end - at) < (size_t)bulk + 2) return 0;
        *argument = (struct resp_argument){.data = at, .length = bulk};
        at += bulk;
        if (at[0] != '\r' || at[1] != '\n') return 0;
        at += 2;
        request_bytes += bulk;
    }
    size_t taken_bytes = (size_t)(at - from);
    if (request_bytes > limits->max_request_bytes || !has_arena(parser, taken_bytes)) return 0;
    /* One copy for all: what lies between the arguments is not worth leaving out. */
    memcpy(parser->arena, from, taken_bytes);
    for (uint32_t i = 0; i < count; i++) parser->arguments[i].data = parser->arena + (parser->arguments[i].data - from);
    parser->arena_used = taken_bytes;
    parser->count = parser->expected = parser->received = count;
    parser->request_bytes = request_bytes;
    parser->state = RESP_STATE_REQUEST;
    return (size_t)(at - data);
}

/* parse: a resumable parser of RESP requests. A state machine over whatever bytes come: small arguments are gathered in
 * an arena, large ones land where the owner wants them. Errors are worded as Redis words them, since clients match on
 * them. */
#include "resp/parse.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "resp/parse_fast.h"

#define ARENA_KEPT_BYTES 4096u /* a larger arena is given back after its request */
#define ARENA_FIRST_BYTES 256u
#define ARGUMENTS_KEPT 64u
#define ARGUMENTS_FIRST 8u
#define DISCARD_BYTES 65536u
#define SMALLEST_VECTOR_BYTES 1024u /* scattered items below this are cheaper copied than given a vector each */

/* Where unwanted bytes are read to; never read from. */
static uint8_t discard_area[DISCARD_BYTES];

void resp_parser_init(struct resp_parser *parser, const struct resp_limits *limits, resp_land land, void *context) {
    memset(parser, 0, sizeof *parser);
    parser->limits = limits;
    parser->land = land;
    parser->context = context;
}

static void release_arguments(struct resp_parser *parser) {
    for (uint32_t i = 0; i < parser->count; i++)
        if (parser->arguments[i].blob) blob_release(parser->arguments[i].blob);
    if (parser->landing_blob) blob_release(parser->landing_blob);
    parser->landing_blob = NULL;
    parser->count = 0;
}

void resp_parser_free(struct resp_parser *parser) {
    release_arguments(parser);
    memory_free(parser->arguments);
    memory_free(parser->arena);
    parser->arguments = NULL;
    parser->arena = NULL;
    parser->capacity = 0;
    parser->arena_capacity = 0;
    parser->arena_used = 0;
}

void resp_parser_next(struct resp_parser *parser) {
    release_arguments(parser);
    if (parser->arena_capacity > ARENA_KEPT_BYTES) {
        memory_free(parser->arena);
        parser->arena = NULL;
        parser->arena_capacity = 0;
    }
    if (parser->capacity > ARGUMENTS_KEPT) {
        memory_free(parser->arguments);
        parser->arguments = NULL;
        parser->capacity = 0;
    }
    parser->arena_used = 0;
    parser->refusal = RESP_ACCEPTED;
    parser->request_bytes = 0;
    parser->line_length = 0;
    parser->state = RESP_STATE_START;
}

bool resp_parser_midway(const struct resp_parser *parser) {
    return parser->state != RESP_STATE_START && parser->state != RESP_STATE_REQUEST &&
           parser->state != RESP_STATE_ERROR;
}

static size_t blob_bytes(const struct resp_parser *parser) {
    size_t bytes = parser->landing_blob ? parser->landing_blob->length : 0;
    for (uint32_t i = 0; i < parser->count; i++)
        bytes += parser->arguments[i].blob ? parser->arguments[i].blob->length : 0;
    return bytes;
}

size_t resp_parser_used_bytes(const struct resp_parser *parser) {
    return parser->arena_used + parser->count * sizeof *parser->arguments + blob_bytes(parser);
}

size_t resp_parser_held_bytes(const struct resp_parser *parser) {
    return parser->arena_capacity + parser->capacity * sizeof *parser->arguments + blob_bytes(parser);
}

static void fail(struct resp_parser *parser, const char *what) {
    snprintf(parser->error, sizeof parser->error, "Protocol error: %s", what);
    parser->state = RESP_STATE_ERROR;
}

/* The rest of the request is followed but not kept. */
static void refuse(struct resp_parser *parser, enum resp_refusal refusal) {
    if (parser->refusal == RESP_ACCEPTED) parser->refusal = refusal;
}

/* Room for `more` bytes behind arena_used. Arguments point into the arena, so they move with it. */
static bool arena_reserve(struct resp_parser *parser, size_t more) {
    if (parser->arena_capacity - parser->arena_used >= more) return true;
    size_t capacity = parser->arena_capacity ? parser->arena_capacity : ARENA_FIRST_BYTES;
    while (capacity - parser->arena_used < more) capacity *= 2;
    uint8_t *moved = memory_alloc(capacity);
    if (!moved) return false;
    if (parser->arena_used) memcpy(moved, parser->arena, parser->arena_used);
    for (uint32_t i = 0; i < parser->count; i++) {
        struct resp_argument *argument = &parser->arguments[i];
        if (argument->data && !argument->blob) argument->data = moved + (argument->data - parser->arena);
    }
    memory_free(parser->arena);
    parser->arena = moved;
    parser->arena_capacity = capacity;
    return true;
}

/* Adds an argument; the array grows as arguments come, never as far as the client merely announces. */
static bool push_argument(struct resp_parser *parser, const uint8_t *data, size_t length, struct blob *blob) {
    if (parser->count == parser->capacity) {
        uint32_t capacity = parser->capacity ? parser->capacity * 2 : ARGUMENTS_FIRST;
        struct resp_argument *arguments = memory_realloc(parser->arguments, capacity * sizeof *arguments);
        if (!arguments) return false;
        parser->arguments = arguments;
        parser->capacity = capacity;
    }
    parser->arguments[parser->count++] = (struct resp_argument){.data = data, .length = length, .blob = blob};
    return true;
}

/* Strict decimal: an optional minus and at most 18 digits, nothing else. */
static bool parse_number(const char *text, size_t length, int64_t *value) {
    bool negative = length > 0 && text[0] == '-';
    size_t i = negative ? 1 : 0;
    if (i == length || length - i > 18) return false;
    if (text[i] == '0' && length - i > 1) return false;
    int64_t number = 0;
    for (; i < length; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        number = number * 10 + (text[i] - '0');
    }
    *value = negative ? -number : number;
    return true;
}

/* Collects a "*…\r\n" or "$…\r\n" line, its first byte already passed. Returns the bytes taken; `line` is set when the
 * line is whole, and then holds `line_bytes` bytes without its end. */
static size_t take_line(struct resp_parser *parser, const uint8_t *data, size_t length, const char *wrong,
                        const char **line, size_t *line_bytes) {
    *line = NULL;
    size_t room = sizeof parser->line - parser->line_length;
    size_t looked = length < room ? length : room;
    const uint8_t *end = memchr(data, '\n', looked);
    if (!end) {
        if (length >= room) {
            fail(parser, wrong);
            return length;
        }
        memcpy(parser->line + parser->line_length, data, length);
        parser->line_length = (uint8_t)(parser->line_length + length);
        return length;
    }
    size_t taken = (size_t)(end - data) + 1;
    const char *whole = (const char *)data;
    size_t bytes = taken;
    if (parser->line_length > 0) {
        memcpy(parser->line + parser->line_length, data, taken);
        whole = parser->line;
        bytes = parser->line_length + taken;
        parser->line_length = 0;
    }
    if (bytes < 2 || whole[bytes - 2] != '\r') {
        fail(parser, wrong);
        return taken;
    }
    *line = whole;
    *line_bytes = bytes - 2;
    return taken;
}

static size_t feed_multibulk_line(struct resp_parser *parser, const uint8_t *data, size_t length) {
    const char *line;
    size_t bytes;
    size_t taken = take_line(parser, data, length, "invalid multibulk length", &line, &bytes);
    if (!line) return taken;
    int64_t count;
    if (!parse_number(line, bytes, &count)) {
        fail(parser, "invalid multibulk length");
    } else if (count > (int64_t)parser->limits->max_arguments) {
        fail(parser, parser->limits->unauthenticated ? "unauthenticated multibulk length" : "invalid multibulk length");
    } else if (count <= 0) {
        parser->state = RESP_STATE_START; /* an empty request asks for nothing */
    } else {
        parser->expected = (uint32_t)count;
        parser->received = 0;
        parser->state = RESP_STATE_BULK_START;
    }
    return taken;
}

/* The owner decides where a large bulk lands; what it left undone (no memory, a refused request) is made good here. */
static void begin_landing(struct resp_parser *parser) {
    parser->landing = (struct resp_landing){.kind = RESP_LAND_BLOB};
    if (parser->refusal != RESP_ACCEPTED)
        parser->landing.kind = RESP_LAND_DISCARD;
    else if (parser->land)
        parser->land(parser->context, parser->arguments, parser->count, parser->expected, parser->bulk_length,
                     &parser->landing);
    if (parser->landing.kind == RESP_LAND_BLOB) {
        parser->landing_blob = blob_new(parser->bulk_length);
        if (!parser->landing_blob) {
            refuse(parser, RESP_OUT_OF_MEMORY);
            parser->landing.kind = RESP_LAND_DISCARD;
        }
    }
    assert(parser->landing.kind != RESP_LAND_SCATTER ||
           (parser->landing.item_bytes > 0 && parser->bulk_length % parser->landing.item_bytes == 0));
    parser->state = RESP_STATE_LANDING;
}

static size_t feed_bulk_line(struct resp_parser *parser, const uint8_t *data, size_t length) {
    const char *line;
    size_t bytes;
    size_t taken = take_line(parser, data, length, "invalid bulk length", &line, &bytes);
    if (!line) return taken;
    int64_t bulk;
    if (!parse_number(line, bytes, &bulk) || bulk < 0) {
        fail(parser, "invalid bulk length");
        return taken;
    }
    if ((uint64_t)bulk > parser->limits->max_bulk_bytes) {
        fail(parser, parser->limits->unauthenticated ? "unauthenticated bulk length" : "invalid bulk length");
        return taken;
    }
    parser->bulk_length = (size_t)bulk;
    parser->bulk_done = 0;
    parser->end_seen = 0;
    parser->request_bytes += (size_t)bulk;
    if (parser->request_bytes > parser->limits->max_request_bytes) refuse(parser, RESP_REQUEST_TOO_LARGE);
    if (bulk >= RESP_LARGE_BULK) {
        begin_landing(parser);
        return taken;
    }
    if (parser->refusal == RESP_ACCEPTED && !arena_reserve(parser, (size_t)bulk + 1))
        refuse(parser, RESP_OUT_OF_MEMORY);
    parser->bulk_kept = parser->refusal == RESP_ACCEPTED;
    parser->state = RESP_STATE_BULK;
    return taken;
}

static size_t feed_bulk(struct resp_parser *parser, const uint8_t *data, size_t length) {
    size_t missing = parser->bulk_length - parser->bulk_done;
    size_t taken = length < missing ? length : missing;
    if (parser->bulk_kept) memcpy(parser->arena + parser->arena_used + parser->bulk_done, data, taken);
    parser->bulk_done += taken;
    if (parser->bulk_done == parser->bulk_length) parser->state = RESP_STATE_BULK_END;
    return taken;
}

/* The item of a scattered bulk that byte `offset` falls into, and how much of it is left. */
static uint8_t *scatter_at(const struct resp_landing *landing, size_t offset, size_t *left) {
    size_t item = offset / landing->item_bytes;
    size_t inside = offset % landing->item_bytes;
    *left = landing->item_bytes - inside;
    return landing->base + (size_t)landing->slots[item] * landing->stride + inside;
}

static size_t feed_landing(struct resp_parser *parser, const uint8_t *data, size_t length) {
    size_t missing = parser->bulk_length - parser->bulk_done;
    size_t taken = length < missing ? length : missing;
    if (parser->landing.kind == RESP_LAND_BLOB) memcpy(parser->landing_blob->data + parser->bulk_done, data, taken);
    for (size_t done = 0; parser->landing.kind == RESP_LAND_SCATTER && done < taken;) {
        size_t left;
        uint8_t *to = scatter_at(&parser->landing, parser->bulk_done + done, &left);
        size_t piece = taken - done < left ? taken - done : left;
        memcpy(to, data + done, piece);
        done += piece;
    }
    resp_parser_landed(parser, taken);
    return taken;
}

void resp_parser_landed(struct resp_parser *parser, size_t length) {
    assert(parser->state == RESP_STATE_LANDING && length <= parser->bulk_length - parser->bulk_done);
    parser->bulk_done += length;
    if (parser->bulk_done == parser->bulk_length) parser->state = RESP_STATE_BULK_END;
}

static int scatter_vectors(const struct resp_parser *parser, size_t most, struct iovec *vectors, int max) {
    const struct resp_landing *landing = &parser->landing;
    bool packed = landing->stride == landing->item_bytes;
    if (!packed && landing->item_bytes < SMALLEST_VECTOR_BYTES) return 0;
    int filled = 0;
    size_t offset = parser->bulk_done;
    size_t total = 0;
    while (total < most) {
        size_t left;
        uint8_t *to = scatter_at(landing, offset, &left);
        if (left > most - total) left = most - total;
        if (filled > 0 && to == (uint8_t *)vectors[filled - 1].iov_base + vectors[filled - 1].iov_len) {
            vectors[filled - 1].iov_len += left; /* neighbouring slots: one vector */
        } else {
            if (filled == max) break;
            vectors[filled++] = (struct iovec){.iov_base = to, .iov_len = left};
        }
        offset += left;
        total += left;
    }
    if (total / (size_t)filled < SMALLEST_VECTOR_BYTES && total < parser->bulk_length - parser->bulk_done) return 0;
    return filled;
}

int resp_parser_landing(const struct resp_parser *parser, size_t most_bytes, struct iovec *vectors, int max) {
    assert(parser->state == RESP_STATE_LANDING && most_bytes > 0 && max > 0);
    size_t missing = parser->bulk_length - parser->bulk_done;
    size_t most = missing < most_bytes ? missing : most_bytes;
    switch (parser->landing.kind) {
    case RESP_LAND_BLOB:
        vectors[0] = (struct iovec){.iov_base = parser->landing_blob->data + parser->bulk_done, .iov_len = most};
        return 1;
    case RESP_LAND_SCATTER: return scatter_vectors(parser, most, vectors, max);
    case RESP_LAND_DISCARD: break;
    }
    int filled = 0;
    while (most > 0 && filled < max) {
        size_t piece = most < DISCARD_BYTES ? most : DISCARD_BYTES;
        vectors[filled++] = (struct iovec){.iov_base = discard_area, .iov_len = piece};
        most -= piece;
    }
    return filled;
}

static void finish_bulk(struct resp_parser *parser) {
    struct blob *blob = parser->landing_blob;
    parser->landing_blob = NULL;
    bool large = parser->bulk_length >= RESP_LARGE_BULK;
    const uint8_t *data = NULL;
    if (large)
        data = blob ? blob->data : NULL;
    else if (parser->bulk_kept)
        data = parser->arena + parser->arena_used;
    /* A refused request is only counted through, so that the array does not grow for it. */
    if (parser->refusal == RESP_ACCEPTED && !push_argument(parser, data, parser->bulk_length, blob))
        refuse(parser, RESP_OUT_OF_MEMORY);
    if (parser->refusal != RESP_ACCEPTED)
        blob_release(blob);
    else if (!large)
        parser->arena_used += parser->bulk_length;
    parser->received++;
    parser->state = parser->received < parser->expected ? RESP_STATE_BULK_START : RESP_STATE_REQUEST;
}

static size_t feed_bulk_end(struct resp_parser *parser, const uint8_t *data, size_t length) {
    size_t taken = 0;
    while (taken < length && parser->end_seen < 2) {
        if (data[taken] != (parser->end_seen == 0 ? '\r' : '\n')) {
            fail(parser, "expected CRLF after bulk string");
            return taken;
        }
        parser->end_seen++;
        taken++;
    }
    if (parser->end_seen == 2) finish_bulk(parser);
    return taken;
}

static int hex_value(char digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
    return digit >= 'A' && digit <= 'F' ? digit - 'A' + 10 : -1;
}

/* Decodes one escape of a double-quoted word, `*at` standing on the backslash. Returns the byte. */
static char unescape(const char **at, const char *end) {
    const char *p = *at;
    if (end - p >= 4 && p[1] == 'x' && hex_value(p[2]) >= 0 && hex_value(p[3]) >= 0) {
        *at = p + 4;
        return (char)(hex_value(p[2]) * 16 + hex_value(p[3]));
    }
    *at = p + 2;
    switch (p[1]) {
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    case 'b': return '\b';
    case 'a': return '\a';
    default: return p[1];
    }
}

bool resp_decode_word(const char **at, const char *end, char **out) {
    const char *p = *at;
    char *o = *out;
    char quote = 0;
    bool closed = false;
    while (p < end && (quote || !isspace((unsigned char)*p))) {
        if (closed) return false; /* a closing quote must be followed by a space */
        if (!quote && (*p == '"' || *p == '\'')) {
            quote = *p++;
        } else if (quote && *p == quote) {
            quote = 0;
            closed = true;
            p++;
        } else if (quote == '"' && *p == '\\' && end - p >= 2) {
            *o++ = unescape(&p, end);
        } else if (quote == '\'' && end - p >= 2 && p[0] == '\\' && p[1] == '\'') {
            *o++ = '\'';
            p += 2;
        } else {
            *o++ = *p++;
        }
    }
    *at = p;
    *out = o;
    return quote == 0;
}

static void split_inline(struct resp_parser *parser) {
    const char *p = (const char *)parser->arena;
    const char *end = p + parser->arena_used;
    char *out = (char *)parser->arena;
    for (;;) {
        while (p < end && isspace((unsigned char)*p)) p++;
        if (p == end) break;
        char *word = out;
        if (!resp_decode_word(&p, end, &out)) {
            fail(parser, "unbalanced quotes in request");
            return;
        }
        if (!push_argument(parser, (const uint8_t *)word, (size_t)(out - word), NULL)) {
            refuse(parser, RESP_OUT_OF_MEMORY);
            break;
        }
        parser->request_bytes += (size_t)(out - word);
    }
    if (parser->count > 0 || parser->refusal != RESP_ACCEPTED)
        parser->state = RESP_STATE_REQUEST;
    else
        resp_parser_next(parser); /* an empty line asks for nothing */
}

static size_t feed_inline(struct resp_parser *parser, const uint8_t *data, size_t length) {
    size_t room = parser->limits->max_inline_bytes - parser->arena_used;
    size_t looked = length < room ? length : room;
    const uint8_t *end = memchr(data, '\n', looked);
    size_t taken = end ? (size_t)(end - data) + 1 : looked;
    if (!arena_reserve(parser, taken)) {
        fail(parser, "out of memory for an inline request");
        return taken;
    }
    memcpy(parser->arena + parser->arena_used, data, taken);
    parser->arena_used += taken;
    if (end)
        split_inline(parser);
    else if (parser->arena_used == parser->limits->max_inline_bytes)
        fail(parser, "too big inline request");
    return taken;
}

static size_t feed_bulk_start(struct resp_parser *parser, const uint8_t *data) {
    if (*data != '$') {
        char what[48];
        if (isprint(*data))
            snprintf(what, sizeof what, "expected '$', got '%c'", *data);
        else
            snprintf(what, sizeof what, "expected '$', got byte 0x%02x", *data);
        fail(parser, what);
        return 0;
    }
    parser->state = RESP_STATE_BULK_LINE;
    return 1;
}

static size_t feed_start(struct resp_parser *parser, const uint8_t *data) {
    if (*data == '*') {
        parser->state = RESP_STATE_MULTIBULK_LINE;
        return 1;
    }
    parser->state = RESP_STATE_INLINE;
    return 0;
}

enum resp_status resp_parser_feed(struct resp_parser *parser, const uint8_t *data, size_t length, size_t *consumed) {
    assert(parser->state != RESP_STATE_REQUEST);
    if (length > 0 && parser->state == RESP_STATE_START && *data == '*') {
        *consumed = resp_parse_fast(parser, data, length);
        if (*consumed > 0) return RESP_REQUEST;
    }
    size_t at = 0;
    while (at < length && parser->state != RESP_STATE_REQUEST && parser->state != RESP_STATE_ERROR) {
        const uint8_t *here = data + at;
        size_t left = length - at;
        switch (parser->state) {
        case RESP_STATE_START: at += feed_start(parser, here); break;
        case RESP_STATE_MULTIBULK_LINE: at += feed_multibulk_line(parser, here, left); break;
        case RESP_STATE_INLINE: at += feed_inline(parser, here, left); break;
        case RESP_STATE_BULK_START: at += feed_bulk_start(parser, here); break;
        case RESP_STATE_BULK_LINE: at += feed_bulk_line(parser, here, left); break;
        case RESP_STATE_BULK: at += feed_bulk(parser, here, left); break;
        case RESP_STATE_LANDING: at += feed_landing(parser, here, left); break;
        case RESP_STATE_BULK_END: at += feed_bulk_end(parser, here, left); break;
        case RESP_STATE_REQUEST:
        case RESP_STATE_ERROR: break;
        }
    }
    *consumed = at;
    switch (parser->state) {
    case RESP_STATE_REQUEST: return RESP_REQUEST;
    case RESP_STATE_ERROR: return RESP_PROTOCOL_ERROR;
    case RESP_STATE_LANDING: return RESP_LANDING;
    default: return RESP_NEED_MORE;
    }
}

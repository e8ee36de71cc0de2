/* test_parse: requests of every form and cut, large arguments where they land, limits, and the wording of errors. */
#include <string.h>

#include "base/memory.h"
#include "check.h"
#include "resp/parse.h"

static struct resp_limits limits = {
    .max_request_bytes = 1 << 20, .max_bulk_bytes = 1 << 19, .max_arguments = 1000, .max_inline_bytes = 65536};

static struct resp_parser parser;

static void begin(resp_land land, void *context) {
    resp_parser_init(&parser, &limits, land, context);
}

/* Feeds all of the text in pieces; the status after the last. */
static enum resp_status feed(const char *text, size_t length, size_t piece) {
    enum resp_status status = RESP_NEED_MORE;
    for (size_t at = 0; at < length;) {
        size_t consumed;
        size_t given = length - at < piece ? length - at : piece;
        status = resp_parser_feed(&parser, (const uint8_t *)text + at, given, &consumed);
        at += consumed;
        if (status == RESP_REQUEST || status == RESP_PROTOCOL_ERROR) {
            CHECK(status == RESP_PROTOCOL_ERROR || at == length);
            return status;
        }
        CHECK(consumed == given);
    }
    return status;
}

static bool argument_equals(uint32_t index, const char *text) {
    const struct resp_argument *argument = &parser.arguments[index];
    return index < parser.count && argument->length == strlen(text) &&
           memcmp(argument->data, text, argument->length) == 0;
}

static void a_request_may_come_in_any_pieces(void) {
    static const char request[] = "*4\r\n$3\r\nSET\r\n$3\r\nkey\r\n$0\r\n\r\n$7\r\na\r\nb\r\nc\r\n";
    for (size_t piece = 1; piece <= sizeof request; piece++) {
        begin(NULL, NULL);
        for (int again = 0; again < 3; again++) {
            CHECK(feed(request, sizeof request - 1, piece) == RESP_REQUEST);
            CHECK(parser.count == 4 && argument_equals(0, "SET") && argument_equals(1, "key") &&
                  argument_equals(2, "") && argument_equals(3, "a\r\nb\r\nc"));
            resp_parser_next(&parser);
        }
        resp_parser_free(&parser);
    }
}

static void arguments_stay_valid_while_the_arena_grows(void) {
    static char message[300000];
    size_t length = (size_t)sprintf(message, "*500\r\n");
    for (int i = 0; i < 500; i++) {
        length += (size_t)sprintf(message + length, "$%d\r\n", i);
        memset(message + length, 'a' + i % 26, (size_t)i);
        length += (size_t)i;
        length += (size_t)sprintf(message + length, "\r\n");
    }
    begin(NULL, NULL);
    CHECK(feed(message, length, 777) == RESP_REQUEST && parser.count == 500);
    for (uint32_t i = 0; i < 500; i++) {
        CHECK(parser.arguments[i].length == i);
        for (uint32_t j = 0; j < i; j++) CHECK(parser.arguments[i].data[j] == 'a' + i % 26);
    }
    resp_parser_next(&parser);
    CHECK(resp_parser_held_bytes(&parser) < 10000); /* a large request's memory is given back */
    resp_parser_free(&parser);
}

static void inline_commands_are_split_as_redis_splits_them(void) {
    static const struct {
        const char *line;
        uint32_t count;
        const char *first, *last;
    } cases[] = {
        {"PING\r\n", 1, "PING", "PING"},
        {"  set  k \t v\n", 3, "set", "v"},
        {"set k \"a \\x41\\n\\\"b\"\r\n", 3, "set", "a A\n\"b"},
        {"set k 'it\\'s \\n'\r\n", 3, "set", "it's \\n"},
        {"get \"\"\r\n", 2, "get", ""},
        {"a x\"b c\"\r\n", 2, "a", "xb c"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t piece = 1; piece < 20; piece++) {
            begin(NULL, NULL);
            CHECK(feed(cases[i].line, strlen(cases[i].line), piece) == RESP_REQUEST);
            CHECK(parser.count == cases[i].count && argument_equals(0, cases[i].first) &&
                  argument_equals(parser.count - 1, cases[i].last));
            resp_parser_free(&parser);
        }
    }
}

static void empty_requests_are_passed_over(void) {
    static const char stream[] = "\r\n*0\r\n*-1\r\n   \r\n*1\r\n$4\r\nPING\r\n";
    begin(NULL, NULL);
    CHECK(feed(stream, sizeof stream - 1, 3) == RESP_REQUEST);
    CHECK(parser.count == 1 && argument_equals(0, "PING"));
    resp_parser_free(&parser);
}

static void malformed_requests_are_named(void) {
    static const struct {
        const char *stream, *error;
    } cases[] = {
        {"*x\r\n", "Protocol error: invalid multibulk length"},
        {"*\r\n", "Protocol error: invalid multibulk length"},
        {"*1 \r\n", "Protocol error: invalid multibulk length"},
        {"*01\r\n", "Protocol error: invalid multibulk length"},
        {"*1001\r\n", "Protocol error: invalid multibulk length"},
        {"*99999999999999999999\r\n", "Protocol error: invalid multibulk length"},
        {"*1\n", "Protocol error: invalid multibulk length"},
        {"*11111111111111111111111111111111111111111", "Protocol error: invalid multibulk length"},
        {"*1\r\nPING\r\n", "Protocol error: expected '$', got 'P'"},
        {"*1\r\n:1\r\n", "Protocol error: expected '$', got ':'"},
        {"*1\r\n\x01", "Protocol error: expected '$', got byte 0x01"},
        {"*1\r\n$-1\r\n", "Protocol error: invalid bulk length"},
        {"*1\r\n$4x\r\n", "Protocol error: invalid bulk length"},
        {"*1\r\n$524289\r\n", "Protocol error: invalid bulk length"},
        {"*1\r\n$4\r\nPINGxx", "Protocol error: expected CRLF after bulk string"},
        {"*1\r\n$4\r\nPING\rx", "Protocol error: expected CRLF after bulk string"},
        {"get 'a\r\n", "Protocol error: unbalanced quotes in request"},
        {"get \"a\"b\r\n", "Protocol error: unbalanced quotes in request"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t piece = 1; piece < 9; piece += 7) {
            begin(NULL, NULL);
            CHECK(feed(cases[i].stream, strlen(cases[i].stream), piece) == RESP_PROTOCOL_ERROR);
            CHECK(strcmp(parser.error, cases[i].error) == 0);
            resp_parser_free(&parser);
        }
    }
    static char endless[70000];
    memset(endless, 'a', sizeof endless);
    begin(NULL, NULL);
    CHECK(feed(endless, sizeof endless, 1000) == RESP_PROTOCOL_ERROR);
    CHECK(strcmp(parser.error, "Protocol error: too big inline request") == 0);
    resp_parser_free(&parser);
}

static void what_is_exactly_at_a_limit_is_taken(void) {
    static char request[(1 << 19) + 64], inline_request[65536];
    size_t head = (size_t)sprintf(request, "*1\r\n$%d\r\n", 1 << 19);
    memset(request + head, 'b', 1 << 19);
    memcpy(request + head + (1 << 19), "\r\n", 2);
    begin(NULL, NULL);
    CHECK(feed(request, head + (1 << 19) + 2, 4096) == RESP_REQUEST);
    CHECK(parser.count == 1 && parser.arguments[0].length == 1 << 19);
    resp_parser_free(&parser);
    size_t many = (size_t)sprintf(request, "*1000\r\n");
    for (int i = 0; i < 1000; i++) many += (size_t)sprintf(request + many, "$1\r\na\r\n");
    begin(NULL, NULL);
    CHECK(feed(request, many, 4096) == RESP_REQUEST && parser.count == 1000);
    resp_parser_free(&parser);
    memset(inline_request, 'c', sizeof inline_request);
    memcpy(inline_request + sizeof inline_request - 2, "\r\n", 2);
    begin(NULL, NULL);
    CHECK(feed(inline_request, sizeof inline_request, 4096) == RESP_REQUEST);
    CHECK(parser.arguments[0].length == sizeof inline_request - 2);
    resp_parser_free(&parser);
}

static void announced_sizes_cost_nothing_until_they_come(void) {
    size_t before = memory_used_bytes();
    begin(NULL, NULL);
    CHECK(feed("*1000\r\n", 7, 7) == RESP_NEED_MORE);
    CHECK(memory_used_bytes() == before && resp_parser_midway(&parser));
    resp_parser_free(&parser);
}

/* ---- large arguments --------------------------------------------------------------------------------- */

struct landing_plan {
    struct resp_landing landing;
    uint32_t asked, index, count;
    size_t length;
};

static void land(void *context, const struct resp_argument *arguments, uint32_t index, uint32_t count, size_t length,
                 struct resp_landing *landing) {
    struct landing_plan *plan = context;
    CHECK(landing->kind == RESP_LAND_BLOB);
    CHECK(arguments[0].length == 3 && memcmp(arguments[0].data, "ADD", 3) == 0);
    plan->asked++;
    plan->index = index;
    plan->count = count;
    plan->length = length;
    *landing = plan->landing;
}

#define LARGE 40960u

static char large_request[LARGE + 100];
static size_t large_request_length;
static uint8_t large_value[LARGE];

static void make_large_request(void) {
    for (size_t i = 0; i < LARGE; i++) large_value[i] = (uint8_t)(i * 7 + i / 256);
    large_request_length = (size_t)sprintf(large_request, "*3\r\n$3\r\nADD\r\n$%u\r\n", LARGE);
    memcpy(large_request + large_request_length, large_value, LARGE);
    large_request_length += LARGE;
    large_request_length += (size_t)sprintf(large_request + large_request_length, "\r\n$3\r\nend\r\n");
}

/* As a socket would be read: to where the parser says, at most `piece` bytes at a time. */
static enum resp_status feed_directly(size_t piece) {
    enum resp_status status = RESP_NEED_MORE;
    for (size_t at = 0; at < large_request_length;) {
        size_t left = large_request_length - at < piece ? large_request_length - at : piece;
        struct iovec vectors[4];
        int count = status == RESP_LANDING ? resp_parser_landing(&parser, left, vectors, 4) : 0;
        size_t got = 0;
        for (int i = 0; i < count; i++) {
            memcpy(vectors[i].iov_base, large_request + at + got, vectors[i].iov_len);
            got += vectors[i].iov_len;
        }
        CHECK(got <= left);
        if (got > 0) resp_parser_landed(&parser, got);
        at += got;
        size_t consumed;
        status = resp_parser_feed(&parser, (const uint8_t *)large_request + at, got > 0 ? 0 : left, &consumed);
        at += consumed;
    }
    return status;
}

static void a_large_argument_lands_in_a_blob(void) {
    size_t before = memory_used_bytes();
    for (int way = 0; way < 2; way++) {
        begin(NULL, NULL);
        enum resp_status status = way == 0 ? feed(large_request, large_request_length, 999) : feed_directly(999);
        CHECK(status == RESP_REQUEST && parser.count == 3 && argument_equals(2, "end"));
        struct blob *blob = parser.arguments[1].blob;
        CHECK(blob && blob->length == LARGE && memcmp(blob->data, large_value, LARGE) == 0 &&
              !parser.arguments[0].blob);
        blob_retain(blob);
        resp_parser_next(&parser);
        CHECK(memcmp(blob->data, large_value, LARGE) == 0); /* kept by whoever retains it */
        blob_release(blob);
        resp_parser_free(&parser);
    }
    CHECK(memory_used_bytes() == before);
}

static void a_large_argument_is_scattered_over_slots(void) {
    static const size_t item_sizes[] = {16, 2048, 4096};
    static uint8_t storage[8 * LARGE];
    static uint32_t slots[LARGE / 16];
    for (size_t s = 0; s < 3; s++) {
        size_t item = item_sizes[s], items = LARGE / item;
        for (size_t stride = item; stride <= item + 64; stride += 64) {
            for (int way = 0; way < 2; way++) {
                for (uint32_t i = 0; i < items; i++) /* the first half in order, the second backwards */
                    slots[i] = i < items / 2 ? i : (uint32_t)(items - 1 - (i - items / 2));
                memset(storage, 0, sizeof storage);
                struct landing_plan plan = {.landing = {.kind = RESP_LAND_SCATTER,
                                                        .base = storage,
                                                        .stride = stride,
                                                        .item_bytes = item,
                                                        .slots = slots}};
                begin(land, &plan);
                CHECK((way == 0 ? feed(large_request, large_request_length, 1013) : feed_directly(5000)) ==
                      RESP_REQUEST);
                CHECK(plan.asked == 1 && plan.index == 1 && plan.count == 3 && plan.length == LARGE);
                CHECK(parser.count == 3 && !parser.arguments[1].data && !parser.arguments[1].blob &&
                      parser.arguments[1].length == LARGE && argument_equals(2, "end"));
                for (size_t i = 0; i < items; i++)
                    CHECK(memcmp(storage + slots[i] * stride, large_value + i * item, item) == 0);
                resp_parser_free(&parser);
            }
        }
    }
}

static void a_discarded_argument_keeps_the_stream_in_step(void) {
    size_t before = memory_used_bytes();
    struct landing_plan plan = {.landing = {.kind = RESP_LAND_DISCARD}};
    begin(land, &plan);
    CHECK(feed_directly(70000) == RESP_REQUEST);
    CHECK(parser.count == 3 && !parser.arguments[1].data && parser.arguments[1].length == LARGE &&
          argument_equals(2, "end"));
    resp_parser_next(&parser);
    CHECK(feed("*1\r\n$4\r\nPING\r\n", 14, 14) == RESP_REQUEST && argument_equals(0, "PING"));
    resp_parser_free(&parser);
    CHECK(memory_used_bytes() == before);
}

static void a_request_beyond_the_limit_is_followed_but_not_kept(void) {
    struct resp_limits small = limits;
    small.max_request_bytes = 1000;
    resp_parser_init(&parser, &small, NULL, NULL);
    size_t before = memory_used_bytes();
    CHECK(feed_directly(3000) == RESP_REQUEST);
    CHECK(parser.refusal == RESP_REQUEST_TOO_LARGE && parser.request_bytes == LARGE + 6);
    CHECK(memory_used_bytes() < before + 2000);
    resp_parser_next(&parser);
    CHECK(feed("*1\r\n$4\r\nPING\r\n", 14, 14) == RESP_REQUEST && parser.refusal == RESP_ACCEPTED &&
          argument_equals(0, "PING"));
    resp_parser_free(&parser);
}

static void freeing_midway_releases_everything(void) {
    size_t before = memory_used_bytes();
    for (size_t cut = 0; cut < large_request_length; cut += 37) {
        begin(NULL, NULL);
        feed(large_request, cut, 4096);
        resp_parser_free(&parser);
        CHECK(memory_used_bytes() == before);
    }
}

int main(void) {
    make_large_request();
    RUN(a_request_may_come_in_any_pieces);
    RUN(arguments_stay_valid_while_the_arena_grows);
    RUN(inline_commands_are_split_as_redis_splits_them);
    RUN(empty_requests_are_passed_over);
    RUN(malformed_requests_are_named);
    RUN(what_is_exactly_at_a_limit_is_taken);
    RUN(announced_sizes_cost_nothing_until_they_come);
    RUN(a_large_argument_lands_in_a_blob);
    RUN(a_large_argument_is_scattered_over_slots);
    RUN(a_discarded_argument_keeps_the_stream_in_step);
    RUN(a_request_beyond_the_limit_is_followed_but_not_kept);
    RUN(freeing_midway_releases_everything);
    return 0;
}

/* test_load: replies followed to their ends however they are cut, errors counted; latencies within half a per cent. */
#include <string.h>

#include "check.h"
#include "tools/latency.h"
#include "tools/reply_reader.h"

/* Feeds the text in pieces; how many replies ended. Every byte must have been taken. */
static int feed(struct reply_reader *reader, const char *text, size_t length, size_t piece) {
    int complete = 0;
    for (size_t at = 0; at < length;) {
        size_t given = length - at < piece ? length - at : piece, consumed;
        enum reply_status status = reply_reader_feed(reader, (const uint8_t *)text + at, given, &consumed);
        CHECK(status != REPLY_MALFORMED);
        CHECK(consumed > 0 && consumed <= given);
        CHECK(status == REPLY_COMPLETE || consumed == given);
        complete += status == REPLY_COMPLETE;
        at += consumed;
    }
    return complete;
}

static void a_reply_may_come_in_any_pieces(void) {
    static const char text[] = "+OK\r\n:12\r\n$-1\r\n$0\r\n\r\n$5\r\na\r\n+b\r\n*0\r\n*-1\r\n"
                               "*3\r\n:1\r\n*2\r\n$3\r\n*1\r\r\n+x\r\n$4\r\n-ERR\r\n";
    for (size_t piece = 1; piece <= sizeof text; piece++) {
        struct reply_reader reader = {0};
        CHECK(feed(&reader, text, sizeof text - 1, piece) == 8);
        CHECK(reader.errors == 0 && reader.depth == 0 && reader.bulk_left == 0);
    }
}

static void errors_are_counted_wherever_they_stand(void) {
    static const char text[] = "-ERR one\r\n*2\r\n-WRONGTYPE two\r\n+OK\r\n+OK\r\n";
    struct reply_reader reader = {0};
    CHECK(feed(&reader, text, sizeof text - 1, 3) == 3);
    CHECK(reader.errors == 2);
    CHECK(strcmp(reader.first_error, "ERR one") == 0);
}

static void the_text_of_a_long_error_is_cut(void) {
    static char text[1000] = "-ERR ";
    memset(text + 5, 'x', sizeof text - 7);
    memcpy(text + sizeof text - 2, "\r\n", 2);
    for (size_t piece = 1; piece <= sizeof text; piece += 37) {
        struct reply_reader reader = {0};
        CHECK(feed(&reader, text, sizeof text, piece) == 1);
        CHECK(reader.errors == 1 && strncmp(reader.first_error, "ERR xxxx", 8) == 0);
        CHECK(strlen(reader.first_error) == REPLY_LINE_BYTES - 2);
    }
}

static void what_is_no_reply_is_refused(void) {
    static const char *const wrong[] = {"HTTP/1.1 400\r\n", "$x\r\n", "$-2\r\n", "*1x\r\n", "\r\n", "%1\r\n"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct reply_reader reader = {0};
        size_t consumed;
        CHECK(reply_reader_feed(&reader, (const uint8_t *)wrong[i], strlen(wrong[i]), &consumed) == REPLY_MALFORMED);
    }
    struct reply_reader reader = {0};
    size_t consumed;
    for (int i = 0; i < REPLY_DEPTH; i++)
        CHECK(reply_reader_feed(&reader, (const uint8_t *)"*2\r\n", 4, &consumed) == REPLY_MORE);
    CHECK(reply_reader_feed(&reader, (const uint8_t *)"*2\r\n", 4, &consumed) == REPLY_MALFORMED);
}

static void quantiles_are_within_half_a_per_cent(void) {
    static struct latency latency;
    CHECK(latency_quantile(&latency, 0.5) == 0);
    for (uint64_t ns = 1; ns <= 1000000; ns++) latency_record(&latency, ns * 7);
    static const double quantiles[] = {0.001, 0.5, 0.9, 0.99, 0.999, 1};
    for (size_t i = 0; i < sizeof quantiles / sizeof *quantiles; i++) {
        double exact = quantiles[i] * 7e6, found = (double)latency_quantile(&latency, quantiles[i]);
        CHECK(found > exact * 0.995 && found < exact * 1.005);
    }
    CHECK(latency.count == 1000000 && latency.min_ns == 7 && latency.max_ns == 7000000);
}

static void the_extremes_have_buckets(void) {
    static struct latency latency;
    latency_record(&latency, 0);
    CHECK(latency_quantile(&latency, 0.5) == 0);
    latency_record(&latency, UINT64_MAX);
    CHECK(latency_quantile(&latency, 0) == 0);
    struct text out = {0};
    latency_append(&latency, "us", &out);
    CHECK(out.data && strncmp(out.data, "\"us_p50\":0.000,", 15) == 0);
    text_free(&out);
}

int main(void) {
    RUN(a_reply_may_come_in_any_pieces);
    RUN(errors_are_counted_wherever_they_stand);
    RUN(the_text_of_a_long_error_is_cut);
    RUN(what_is_no_reply_is_refused);
    RUN(quantiles_are_within_half_a_per_cent);
    RUN(the_extremes_have_buckets);
    return 0;
}

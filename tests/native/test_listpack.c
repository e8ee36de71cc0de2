/* test_listpack: elements packed and unpacked, their bytes as Redis writes them, and what is no listpack. */
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "check.h"
#include "store/listpack.h"

static void check_bytes(const char *text, const uint8_t *expected, size_t length) {
    uint8_t bytes[64];
    size_t text_length = strlen(text);
    CHECK(listpack_string_bytes((const uint8_t *)text, text_length) == length);
    CHECK(listpack_put_string(bytes, (const uint8_t *)text, text_length) == bytes + length);
    CHECK(memcmp(bytes, expected, length) == 0);
}
#define CHECK_BYTES(text, ...) check_bytes(text, (const uint8_t[]){__VA_ARGS__}, sizeof (const uint8_t[]){__VA_ARGS__})

static void elements_have_the_bytes_that_redis_gives_them(void) {
    CHECK_BYTES("", 0x80, 1);
    CHECK_BYTES("hello", 0x85, 'h', 'e', 'l', 'l', 'o', 6);
    CHECK_BYTES("0", 0, 1);
    CHECK_BYTES("127", 127, 1);
    CHECK_BYTES("128", 0xc0, 0x80, 2);
    CHECK_BYTES("-1", 0xdf, 0xff, 2);
    CHECK_BYTES("-4096", 0xd0, 0, 2);
    CHECK_BYTES("4096", 0xf1, 0, 0x10, 3);
    CHECK_BYTES("32768", 0xf2, 0, 0x80, 0, 4);
    CHECK_BYTES("-8388609", 0xf3, 0xff, 0xff, 0x7f, 0xff, 5);
    CHECK_BYTES("2147483648", 0xf4, 0, 0, 0, 0x80, 0, 0, 0, 0, 9);
    CHECK_BYTES("01", 0x82, '0', '1', 3);
    CHECK_BYTES("-0", 0x82, '-', '0', 3);
}

static void what_is_packed_is_unpacked_in_both_directions(void) {
    static const int64_t integers[] = {
        0,      1,      127,     128,     -1,       -4096,    -4097,     4095,      4096,       32767,     32768,
        -32768, -32769, 8388607, 8388608, -8388608, -8388609, INT32_MAX, INT32_MIN, 2147483648, INT64_MAX, INT64_MIN};
    static const size_t lengths[] = {0, 1, 63, 64, 125, 126, 127, 4095, 4096, 16380, 16381, 16383, 2097147, 2097151};
    size_t integer_count = sizeof integers / sizeof *integers, string_count = sizeof lengths / sizeof *lengths;
    size_t capacity = 8u << 20;
    uint8_t *listpack = memory_alloc(capacity), *string = memory_calloc(1, 2097151);
    uint8_t *at = listpack + LISTPACK_HEAD_BYTES;
    memset(string, 'x', 2097151);
    for (size_t i = 0; i < integer_count; i++) {
        uint8_t *next = listpack_put_integer(at, integers[i]);
        CHECK((size_t)(next - at) == listpack_integer_bytes(integers[i]));
        at = next;
    }
    for (size_t i = 0; i < string_count; i++) {
        uint8_t *next = listpack_put_string(at, string, lengths[i]);
        CHECK((size_t)(next - at) == listpack_string_bytes(string, lengths[i]));
        at = next;
    }
    *at = LISTPACK_END;
    size_t bytes = (size_t)(at + 1 - listpack);
    listpack_set_head(listpack, bytes, integer_count + string_count);
    CHECK(listpack_is_whole(listpack, bytes) && listpack_bytes(listpack) == bytes);
    CHECK(listpack_count(listpack) == integer_count + string_count);
    const uint8_t *end = at, *next = listpack_first(listpack);
    struct listpack_element element;
    for (size_t i = 0; i < integer_count + string_count; i++) {
        const uint8_t *here = next;
        next = listpack_get(here, &element);
        CHECK(listpack_next(here) == next && listpack_previous(next) == here);
        CHECK(element.is_integer == (i < integer_count));
        if (element.is_integer) {
            char text[LISTPACK_INTEGER_TEXT];
            size_t length;
            CHECK(element.integer == integers[i]);
            const uint8_t *digits = listpack_text(&element, text, &length);
            CHECK(listpack_equals(&element, digits, length) && !listpack_equals(&element, digits, length - 1));
        } else {
            CHECK(listpack_equals(&element, string, lengths[i - integer_count]));
        }
    }
    CHECK(next == end && listpack_is_end(next));
    memory_free(listpack);
    memory_free(string);
}

static void damaged_bytes_are_no_listpack(void) {
    uint8_t listpack[64], *at = listpack + LISTPACK_HEAD_BYTES;
    struct random_state random;
    random_seed(&random, 7);
    at = listpack_put_string(at, (const uint8_t *)"field", 5);
    at = listpack_put_integer(at, 70000);
    *at++ = LISTPACK_END;
    size_t length = (size_t)(at - listpack);
    listpack_set_head(listpack, length, 2);
    CHECK(listpack_is_whole(listpack, length));
    CHECK(!listpack_is_whole(listpack, length - 1));
    unsigned refused = 0;
    for (int round = 0; round < 20000; round++) {
        /* In a block of its own size, so that a read beyond it is noticed. */
        uint8_t *damaged = memory_alloc(length);
        memcpy(damaged, listpack, length);
        damaged[random_next(&random) % length] = (uint8_t)random_next(&random);
        if (!listpack_is_whole(damaged, length)) {
            refused++;
        } else {
            struct listpack_element element;
            for (const uint8_t *each = listpack_first(damaged); !listpack_is_end(each);)
                each = listpack_get(each, &element);
        }
        memory_free(damaged);
    }
    CHECK(refused > 10000);
    listpack_set_head(listpack, length, 3);
    CHECK(!listpack_is_whole(listpack, length));
    listpack_set_head(listpack, length, LISTPACK_UNCOUNTED);
    CHECK(listpack_is_whole(listpack, length) && listpack_count(listpack) == 2);
}

int main(void) {
    RUN(elements_have_the_bytes_that_redis_gives_them);
    RUN(what_is_packed_is_unpacked_in_both_directions);
    RUN(damaged_bytes_are_no_listpack);
    return 0;
}

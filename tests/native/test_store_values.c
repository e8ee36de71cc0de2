/* test_store_values: numbers, strings, lists and hashes, each against a plain model of it. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "check.h"
#include "store/t_hash.h"
#include "store/t_list.h"
#include "store/t_string.h"

static const uint8_t *bytes_of(const char *text) {
    return (const uint8_t *)text;
}

static struct value *text_value(const char *text) {
    return string_new(bytes_of(text), strlen(text), NULL);
}

static bool is_text(const struct value *value, const char *text) {
    struct string_view view;
    string_view(value, &view);
    return view.length == strlen(text) && memcmp(view.data, text, view.length) == 0;
}

/* ---- numbers ---- */

static bool parses(const char *text, int64_t expected) {
    int64_t value;
    return number_parse_int64(bytes_of(text), strlen(text), &value) && value == expected;
}

static bool refuses(const char *text) {
    int64_t value;
    return !number_parse_int64(bytes_of(text), strlen(text), &value);
}

static void only_canonical_integers_are_integers(void) {
    CHECK(parses("0", 0) && parses("-1", -1) && parses("9223372036854775807", INT64_MAX));
    CHECK(parses("-9223372036854775808", INT64_MIN));
    CHECK(refuses("") && refuses("-") && refuses("-0") && refuses("01") && refuses("+1") && refuses(" 1"));
    CHECK(refuses("1 ") && refuses("9223372036854775808") && refuses("-9223372036854775809"));
    CHECK(refuses("99999999999999999999") && refuses("1e3") && refuses("0x1"));
    char text[NUMBER_INT64_TEXT];
    CHECK(number_format_int64(INT64_MIN, text) == 20 && strcmp(text, "-9223372036854775808") == 0);
    CHECK(number_format_int64(0, text) == 1 && strcmp(text, "0") == 0);
}

static bool formats(const char *text, const char *expected) {
    long double value;
    char formatted[NUMBER_LONG_DOUBLE_TEXT];
    if (!number_parse_long_double(bytes_of(text), strlen(text), &value)) return false;
    size_t length = number_format_long_double(value, formatted);
    return length == strlen(expected) && strcmp(formatted, expected) == 0;
}

static void floats_are_written_short_and_without_exponent(void) {
    CHECK(formats("10.50", "10.5") && formats("3.0e3", "3000") && formats("-0", "0") && formats("5", "5"));
    CHECK(formats("0.1", "0.1") && formats("inf", "inf") && formats("-inf", "-inf"));
    long double value;
    double score;
    CHECK(number_parse_double(bytes_of("-123456789012345"), 16, &score) && score == -123456789012345.0);
    CHECK(number_parse_double(bytes_of("123456789012345"), 15, &score) && score == 123456789012345.0);
    CHECK(!number_parse_long_double(bytes_of("nan"), 3, &value));
    CHECK(!number_parse_long_double(bytes_of(" 1"), 2, &value) && !number_parse_long_double(bytes_of("1 "), 2, &value));
    CHECK(!number_parse_long_double(bytes_of(""), 0, &value) && !number_parse_long_double(bytes_of("1\0"), 2, &value));
    CHECK(!number_parse_long_double(bytes_of("1e99999"), 7, &value));
}

/* ---- strings ---- */

static void strings_keep_their_bytes_in_every_encoding(void) {
    struct value *integer = text_value("123"), *text = text_value("0123");
    CHECK(integer->encoding == ENCODING_INTEGER && is_text(integer, "123"));
    CHECK(text->encoding == ENCODING_BYTES && is_text(text, "0123"));
    struct blob *blob = blob_new(STRING_BLOB_BYTES);
    memset(blob->data, 'x', blob->length);
    struct value *large = string_new(blob->data, blob->length, blob);
    struct string_view view;
    string_view(large, &view);
    CHECK(large->encoding == ENCODING_BLOB && view.blob == blob && blob->references == 2);
    blob_release(blob);
    struct value *copied = string_new(view.data, view.length, NULL);
    CHECK(copied->encoding == ENCODING_BLOB && string_length(copied) == STRING_BLOB_BYTES);
    string_free(integer);
    string_free(text);
    string_free(large);
    string_free(copied);
}

static void a_string_being_sent_is_not_changed_by_a_write(void) {
    struct value *value = NULL;
    memcpy(string_writable(&value, 5), "first", 5);
    struct string_view view;
    string_view(value, &view);
    struct blob *sent = blob_retain(view.blob);
    memcpy(string_writable(&value, 11) + 5, " place", 6);
    CHECK(is_text(value, "first place") && sent->length == 5 && memcmp(sent->data, "first", 5) == 0);
    blob_release(sent);
    string_view(value, &view);
    string_writable(&value, 13);
    CHECK(((struct string_blob *)value)->blob == view.blob);
    CHECK(string_length(value) == 13 && view.blob->data[11] == 0 && view.blob->data[12] == 0);
    string_free(value);
}

/* ---- lists ---- */

static void check_list(const struct list *list, const int *model, uint64_t length) {
    char text[16];
    CHECK(list_length(list) == length);
    if (length == 0) return;
    struct list_position position = list_at(list, 0);
    for (uint64_t i = 0; i < length; i++) {
        snprintf(text, sizeof text, "e%d", model[i]);
        CHECK(is_text(*list_element(position), text));
        CHECK(list_element(list_at(list, i)) == list_element(position));
        CHECK(list_step(&position, false) == (i + 1 < length));
    }
    position = list_at(list, length - 1);
    for (uint64_t i = length; i > 0; i--) CHECK(list_step(&position, true) == (i > 1));
}

static void lists_behave_like_an_array(void) {
    enum { LARGEST = 1500 };
    static int model[LARGEST];
    struct random_state random;
    random_seed(&random, 3);
    struct list *list = list_new();
    uint64_t length = 0;
    char text[16];
    for (int step = 0; step < 30000; step++) {
        bool growing = step / 3000 % 2 == 0;
        uint64_t action = random_below(&random, 10);
        uint64_t at = length > 0 ? random_below(&random, length) : 0;
        snprintf(text, sizeof text, "e%d", step);
        if (length == 0 || (length < LARGEST && action < (growing ? 7u : 3u))) {
            if (action == 0 && length > 0) {
                CHECK(list_insert(list, list_at(list, at), true, text_value(text)));
                at++;
            } else if (action == 1 && length > 0) {
                CHECK(list_insert(list, list_at(list, at), false, text_value(text)));
            } else {
                bool at_head = action % 2;
                CHECK(list_push(list, at_head, text_value(text)));
                at = at_head ? 0 : length;
            }
            memmove(model + at + 1, model + at, (length - at) * sizeof model[0]);
            model[at] = step;
            length++;
        } else {
            struct value *gone;
            if (action == 9) {
                struct list_position position = list_at(list, at);
                bool backwards = random_below(&random, 2), more;
                gone = list_remove(list, &position, backwards, &more);
                CHECK(more == (backwards ? at > 0 : at + 1 < length));
                uint64_t neighbour = backwards ? at - 1 : at + 1;
                snprintf(text, sizeof text, "e%d", more ? model[neighbour] : 0);
                CHECK(!more || is_text(*list_element(position), text));
            } else {
                bool at_head = action % 2;
                gone = list_pop(list, at_head);
                at = at_head ? 0 : length - 1;
            }
            snprintf(text, sizeof text, "e%d", model[at]);
            CHECK(is_text(gone, text));
            string_free(gone);
            memmove(model + at, model + at + 1, (length - at - 1) * sizeof model[0]);
            length--;
        }
        if (step % 50 == 0) check_list(list, model, length);
    }
    value_free(&list->head);
}

static void trimming_drops_from_either_end(void) {
    struct list *list = list_new(), *dropped = list_new();
    static int model[1000];
    char text[16];
    for (int i = 0; i < 1000; i++) {
        model[i] = i;
        snprintf(text, sizeof text, "e%d", i);
        CHECK(list_push(list, false, text_value(text)));
    }
    list_drop(list, true, 300, dropped);
    list_drop(list, false, 299, dropped);
    check_list(list, model + 300, 401);
    CHECK(list_length(dropped) > 256);
    value_free(&list->head);
    value_free(&dropped->head);
}

static void a_list_used_as_a_queue_stays_small(void) {
    size_t before = memory_used_bytes();
    struct list *list = list_new();
    for (int i = 0; i < 100000; i++) {
        CHECK(list_push(list, true, text_value("element")));
        if (i >= 3) string_free(list_pop(list, false));
    }
    CHECK(memory_used_bytes() - before < 2048);
    value_free(&list->head);
}

/* ---- hashes ---- */

static void hashes_behave_like_a_map(void) {
    enum { FIELDS = 400 };
    static char model[FIELDS][128];
    struct random_state random;
    random_seed(&random, 5);
    struct hash *hash = hash_new();
    struct string_view view;
    size_t count = 0;
    bool was_packed = false;
    for (int step = 0; step < 20000; step++) {
        char field[16], value[128];
        int number = (int)random_below(&random, step < 5000 ? 100 : FIELDS);
        size_t length = (size_t)snprintf(field, sizeof field, "f%d", number);
        CHECK(hash_get(hash, bytes_of(field), length, &view) == (model[number][0] != '\0'));
        if (model[number][0] != '\0')
            CHECK(view.length == strlen(model[number]) && memcmp(view.data, model[number], view.length) == 0);
        if (random_below(&random, 3) == 0) {
            CHECK(hash_delete(hash, bytes_of(field), length) == (model[number][0] != '\0'));
            count -= model[number][0] != '\0';
            model[number][0] = '\0';
        } else {
            size_t width = random_below(&random, step < 5000 ? 60 : 120) + 1;
            memset(value, 'a' + step % 26, width);
            value[width] = '\0';
            bool added = model[number][0] == '\0';
            CHECK(hash_set(hash, bytes_of(field), length, bytes_of(value), width, NULL) == (added ? 1 : 0));
            count += added;
            memcpy(model[number], value, width + 1);
        }
        was_packed |= hash->head.encoding == ENCODING_PACKED;
        CHECK(hash_count(hash) == count);
    }
    CHECK(was_packed && hash->head.encoding == ENCODING_DICT);
    struct hash_position position = {0};
    const uint8_t *field;
    size_t length, walked = 0;
    while (hash_next(hash, &position, &field, &length, &view)) walked++;
    CHECK(walked == count);
    value_free(&hash->head);
}

static void small_hashes_keep_the_order_of_their_fields(void) {
    struct hash *hash = hash_new();
    struct string_view view;
    const char *fields[] = {"zebra", "apple", "mango", ""};
    for (int i = 0; i < 4; i++) hash_set(hash, bytes_of(fields[i]), strlen(fields[i]), bytes_of("1"), 1, NULL);
    CHECK(hash_set(hash, bytes_of("apple"), 5, bytes_of("a longer value"), 14, NULL) == HASH_SET_UPDATED);
    struct hash_position position = {0};
    const uint8_t *field;
    size_t length;
    for (int i = 0; i < 4; i++) {
        CHECK(hash_next(hash, &position, &field, &length, &view));
        CHECK(length == strlen(fields[i]) && memcmp(field, fields[i], length) == 0);
    }
    CHECK(!hash_next(hash, &position, &field, &length, &view));
    value_free(&hash->head);
}

int main(void) {
    RUN(only_canonical_integers_are_integers);
    RUN(floats_are_written_short_and_without_exponent);
    RUN(strings_keep_their_bytes_in_every_encoding);
    RUN(a_string_being_sent_is_not_changed_by_a_write);
    RUN(lists_behave_like_an_array);
    RUN(trimming_drops_from_either_end);
    RUN(a_list_used_as_a_queue_stays_small);
    RUN(hashes_behave_like_a_map);
    RUN(small_hashes_keep_the_order_of_their_fields);
    CHECK(memory_used_bytes() == 0);
    return 0;
}

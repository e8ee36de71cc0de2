/* Tests of table specs: what is read, what is refused and how, and that what is written is read back. */
#include <string.h>

#include "base/memory.h"
#include "base/msgpack.h"
#include "base/random.h"
#include "check.h"
#include "replay/codec.h"
#include "replay/table.h"

static struct error error;
static struct table_config config;

/* ---- a small writer of specs: JSON-like text with single quotes to msgpack ------------------------------------------- */

static const char *write_value(struct msgpack_writer *writer, const char *at);

static const char *skip_blanks(const char *at) {
    return at + strspn(at, " ,:");
}

static const char *write_text(struct msgpack_writer *writer, const char *at) {
    const char *end = strchr(at + 1, '\'');
    msgpack_write_string(writer, at + 1, (size_t)(end - at - 1));
    return end + 1;
}

/* Elements are counted by writing them to a second writer first. */
static const char *write_elements(struct msgpack_writer *writer, const char *at, char end) {
    struct msgpack_writer elements = {0};
    uint32_t count = 0;
    for (at = skip_blanks(at + 1); *at != end; at = skip_blanks(at)) {
        at = write_value(&elements, at);
        count++;
    }
    if (end == '}')
        msgpack_write_map(writer, count / 2);
    else
        msgpack_write_array(writer, count);
    writer->data = memory_realloc(writer->data, writer->length + elements.length + 1);
    memcpy(writer->data + writer->length, elements.data ? elements.data : (uint8_t *)"", elements.length);
    writer->length += elements.length;
    writer->capacity = writer->length + 1;
    memory_free(elements.data);
    return at + 1;
}

static const char *write_value(struct msgpack_writer *writer, const char *at) {
    char *end;
    switch (*at) {
    case '{': return write_elements(writer, at, '}');
    case '[': return write_elements(writer, at, ']');
    case '\'': return write_text(writer, at);
    case 't': msgpack_write_boolean(writer, true); return at + 4;
    case 'f': msgpack_write_boolean(writer, false); return at + 5;
    case 'n': msgpack_write_nil(writer); return at + 3;
    case '-': msgpack_write_signed(writer, strtoll(at, &end, 10)); return end;
    default: break;
    }
    if (at[strspn(at, "0123456789")] == '.')
        msgpack_write_double(writer, strtod(at, &end));
    else
        msgpack_write_unsigned(writer, strtoull(at, &end, 10));
    return end;
}

static struct msgpack_writer pack(const char *text) {
    struct msgpack_writer writer = {0};
    write_value(&writer, text);
    CHECK(!writer.failed);
    return writer;
}

static int parse(const char *name, const char *text) {
    struct msgpack_writer writer = pack(text);
    memset(&error, 0, sizeof error);
    int refused = table_config_parse(&config, name, writer.data, writer.length, &error);
    memory_free(writer.data);
    return refused;
}

static void refused(const char *text, const char *why) {
    CHECK(parse("t", text) == -1);
    if (error.code != ERROR_BADSCHEMA || !strstr(error.message, why)) {
        fprintf(stderr, "expected a message with \"%s\", got \"%s\" for %s\n", why, error.message, text);
        exit(1);
    }
}

/* ---- tests --------------------------------------------------------------------------------------------------------- */

static void defaults_stand_where_nothing_is_said(void) {
    CHECK(parse("t", "{'capacity': 10, 'signature': {'x': {'dtype': 'float32', 'shape': []}}}") == 0);
    CHECK(strcmp(config.name, "t") == 0 && config.capacity == 10 && config.columns == 1);
    CHECK(config.column[0].item_bytes == 4 && config.column[0].dimensions == 0);
    CHECK(config.sampler == SELECTOR_PRIORITIZED && config.priority_exponent == 0.6 && config.remover == SELECTOR_FIFO);
    CHECK(config.limiter == LIMITER_MIN_SIZE && config.min_size_to_sample == 1);
    CHECK(config.max_times_sampled == 0 && config.max_bytes == 0 && config.max_staleness == -1 && config.seed == 0);
}

static void everything_may_be_said_in_both_forms(void) {
    CHECK(parse(NULL,
                "{'name': 'atari', 'capacity': 1000, 'signature': {'obs': ['uint8', [4, 84, 84]], "
                "'action': {'dtype': 'int64'}}, 'sampler': 'uniform', 'remover': {'kind': 'prioritized', "
                "'priority_exponent': 2}, 'rate_limiter': {'kind': 'sample_to_insert_ratio', "
                "'samples_per_insert': 8, 'min_size_to_sample': 100, 'error_buffer': 2048.0}, 'max_times_sampled': 8, "
                "'max_bytes': 100000000, 'seed': 5}") == 0);
    CHECK(strcmp(config.name, "atari") == 0 && config.column[0].item_bytes == 28224 &&
          config.column[0].dimensions == 3);
    CHECK(config.column[1].type == COLUMN_INT64 && config.column[1].item_bytes == 8 &&
          config.sampler == SELECTOR_UNIFORM);
    CHECK(config.limiter == LIMITER_SAMPLE_TO_INSERT_RATIO && config.samples_per_insert == 8);
    CHECK(config.error_buffer == 2048 && config.min_size_to_sample == 100 && config.max_times_sampled == 8);
    CHECK(config.remover == SELECTOR_PRIORITIZED && config.remover_exponent == 2 && config.priority_exponent == 0);
    CHECK(config.seed == 5 && config.max_bytes == 100000000);
}

static void a_queue_hands_items_out_once_in_order(void) {
    CHECK(parse("t",
                "{'capacity': 10, 'signature': {'x': ['bool', []]}, 'rate_limiter': {'kind': 'queue', 'size': 4}}") ==
          0);
    CHECK(config.sampler == SELECTOR_FIFO && config.max_times_sampled == 1 && config.queue_size == 4);
    CHECK(parse("t", "{'capacity': 10, 'signature': {'x': ['bool', []]}, 'sampler': 'uniform', 'max_times_sampled': 2, "
                     "'rate_limiter': {'kind': 'queue', 'size': 4}}") == 0);
    CHECK(config.sampler == SELECTOR_UNIFORM && config.max_times_sampled == 2);
}

#define X "'capacity': 10, 'signature': {'x': ['int8', [2]]}"

#define WINDOWS                                                                                                 \
    "'capacity': 10, 'signature': {'obs': {'window': 'frame', 'length': 4}, 'r': ['float32', []], "             \
    "'frame': {'dtype': 'uint8', 'shape': [84, 84], 'step_only': true}, 'old': {'window': 'r', 'offset': -3}, " \
    "'next': {'window': 'frame', 'length': 4, 'offset': 3}}"
#define SEEN(window) "{'capacity': 10, 'signature': {'f': ['int8', [2]], 'w': " window "}}"

static void windows_have_the_shape_of_what_they_look_at(void) {
    CHECK(parse("t", "{" WINDOWS "}") == 0);
    const struct column *obs = &config.column[0], *r = &config.column[1], *frame = &config.column[2];
    CHECK(obs->kind == COLUMN_WINDOW && obs->source == 2 && obs->length == 4 && obs->offset == 0);
    CHECK(obs->type == COLUMN_UINT8 && obs->dimensions == 3 && obs->shape[0] == 4 && obs->shape[2] == 84);
    CHECK(obs->item_bytes == 28224 && frame->item_bytes == 7056);
    CHECK(frame->kind == COLUMN_STEP && frame->in_steps && r->kind == COLUMN_ITEM && r->in_steps);
    const struct column *old = &config.column[3];
    CHECK(old->length == 0 && old->offset == -3 && old->dimensions == 0 && old->item_bytes == 4);
    CHECK(config.column[4].offset == 3 && !config.column[4].in_steps);
}

static void windows_that_cannot_be_are_refused(void) {
    refused(SEEN("{'window': 'g'}"), "a column that is no window itself, got 'g'");
    refused(SEEN("{'window': 'w'}"), "no window itself, got 'w'");
    refused(SEEN("{'window': 3}"), "the name of a column to look at, got 3");
    refused(SEEN("{'window': 'f', 'dtype': 'int8'}"), "got keys of both");
    refused(SEEN("{'length': 3}"), "got keys of both");
    refused("{" WINDOWS ", 'compression': 'gzip'}", "one of: none, lz4, zstd, got 'gzip'");
    refused("{" X ", 'compression': 'lz4'}", "only steps are compressed");
    refused(SEEN("{'window': 'f', 'length': 16385}"), "from 0 to 16384, got 16385");
    refused(SEEN("{'window': 'f', 'length': -1}"), "got -1");
    refused(SEEN("{'window': 'f', 'offset': 16385}"), "an offset from -16384 to 16384 steps, got 16385");
    refused(SEEN("{'window': 'f', 'offset': -16385}"), "got -16385");
    refused(SEEN("{'window': 'f', 'offset': 1.0}"), "got 1 (a float)");
    refused(SEEN("{'dtype': 'int8', 'step_only': 1}"), "step_only to be true or false, got 1");
    refused("{'capacity': 1, 'signature': {'f': ['int8', [1,1,1,1,1,1,1,1]], 'w': {'window': 'f', 'length': 2}}}",
            "at most 8 dimensions, got 9");
    refused("{'capacity': 1, 'signature': {'f': ['int8', [2]], 'v': {'window': 'f', 'length': 9000, 'offset': 1}, "
            "'w': {'window': 'f', 'length': 9000}}}",
            "at most 16384 steps together within 65536 of a stream, got 18000 within 9001");
    refused("{'capacity': 1, 'signature': {'f': ['int8', [100000000]], 'w': {'window': 'f', 'length': 6}}}",
            "bytes an item");
    refused("{'capacity': 9, 'max_bytes': 7, 'signature': {'f': ['int8', [2]], 'w': {'window': 'f', 'length': 4}}}",
            "the steps that one item sees, 8 bytes, got 7");
}

static void what_is_wrong_is_named(void) {
    refused("[1]", "expected a map");
    refused("{}", "capacity and signature");
    refused("{'capacity': 10}", "capacity and signature");
    refused("{" X ", 'colour': 1}", "unknown key 'colour'");
    refused("{" X ", 'capacity': 11}", "'capacity' is given twice");
    refused("{" X ", 3: 1}", "keys that are strings");
    refused("{'capacity': 0, 'signature': {'x': ['int8', []]}}", "capacity: expected an integer from 1");
    refused("{'capacity': 3000000000, 'signature': {'x': ['int8', []]}}", "capacity: expected an integer from 1");
    refused("{'capacity': -5}", "capacity: expected an integer");
    refused("{'capacity': 1.5}", "capacity: expected an integer");
    refused("{'capacity': nil}", "capacity: expected an integer");
    refused("{'capacity': '10'}", "capacity: expected an integer");
    refused("{'signature': {}}", "1 to 256 columns");
    refused("{'signature': ['x']}", "signature: expected a map");
    refused("{'signature': {'x': ['int8', []], 'x': ['int8', []]}}", "column 'x' is given twice");
    refused("{'signature': {'': ['int8', []]}}", "a name of 1 to 255 bytes");
    refused("{'signature': {'a b': ['int8', []]}}", "without blanks");
    refused("{'signature': {'x': ['int7', []]}}", "column 'x': expected a dtype");
    refused("{'signature': {'x': ['S0', []]}}", "column 'x': expected a dtype");
    refused("{'signature': {'x': ['S01', []]}}", "column 'x': expected a dtype");
    refused("{'signature': {'x': ['S65536', []]}}", "column 'x': expected a dtype");
    refused("{'signature': {'x': ['S', []]}}", "column 'x': expected a dtype");
    refused("{'signature': {'x': 'int8'}}", "[dtype, shape]");
    refused("{'signature': {'x': {'shape': []}}}", "column 'x': expected a dtype");
    refused("{'signature': {'x': {'dtype': 'int8', 'units': 'm'}}}", "unknown key 'units'");
    refused("{'signature': {'x': {'dtype': 'int8', 'step_only': true}}}", "no window looks at it");
    refused("{'signature': {'x': ['int8', [-1]]}}", "column 'x': expected an integer from 0");
    refused("{'signature': {'x': ['int8', [nil, 0]]}}", "column 'x': expected an integer from 1");
    refused("{'signature': {'x': ['int8', [1,1,1,1,1,1,1,1,1]]}}", "at most 8 dimensions");
    refused("{'signature': {'x': ['float64', [100000, 100000]]}}", "bytes an item");
    refused("{'capacity': 1, 'signature': {'x': ['int8', [500000000]], 'y': ['int8', [500000000]]}}", "bytes an item");
    refused("{" X ", 'sampler': 'heap'}", "one of: prioritized, uniform, fifo, lifo, max_heap, min_heap");
    refused("{" X ", 'sampler': {'kind': 'uniform', 'priority_exponent': 1}}", "only with kind prioritized");
    refused("{" X ", 'sampler': {'priority_exponent': 1}}", "expected a kind");
    refused("{" X ", 'sampler': {'kind': 'prioritized', 'priority_exponent': -1}}", "expected a number");
    refused("{" X ", 'sampler': {'kind': 'prioritized', 'stratified': 1}}", "true or false");
    refused("{" X ", 'sampler': {'kind': 'uniform', 'stratified': true}}", "expected stratified only with kind prior");
    refused("{" X ", 'remover': 'heap'}", "one of: prioritized, uniform, fifo, lifo, max_heap, min_heap");
    refused("{" X ", 'remover': {'kind': 'fifo', 'priority_exponent': 1}}", "only with kind prioritized");
    refused("{" X ", 'remover': {'kind': 'lifo', 'age': 1}}", "unknown key");
    refused("{" X ", 'rate_limiter': {'kind': 'min_size'}}", "min_size_to_sample");
    refused("{" X ", 'rate_limiter': {'kind': 'min_size', 'min_size_to_sample': 11}}", "could never be sampled");
    refused("{" X ", 'rate_limiter': {'kind': 'min_size', 'min_size_to_sample': 1, 'size': 1}}", "kind min_size with");
    refused("{" X ", 'rate_limiter': {'kind': 'queue', 'size': 11}}", "could never be sampled");
    refused("{" X ", 'rate_limiter': {'kind': 'sample_to_insert_ratio', 'samples_per_insert': 4, "
            "'min_size_to_sample': 1, 'error_buffer': 3}}",
            "at least samples_per_insert");
    refused("{" X ", 'max_bytes': 1}", "room for at least one item");
    refused("{" X ", 'max_times_sampled': 4294967295}", "max_times_sampled");
    refused("{" X ", 'max_times_sampled': 3, 'rate_limiter': {'kind': 'sample_to_insert_ratio', "
            "'samples_per_insert': 4, 'min_size_to_sample': 1, 'error_buffer': 30}}",
            "both wait for ever");
    refused("{" X ", 'max_staleness': 3}", "expected a column 'policy_version' of int64");
    refused("{'capacity': 1, 'signature': {'policy_version': ['int32', []]}, 'max_staleness': 3}", "of int64");
    refused("{'capacity': 1, 'signature': {'policy_version': ['int64', [1]]}, 'max_staleness': -2}",
            "at least 0, or -1");
    CHECK(parse("a b", "{" X "}") == -1 && parse("", "{" X "}") == -1 && parse(NULL, "{" X "}") == -1);
}

static void a_refusal_says_what_came(void) {
    refused("[1]", "table: expected a map, got an array of 1");
    refused("{'capacity': 10}", "got no signature");
    refused("{'signature': {'x': ['int8', []]}}", "got no capacity");
    refused("{" X ", 3: 1}", "strings, got 3");
    refused("{'capacity': 0}", "from 1 to 2147483648, got 0");
    refused("{'capacity': 3000000000}", "got 3000000000");
    refused("{'capacity': -5}", "got -5");
    refused("{'capacity': 1.5}", "got 1.5 (a float)");
    refused("{'capacity': nil}", "got nil");
    refused("{'capacity': true}", "got true");
    refused("{'capacity': '10'}", "got '10'");
    refused("{'name': 'a\tb'}", "got 'a?b'");
    refused("{'signature': {}}", "expected 1 to 256 columns, got 0");
    refused("{'signature': {'x': ['int7', []]}}", "(bytes), got 'int7'");
    refused("{'signature': {'x': 'int8'}}", "[dtype, shape], got 'int8'");
    refused("{'signature': {'x': {'shape': []}}}", "expected a dtype, got none");
    refused("{'signature': {'x': ['int8', 4]}}", "got 4");
    refused("{'signature': {'x': ['int8', [1,1,1,1,1,1,1,1,1]]}}", "got an array of 9");
    refused("{'signature': {'x': ['int8', [-1]]}}", "got -1");
    refused("{'signature': {'x': ['float64', [100000, 100000]]}}", "got float64 [100000,100000]");
    refused("{" X ", 'sampler': 'heap'}", "lifo, max_heap, min_heap, got 'heap'");
    refused("{" X ", 'sampler': {'kind': 'heap'}}", "got 'heap'");
    refused("{" X ", 'sampler': 7}", "got 7");
    refused("{" X ", 'sampler': {'kind': 'uniform', 'priority_exponent': 1}}", "got it with kind uniform");
    refused("{" X ", 'sampler': {'kind': 'prioritized', 'priority_exponent': 101}}", "from 0 to 100, got 101");
    refused("{" X ", 'remover': 'heap'}", "lifo, max_heap, min_heap, got 'heap'");
    refused("{" X ", 'rate_limiter': 'min_size'}", "rate_limiter: expected a map, got 'min_size'");
    refused("{" X ", 'rate_limiter': {'kind': 'token_bucket'}}", "queue, got 'token_bucket'");
    refused("{" X ", 'rate_limiter': {'kind': 'queue', 'min_size_to_sample': 1}}",
            "got the keys kind, min_size_to_sample");
    refused("{" X ", 'rate_limiter': {'kind': 'sample_to_insert_ratio', 'samples_per_insert': 4, "
            "'min_size_to_sample': 1, 'error_buffer': 3}}",
            "got 3 with samples_per_insert 4");
    refused("{" X ", 'max_times_sampled': 4294967295}", "got 4294967295");
}

/* 63 bytes and then two of one character: it is left out whole. */
static void a_long_value_is_shortened_between_characters(void) {
    refused("{" X ", 'sampler': 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaéé'}",
            "got 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…' of 67 bytes");
    refused("{" X ", 'sampler': 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'}",
            "got 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'");
}

static void what_is_written_is_read_back(void) {
    static const char *const specs[] = {
        "{" X "}",
        "{" X ", 'sampler': 'uniform', 'rate_limiter': {'kind': 'min_size', 'min_size_to_sample': 0}}",
        "{" X ", 'rate_limiter': {'kind': 'queue', 'size': 4}, 'seed': 18446744073709551615}",
        "{" WINDOWS "}",
        "{" WINDOWS ", 'compression': 'lz4'}",
        "{" X ", 'sampler': {'kind': 'prioritized', 'priority_exponent': 0.3}, 'max_bytes': 10, 'rate_limiter': "
        "{'kind': 'sample_to_insert_ratio', 'samples_per_insert': 0.25, 'min_size_to_sample': 2, 'error_buffer': 9.5}}",
        "{" X ", 'sampler': 'max_heap', 'remover': {'kind': 'prioritized', 'priority_exponent': 0.5}}",
        "{'capacity': 5, 'signature': {'policy_version': ['int64', []]}, 'sampler': 'lifo', 'remover': 'min_heap', "
        "'max_staleness': 0}",
    };
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        if (strstr(specs[i], "lz4") && !codec_available(CODEC_LZ4)) continue;
        CHECK(parse("t", specs[i]) == 0);
        struct table_config first = config;
        uint8_t *spec;
        size_t length;
        CHECK(table_config_write(&first, &spec, &length, &error) == 0);
        CHECK(table_config_parse(&config, NULL, spec, length, &error) == 0);
        CHECK(memcmp(&first, &config, sizeof config) == 0);
        memory_free(spec);
    }
}

static void capacity_and_signature_stay_in_a_live_table(void) {
    CHECK(parse("t", "{" X "}") == 0);
    struct table_config before = config;
    struct msgpack_writer writer = pack("{'max_times_sampled': 2, 'capacity': 20}");
    CHECK(table_config_change(&config, writer.data, writer.length, &error) == -1 && strstr(error.message, "capacity"));
    CHECK(memcmp(&before, &config, sizeof config) == 0);
    memory_free(writer.data);
    writer = pack("{'max_times_sampled': 2, 'rate_limiter': {'kind': 'min_size', 'min_size_to_sample': 7}}");
    CHECK(table_config_change(&config, writer.data, writer.length, &error) == 0);
    CHECK(config.max_times_sampled == 2 && config.min_size_to_sample == 7 && config.capacity == 10);
    memory_free(writer.data);
    writer = pack("{'sampler': 'min_heap', 'remover': 'uniform', 'max_bytes': 14}");
    CHECK(table_config_change(&config, writer.data, writer.length, &error) == 0);
    CHECK(config.sampler == SELECTOR_MIN_HEAP && config.remover == SELECTOR_UNIFORM && config.max_bytes == 14);
    memory_free(writer.data);
}

/* Every prefix, and bytes changed at random: refused or read, never more than that. */
static void damaged_specs_do_no_harm(void) {
    struct msgpack_writer writer =
        pack("{'capacity': 1000, 'signature': {'obs': ['uint8', [4, 84, 84]], 'a': {'dtype': "
             "'int64', 'shape': []}}, 'sampler': {'kind': 'prioritized', "
             "'priority_exponent': 0.6}, 'rate_limiter': {'kind': 'queue', 'size': 5}}");
    struct random_state random;
    random_seed(&random, 1);
    for (size_t length = 0; length < writer.length; length++) {
        uint8_t *exact = malloc(length ? length : 1); /* so that reading past the end is noticed */
        memcpy(exact, writer.data, length);
        CHECK(table_config_parse(&config, "t", exact, length, &error) == -1 && error.code == ERROR_BADSCHEMA);
        free(exact);
    }
    for (int round = 0; round < 50000; round++) {
        uint8_t *copy = malloc(writer.length);
        memcpy(copy, writer.data, writer.length);
        for (uint64_t i = 0; i <= random_below(&random, 3); i++)
            copy[random_below(&random, writer.length)] = (uint8_t)random_next(&random);
        if (table_config_parse(&config, "t", copy, writer.length, &error))
            CHECK(error.code == ERROR_BADSCHEMA && error.message[0]);
        free(copy);
    }
    uint8_t *longer = malloc(writer.length + 1);
    memcpy(longer, writer.data, writer.length);
    longer[writer.length] = 0;
    CHECK(table_config_parse(&config, "t", longer, writer.length + 1, &error) == -1 &&
          strstr(error.message, "nothing after"));
    free(longer);
    memory_free(writer.data);
}

int main(void) {
    RUN(defaults_stand_where_nothing_is_said);
    RUN(everything_may_be_said_in_both_forms);
    RUN(a_queue_hands_items_out_once_in_order);
    RUN(windows_have_the_shape_of_what_they_look_at);
    RUN(windows_that_cannot_be_are_refused);
    RUN(what_is_wrong_is_named);
    RUN(a_refusal_says_what_came);
    RUN(a_long_value_is_shortened_between_characters);
    RUN(what_is_written_is_read_back);
    RUN(capacity_and_signature_stay_in_a_live_table);
    RUN(damaged_specs_do_no_harm);
    return 0;
}

/* command_tables: what requests about tables are made of: specs as msgpack, and columns, blobs and blocks of the sizes that
 * the table which the request names has at this moment, mostly. */
#ifndef REPLAY_TESTS_COMMAND_TABLES_H
#define REPLAY_TESTS_COMMAND_TABLES_H

#include <stdlib.h>

#include "base/memory.h"
#include "base/msgpack.h"
#include "command_grammar.h"
#include "replay/codec.h"
#include "server/core/server.h"
#include "server/replay/replay_registry.h"
#include "server/replay/replay_subsystem.h"

#define TABLES 4u
#define MOST_ITEMS 64u

static struct server *server;
static uint32_t last_ids; /* how many the blob of ids that was made last holds */

/* ---- text as msgpack: {capacity:16,signature:{x:[float32,[2]]}} ------------------------------------------------------- */

static inline const char *pack_value(struct msgpack_writer *writer, const char *at);

/* How many members stand between these brackets, which hold no empty ones. */
static inline uint32_t count_members(const char *at) {
    uint32_t depth = 0, count = at[1] != ']' && at[1] != '}';
    do {
        depth += *at == '{' || *at == '[';
        depth -= *at == '}' || *at == ']';
        count += *at == ',' && depth == 1;
        at++;
    } while (depth > 0);
    return count;
}

static inline const char *pack_word(struct msgpack_writer *writer, const char *at) {
    size_t length = strcspn(at, ",:{}[]");
    char *end;
    double number = strtod(at, &end);
    if (end == at + length && length > 0 && (isdigit((unsigned char)*at) || *at == '-')) {
        if (memchr(at, '.', length) || memchr(at, 'e', length))
            msgpack_write_double(writer, number);
        else if (*at == '-')
            msgpack_write_signed(writer, strtoll(at, NULL, 10));
        else
            msgpack_write_unsigned(writer, strtoull(at, NULL, 10));
    } else if (length == 4 && memcmp(at, "true", 4) == 0) {
        msgpack_write_boolean(writer, true);
    } else if (length == 5 && memcmp(at, "false", 5) == 0) {
        msgpack_write_boolean(writer, false);
    } else if (length == 3 && memcmp(at, "nil", 3) == 0) {
        msgpack_write_nil(writer);
    } else {
        msgpack_write_string(writer, at, length);
    }
    return at + length;
}

static inline const char *pack_value(struct msgpack_writer *writer, const char *at) {
    if (*at != '{' && *at != '[') return pack_word(writer, at);
    char close = *at == '{' ? '}' : ']';
    if (close == '}')
        msgpack_write_map(writer, count_members(at));
    else
        msgpack_write_array(writer, count_members(at));
    at++;
    while (*at != close) {
        if (close == '}') at = pack_word(writer, at) + 1;
        at = pack_value(writer, at);
        at += *at == ',';
    }
    return at + 1;
}

static inline void put_packed(struct maker *maker, const char *text) {
    struct msgpack_writer writer = {0};
    CHECK(*pack_value(&writer, text) == '\0' && !writer.failed);
    put_bytes(maker, writer.data, writer.length);
    memory_free(writer.data);
}

/* ---- specs ---------------------------------------------------------------------------------------------------------- */

static inline const char *choose_selector(struct maker *maker) {
    return CHOOSE(maker, "uniform", "fifo", "lifo", "max_heap", "min_heap", "prioritized",
                  "{kind:prioritized,priority_exponent:0.6}", "{kind:prioritized,priority_exponent:0}", "uniform",
                  "{kind:prioritized,priority_exponent:1.0}", "{kind:heap}");
}

static inline const char *choose_limiter(struct maker *maker) {
    return CHOOSE(maker, "{kind:min_size,min_size_to_sample:1}", "{kind:min_size,min_size_to_sample:1}",
                  "{kind:min_size,min_size_to_sample:4}", "{kind:queue,size:4}", "{kind:queue,size:16}",
                  "{kind:sample_to_insert_ratio,samples_per_insert:2.0,min_size_to_sample:2,error_buffer:8.0}",
                  "{kind:sample_to_insert_ratio,samples_per_insert:0.5,min_size_to_sample:1,error_buffer:2.5}",
                  "{kind:min_size,min_size_to_sample:100000}", "{kind:queue}");
}

/* Of tables without windows, with them, and of none. */
static inline const char *choose_signature(struct maker *maker, bool windows) {
    if (one_in(maker, 15))
        return CHOOSE(maker, "{x:[complex,[2]]}", "{}", "{x:[uint8,[0]]}", "{o:{window:f,length:2,offset:0}}",
                      "{x:[uint8,[2,nil]]}", "{x:{dtype:uint8,shape:[2],max_length:4}}",
                      "{x:{dtype:uint8,max_length:4}}",
                      "{f:{dtype:uint8,shape:[nil],step_only:true},o:{window:f,length:2,offset:0}}",
                      "{x:[uint8,[]],x:[uint8,[]]}");
    if (!windows)
        return CHOOSE(maker, "{x:[float32,[2]],k:[int64,[]]}", "{x:[uint8,[]]}", "{big:[uint8,[4096]],r:[float32,[]]}",
                      "{x:[float16,[3]],b:[bool,[]],policy_version:[int64,[]]}", "{x:[float64,[2,3,1]],y:[uint16,[4]]}",
                      "{tokens:[int32,[nil]],r:[float32,[]]}",
                      "{r:[uint8,[]],tokens:{dtype:uint8,shape:[nil,3],max_length:40},l:[int64,[nil,1]]}");
    return CHOOSE(
        maker,
        "{f:{dtype:uint8,shape:[200],step_only:true},r:[uint8,[]],obs:{window:f,length:4,offset:0},"
        "next:{window:f,length:4,offset:2}}",
        "{f:{dtype:uint8,shape:[200],step_only:true},obs:{window:f,length:4,offset:0}}",
        "{f:{dtype:uint8,shape:[3],step_only:true},a:[int32,[2]],obs:{window:f,length:0,offset:1},"
        "acts:{window:a,length:3,offset:-1}}",
        "{f:{dtype:uint8,shape:[4096],step_only:true},g:{dtype:float32,shape:[40],step_only:true},r:[float32,[]],"
        "o:{window:f,length:2,offset:0},n:{window:f,length:2,offset:3},h:{window:g,length:1,offset:0}}");
}

/* t0 and t1 have mostly no windows, t2 and t3 mostly have some. */
static inline void make_plain_table(struct maker *maker) {
    put(maker, CHOOSE(maker, "t0", "t0", "t1"));
}

static inline void make_windowed_table(struct maker *maker) {
    put(maker, CHOOSE(maker, "t2", "t2", "t3"));
}

static inline void make_spec(struct maker *maker) {
    char text[1200];
    bool windows = request_word_is(maker->out, 1, "t2") || request_word_is(maker->out, 1, "t3");
    const char *signature = choose_signature(maker, windows != one_in(maker, 12));
    int length = sprintf(text, "{capacity:%s,signature:%s",
                         CHOOSE(maker, "16", "64", "8", "100", one_in(maker, 8) ? "1" : "200"), signature);
    if (one_in(maker, 2)) length += sprintf(text + length, ",sampler:%s", choose_selector(maker));
    if (one_in(maker, 3)) length += sprintf(text + length, ",remover:%s", choose_selector(maker));
    if (one_in(maker, 2)) length += sprintf(text + length, ",rate_limiter:%s", choose_limiter(maker));
    if (one_in(maker, 6)) length += sprintf(text + length, ",max_times_sampled:%s", CHOOSE(maker, "1", "3", "0"));
    if (one_in(maker, 8))
        length += sprintf(text + length, ",max_bytes:%s", CHOOSE(maker, "100", "4000", "40000", "800000", "0"));
    if (strstr(signature, "policy") ? one_in(maker, 2) : one_in(maker, 40))
        length += sprintf(text + length, ",max_staleness:%s", CHOOSE(maker, "0", "3", "-1", "nil"));
    if (strstr(signature, "window") ? one_in(maker, 2) : one_in(maker, 40))
        length += sprintf(text + length, ",compression:%s", CHOOSE(maker, "none", "lz4", "zstd", "lz4"));
    if (one_in(maker, 2)) length += sprintf(text + length, ",seed:%u", below(maker, 4));
    if (one_in(maker, 30)) length += sprintf(text + length, ",colour:red");
    strcpy(text + length, "}");
    put_packed(maker, text);
}

static inline void make_table_change(struct maker *maker) {
    char text[600] = "{";
    int length = 1;
    if (one_in(maker, 3)) length += sprintf(text + length, "sampler:%s,", choose_selector(maker));
    if (one_in(maker, 3)) length += sprintf(text + length, "remover:%s,", choose_selector(maker));
    if (one_in(maker, 4)) length += sprintf(text + length, "max_times_sampled:%u,", below(maker, 4));
    if (one_in(maker, 4)) length += sprintf(text + length, "max_bytes:%s,", CHOOSE(maker, "0", "500", "10000", "1"));
    if (one_in(maker, 4)) length += sprintf(text + length, "max_staleness:%s,", CHOOSE(maker, "-1", "0", "2"));
    if (length == 1 || one_in(maker, 2)) length += sprintf(text + length, "rate_limiter:%s,", choose_limiter(maker));
    strcpy(text + length - 1, "}");
    put_packed(maker, text);
}

static inline void make_table_name(struct maker *maker) {
    put_name(maker, 't', TABLES);
}

/* ---- what the table has --------------------------------------------------------------------------------------------- */

/* Of the table that the request names; NULL: there is none. */
static inline const struct replay_entry *named_table(const struct maker *maker) {
    size_t length;
    if (!server || maker->out->count < 2) return NULL;
    const uint8_t *name = request_word(maker->out, 1, &length);
    struct error error;
    return replay_registry_find(server->replay->tables, name, length, &error);
}

/* A blob of n values of so many bytes each; now and then one byte too few. */
static inline void put_blob(struct maker *maker, uint32_t n, size_t bytes) {
    size_t length = n * bytes;
    if (one_in(maker, 30) && length > 0) length--;
    uint8_t *word = request_open(maker->out, length);
    if (!word) return;
    memset(word, (int)below(maker, 3), length);
    for (size_t i = 0; i < length; i += 61) word[i] = (uint8_t)below(maker, 2);
}

static inline void make_incarnation(struct maker *maker) {
    const struct replay_entry *entry = named_table(maker);
    put(maker, "INCARNATION");
    if (entry && !one_in(maker, 8))
        put_number(maker, (int64_t)entry->incarnation);
    else
        make_integer(maker);
}

static inline void put_options(struct maker *maker) {
    if (one_in(maker, 4)) {
        put(maker, "BLOCK");
        make_wait(maker);
    }
    if (one_in(maker, 6)) put(maker, "PARTIAL");
    if (one_in(maker, 12)) make_incarnation(maker);
}

/* Offsets of n items, and rows for them; now and then something is wrong with them. Some are of many units. */
static inline void put_ragged(struct maker *maker, uint32_t n, const struct column *column) {
    int64_t offsets[MOST_ITEMS + 1] = {0};
    n = n < MOST_ITEMS ? n : MOST_ITEMS;
    for (uint32_t i = 0; i < n; i++)
        offsets[i + 1] = offsets[i] + below(maker, one_in(maker, 12) ? 3000 : one_in(maker, 4) ? 41 : 4);
    size_t bytes = (size_t)offsets[n] * column->row_bytes, head = (n + (size_t)1) * sizeof offsets[0];
    if (one_in(maker, 20)) offsets[below(maker, n + 1)] += (int64_t)below(maker, 5) - 2;
    if (one_in(maker, 30)) bytes += below(maker, 3);
    uint8_t *word = request_open(maker->out, head + bytes);
    if (!word) return;
    memcpy(word, offsets, head);
    memset(word + head, (int)below(maker, 3), bytes);
}

/* The columns that `wanted` picks, with a blob of n values each. */
static inline void put_columns(struct maker *maker, uint32_t n, bool (*wanted)(const struct column *column)) {
    const struct replay_entry *entry = named_table(maker);
    const struct table_config *config = entry ? table_config(entry->table) : NULL;
    uint32_t count = 0;
    for (uint32_t i = 0; config && i < config->columns; i++) count += wanted(&config->column[i]);
    put(maker, "COLUMNS");
    put_number(maker, config ? count : 1);
    for (uint32_t i = 0; config && i < config->columns; i++) {
        const struct column *column = &config->column[i];
        if (!wanted(column)) continue;
        put(maker, column->name);
        if (column_is_ragged(column))
            put_ragged(maker, n, column);
        else
            put_blob(maker, n, column->item_bytes);
    }
    if (config) return;
    put(maker, "x");
    put_blob(maker, n, 8);
}

static inline bool is_of_items(const struct column *column) {
    return column->kind == COLUMN_ITEM;
}

static inline bool is_of_steps(const struct column *column) {
    return column->in_steps;
}

static inline uint32_t some_items(struct maker *maker) {
    static const uint32_t counts[] = {1, 1, 2, 3, 4, 8, 17, MOST_ITEMS};
    return counts[below(maker, 8)];
}

static inline void make_sample_size(struct maker *maker) {
    if (one_in(maker, 20))
        make_integer(maker);
    else
        put_number(maker, some_items(maker));
}

static inline void put_priorities(struct maker *maker, uint32_t n) {
    static const double priorities[] = {1, 0, 0.5, 3, 1e-9, 1e6, 1, 2};
    double *values = calloc(n + 1, sizeof *values);
    for (uint32_t i = 0; i < n; i++) values[i] = priorities[below(maker, 8)];
    if (one_in(maker, 30) && n > 0) values[n - 1] = one_in(maker, 2) ? -1.0 : 1e300 * 1e300;
    put_bytes(maker, values, (n + (one_in(maker, 40) ? 1 : 0)) * sizeof *values);
    free(values);
}

static inline void make_add(struct maker *maker) {
    uint32_t n = some_items(maker);
    put_number(maker, n);
    if (one_in(maker, 2))
        put(maker, "");
    else
        put_priorities(maker, n);
    put_options(maker);
    put_columns(maker, n, is_of_items);
}

/* ---- steps ---------------------------------------------------------------------------------------------------------- */

static inline void put_stream_numbers(struct maker *maker, uint32_t n) {
    uint32_t numbers[MOST_ITEMS], first = one_in(maker, 3) ? below(maker, 3) : 0;
    for (uint32_t i = 0; i < n; i++) numbers[i] = one_in(maker, 12) ? below(maker, 3) : first;
    if (one_in(maker, 40)) numbers[0] = 70000;
    put_bytes(maker, numbers, n * sizeof *numbers);
}

static inline void make_streams(struct maker *maker) {
    put_stream_numbers(maker, 1 + below(maker, 3));
}

/* n steps of so many bytes as sizes and blocks, some of them damaged. */
static inline void put_coded(struct maker *maker, uint32_t n, size_t bytes, enum step_codec kind) {
    uint8_t *steps = calloc(n, bytes + 1), *blocks = calloc(n, bytes + 1);
    uint32_t sizes[MOST_ITEMS];
    size_t length = n * bytes;
    for (size_t i = 0; i < length; i += 61) steps[i] = (uint8_t)below(maker, 256);
    struct codec *codec = kind == CODEC_NONE ? NULL : codec_new(kind);
    if (codec) {
        length = codec_encode_steps(codec, steps, n, bytes, sizes, blocks);
        codec_free(codec);
    } else {
        for (uint32_t i = 0; i < n; i++) sizes[i] = (uint32_t)bytes;
    }
    if (one_in(maker, 6) && length > 0) blocks[below(maker, (uint32_t)length)] ^= (uint8_t)(1 + below(maker, 255));
    if (one_in(maker, 12)) sizes[below(maker, n)] += one_in(maker, 2) ? 1 : UINT32_MAX;
    uint8_t *word = request_open(maker->out, n * sizeof *sizes + length);
    if (word) {
        memcpy(word, sizes, n * sizeof *sizes);
        memcpy(word + n * sizeof *sizes, blocks, length);
    }
    free(steps);
    free(blocks);
}

static inline void put_coded_columns(struct maker *maker, uint32_t n) {
    const struct replay_entry *entry = named_table(maker);
    const struct table_config *config = entry ? table_config(entry->table) : NULL;
    uint32_t count = 0;
    for (uint32_t i = 0; config && i < config->columns; i++) count += is_of_steps(&config->column[i]);
    put(maker, "CODED");
    put(maker, "COLUMNS");
    put_number(maker, count);
    for (uint32_t i = 0; config && i < config->columns; i++) {
        if (!is_of_steps(&config->column[i])) continue;
        put(maker, config->column[i].name);
        put_coded(maker, n, config->column[i].item_bytes, config->codec);
    }
}

static inline void make_append(struct maker *maker) {
    uint32_t n = some_items(maker);
    uint8_t flags[MOST_ITEMS];
    for (uint32_t i = 0; i < n; i++) flags[i] = (uint8_t)(one_in(maker, 6) ? 1 + below(maker, 3) : 0);
    put_number(maker, n);
    put_stream_numbers(maker, n);
    put_bytes(maker, flags, one_in(maker, 2) ? n : 0);
    if (one_in(maker, 8)) {
        put(maker, "HISTORY");
        put(maker, CHOOSE(maker, "8", "20", "1", "256", "65537"));
    }
    if (one_in(maker, 3))
        put_coded_columns(maker, n);
    else
        put_columns(maker, n, is_of_steps);
}

static inline void make_item(struct maker *maker) {
    uint32_t n = 1 + below(maker, 6);
    uint64_t steps[8];
    put_number(maker, n);
    put_stream_numbers(maker, n);
    for (uint32_t i = 0; i < n; i++) steps[i] = below(maker, one_in(maker, 8) ? 300 : 4);
    put_bytes(maker, steps, n * sizeof *steps);
    if (one_in(maker, 2))
        put(maker, "");
    else
        put_priorities(maker, n);
    put_options(maker);
    put_columns(maker, n, is_of_items);
}

/* ---- ids ------------------------------------------------------------------------------------------------------------ */

/* Of items that replies told of, of whichever table, the latest most often; a few that never were. */
static inline void make_ids(struct maker *maker) {
    uint64_t ids[8];
    uint32_t n = 1 + below(maker, 8), first = below(maker, 16);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t back = one_in(maker, 4) ? below(maker, SEEN_IDS) : first + i;
        ids[i] = seen.ids[(seen.id_count + SEEN_IDS - 1 - back) % SEEN_IDS];
        if (one_in(maker, 25)) ids[i] ^= 1ull << below(maker, 64);
    }
    last_ids = n;
    put_bytes(maker, ids, n * sizeof *ids - (one_in(maker, 40) ? 3 : 0));
}

static inline void make_priorities(struct maker *maker) {
    put_priorities(maker, last_ids);
}

static inline void make_columns(struct maker *maker) {
    const struct replay_entry *entry = named_table(maker);
    const struct table_config *config = entry ? table_config(entry->table) : NULL;
    uint32_t count = 1 + below(maker, 3);
    put(maker, "COLUMNS");
    put_number(maker, count);
    for (uint32_t i = 0; i < count; i++)
        put(maker, config && config->columns > 0 ? config->column[below(maker, config->columns)].name : "x");
}

#endif

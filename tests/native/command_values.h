/* command_values: the kinds of values in lines of syntax (command_grammar.h): names of keys and groups, numbers, scores,
 * payloads, settings. Those of tables and scripts are in command_tables.h and command_scripts.h. */
#ifndef REPLAY_TESTS_COMMAND_VALUES_H
#define REPLAY_TESTS_COMMAND_VALUES_H

#include "command_request.h"

/* "s2": the letter tells what is mostly kept under the name. */
static inline void put_name(struct maker *maker, char letter, uint32_t count) {
    char name[32];
    if (one_in(maker, 16)) letter = "slhzewgtkx"[below(maker, 10)];
    if (maker->names_private && one_in(maker, 3))
        sprintf(name, "private:%c", letter);
    else
        sprintf(name, "%c%u", letter, below(maker, count));
    put(maker, name);
}

static inline void make_string_key(struct maker *maker) {
    put_name(maker, 's', 4);
}
static inline void make_list_key(struct maker *maker) {
    put_name(maker, 'l', 4);
}
static inline void make_hash_key(struct maker *maker) {
    put_name(maker, 'h', 4);
}
static inline void make_zset_key(struct maker *maker) {
    put_name(maker, 'z', 4);
}
static inline void make_set_key(struct maker *maker) {
    put_name(maker, 'e', 4);
}
static inline void make_stream_key(struct maker *maker) {
    put_name(maker, 'x', 4);
}
static inline void make_weights_key(struct maker *maker) {
    put_name(maker, 'w', 3);
}
static inline void make_gradients_key(struct maker *maker) {
    put_name(maker, 'g', 3);
}

static inline void make_any_key(struct maker *maker) {
    put_name(maker, "slhzekx"[below(maker, 7)], 4);
}

static inline void make_group(struct maker *maker) {
    put(maker, CHOOSE(maker, "g0", "g0", "g1", ""));
}

static inline void make_consumer(struct maker *maker) {
    put(maker, CHOOSE(maker, "a", "b", "c", ""));
}

/* The id of an entry of a stream: one that was told, or a small one. */
static inline void make_entry(struct maker *maker) {
    char text[64];
    if (seen.word_count > 0 && one_in(maker, 2)) {
        put(maker, seen.words[below(maker, seen.word_count < SEEN_WORDS ? seen.word_count : SEEN_WORDS)]);
        return;
    }
    sprintf(text, one_in(maker, 3) ? "%u" : "%u-%u", below(maker, 9), below(maker, 9));
    put(maker, one_in(maker, 20) ? CHOOSE(maker, "18446744073709551615-18446744073709551615", "-", "x") : text);
}

static inline void make_last(struct maker *maker) {
    put(maker, "$");
}

static inline void make_bound(struct maker *maker) {
    char text[64];
    sprintf(text, "(%u-%u", below(maker, 9), below(maker, 9));
    if (one_in(maker, 2))
        put(maker, CHOOSE(maker, "-", "-", "+", "0"));
    else if (one_in(maker, 2))
        make_entry(maker);
    else
        put(maker, text);
}

static inline void make_index(struct maker *maker) {
    put(maker, CHOOSE(maker, "0", "1", "2", "-1", "-2", "3", "5", "-5", "100", "-100"));
}

static inline void make_small(struct maker *maker) {
    put_number(maker, below(maker, 6));
}

static inline void make_count(struct maker *maker) {
    put_number(maker, 1 + below(maker, 4));
}

static inline void make_integer(struct maker *maker) {
    if (one_in(maker, 2))
        put_number(maker, (int64_t)below(maker, 200) - 100);
    else
        put(maker, CHOOSE(maker, "0", "1", "-1", "65535", "65536", "4294967295", "4294967296", "9223372036854775807",
                          "-9223372036854775808", "9223372036854775808", "1000000", "18446744073709551615"));
}

static inline void make_float(struct maker *maker) {
    put(maker,
        CHOOSE(maker, "0", "1", "-1", "1.5", "-0.0", "3.25", "inf", "-inf", "1e308", "0.1", "1e-300", "17", "nan"));
}

static inline void make_finite(struct maker *maker) {
    put(maker, CHOOSE(maker, "0", "1", "-1", "1.5", "0.25", "-3.25", "1000000", "0.1", "5"));
}

/* Mostly short; digits, binary, and some that take another encoding or a blob of their own. */
static inline void make_value(struct maker *maker) {
    static const uint32_t lengths[] = {0, 1, 3, 8, 20, 44, 45, 63, 64, 65, 130, 500, 3000, 20000};
    uint32_t kind = below(maker, 8);
    if (kind < 3) {
        put_number(maker, below(maker, 12));
    } else if (kind < 6) {
        put(maker, CHOOSE(maker, "a", "b", "c", "hello", "hello world", "foobar", "10", "2.5", "zz",
                          "aaaaaaaaaaaaaaaaaaaaaa"));
    } else {
        uint32_t length = lengths[below(maker, kind == 6 ? 10 : 14)];
        uint8_t first = (uint8_t)below(maker, 256);
        uint8_t *word = request_open(maker->out, length);
        for (uint32_t i = 0; word && i < length; i++) word[i] = (uint8_t)(first + (kind == 7 ? i * i / 7 : 0));
    }
}

static inline void make_member(struct maker *maker) {
    char name[16];
    if (one_in(maker, 5)) {
        make_value(maker);
        return;
    }
    sprintf(name, below(maker, 2) ? "m%u" : "%u", below(maker, 8));
    put(maker, name);
}

static inline void make_seconds(struct maker *maker) {
    put(maker, CHOOSE(maker, "1", "10", "100", "0", "-1", "1000000", "9223372036854775807"));
}

static inline void make_milliseconds(struct maker *maker) {
    put(maker, CHOOSE(maker, "1", "2", "3", "10", "1000", "100000", "0", "-1"));
}

static inline void make_moment(struct maker *maker) {
    put(maker, CHOOSE(maker, "1", "1700000000", "4000000000", "4000000000000", "0", "-1", "9223372036854775807"));
}

/* Of what waits, in seconds. */
static inline void make_timeout(struct maker *maker) {
    put(maker, CHOOSE(maker, "0.001", "0.002", "0.001", "0", "0.003", "-1", "1e400"));
}

static inline void make_wait(struct maker *maker) {
    put(maker, CHOOSE(maker, "1", "2", "3", "0", "1", "-1"));
}

static inline void make_cursor(struct maker *maker) {
    if (one_in(maker, 2) || seen.number_count == 0)
        put(maker, "0");
    else
        put_number(maker, seen.numbers[below(maker, SEEN_NUMBERS)]);
}

/* What RESTORE takes, mostly with a checksum that is right. */
static inline void make_payload(struct maker *maker) {
    static const char *const values[] = {"\x01\x02\x01"
                                         "a\xc0\x07",
                                         "\x02\x02\x01"
                                         "a\x01"
                                         "b",
                                         "\x04\x01\x01"
                                         "f\x02vv",
                                         "\x05\x01\x01"
                                         "m\x01\x02\x03\x04\x05\x06\x07\x40",
                                         "\x12\x01\x01\x03"
                                         "xyz",
                                         "\x01\x01\xc3\x04\x0c\x02"
                                         "abc",
                                         "\x0e\x01\x0d\x0d",
                                         "\x63"};
    uint8_t payload[64] = {0};
    const char *value = choose_of(maker, values, sizeof values / sizeof *values);
    size_t length = strlen(value);
    memcpy(payload, value, length);
    if (one_in(maker, 8)) payload[below(maker, (uint32_t)length)] = (uint8_t)below(maker, 256);
    payload[length] = 10;
    uint64_t sum = crc64(0, payload, length + 2) + one_in(maker, 16);
    for (int i = 0; i < 8; i++) payload[length + 2 + (size_t)i] = (uint8_t)(sum >> (8 * i));
    put_bytes(maker, payload, length + 10);
}

static inline void make_seen_number(struct maker *maker) {
    put_number(maker, seen.numbers[below(maker, SEEN_NUMBERS)]);
}

static inline void make_seen_word(struct maker *maker) {
    put(maker, seen.word_count > 0
                   ? seen.words[below(maker, seen.word_count < SEEN_WORDS ? seen.word_count : SEEN_WORDS)]
                   : "0123456789012345678901234567890123456789");
}

static inline void make_nonce(struct maker *maker) {
    put(maker, seen.nonce);
}

static inline void make_pattern(struct maker *maker) {
    put(maker, maker->names_private && one_in(maker, 2)
                   ? CHOOSE(maker, "private:*", "private:s", "private:h->f", "*", "private:*->f")
                   : CHOOSE(maker, "*", "s*", "[a-c]*", "?1", "*->f", "#", "h*->m1", "nosort", "__key*__:*", "", "\\*",
                            "[^z]?", "s0", "***********a"));
}

static inline void make_channel(struct maker *maker) {
    put(maker, CHOOSE(maker, "c0", "c1", "c2", "__keyspace@0__:s0", "__keyevent@0__:set", "__redis__:invalidate"));
}

static inline void make_database(struct maker *maker) {
    put(maker, CHOOSE(maker, "0", "0", "0", "1", "2", "15", "16", "-1"));
}

static inline void make_score(struct maker *maker) {
    put(maker, CHOOSE(maker, "-inf", "+inf", "(1", "2", "(-1", "0", "10", "1.5", "(inf", "nan"));
}

static inline void make_lexical(struct maker *maker) {
    put(maker, CHOOSE(maker, "-", "+", "[a", "(b", "[m1", "(m5", "[", "("));
}

static inline void make_gradient_name(struct maker *maker) {
    char name[16];
    sprintf(name, "n%u", below(maker, 10));
    put(maker, name);
}

/* float32 or bfloat16 of some few lengths, so that they mostly agree. */
static inline void make_vector(struct maker *maker) {
    static const uint32_t lengths[] = {8, 8, 8, 8, 8, 8, 16, 7, 0, 40000};
    uint32_t length = lengths[below(maker, 10)];
    uint8_t *word = request_open(maker->out, length);
    for (uint32_t i = 0; word && i < length; i++) word[i] = (uint8_t)(i % 4 == 3 ? 0x3f : i * 7);
}

static inline void make_user(struct maker *maker) {
    put(maker, CHOOSE(maker, "u0", "u1", "u2", "u0", "u1", "default", "missing"));
}

static inline void make_password(struct maker *maker) {
    put(maker, CHOOSE(maker, "pass", "pass", "pass", "wrong", ""));
}

static inline void make_rule(struct maker *maker) {
    put(maker,
        CHOOSE(maker, "on", "on", "off", ">pass", ">pass", "<pass", "nopass", "resetpass", "+@all", "-@all", "+@read",
               "-@write", "+@replay", "-@dangerous", "+get", "-set", "+client|id", "-client|kill", "+replay.sample",
               "~*", "~s*", "%R~z*", "%W~l*", "%RW~t?", "allkeys", "resetkeys", "&*", "&c0", "resetchannels", "reset",
               "(+get ~s*)", "(+@all -@write %R~*)", "clearselectors", "allcommands", "nocommands", "+select|1",
               "#d74ff0ee8da3b9806b18c877dbf29bbde50b5bd8e4dad7a3a725000feb82e8f1", "sanitize-payload", "+nothing", "~",
               "%X~a", "allchannels", "+@gradients", "+@weights", "-eval", "+@scripting"));
}

/* A setting and its value. What would keep all others out, or the process from going on, is rare or left out. */
static inline void make_setting(struct maker *maker) {
    static const char *const settings[][2] = {
        {"maxmemory", "0"},
        {"maxmemory", "0"},
        {"maxmemory", "20mb"},
        {"maxmemory", "300mb"},
        {"maxmemory", "1"},
        {"maxmemory-policy", "allkeys-lru"},
        {"maxmemory-policy", "volatile-lfu"},
        {"maxmemory-policy", "allkeys-random"},
        {"maxmemory-policy", "volatile-ttl"},
        {"maxmemory-policy", "noeviction"},
        {"maxmemory-samples", "3"},
        {"maxclients", "9"},
        {"maxclients", "5"},
        {"maxclients", "10000"},
        {"appendonly", "yes"},
        {"appendonly", "no"},
        {"appendfsync", "everysec"},
        {"appendfsync", "no"},
        {"auto-aof-rewrite-percentage", "1"},
        {"save", "1 1"},
        {"save", ""},
        {"snapshot-keep", "1"},
        {"stop-writes-on-bgsave-error", "no"},
        {"notify-keyspace-events", "KEA"},
        {"notify-keyspace-events", "Kgxlszhm$nt"},
        {"notify-keyspace-events", ""},
        {"client-output-buffer-limit", "normal 20000 0 0"},
        {"client-output-buffer-limit", "normal 0 0 0 pubsub 1000 500 1"},
        {"client-output-buffer-limit", "pubsub 33554432 8388608 60"},
        {"client-output-backlog", "1mb"},
        {"busy-reply-threshold", "1"},
        {"busy-reply-threshold", "5000"},
        {"script-memory-limit", "1mb"},
        {"script-memory-limit", "64mb"},
        {"shared-memory-limit", "2mb"},
        {"shared-memory-limit", "0"},
        {"shared-memory-limit", "1gb"},
        {"shared-memory-client-limit", "1mb"},
        {"slowlog-log-slower-than", "0"},
        {"slowlog-max-len", "4"},
        {"latency-monitor-threshold", "1"},
        {"acllog-max-len", "2"},
        {"acl-pubsub-default", "resetchannels"},
        {"max-request-bytes", "1mb"},
        {"max-request-bytes", "1gb"},
        {"max-arguments", "64"},
        {"max-arguments", "1048576"},
        {"proto-max-bulk-len", "1mb"},
        {"timeout", "0"},
        {"timeout", "1000"},
        {"lfu-log-factor", "0"},
        {"lazyfree-lazy-user-del", "yes"},
        {"requirepass", ""},
        {"dir", "/tmp"},
        {"databases", "3"},
        {"hash-max-listpack-entries", "3"},
        {"set-max-intset-entries", "2"},
        {"zset-max-listpack-entries", "2"},
        {"list-max-listpack-size", "3"},
        {"hz", "100"},
        {"nothing", "1"},
        {"maxmemory", "-1"},
        {"port", "1"},
    };
    const char *const *setting = settings[below(maker, sizeof settings / sizeof *settings)];
    put(maker, setting[0]);
    put(maker, setting[1]);
}

static inline void make_snapshot_name(struct maker *maker) {
    put(maker, CHOOSE(maker, "one", "two", "three.snapshot", "one", "../up", "dump"));
}

/* Something else than was expected. */
static inline void make_junk(struct maker *maker) {
    put(maker,
        CHOOSE(maker, "", "0", "-1", "*", "BLOCK", "COLUMNS", "KEYS", "LIMIT", "9223372036854775807", "nan", "\r\n",
               "GET", "STORE", "1", "4294967296", "\xff\xfe", "1e400", "a", "$-1", "-9223372036854775808", "WITHSCORES",
               "ASYNC", "1048577", "99999999999999999999", "0x10", " 1", "1 "));
}

/* In command_tables.h and command_scripts.h. */
static void make_table_name(struct maker *maker);
static void make_plain_table(struct maker *maker);
static void make_windowed_table(struct maker *maker);
static void make_spec(struct maker *maker);
static void make_table_change(struct maker *maker);
static void make_add(struct maker *maker);
static void make_append(struct maker *maker);
static void make_item(struct maker *maker);
static void make_ids(struct maker *maker);
static void make_priorities(struct maker *maker);
static void make_streams(struct maker *maker);
static void make_columns(struct maker *maker);
static void make_sample_size(struct maker *maker);
static void make_incarnation(struct maker *maker);
static void make_script(struct maker *maker);
static void make_library(struct maker *maker);
static void make_libraries(struct maker *maker);
static void make_command_words(struct maker *maker);

static const struct value_kind {
    const char *name;
    void (*make)(struct maker *maker);
} value_kinds[] = {
    {"any", make_any_key},
    {"string", make_string_key},
    {"list", make_list_key},
    {"hash", make_hash_key},
    {"zset", make_zset_key},
    {"stream", make_stream_key},
    {"group", make_group},
    {"consumer", make_consumer},
    {"entry", make_entry},
    {"bound", make_bound},
    {"last", make_last},
    {"set", make_set_key},
    {"weights", make_weights_key},
    {"gradients", make_gradients_key},
    {"index", make_index},
    {"small", make_small},
    {"count", make_count},
    {"integer", make_integer},
    {"float", make_float},
    {"finite", make_finite},
    {"value", make_value},
    {"member", make_member},
    {"seconds", make_seconds},
    {"milliseconds", make_milliseconds},
    {"moment", make_moment},
    {"timeout", make_timeout},
    {"wait", make_wait},
    {"cursor", make_cursor},
    {"number", make_seen_number},
    {"payload", make_payload},
    {"told", make_seen_word},
    {"nonce", make_nonce},
    {"pattern", make_pattern},
    {"channel", make_channel},
    {"database", make_database},
    {"score", make_score},
    {"lexical", make_lexical},
    {"gradient", make_gradient_name},
    {"vector", make_vector},
    {"user", make_user},
    {"password", make_password},
    {"rule", make_rule},
    {"setting", make_setting},
    {"snapshot", make_snapshot_name},
    {"table", make_table_name},
    {"plain", make_plain_table},
    {"windowed", make_windowed_table},
    {"spec", make_spec},
    {"change", make_table_change},
    {"add", make_add},
    {"append", make_append},
    {"item", make_item},
    {"ids", make_ids},
    {"priorities", make_priorities},
    {"streams", make_streams},
    {"columns", make_columns},
    {"samples", make_sample_size},
    {"incarnation", make_incarnation},
    {"script", make_script},
    {"library", make_library},
    {"libraries", make_libraries},
    {"command", make_command_words},
};

#endif

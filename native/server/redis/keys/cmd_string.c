/* cmd_string: commands on strings. Option rules, order of checks and error texts follow Redis 7.0's t_string.c. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "server/core/command_table.h"
#include "server/core/exclusive_execution.h"
#include "server/core/propagate.h"
#include "server/redis/keys/keyspace.h"
#include "server/redis/pubsub/notify.h"
#include "server/redis/redis_rows.h"

/* ---- options of SET and GETEX ------------------------------------------------------------------------------------ */

enum set_flags {
    SET_NX = 1 << 0,
    SET_XX = 1 << 1,
    SET_GET = 1 << 2,
    SET_KEEPTTL = 1 << 3,
    SET_PERSIST = 1 << 4,
    SET_EX = 1 << 5,
    SET_PX = 1 << 6,
    SET_EXAT = 1 << 7,
    SET_PXAT = 1 << 8,
};

#define SET_EXPIRES (SET_EX | SET_PX | SET_EXAT | SET_PXAT)

struct set_options {
    uint32_t flags;
    uint32_t expiry; /* index of the argument with the time; 0: none */
};

/* The flag of an option that is followed by a time, 0 if the word is none. */
static uint32_t expiry_flag(const struct resp_argument *word) {
    return argument_is(word, "ex")     ? SET_EX
           : argument_is(word, "px")   ? SET_PX
           : argument_is(word, "exat") ? SET_EXAT
           : argument_is(word, "pxat") ? SET_PXAT
                                       : 0;
}

static bool set_options_parse(struct client *client, uint32_t first, bool is_getex, struct set_options *options) {
    *options = (struct set_options){0};
    for (uint32_t i = first; i < client->argc; i++) {
        const struct resp_argument *word = &client->argv[i];
        uint32_t flag = expiry_flag(word), excluded;
        if (flag != 0) {
            excluded = SET_KEEPTTL | SET_PERSIST | (SET_EXPIRES & ~flag);
            if (i + 1 < client->argc)
                options->expiry = ++i;
            else
                excluded = UINT32_MAX;
        } else if (is_getex) {
            flag = argument_is(word, "persist") ? SET_PERSIST : 0;
            excluded = SET_EXPIRES;
        } else {
            flag = argument_is(word, "nx")        ? SET_NX
                   : argument_is(word, "xx")      ? SET_XX
                   : argument_is(word, "get")     ? SET_GET
                   : argument_is(word, "keepttl") ? SET_KEEPTTL
                                                  : 0;
            excluded = flag == SET_NX ? SET_XX : flag == SET_XX ? SET_NX : flag == SET_KEEPTTL ? SET_EXPIRES : 0;
        }
        if (flag == 0 || excluded == UINT32_MAX || (options->flags & excluded)) {
            reply_syntax_error(client);
            return false;
        }
        options->flags |= flag;
    }
    return true;
}

/* Reads the time of an option as a Unix time in milliseconds; false: the error is replied. */
static bool expiry_argument(struct client *client, const struct set_options *options, int64_t *at_ms) {
    if (!integer_argument(client, options->expiry, at_ms)) return false;
    bool seconds = options->flags & (SET_EX | SET_EXAT), relative = options->flags & (SET_EX | SET_PX);
    bool invalid = *at_ms <= 0 || (seconds && *at_ms > INT64_MAX / 1000);
    if (!invalid) {
        int64_t base_ms = relative ? clock_unix_ms() : 0;
        if (seconds) *at_ms *= 1000;
        invalid = *at_ms > INT64_MAX - base_ms;
        if (!invalid) *at_ms += base_ms;
    }
    if (invalid) reply_error(client, "ERR invalid expire time in '%s' command", client->command->name);
    return !invalid;
}

/* ---- setting ----------------------------------------------------------------------------------------------------- */

static struct resp_argument word_of(const char *text, size_t length) {
    return (struct resp_argument){.data = (const uint8_t *)text, .length = length};
}

/* A string that expires is recorded with its expiry time. */
static void propagate_set(struct client *client, uint32_t index, int64_t at_ms) {
    char text[NUMBER_INT64_TEXT];
    struct resp_argument words[] = {word_of("SET", 3), client->argv[1], client->argv[index], word_of("PXAT", 4),
                                    word_of(text, number_format_int64(at_ms, text))};
    propagate_instead(client, 5, words);
}

/* Stores argument `index` under the key, with the expiry if `ends`; false: the error is replied. */
static bool set_string(struct client *client, uint32_t index, bool keep_expiry, bool ends, int64_t at_ms) {
    struct dict_entry *entry = keyspace_put(client, 1, keyspace_string(client, index), keep_expiry);
    if (!entry) return false;
    if (ends && !store_expire_at(client->server->store, (unsigned)client->database, entry, at_ms)) {
        keyspace_remove(client, entry);
        reply_out_of_memory(client);
        return false;
    }
    if (ends) propagate_set(client, index, at_ms);
    return true;
}

static void reply_string_or_null(struct client *client, const struct dict_entry *entry) {
    if (!entry)
        reply_null(client);
    else
        reply_string(client, store_value(entry));
}

/* Replies the old string, or null, once it is certain that the new one can be stored. */
static void exchange_string(struct client *client, const struct dict_entry *old, bool keep_expiry, bool ends,
                            int64_t at_ms) {
    struct value *value = keyspace_string(client, 2);
    if (old && value) reply_string(client, store_value(old));
    struct dict_entry *entry = keyspace_put(client, 1, value, keep_expiry);
    if (!entry) return;
    if (!old) reply_null(client);
    /* Without memory for the expiry the key goes: it must not outlive what the client asked for. */
    if (ends && !store_expire_at(client->server->store, (unsigned)client->database, entry, at_ms))
        keyspace_remove(client, entry);
    else if (ends)
        propagate_set(client, 2, at_ms);
}

static void set_command(struct client *client) {
    struct set_options options;
    int64_t at_ms = 0;
    if (!set_options_parse(client, 3, false, &options)) return;
    bool ends = options.expiry > 0, keep_expiry = options.flags & SET_KEEPTTL, get = options.flags & SET_GET;
    if (ends && !expiry_argument(client, &options, &at_ms)) return;
    struct dict_entry *entry = NULL;
    if (options.flags & (SET_NX | SET_XX | SET_GET)) {
        entry = get ? keyspace_find_read(client, 1) : keyspace_find(client, 1);
        if (get && !keyspace_type_is(client, entry, VALUE_STRING)) return;
        if (entry ? options.flags & SET_NX : options.flags & SET_XX) {
            if (!get) keyspace_use(client, entry);
            reply_string_or_null(client, get ? entry : NULL);
            return;
        }
    }
    if (get)
        exchange_string(client, entry, keep_expiry, ends, at_ms);
    else if (set_string(client, 2, keep_expiry, ends, at_ms))
        reply_status(client, "OK");
}

static void setnx_command(struct client *client) {
    const struct dict_entry *entry = keyspace_find(client, 1);
    bool there = entry;
    keyspace_use(client, entry);
    if (there || set_string(client, 2, false, false, 0)) reply_integer(client, !there);
}

static void set_expiring(struct client *client, uint32_t unit) {
    struct set_options options = {.flags = unit, .expiry = 2};
    int64_t at_ms;
    if (expiry_argument(client, &options, &at_ms) && set_string(client, 3, false, true, at_ms))
        reply_status(client, "OK");
}

static void setex_command(struct client *client) {
    set_expiring(client, SET_EX);
}

static void psetex_command(struct client *client) {
    set_expiring(client, SET_PX);
}

static void mset_generic(struct client *client, bool only_new) {
    if (client->argc % 2 == 0) {
        reply_arity_error(client);
        return;
    }
    for (uint32_t i = 1; only_new && i < client->argc && exclusive_goes_on_at(client, i - 1); i += 2) {
        const struct dict_entry *entry = keyspace_find(client, i);
        if (entry) {
            keyspace_use(client, entry);
            reply_integer(client, 0);
            return;
        }
    }
    for (uint32_t i = 1; i < client->argc && exclusive_goes_on_at(client, i - 1); i += 2)
        if (!keyspace_put(client, i, keyspace_string(client, i + 1), false)) return;
    if (only_new)
        reply_integer(client, 1);
    else
        reply_status(client, "OK");
}

static void mset_command(struct client *client) {
    mset_generic(client, false);
}

static void msetnx_command(struct client *client) {
    mset_generic(client, true);
}

/* ---- getting ----------------------------------------------------------------------------------------------------- */

static void get_command(struct client *client) {
    struct dict_entry *entry = keyspace_find_read(client, 1);
    if (keyspace_type_is(client, entry, VALUE_STRING)) reply_string_or_null(client, entry);
}

static void mget_command(struct client *client) {
    reply_array(client, client->argc - 1);
    for (uint32_t i = 1; i < client->argc && exclusive_goes_on_at(client, i); i++) {
        struct dict_entry *entry = keyspace_find_read(client, i);
        bool is_string = entry && store_value(entry)->type == VALUE_STRING;
        reply_string_or_null(client, is_string ? entry : NULL);
    }
}

static void getset_command(struct client *client) {
    struct dict_entry *entry = keyspace_find_read(client, 1);
    if (keyspace_type_is(client, entry, VALUE_STRING)) exchange_string(client, entry, false, false, 0);
}

static void getdel_command(struct client *client) {
    struct dict_entry *entry = keyspace_find_read(client, 1);
    if (!keyspace_type_is(client, entry, VALUE_STRING)) return;
    reply_string_or_null(client, entry);
    if (entry) keyspace_remove(client, entry);
}

static void getex_command(struct client *client) {
    struct set_options options;
    int64_t at_ms = 0;
    if (!set_options_parse(client, 2, true, &options)) return;
    struct dict_entry *entry = keyspace_find_read(client, 1);
    if (!entry) {
        reply_null(client);
        return;
    }
    if (!keyspace_type_is(client, entry, VALUE_STRING)) return;
    if (options.expiry > 0 && !expiry_argument(client, &options, &at_ms)) return;
    reply_string(client, store_value(entry));
    struct store *store = client->server->store;
    unsigned database = (unsigned)client->database;
    if (options.expiry > 0) {
        /* Only a time given as such can lie in the past. */
        bool past = options.flags & (SET_EXAT | SET_PXAT) && at_ms <= clock_unix_ms();
        if (!past && store_expire_at(store, database, entry, at_ms)) {
            keyspace_propagate_expiry(client, 1, at_ms);
            return;
        }
        propagate_key_words(client, "DEL", 1, NULL);
        keyspace_remove(client, entry);
    } else if (options.flags & SET_PERSIST && store_value(entry)->expiry != 0) {
        propagate_key_words(client, "PERSIST", 1, NULL);
        store_persist(store, database, entry);
    }
}

static void strlen_command(struct client *client) {
    struct dict_entry *entry = keyspace_find_read(client, 1);
    if (keyspace_type_is(client, entry, VALUE_STRING))
        reply_integer(client, !entry ? 0 : (int64_t)string_length(store_value(entry)));
}

static void getrange_command(struct client *client) {
    int64_t start, end;
    if (!integer_argument(client, 2, &start) || !integer_argument(client, 3, &end)) return;
    struct dict_entry *entry = keyspace_find_read(client, 1);
    if (!keyspace_type_is(client, entry, VALUE_STRING)) return;
    struct string_view view = {.length = 0};
    if (entry) string_view(store_value(entry), &view);
    int64_t length = (int64_t)view.length;
    bool empty = length == 0 || (start < 0 && end < 0 && start > end);
    if (start < 0) start = start + length > 0 ? start + length : 0;
    if (end < 0) end = end + length > 0 ? end + length : 0;
    if (end >= length) end = length - 1;
    if (empty || start > end)
        reply_empty_bulk(client);
    else if (start == 0 && end == length - 1)
        reply_view(client, &view);
    else
        reply_bulk(client, view.data + start, (size_t)(end - start + 1));
}

/* ---- changing in place ------------------------------------------------------------------------------------------- */

static void increment(struct client *client, int64_t by) {
    struct dict_entry *entry = keyspace_find_write(client, 1);
    int64_t value = 0, sum;
    if (!keyspace_type_is(client, entry, VALUE_STRING)) return;
    if (entry && !string_to_int64(store_value(entry), &value)) {
        reply_not_an_integer(client);
        return;
    }
    if (__builtin_add_overflow(value, by, &sum)) {
        reply_error(client, "ERR increment or decrement would overflow");
        return;
    }
    if (entry && store_value(entry)->encoding == ENCODING_INTEGER) {
        ((struct string_integer *)store_value(entry))->integer = sum;
        keyspace_changed(client, entry);
    } else if (!keyspace_set(client, 1, entry, string_new_integer(sum))) {
        return;
    }
    reply_integer(client, sum);
}

static void incr_command(struct client *client) {
    increment(client, 1);
}

static void decr_command(struct client *client) {
    increment(client, -1);
}

static void incrby_command(struct client *client) {
    int64_t by;
    if (integer_argument(client, 2, &by)) increment(client, by);
}

static void decrby_command(struct client *client) {
    int64_t by;
    if (!integer_argument(client, 2, &by)) return;
    if (by == INT64_MIN)
        reply_error(client, "ERR decrement would overflow");
    else
        increment(client, -by);
}

static void incrbyfloat_command(struct client *client) {
    struct dict_entry *entry = keyspace_find_write(client, 1);
    if (!keyspace_type_is(client, entry, VALUE_STRING)) return;
    long double value = 0, by;
    if (entry) {
        struct string_view view;
        string_view(store_value(entry), &view);
        if (!number_parse_long_double(view.data, view.length, &value)) {
            reply_error(client, "ERR value is not a valid float");
            return;
        }
    }
    if (!float_argument(client, 2, &by)) return;
    value += by;
    if (isnan(value) || isinf(value)) {
        reply_error(client, "ERR increment would produce NaN or Infinity");
        return;
    }
    char text[NUMBER_LONG_DOUBLE_TEXT];
    size_t length = number_format_long_double(value, text);
    if (!keyspace_set(client, 1, entry, string_new((const uint8_t *)text, length, NULL))) return;
    propagate_instead(
        client, 4,
        (struct resp_argument[]){word_of("SET", 3), client->argv[1], word_of(text, length), word_of("KEEPTTL", 7)});
    reply_bulk(client, text, length);
}

static bool string_fits(struct client *client, uint64_t length, uint64_t more) {
    uint64_t limit = (uint64_t)client->server->config.max_bulk_bytes;
    if (length <= limit && more <= limit && length + more <= limit) return true;
    reply_error(client, "ERR string exceeds maximum allowed size (proto-max-bulk-len)");
    return false;
}

static void append(struct client *client, struct dict_entry *entry) {
    const struct resp_argument *tail = &client->argv[2];
    size_t length = string_length(store_value(entry));
    uint8_t *bytes = keyspace_writable(client, 1, entry, length + tail->length);
    if (!bytes) return;
    keyspace_copy(client, bytes + length, tail->data, tail->length);
    reply_integer(client, (int64_t)(length + tail->length));
}

static void append_in_slices(struct client *client) {
    append(client, keyspace_find(client, 1));
}

static void append_command(struct client *client) {
    struct dict_entry *entry = keyspace_find_write(client, 1);
    if (!keyspace_type_is(client, entry, VALUE_STRING)) return;
    size_t more = client->argv[2].length;
    if (!entry) {
        if (keyspace_put(client, 1, keyspace_string(client, 2), false)) reply_integer(client, (int64_t)more);
        return;
    }
    size_t length = string_length(store_value(entry));
    if (!string_fits(client, length, more)) return;
    if (keyspace_writes_much(entry, length + more, more))
        exclusive_run_change(client, append_in_slices);
    else
        append(client, entry);
}

static void set_range(struct client *client, struct dict_entry *entry, size_t offset) {
    const struct resp_argument *part = &client->argv[3];
    size_t length = entry ? string_length(store_value(entry)) : 0, end = offset + part->length;
    uint8_t *bytes = keyspace_writable(client, 1, entry, end);
    if (!bytes) return;
    keyspace_copy(client, bytes + offset, part->data, part->length);
    reply_integer(client, (int64_t)(end > length ? end : length));
}

static void set_range_in_slices(struct client *client) {
    int64_t offset = 0;
    number_parse_int64(client->argv[2].data, client->argv[2].length, &offset);
    set_range(client, keyspace_find(client, 1), (size_t)offset);
}

static void setrange_command(struct client *client) {
    int64_t offset;
    if (!integer_argument(client, 2, &offset)) return;
    if (offset < 0) {
        reply_error(client, "ERR offset is out of range");
        return;
    }
    struct dict_entry *entry = keyspace_find_write(client, 1);
    if (!keyspace_type_is(client, entry, VALUE_STRING)) return;
    size_t more = client->argv[3].length;
    if (more == 0)
        reply_integer(client, entry ? (int64_t)string_length(store_value(entry)) : 0);
    else if (!string_fits(client, (uint64_t)offset, more))
        return;
    else if (keyspace_writes_much(entry, (size_t)offset + more, more))
        exclusive_run_change(client, set_range_in_slices);
    else
        set_range(client, entry, (size_t)offset);
}

/* SET reads its key only to return the old value. */
static int set_keys(uint32_t argc, const struct resp_argument *argv, struct key_place *places, int max) {
    if (max > 0) places[0] = (struct key_place){1, KEY_WRITE, NULL};
    for (uint32_t i = 3; i < argc && max > 0; i++)
        if (argument_is(&argv[i], "get")) places[0].access = KEY_READ | KEY_WRITE;
    return 1;
}

#define WRITE (COMMAND_WRITE | COMMAND_DENYOOM)
#define READ COMMAND_READONLY
#define FAST COMMAND_FAST
#define RESTS COMMAND_RESTS

const struct command commands_string[] = {
    {"append", append_command, 3, WRITE | FAST, &group_string,
     "Appends a string to the value of a key. Creates the key if it doesn't exist.", "2.0.0", .keys = key_added_to,
     .event = KEY_EVENT(STRING, "append", IN_PLACE)},
    {"decr", decr_command, 2, WRITE | FAST, &group_string, "Decrements the integer value of a key by one.", "1.0.0",
     .keys = key_changed, .event = KEY_EVENT(STRING, "incrby", IN_PLACE)},
    {"decrby", decrby_command, 3, WRITE | FAST, &group_string, "Decrements a number from the integer value of a key.",
     "1.0.0", .keys = key_changed, .event = KEY_EVENT(STRING, "incrby", IN_PLACE)},
    {"get", get_command, 2, READ | FAST, &group_string, "Returns the string value of a key.", "1.0.0",
     .keys = key_read},
    {"getdel", getdel_command, 2, COMMAND_WRITE | FAST, &group_string,
     "Returns the string value of a key after deleting the key.", "6.2.0", .keys = key_taken_from,
     .event = KEY_EVENT(GENERIC, "del", REMOVES)},
    {"getex", getex_command, -2, COMMAND_WRITE | FAST, &group_string,
     "Returns the string value of a key after setting its expiration time.", "6.2.0", .keys = key_changed,
     .event = KEY_EVENT(GENERIC, "expire", EXPIRES_OR_PERSISTS)},
    {"getrange", getrange_command, 4, READ, &group_string, "Returns a substring of the string stored at a key.",
     "2.4.0", .keys = key_read},
    {"getset", getset_command, 3, WRITE | FAST, &group_string,
     "Returns the previous string value of a key after setting it to a new value.", "1.0.0", .keys = key_changed,
     .event = KEY_EVENT(STRING, "set", IN_PLACE)},
    {"incr", incr_command, 2, WRITE | FAST, &group_string, "Increments the integer value of a key by one.", "1.0.0",
     .keys = key_changed, .event = KEY_EVENT(STRING, "incrby", IN_PLACE)},
    {"incrby", incrby_command, 3, WRITE | FAST, &group_string, "Increments the integer value of a key by a number.",
     "1.0.0", .keys = key_changed, .event = KEY_EVENT(STRING, "incrby", IN_PLACE)},
    {"incrbyfloat", incrbyfloat_command, 3, WRITE | FAST, &group_string,
     "Increments the floating point value of a key by a number.", "2.6.0", .keys = key_changed,
     .event = KEY_EVENT(STRING, "incrbyfloat", IN_PLACE)},
    {"mget", mget_command, -2, READ | FAST | RESTS, &group_string, "Returns the string values of one or more keys.",
     "1.0.0", .tips = "request_policy:multi_shard", .keys = keys_read},
    {"mset", mset_command, -3, WRITE | RESTS, &group_string,
     "Creates or modifies the string values of one or more keys.", "1.0.1",
     .tips = "request_policy:multi_shard\nresponse_policy:all_succeeded", .keys = pairs_set,
     .event = KEY_EVENT(STRING, "set", IN_PLACE)},
    {"msetnx", msetnx_command, -3, WRITE | RESTS, &group_string,
     "Modifies the string values of one or more keys only when none of them exists.", "1.0.1",
     .tips = "request_policy:multi_shard\nresponse_policy:agg_min", .keys = pairs_added,
     .event = KEY_EVENT(STRING, "set", IN_PLACE)},
    {"psetex", psetex_command, 4, WRITE, &group_string,
     "Sets both string value and expiration time in milliseconds of a key.", "2.6.0", .keys = key_set,
     .event = KEY_EVENT(STRING, "set", WITH_EXPIRY)},
    {"set", set_command, -3, WRITE, &group_string, "Sets the string value of a key, ignoring its type.", "1.0.0",
     .keys = key_used_as_asked, .find_keys = set_keys, .event = KEY_EVENT(STRING, "set", WITH_EXPIRY_IF_ASKED)},
    {"setex", setex_command, 4, WRITE, &group_string, "Sets the string value and expiration time in seconds of a key.",
     "2.0.0", .keys = key_set, .event = KEY_EVENT(STRING, "set", WITH_EXPIRY)},
    {"setnx", setnx_command, 3, WRITE | FAST, &group_string,
     "Sets the string value of a key only when the key doesn't exist.", "1.0.0", .keys = key_added,
     .event = KEY_EVENT(STRING, "set", IN_PLACE)},
    {"setrange", setrange_command, 4, WRITE, &group_string,
     "Overwrites a part of a string value with another, from an offset on.", "2.2.0", .keys = key_updated,
     .event = KEY_EVENT(STRING, "setrange", IN_PLACE)},
    {"strlen", strlen_command, 2, READ | FAST, &group_string, "Returns the length of a string value.", "2.2.0",
     .keys = key_known},
    {"substr", getrange_command, 4, READ, &group_string, "Returns a substring of a string value.", "1.0.0",
     .keys = key_read},
    {0},
};

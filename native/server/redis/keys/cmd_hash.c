/* cmd_hash: commands on hashes. Order of checks and error texts follow Redis 7.0's t_hash.c. */
#include <math.h>

#include "server/core/command_table.h"
#include "server/core/exclusive_execution.h"
#include "server/core/propagate.h"
#include "server/redis/keys/keyspace.h"
#include "server/redis/pubsub/notify.h"
#include "server/redis/redis_rows.h"

static struct hash *hash_of(const struct dict_entry *entry) {
    return (struct hash *)store_value(entry);
}

/* Finds the hash for reading; false: an error is replied. *hash is NULL where there is no key. */
static bool find_hash(struct client *client, struct hash **hash) {
    struct dict_entry *entry = keyspace_find_read(client, 1);
    if (!keyspace_type_is(client, entry, VALUE_HASH)) return false;
    *hash = entry ? hash_of(entry) : NULL;
    return true;
}

static bool get_field(struct client *client, struct hash *hash, uint32_t index, struct string_view *view) {
    return hash && hash_get(hash, client->argv[index].data, client->argv[index].length, view);
}

/* The hash to write to, created where there is none. NULL: an error is replied. */
static struct dict_entry *hash_for_writing(struct client *client) {
    struct dict_entry *entry = keyspace_find_write(client, 1);
    if (!keyspace_type_is(client, entry, VALUE_HASH)) return NULL;
    return entry ? entry : keyspace_put(client, 1, (struct value *)hash_new(), false);
}

/* Sets the field named by argument `index`. False: memory is exhausted and the error replied; a hash that was made for
 * this is gone again. */
static bool set_field(struct client *client, struct dict_entry *entry, uint32_t index, const uint8_t *value,
                      size_t length, struct blob *blob, bool *added) {
    const struct resp_argument *field = &client->argv[index];
    enum hash_set_result result = hash_set(hash_of(entry), field->data, field->length, value, length, blob);
    *added = result == HASH_SET_ADDED;
    if (result != HASH_SET_EXHAUSTED) {
        keyspace_changed(client, entry);
        return true;
    }
    if (hash_count(hash_of(entry)) == 0) keyspace_remove(client, entry);
    reply_out_of_memory(client);
    return false;
}

static bool set_field_argument(struct client *client, struct dict_entry *entry, uint32_t index, bool *added) {
    const struct resp_argument *value = &client->argv[index + 1];
    return set_field(client, entry, index, value->data, value->length, value->blob, added);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* Sets all fields; false: an error is replied. */
static bool set_fields(struct client *client, int64_t *count) {
    if (client->argc % 2 == 1) {
        reply_arity_error(client);
        return false;
    }
    struct dict_entry *entry = hash_for_writing(client);
    if (!entry) return false;
    *count = 0;
    for (uint32_t i = 2; i < client->argc && exclusive_goes_on_at(client, i); i += 2) {
        bool added;
        if (!set_field_argument(client, entry, i, &added)) return false;
        *count += added;
    }
    return true;
}

static void hset_command(struct client *client) {
    int64_t added;
    if (set_fields(client, &added)) reply_integer(client, added);
}

static void hmset_command(struct client *client) {
    int64_t added;
    if (set_fields(client, &added)) reply_status(client, "OK");
}

static void hsetnx_command(struct client *client) {
    struct dict_entry *entry = hash_for_writing(client);
    struct string_view view;
    bool added;
    if (!entry) return;
    if (get_field(client, hash_of(entry), 2, &view))
        reply_integer(client, 0);
    else if (set_field_argument(client, entry, 2, &added))
        reply_integer(client, 1);
}

static void hincrby_command(struct client *client) {
    int64_t by, value = 0, sum;
    if (!integer_argument(client, 3, &by)) return;
    struct dict_entry *entry = hash_for_writing(client);
    if (!entry) return;
    struct string_view view;
    if (get_field(client, hash_of(entry), 2, &view) && !number_parse_int64(view.data, view.length, &value)) {
        reply_error(client, "ERR hash value is not an integer");
        return;
    }
    if (__builtin_add_overflow(value, by, &sum)) {
        reply_error(client, "ERR increment or decrement would overflow");
        return;
    }
    char text[NUMBER_INT64_TEXT];
    bool added;
    if (set_field(client, entry, 2, (const uint8_t *)text, number_format_int64(sum, text), NULL, &added))
        reply_integer(client, sum);
}

static void hincrbyfloat_command(struct client *client) {
    long double by, value = 0;
    if (!float_argument(client, 3, &by)) return;
    if (isnan(by) || isinf(by)) {
        reply_error(client, "ERR value is NaN or Infinity");
        return;
    }
    struct dict_entry *entry = hash_for_writing(client);
    if (!entry) return;
    struct string_view view;
    if (get_field(client, hash_of(entry), 2, &view) && !number_parse_long_double(view.data, view.length, &value)) {
        reply_error(client, "ERR hash value is not a float");
        return;
    }
    value += by;
    if (isnan(value) || isinf(value)) {
        reply_error(client, "ERR increment would produce NaN or Infinity");
        return;
    }
    char text[NUMBER_LONG_DOUBLE_TEXT];
    size_t length = number_format_long_double(value, text);
    bool added;
    if (!set_field(client, entry, 2, (const uint8_t *)text, length, NULL, &added)) return;
    struct resp_argument words[] = {{.data = (const uint8_t *)"HSET", .length = 4},
                                    client->argv[1],
                                    client->argv[2],
                                    {.data = (const uint8_t *)text, .length = length}};
    propagate_instead(client, 4, words);
    reply_bulk(client, text, length);
}

static void hdel_command(struct client *client) {
    struct dict_entry *entry = keyspace_find_write(client, 1);
    if (!keyspace_type_is(client, entry, VALUE_HASH)) return;
    int64_t deleted = 0;
    for (uint32_t i = 2; entry && i < client->argc && exclusive_goes_on_at(client, i); i++)
        deleted += hash_delete(hash_of(entry), client->argv[i].data, client->argv[i].length);
    if (deleted > 0) {
        keyspace_changed(client, entry);
        if (hash_count(hash_of(entry)) == 0) keyspace_remove(client, entry);
    }
    reply_integer(client, deleted);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static void reply_field(struct client *client, struct hash *hash, uint32_t index) {
    struct string_view view;
    if (get_field(client, hash, index, &view))
        reply_view(client, &view);
    else
        reply_null(client);
}

static void hget_command(struct client *client) {
    struct hash *hash;
    if (find_hash(client, &hash)) reply_field(client, hash, 2);
}

static void hmget_command(struct client *client) {
    struct hash *hash;
    if (!find_hash(client, &hash)) return;
    reply_array(client, client->argc - 2);
    for (uint32_t i = 2; i < client->argc && exclusive_goes_on_at(client, i); i++) reply_field(client, hash, i);
}

static void hlen_command(struct client *client) {
    struct hash *hash;
    if (find_hash(client, &hash)) reply_integer(client, hash ? (int64_t)hash_count(hash) : 0);
}

static void hexists_command(struct client *client) {
    struct hash *hash;
    struct string_view view;
    if (find_hash(client, &hash)) reply_integer(client, get_field(client, hash, 2, &view));
}

static void hstrlen_command(struct client *client) {
    struct hash *hash;
    struct string_view view;
    if (find_hash(client, &hash)) reply_integer(client, get_field(client, hash, 2, &view) ? (int64_t)view.length : 0);
}

static void reply_walk(struct client *client, const struct hash *hash, bool fields, bool values) {
    size_t count = hash ? hash_count(hash) : 0, length;
    if (fields && values)
        reply_map(client, count);
    else
        reply_array(client, count);
    struct hash_position position = {0};
    const uint8_t *field;
    struct string_view view;
    for (size_t walked = 1; hash && hash_next(hash, &position, &field, &length, &view); walked++) {
        if (fields) reply_bulk(client, field, length);
        if (values) reply_view(client, &view);
        if (walked % EXCLUSIVE_PARTS_TO_REST == 0 && !exclusive_goes_on(client)) return;
    }
}

/* Within the slices: the hash is there, if its time is not over just now. */
static void walk_again(struct client *client, bool fields, bool values) {
    const struct dict_entry *entry = keyspace_find(client, 1);
    reply_walk(client, entry ? hash_of(entry) : NULL, fields, values);
}

static void walk_all(struct client *client) {
    walk_again(client, true, true);
}

static void walk_fields(struct client *client) {
    walk_again(client, true, false);
}

static void walk_values(struct client *client) {
    walk_again(client, false, true);
}

static void reply_all(struct client *client, bool fields, bool values) {
    struct hash *hash;
    if (!find_hash(client, &hash)) return;
    if (hash && hash_count(hash) > EXCLUSIVE_PARTS_AT_ONCE && !client->server->exclusive.inside)
        exclusive_run_command(client, !values ? walk_fields : !fields ? walk_values : walk_all);
    else
        reply_walk(client, hash, fields, values);
}

static void hgetall_command(struct client *client) {
    reply_all(client, true, true);
}

static void hkeys_command(struct client *client) {
    reply_all(client, true, false);
}

static void hvals_command(struct client *client) {
    reply_all(client, false, true);
}

/* ---- scanning ---------------------------------------------------------------------------------------------------- */

/* A packed hash is small: its fields are all replied at once. */
static void scan_packed(struct client *client, const struct hash *hash, const struct scan_options *options) {
    reply_scan_cursor(client, 0);
    size_t mark = reply_array_deferred(client), replied = 0, length;
    struct hash_position position = {0};
    const uint8_t *field;
    struct string_view view;
    while (hash_next(hash, &position, &field, &length, &view)) {
        if (!scan_matches(options, field, length)) continue;
        reply_bulk(client, field, length);
        reply_view(client, &view);
        replied += 2;
    }
    reply_set_array_length(client, mark, replied);
}

static void hscan_command(struct client *client) {
    uint64_t cursor;
    struct scan_options options;
    struct scan_found found;
    if (!scan_cursor_argument(client, 2, &cursor)) return;
    struct dict_entry *entry = keyspace_find_read(client, 1);
    if (!entry) {
        /* Redis does not look at the options of a scan over nothing. */
        reply_scan_cursor(client, 0);
        reply_array(client, 0);
        return;
    }
    if (!keyspace_type_is(client, entry, VALUE_HASH) || !scan_options_parse(client, 3, false, &options)) return;
    struct hash *hash = hash_of(entry);
    if (hash->head.encoding == ENCODING_PACKED) {
        scan_packed(client, hash, &options);
        return;
    }
    if (!scan_dict(client, &hash->dict, &options, &cursor, &found)) return;
    reply_scan_cursor(client, cursor);
    reply_array(client, found.count * 2);
    for (size_t i = 0; i < found.count; i++) {
        reply_bulk(client, found.entries[i]->key, found.entries[i]->key_length);
        reply_string(client, found.entries[i]->value);
    }
    scan_found_free(&found);
}

#define WRITE (COMMAND_WRITE | COMMAND_DENYOOM)
#define READ COMMAND_READONLY
#define FAST COMMAND_FAST
#define RESTS COMMAND_RESTS

const struct command commands_hash[] = {
    {"hdel", hdel_command, -3, COMMAND_WRITE | FAST | RESTS, &group_hash,
     "Deletes fields of a hash. Deletes the hash if no fields remain.", "2.0.0", .keys = key_removed_from,
     .event = KEY_EVENT(HASH, "hdel", IN_PLACE)},
    {"hexists", hexists_command, 3, READ | FAST, &group_hash, "Determines whether a field exists in a hash.", "2.0.0",
     .keys = key_known},
    {"hget", hget_command, 3, READ | FAST, &group_hash, "Returns the value of a field in a hash.", "2.0.0",
     .keys = key_read},
    {"hgetall", hgetall_command, 2, READ, &group_hash, "Returns all fields and values in a hash.", "2.0.0",
     .tips = "nondeterministic_output_order", .keys = key_read},
    {"hincrby", hincrby_command, 4, WRITE | FAST, &group_hash,
     "Increments the integer value of a field in a hash by a number.", "2.0.0", .keys = key_changed,
     .event = KEY_EVENT(HASH, "hincrby", IN_PLACE)},
    {"hincrbyfloat", hincrbyfloat_command, 4, WRITE | FAST, &group_hash,
     "Increments the floating point value of a field by a number.", "2.6.0", .keys = key_changed,
     .event = KEY_EVENT(HASH, "hincrbyfloat", IN_PLACE)},
    {"hkeys", hkeys_command, 2, READ, &group_hash, "Returns all fields in a hash.", "2.0.0",
     .tips = "nondeterministic_output_order", .keys = key_read},
    {"hlen", hlen_command, 2, READ | FAST, &group_hash, "Returns the number of fields in a hash.", "2.0.0",
     .keys = key_known},
    {"hmget", hmget_command, -3, READ | FAST | RESTS, &group_hash, "Returns the values of fields in a hash.", "2.0.0",
     .keys = key_read},
    {"hmset", hmset_command, -4, WRITE | FAST | RESTS, &group_hash, "Sets the values of fields in a hash.", "2.0.0",
     .keys = key_updated, .event = KEY_EVENT(HASH, "hset", IN_PLACE)},
    {"hscan", hscan_command, -3, READ, &group_hash, "Iterates over fields and values of a hash.", "2.8.0",
     .tips = "nondeterministic_output", .keys = key_read},
    {"hset", hset_command, -4, WRITE | FAST | RESTS, &group_hash, "Creates or modifies the values of fields in a hash.",
     "2.0.0", .keys = key_updated, .event = KEY_EVENT(HASH, "hset", IN_PLACE)},
    {"hsetnx", hsetnx_command, 4, WRITE | FAST, &group_hash,
     "Sets the value of a field in a hash only when the field doesn't exist.", "2.0.0", .keys = key_added_to,
     .event = KEY_EVENT(HASH, "hset", IN_PLACE)},
    {"hstrlen", hstrlen_command, 3, READ | FAST, &group_hash, "Returns the length of the value of a field in a hash.",
     "3.2.0", .keys = key_known},
    {"hvals", hvals_command, 2, READ, &group_hash, "Returns all values in a hash.", "2.0.0",
     .tips = "nondeterministic_output_order", .keys = key_read},
    {0},
};

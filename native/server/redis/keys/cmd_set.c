/* cmd_set: commands on one set or two, and the table of all commands on sets. Order of checks and error texts follow Redis
 * 7.0's t_set.c. */
#include "server/redis/keys/cmd_set.h"

#include "server/core/command_table.h"
#include "server/core/exclusive_execution.h"
#include "server/redis/pubsub/notify.h"
#include "server/redis/redis_rows.h"

bool find_set(struct client *client, struct value **set) {
    struct dict_entry *entry = keyspace_find_read(client, 1);
    if (!keyspace_type_is(client, entry, VALUE_SET)) return false;
    *set = entry ? store_value(entry) : NULL;
    return true;
}

struct dict_entry *find_again(struct client *client, uint32_t index) {
    const struct resp_argument *key = &client->argv[index];
    struct dict *keys = &client->server->store->databases[client->database].keys;
    return dict_find(keys, dict_hash(key->data, key->length), key->data, key->length);
}

void reply_member(struct client *client, struct set_member *member) {
    set_member_text(member);
    reply_bulk(client, member->data, member->length);
}

void reply_members(struct client *client, const struct value *set) {
    struct set_position position = {0};
    struct set_member member;
    for (uint64_t replied = 1; set_next(set, &position, &member); replied++) {
        reply_member(client, &member);
        if (!exclusive_goes_on_at(client, replied)) return;
    }
}

void set_shrunk(struct client *client, struct dict_entry *entry) {
    if (set_count(store_value(entry)) == 0)
        keyspace_remove(client, entry);
    else
        keyspace_changed(client, entry);
}

bool take_out(struct dict_entry *entry, struct set_member *member) {
    struct value *set = store_value(entry);
    bool removed = set_remove(&set, member);
    entry->value = set;
    return removed;
}

static void member_argument(struct client *client, uint32_t index, struct set_member *member) {
    set_member_of(member, client->argv[index].data, client->argv[index].length);
}

static bool contains_argument(struct client *client, struct value *set, uint32_t index) {
    struct set_member member;
    if (!set) return false;
    member_argument(client, index, &member);
    return set_contains(set, &member);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* Adds the members in arguments 2 and up; false: memory is exhausted, those before are in. `entry` has the set, which may come to
 * lie elsewhere; NULL: it is new. */
static bool add_arguments(struct client *client, struct dict_entry *entry, struct value **set, int64_t *added) {
    struct set_member member;
    *added = 0;
    for (uint32_t i = 2; i < client->argc && exclusive_goes_on_at(client, i); i++) {
        member_argument(client, i, &member);
        enum set_add_result result = set_add(set, &member);
        if (entry) entry->value = *set;
        if (result == SET_ADD_EXHAUSTED) return false;
        *added += result == SET_ADD_ADDED;
    }
    return true;
}

static void sadd_to_new(struct client *client) {
    struct value *set = set_new();
    int64_t added = 0;
    if (set && !add_arguments(client, NULL, &set, &added)) {
        value_free(set);
        set = NULL;
    }
    if (keyspace_put(client, 1, set, false)) reply_integer(client, added);
}

static void sadd_command(struct client *client) {
    struct dict_entry *entry = keyspace_find_write(client, 1);
    if (!keyspace_type_is(client, entry, VALUE_SET)) return;
    if (!entry) {
        sadd_to_new(client);
        return;
    }
    struct value *set = store_value(entry);
    int64_t added;
    bool whole = add_arguments(client, entry, &set, &added);
    if (added > 0) keyspace_changed(client, entry);
    if (whole)
        reply_integer(client, added);
    else
        reply_out_of_memory(client);
}

static void srem_command(struct client *client) {
    struct dict_entry *entry = keyspace_find_write(client, 1);
    if (!keyspace_type_is(client, entry, VALUE_SET)) return;
    int64_t removed = 0;
    struct set_member member;
    for (uint32_t i = 2; entry && i < client->argc && set_count(store_value(entry)) > 0; i++) {
        if (!exclusive_goes_on_at(client, i)) return;
        member_argument(client, i, &member);
        removed += take_out(entry, &member);
    }
    if (removed > 0) set_shrunk(client, entry);
    reply_integer(client, removed);
}

/* Adds the member in argument 3 to the set of argument 2. False: memory is exhausted and the error replied. */
static bool move_in(struct client *client, struct dict_entry *entry) {
    struct value *set = entry ? store_value(entry) : set_new();
    struct set_member member;
    member_argument(client, 3, &member);
    enum set_add_result result = set ? set_add(&set, &member) : SET_ADD_EXHAUSTED;
    if (!entry) {
        if (result == SET_ADD_EXHAUSTED) {
            value_free(set);
            set = NULL;
        }
        return keyspace_put(client, 2, set, false);
    }
    entry->value = set;
    if (result == SET_ADD_ADDED) keyspace_changed(client, entry);
    if (result == SET_ADD_EXHAUSTED) reply_out_of_memory(client);
    return result != SET_ADD_EXHAUSTED;
}

static void smove_command(struct client *client) {
    keyspace_find_write(client, 1);
    struct dict_entry *to = keyspace_find_write(client, 2), *from = find_again(client, 1);
    if (!from) {
        reply_integer(client, 0);
        return;
    }
    if (!keyspace_type_is(client, from, VALUE_SET) || !keyspace_type_is(client, to, VALUE_SET)) return;
    bool moved = contains_argument(client, store_value(from), 3);
    if (moved && from != to) {
        struct set_member member;
        if (!move_in(client, to)) return;
        member_argument(client, 3, &member);
        take_out(from, &member);
        set_shrunk(client, from);
    }
    reply_integer(client, moved);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static void scard_command(struct client *client) {
    struct value *set;
    if (find_set(client, &set)) reply_integer(client, set ? (int64_t)set_count(set) : 0);
}

static void sismember_command(struct client *client) {
    struct value *set;
    if (!find_set(client, &set)) return;
    if (set) set_tidy(set);
    reply_integer(client, contains_argument(client, set, 2));
}

static void smismember_command(struct client *client) {
    struct value *set;
    if (!find_set(client, &set)) return;
    if (set) set_tidy(set);
    reply_array(client, client->argc - 2);
    for (uint32_t i = 2; i < client->argc && exclusive_goes_on_at(client, i); i++)
        reply_integer(client, contains_argument(client, set, i));
}

/* Within the slices: the set is there, if its time is not over just now. */
static void walk_members(struct client *client) {
    const struct dict_entry *entry = keyspace_find(client, 1);
    const struct value *set = entry ? store_value(entry) : NULL;
    struct set_position position = {0};
    struct set_member member;
    reply_set(client, set ? set_count(set) : 0);
    for (size_t walked = 1; set && set_next(set, &position, &member); walked++) {
        reply_member(client, &member);
        if (walked % EXCLUSIVE_PARTS_TO_REST == 0 && !exclusive_goes_on(client)) return;
    }
}

static void smembers_command(struct client *client) {
    struct value *set;
    if (!find_set(client, &set)) return;
    if (set && set_count(set) > EXCLUSIVE_PARTS_AT_ONCE && !client->server->exclusive.inside) {
        exclusive_run_command(client, walk_members);
        return;
    }
    reply_set(client, set ? set_count(set) : 0);
    if (set) reply_members(client, set);
}

/* A small set is replied whole, whatever the cursor. */
static void scan_small(struct client *client, const struct value *set, const struct scan_options *options) {
    reply_scan_cursor(client, 0);
    size_t mark = reply_array_deferred(client), replied = 0;
    struct set_position position = {0};
    struct set_member member;
    while (set_next(set, &position, &member)) {
        set_member_text(&member);
        if (!scan_matches(options, member.data, member.length)) continue;
        reply_member(client, &member);
        replied++;
    }
    reply_set_array_length(client, mark, replied);
}

static void sscan_command(struct client *client) {
    uint64_t cursor;
    struct scan_options options;
    struct scan_found found;
    if (!scan_cursor_argument(client, 2, &cursor)) return;
    struct value *set;
    if (!find_set(client, &set)) return;
    if (!set) {
        /* Redis does not look at the options of a scan over nothing. */
        reply_scan_cursor(client, 0);
        reply_array(client, 0);
        return;
    }
    if (!scan_options_parse(client, 3, false, &options)) return;
    if (!set_dict(set)) {
        scan_small(client, set, &options);
        return;
    }
    if (!scan_dict(client, set_dict(set), &options, &cursor, &found)) return;
    reply_scan_cursor(client, cursor);
    reply_array(client, found.count);
    for (size_t i = 0; i < found.count; i++) reply_bulk(client, found.entries[i]->key, found.entries[i]->key_length);
    scan_found_free(&found);
}

/* ---- table ------------------------------------------------------------------------------------------------------- */

#define WRITE (COMMAND_WRITE | COMMAND_DENYOOM)
#define READ COMMAND_READONLY
#define FAST COMMAND_FAST
#define RESTS COMMAND_RESTS

const struct command commands_set[] = {
    {"sadd", sadd_command, -3, WRITE | FAST | RESTS, &group_set,
     "Adds members to a set. Creates the key if it doesn't exist.", "1.0.0", .keys = key_added_to,
     .event = KEY_EVENT(SET, "sadd", IN_PLACE)},
    {"scard", scard_command, 2, READ | FAST, &group_set, "Returns the number of members in a set.", "1.0.0",
     .keys = key_known},
    {"sdiff", sdiff_command, -2, READ, &group_set,
     "Returns the members of the first set that are in none of the others.", "1.0.0",
     .tips = "nondeterministic_output_order", .keys = keys_read},
    {"sdiffstore", sdiffstore_command, -3, WRITE, &group_set,
     "Stores the members of the first set that are in none of the others.", "1.0.0", .keys = key_set_from_keys,
     .event = KEY_EVENT(SET, "sdiffstore", STORES)},
    {"sinter", sinter_command, -2, READ, &group_set, "Returns the members that all sets have.", "1.0.0",
     .tips = "nondeterministic_output_order", .keys = keys_read},
    {"sintercard", sintercard_command, -3, READ | COMMAND_MOVABLEKEYS, &group_set,
     "Returns the number of members that all sets have.", "7.0.0", .keys = counted_keys_read},
    {"sinterstore", sinterstore_command, -3, WRITE, &group_set, "Stores the members that all sets have.", "1.0.0",
     .keys = key_updated_from_keys, .event = KEY_EVENT(SET, "sinterstore", STORES)},
    {"sismember", sismember_command, 3, READ | FAST, &group_set, "Determines whether a member belongs to a set.",
     "1.0.0", .keys = key_known},
    {"smembers", smembers_command, 2, READ, &group_set, "Returns all members of a set.", "1.0.0",
     .tips = "nondeterministic_output_order", .keys = key_read},
    {"smismember", smismember_command, -3, READ | FAST | RESTS, &group_set,
     "Determines whether each of some members belongs to a set.", "6.2.0", .keys = key_read},
    {"smove", smove_command, 4, COMMAND_WRITE | FAST, &group_set, "Moves a member from one set to another.", "1.0.0",
     .keys = key_moved_from_and_to, .event = KEY_EVENT(SET, "", MOVES_MEMBER)},
    {"spop", spop_command, -2, COMMAND_WRITE | FAST, &group_set,
     "Returns members of a set, picked by chance, after removing them.", "1.0.0", .tips = "nondeterministic_output",
     .keys = key_taken_from, .event = KEY_EVENT(SET, "spop", IN_PLACE)},
    {"srandmember", srandmember_command, -2, READ, &group_set, "Returns members of a set, picked by chance.", "1.0.0",
     .tips = "nondeterministic_output", .keys = key_read},
    {"srem", srem_command, -3, COMMAND_WRITE | FAST | RESTS, &group_set,
     "Removes members from a set. Deletes the set if none remain.", "1.0.0", .keys = key_removed_from,
     .event = KEY_EVENT(SET, "srem", IN_PLACE)},
    {"sscan", sscan_command, -3, READ, &group_set, "Iterates over the members of a set.", "2.8.0",
     .tips = "nondeterministic_output", .keys = key_read},
    {"sunion", sunion_command, -2, READ, &group_set, "Returns the members that any of the sets has.", "1.0.0",
     .tips = "nondeterministic_output_order", .keys = keys_read},
    {"sunionstore", sunionstore_command, -3, WRITE, &group_set, "Stores the members that any of the sets has.", "1.0.0",
     .keys = key_set_from_keys, .event = KEY_EVENT(SET, "sunionstore", STORES)},
    {0},
};

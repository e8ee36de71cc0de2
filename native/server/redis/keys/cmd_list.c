/* cmd_list: commands on lists. Order of checks and error texts follow Redis 7.0's t_list.c. */
#include <string.h>

#include "server/core/command_table.h"
#include "server/core/exclusive_execution.h"
#include "server/redis/keys/keyspace.h"
#include "server/redis/pubsub/notify.h"
#include "server/redis/redis_rows.h"

static struct list *list_of(const struct dict_entry *entry) {
    return (struct list *)store_value(entry);
}

/* The entry of a list, or NULL with the reply written: an error, or by `absent` where there is no key. */
static struct dict_entry *find_list(struct client *client, bool reads, void (*absent)(struct client *client)) {
    struct dict_entry *entry = reads ? keyspace_find_read(client, 1) : keyspace_find_write(client, 1);
    if (!entry)
        absent(client);
    else if (!keyspace_type_is(client, entry, VALUE_LIST))
        return NULL;
    return entry;
}

static void reply_zero(struct client *client) {
    reply_integer(client, 0);
}

static void reply_empty_array(struct client *client) {
    reply_array(client, 0);
}

static void reply_ok(struct client *client) {
    reply_status(client, "OK");
}

/* A list goes with its last element. */
static void remove_if_empty(struct client *client, struct dict_entry *entry) {
    if (list_length(list_of(entry)) == 0) keyspace_remove(client, entry);
}

/* ---- pushing and popping ----------------------------------------------------------------------------------------- */

static void push(struct client *client, bool at_head, bool only_existing) {
    struct dict_entry *entry = keyspace_find_write(client, 1);
    if (!keyspace_type_is(client, entry, VALUE_LIST)) return;
    if (!entry && only_existing) {
        reply_integer(client, 0);
        return;
    }
    if (!entry) {
        entry = keyspace_put(client, 1, (struct value *)list_new(), false);
        if (!entry) return;
    }
    struct list *list = list_of(entry);
    for (uint32_t i = 2; i < client->argc && exclusive_goes_on_at(client, i); i++) {
        struct value *element = keyspace_string(client, i);
        if (!element || !list_push(list, at_head, element)) {
            value_free(element);
            if (i > 2) keyspace_changed(client, entry);
            remove_if_empty(client, entry);
            reply_out_of_memory(client);
            return;
        }
    }
    keyspace_changed(client, entry);
    reply_integer(client, (int64_t)list_length(list));
}

static void lpush_command(struct client *client) {
    push(client, true, false);
}

static void rpush_command(struct client *client) {
    push(client, false, false);
}

static void lpushx_command(struct client *client) {
    push(client, true, true);
}

static void rpushx_command(struct client *client) {
    push(client, false, true);
}

static void pop_elements(struct client *client, struct dict_entry *entry, bool at_head, uint64_t count) {
    for (uint64_t i = 1; i <= count && exclusive_goes_on_at(client, i); i++)
        reply_popped(client, list_of(entry), at_head);
    keyspace_changed(client, entry);
    remove_if_empty(client, entry);
}

/* How many of that many there are, and the head of a reply of them. */
static uint64_t reply_pop_head(struct client *client, const struct dict_entry *entry, int64_t count) {
    uint64_t length = list_length(list_of(entry)), popped = (uint64_t)count < length ? (uint64_t)count : length;
    reply_array(client, popped);
    return popped;
}

static void pop_many(struct client *client, bool at_head) {
    struct dict_entry *entry = keyspace_find(client, 1);
    int64_t count = 0;
    number_parse_int64(client->argv[2].data, client->argv[2].length, &count);
    pop_elements(client, entry, at_head, reply_pop_head(client, entry, count));
}

static void lpop_in_slices(struct client *client) {
    pop_many(client, true);
}

static void rpop_in_slices(struct client *client) {
    pop_many(client, false);
}

static void pop(struct client *client, bool at_head) {
    if (client->argc > 3) {
        reply_arity_error(client);
        return;
    }
    bool counted = client->argc == 3;
    int64_t count = 1;
    if (counted && (!number_parse_int64(client->argv[2].data, client->argv[2].length, &count) || count < 0)) {
        reply_error(client, "ERR value is out of range, must be positive");
        return;
    }
    struct dict_entry *entry = find_list(client, false, counted ? reply_null_array : reply_null);
    if (!entry) return;
    if (count == 0)
        reply_array(client, 0);
    else if (count > EXCLUSIVE_PARTS_AT_ONCE && list_length(list_of(entry)) > EXCLUSIVE_PARTS_AT_ONCE)
        exclusive_run_change(client, at_head ? lpop_in_slices : rpop_in_slices);
    else
        pop_elements(client, entry, at_head, counted ? reply_pop_head(client, entry, count) : 1);
}

static void lpop_command(struct client *client) {
    pop(client, true);
}

static void rpop_command(struct client *client) {
    pop(client, false);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static void llen_command(struct client *client) {
    struct dict_entry *entry = find_list(client, true, reply_zero);
    if (entry) reply_integer(client, (int64_t)list_length(list_of(entry)));
}

static void lindex_command(struct client *client) {
    struct dict_entry *entry = find_list(client, true, reply_null);
    int64_t index;
    if (!entry || !integer_argument(client, 2, &index)) return;
    int64_t length = (int64_t)list_length(list_of(entry));
    if (index < 0) index += length;
    if (index < 0 || index >= length)
        reply_null(client);
    else
        reply_string(client, *list_element(list_at(list_of(entry), (uint64_t)index)));
}

/* Turns bounds that may count from the end into 0 <= start <= end < length; false where nothing lies between them. */
static bool clamp_range(int64_t length, int64_t *start, int64_t *end) {
    if (*start < 0) *start += length;
    if (*end < 0) *end += length;
    if (*start < 0) *start = 0;
    if (*start > *end || *start >= length) return false;
    if (*end >= length) *end = length - 1;
    return true;
}

static void reply_range(struct client *client, const struct list *list, int64_t start, int64_t end) {
    reply_array(client, (size_t)(end - start + 1));
    struct list_position position = list_at(list, (uint64_t)start);
    for (int64_t i = start; i <= end; i++) {
        reply_string(client, *list_element(position));
        list_step(&position, false);
        if ((i - start) % EXCLUSIVE_PARTS_TO_REST == EXCLUSIVE_PARTS_TO_REST - 1 && !exclusive_goes_on(client)) return;
    }
}

/* Within the slices: the arguments are good, but the list's time may be over just now. */
static void walk_range(struct client *client) {
    int64_t start, end;
    const struct dict_entry *entry = keyspace_find(client, 1);
    if (!integer_argument(client, 2, &start) || !integer_argument(client, 3, &end)) return;
    if (entry && clamp_range((int64_t)list_length(list_of(entry)), &start, &end))
        reply_range(client, list_of(entry), start, end);
    else
        reply_array(client, 0);
}

static void lrange_command(struct client *client) {
    int64_t start, end;
    if (!integer_argument(client, 2, &start) || !integer_argument(client, 3, &end)) return;
    struct dict_entry *entry = find_list(client, true, reply_empty_array);
    if (!entry) return;
    if (!clamp_range((int64_t)list_length(list_of(entry)), &start, &end))
        reply_array(client, 0);
    else if (end - start >= EXCLUSIVE_PARTS_AT_ONCE && !client->server->exclusive.inside)
        exclusive_run_command(client, walk_range);
    else
        reply_range(client, list_of(entry), start, end);
}

static bool element_equals(const struct value *element, const struct resp_argument *argument) {
    struct string_view view;
    string_view(element, &view);
    return view.length == argument->length && memcmp(view.data, argument->data, view.length) == 0;
}

struct position_options {
    uint64_t skip;   /* matches before the first that counts */
    bool backwards;
    int64_t count;   /* of matches; 0: all; −1: one, replied alone */
    int64_t longest; /* elements compared; 0: all */
};

static bool not_negative_argument(struct client *client, uint32_t index, const char *name, int64_t *value) {
    const struct resp_argument *argument = &client->argv[index];
    if (number_parse_int64(argument->data, argument->length, value) && *value >= 0) return true;
    reply_error(client, "ERR %s can't be negative", name);
    return false;
}

static bool rank_argument(struct client *client, uint32_t index, struct position_options *options) {
    int64_t rank;
    if (!integer_argument(client, index, &rank)) return false;
    if (rank == 0) {
        reply_error(client, "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use "
                            "negative to start from the end of the list");
        return false;
    }
    options->backwards = rank < 0;
    /* The least number has no opposite: Redis then begins with the last match. */
    options->skip = rank == INT64_MIN ? 0 : (uint64_t)(rank < 0 ? -rank : rank) - 1;
    return true;
}

static bool position_options_parse(struct client *client, struct position_options *options) {
    *options = (struct position_options){.count = -1};
    for (uint32_t i = 3; i < client->argc; i += 2) {
        const struct resp_argument *word = &client->argv[i];
        bool has_value = i + 1 < client->argc, valid;
        if (has_value && argument_is(word, "rank")) {
            valid = rank_argument(client, i + 1, options);
        } else if (has_value && argument_is(word, "count")) {
            valid = not_negative_argument(client, i + 1, "COUNT", &options->count);
        } else if (has_value && argument_is(word, "maxlen")) {
            valid = not_negative_argument(client, i + 1, "MAXLEN", &options->longest);
        } else {
            reply_syntax_error(client);
            valid = false;
        }
        if (!valid) return false;
    }
    return true;
}

static void reply_positions(struct client *client, const struct list *list, const struct position_options *options) {
    bool one = options->count == -1, more = true;
    uint64_t wanted = one ? 1 : options->count == 0 ? UINT64_MAX : (uint64_t)options->count;
    uint64_t length = list_length(list), found = 0, skip = options->skip;
    uint64_t look = options->longest == 0 ? length : (uint64_t)options->longest;
    size_t mark = one ? 0 : reply_array_deferred(client);
    struct list_position position = list_at(list, options->backwards ? length - 1 : 0);
    for (uint64_t i = 0; more && i < look && found < wanted; i++) {
        bool matches = element_equals(*list_element(position), &client->argv[2]);
        if (matches && skip > 0) {
            skip--;
        } else if (matches) {
            reply_integer(client, (int64_t)(options->backwards ? length - 1 - i : i));
            found++;
        }
        more = list_step(&position, options->backwards);
    }
    if (!one)
        reply_set_array_length(client, mark, found);
    else if (found == 0)
        reply_null(client);
}

static void lpos_command(struct client *client) {
    struct position_options options;
    if (!position_options_parse(client, &options)) return;
    struct dict_entry *entry = find_list(client, true, options.count == -1 ? reply_null : reply_empty_array);
    if (entry) reply_positions(client, list_of(entry), &options);
}

/* ---- changing ---------------------------------------------------------------------------------------------------- */

static void lset_command(struct client *client) {
    struct dict_entry *entry = find_list(client, false, reply_no_such_key);
    int64_t index;
    if (!entry || !integer_argument(client, 2, &index)) return;
    struct list *list = list_of(entry);
    int64_t length = (int64_t)list_length(list);
    if (index < 0) index += length;
    if (index < 0 || index >= length) {
        reply_error(client, "ERR index out of range");
        return;
    }
    struct value *element = keyspace_string(client, 3);
    if (!element) {
        reply_out_of_memory(client);
        return;
    }
    struct value **place = list_element(list_at(list, (uint64_t)index));
    value_free(*place);
    *place = element;
    keyspace_changed(client, entry);
    reply_ok(client);
}

static void ltrim_command(struct client *client) {
    int64_t start, end;
    if (!integer_argument(client, 2, &start) || !integer_argument(client, 3, &end)) return;
    struct dict_entry *entry = find_list(client, false, reply_ok);
    if (!entry) return;
    struct list *list = list_of(entry);
    int64_t length = (int64_t)list_length(list);
    if (!clamp_range(length, &start, &end)) {
        keyspace_changed(client, entry);
        keyspace_remove(client, entry);
        reply_ok(client);
        return;
    }
    /* What is cut off is freed in slices. */
    struct list *dropped = list_new();
    if (!dropped) {
        reply_out_of_memory(client);
        return;
    }
    list_drop(list, true, (uint64_t)start, dropped);
    list_drop(list, false, (uint64_t)(length - 1 - end), dropped);
    keyspace_changed(client, entry);
    store_discard(client->server->store, &dropped->head);
    reply_ok(client);
}

static void lrem_command(struct client *client) {
    int64_t count;
    if (!integer_argument(client, 2, &count)) return;
    struct dict_entry *entry = find_list(client, false, reply_zero);
    if (!entry) return;
    struct list *list = list_of(entry);
    bool backwards = count < 0, more = true;
    uint64_t wanted = count == 0 ? UINT64_MAX : count < 0 ? 0 - (uint64_t)count : (uint64_t)count, removed = 0;
    struct list_position position = list_at(list, backwards ? list_length(list) - 1 : 0);
    while (more && removed < wanted) {
        if (element_equals(*list_element(position), &client->argv[3])) {
            value_free(list_remove(list, &position, backwards, &more));
            removed++;
        } else {
            more = list_step(&position, backwards);
        }
    }
    if (removed > 0) keyspace_changed(client, entry);
    remove_if_empty(client, entry);
    reply_integer(client, (int64_t)removed);
}

static void linsert_command(struct client *client) {
    bool after = argument_is(&client->argv[2], "after");
    if (!after && !argument_is(&client->argv[2], "before")) {
        reply_syntax_error(client);
        return;
    }
    struct dict_entry *entry = find_list(client, false, reply_zero);
    if (!entry) return;
    struct list *list = list_of(entry);
    struct list_position position = list_at(list, 0);
    bool more = true;
    while (more && !element_equals(*list_element(position), &client->argv[3])) more = list_step(&position, false);
    if (!more) {
        reply_integer(client, -1);
        return;
    }
    struct value *element = keyspace_string(client, 4);
    if (!element || !list_insert(list, position, after, element)) {
        value_free(element);
        reply_out_of_memory(client);
        return;
    }
    keyspace_changed(client, entry);
    reply_integer(client, (int64_t)list_length(list));
}

#define WRITE (COMMAND_WRITE | COMMAND_DENYOOM)
#define READ COMMAND_READONLY
#define FAST COMMAND_FAST
#define RESTS COMMAND_RESTS

const struct command commands_list[] = {
    {"lindex", lindex_command, 3, READ, &group_list, "Returns an element from a list by its index.", "1.0.0",
     .keys = key_read},
    {"linsert", linsert_command, 5, WRITE, &group_list, "Inserts an element before or after another element in a list.",
     "2.2.0", .keys = key_added_to, .event = KEY_EVENT(LIST, "linsert", IN_PLACE)},
    {"llen", llen_command, 2, READ | FAST, &group_list, "Returns the length of a list.", "1.0.0", .keys = key_known},
    {"lpop", lpop_command, -2, COMMAND_WRITE | FAST, &group_list,
     "Returns the first elements in a list after removing them.", "1.0.0", .keys = key_taken_from,
     .event = KEY_EVENT(LIST, "lpop", IN_PLACE)},
    {"lpos", lpos_command, -3, READ, &group_list, "Returns the index of matching elements in a list.", "6.0.6",
     .keys = key_read},
    {"lpush", lpush_command, -3, WRITE | FAST | RESTS, &group_list,
     "Prepends elements to a list. Creates the key if it doesn't exist.", "1.0.0", .keys = key_added_to,
     .event = KEY_EVENT(LIST, "lpush", IN_PLACE)},
    {"lpushx", lpushx_command, -3, WRITE | FAST | RESTS, &group_list,
     "Prepends elements to a list only when the list exists.", "2.2.0", .keys = key_added_to,
     .event = KEY_EVENT(LIST, "lpush", IN_PLACE)},
    {"lrange", lrange_command, 4, READ, &group_list, "Returns a range of elements from a list.", "1.0.0",
     .keys = key_read},
    {"lrem", lrem_command, 4, COMMAND_WRITE, &group_list,
     "Removes elements from a list. Deletes the list if the last element was removed.", "1.0.0",
     .keys = key_removed_from, .event = KEY_EVENT(LIST, "lrem", IN_PLACE)},
    {"lset", lset_command, 4, WRITE, &group_list, "Sets the value of an element in a list by its index.", "1.0.0",
     .keys = key_updated, .event = KEY_EVENT(LIST, "lset", IN_PLACE)},
    {"ltrim", ltrim_command, 4, COMMAND_WRITE, &group_list,
     "Removes elements from both ends of a list. Deletes the list if none remain.", "1.0.0", .keys = key_removed_from,
     .event = KEY_EVENT(LIST, "ltrim", IN_PLACE)},
    {"rpop", rpop_command, -2, COMMAND_WRITE | FAST, &group_list,
     "Returns the last elements of a list after removing them.", "1.0.0", .keys = key_taken_from,
     .event = KEY_EVENT(LIST, "rpop", IN_PLACE)},
    {"rpush", rpush_command, -3, WRITE | FAST | RESTS, &group_list,
     "Appends elements to a list. Creates the key if it doesn't exist.", "1.0.0", .keys = key_added_to,
     .event = KEY_EVENT(LIST, "rpush", IN_PLACE)},
    {"rpushx", rpushx_command, -3, WRITE | FAST | RESTS, &group_list,
     "Appends elements to a list only when the list exists.", "2.2.0", .keys = key_added_to,
     .event = KEY_EVENT(LIST, "rpush", IN_PLACE)},
    {0},
};

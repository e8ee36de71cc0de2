/* cmd_list_move: commands that take elements off lists and put them onto others, at once or when there are some. Order
 * of checks and error texts follow Redis 7.0's t_list.c. */
#include <string.h>

#include "server/core/command_table.h"
#include "server/core/exclusive_execution.h"
#include "server/core/propagate.h"
#include "server/redis/keys/key_wait.h"
#include "server/redis/keys/keyspace.h"
#include "server/redis/pubsub/notify.h"
#include "server/redis/redis_rows.h"

static struct list *list_of(const struct dict_entry *entry) {
    return (struct list *)store_value(entry);
}

/* The value of a list has changed; it goes with its last element. */
static void list_changed(struct client *client, struct dict_entry *entry) {
    keyspace_changed(client, entry);
    if (list_length(list_of(entry)) == 0) keyspace_remove(client, entry);
}

/* LEFT or RIGHT; false: the error is replied. */
static bool side_argument(struct client *client, uint32_t index, bool *is_left) {
    *is_left = index < client->argc && argument_is(&client->argv[index], "left");
    if (*is_left || (index < client->argc && argument_is(&client->argv[index], "right"))) return true;
    reply_syntax_error(client);
    return false;
}

/* Records this command on the `count` arguments from `first` on: the form that does not wait. */
static void propagate_as(struct client *client, const char *name, uint32_t first, uint32_t count) {
    struct resp_argument words[5] = {{.data = (const uint8_t *)name, .length = strlen(name)}};
    for (uint32_t i = 0; i < count; i++) words[1 + i] = client->argv[first + i];
    propagate_instead(client, 1 + count, words);
}

static bool argument_equals(const struct resp_argument *left, const struct resp_argument *right) {
    return left->length == right->length && (left->length == 0 || memcmp(left->data, right->data, left->length) == 0);
}

/* ---- LMOVE ------------------------------------------------------------------------------------------------------- */

struct move {
    bool from_left, to_left;
    uint64_t deadline_us; /* of the forms that wait */
};

/* Puts the element at that end of `source` under the key in argument 2. False: an error is replied, and nothing has
 * changed. */
static bool move_element(struct client *client, struct dict_entry *source, const struct move *move) {
    /* A key is looked up once: the second time it could have run out. */
    bool rotates = argument_equals(&client->argv[1], &client->argv[2]);
    struct dict_entry *target = rotates ? source : keyspace_find_write(client, 2);
    if (!keyspace_type_is(client, target, VALUE_LIST)) return false;
    bool is_new = !target;
    if (is_new) {
        target = keyspace_put(client, 2, (struct value *)list_new(), false);
        if (!target) return false;
    }
    struct list *list = list_of(source);
    uint64_t index = move->from_left ? 0 : list_length(list) - 1;
    struct value *element = *list_element(list_at(list, index));
    /* It is in both for a moment, so that a push that fails undoes nothing. */
    if (!list_push(list_of(target), move->to_left, element)) {
        if (is_new) keyspace_remove(client, target);
        reply_out_of_memory(client);
        return false;
    }
    list_pop(list, move->from_left);
    reply_string(client, element);
    keyspace_changed(client, target);
    list_changed(client, source);
    return true;
}

/* The source; NULL where there is none (*absent), or its type is another's and the error is replied. */
static struct dict_entry *find_source(struct client *client, bool *absent) {
    struct dict_entry *source = keyspace_find_write(client, 1);
    *absent = !source;
    return keyspace_type_is(client, source, VALUE_LIST) ? source : NULL;
}

static void move_now(struct client *client, const struct move *move) {
    bool absent;
    struct dict_entry *source = find_source(client, &absent);
    if (absent) reply_null(client);
    if (source) move_element(client, source, move);
}

static void lmove_command(struct client *client) {
    struct move move;
    if (side_argument(client, 3, &move.from_left) && side_argument(client, 4, &move.to_left)) move_now(client, &move);
}

static void rpoplpush_command(struct client *client) {
    move_now(client, &(struct move){.from_left = false, .to_left = true});
}

static bool is_brpoplpush(const struct client *client) {
    return client->argc == 4;
}

/* Reads the arguments of BLMOVE or BRPOPLPUSH; false: the error is replied. */
static bool blocking_move(struct client *client, struct move *move) {
    *move = (struct move){.from_left = false, .to_left = true};
    if (is_brpoplpush(client)) return key_wait_deadline(client, 3, &move->deadline_us);
    return side_argument(client, 3, &move->from_left) && side_argument(client, 4, &move->to_left) &&
           key_wait_deadline(client, 5, &move->deadline_us);
}

static void record_move(struct client *client) {
    if (is_brpoplpush(client))
        propagate_as(client, "RPOPLPUSH", 1, 2);
    else
        propagate_as(client, "LMOVE", 1, 4);
}

static bool retry_move(struct client *client) {
    struct move move = {.from_left = false, .to_left = true};
    if (!is_brpoplpush(client)) {
        move.from_left = argument_is(&client->argv[3], "left");
        move.to_left = argument_is(&client->argv[4], "left");
    }
    struct dict_entry *source = keyspace_find_write(client, 1);
    if (!source || store_value(source)->type != VALUE_LIST) return false;
    if (move_element(client, source, &move)) record_move(client);
    return true;
}

static void expire_move(struct client *client) {
    if (client_may_block(client))
        reply_null_array(client);
    else
        reply_null(client);
}

static void move_or_wait(struct client *client) {
    struct move move;
    bool absent;
    if (!blocking_move(client, &move)) return;
    struct dict_entry *source = find_source(client, &absent);
    if (absent)
        client_block_on_keys(client, (const uint32_t[]){1}, 1, move.deadline_us, retry_move, expire_move);
    else if (source && move_element(client, source, &move))
        record_move(client);
}

static void blmove_command(struct client *client) {
    move_or_wait(client);
}

static void brpoplpush_command(struct client *client) {
    move_or_wait(client);
}

/* ---- LMPOP ------------------------------------------------------------------------------------------------------- */

struct pops {
    uint32_t first_key, keys;
    bool from_left;
    int64_t count;
};

/* Reads `numkeys key … LEFT|RIGHT [COUNT count]` from argument `at` on; false: the error is replied. */
static bool pops_parse(struct client *client, uint32_t at, struct pops *pops) {
    int64_t keys;
    const struct resp_argument *number = &client->argv[at];
    if (!number_parse_int64(number->data, number->length, &keys) || keys < 1) {
        reply_error(client, "ERR numkeys should be greater than 0");
        return false;
    }
    if (keys > (int64_t)client->argc - at - 2) {
        reply_syntax_error(client);
        return false;
    }
    *pops = (struct pops){.first_key = at + 1, .keys = (uint32_t)keys, .count = -1};
    uint32_t side = at + 1 + pops->keys;
    if (!side_argument(client, side, &pops->from_left)) return false;
    for (uint32_t i = side + 1; i < client->argc; i += 2) {
        if (pops->count != -1 || !argument_is(&client->argv[i], "count") || i + 1 == client->argc) {
            reply_syntax_error(client);
            return false;
        }
        const struct resp_argument *count = &client->argv[i + 1];
        if (!number_parse_int64(count->data, count->length, &pops->count) || pops->count < 1) {
            reply_error(client, "ERR count should be greater than 0");
            return false;
        }
    }
    if (pops->count == -1) pops->count = 1;
    return true;
}

/* Replies the key in argument `index` and up to pops->count of its elements, in pairs of key and array. */
static void pop_some(struct client *client, uint32_t index, struct dict_entry *entry, const struct pops *pops) {
    struct list *list = list_of(entry);
    uint64_t count = (uint64_t)pops->count < list_length(list) ? (uint64_t)pops->count : list_length(list);
    reply_array(client, 2);
    reply_bulk(client, client->argv[index].data, client->argv[index].length);
    reply_array(client, (size_t)count);
    for (uint64_t i = 1; i <= count && exclusive_goes_on_at(client, i); i++)
        reply_popped(client, list, pops->from_left);
    char number[NUMBER_INT64_TEXT];
    number[number_format_int64((int64_t)count, number)] = '\0';
    propagate_key_words(client, pops->from_left ? "LPOP" : "RPOP", index, number, NULL);
    list_changed(client, entry);
}

/* Pops from the first of the keys that is there. True: that, or an error, is replied. */
static bool pop_first(struct client *client, const struct pops *pops) {
    for (uint32_t i = pops->first_key; i < pops->first_key + pops->keys; i++) {
        struct dict_entry *entry = keyspace_find_write(client, i);
        if (!entry) continue;
        if (keyspace_type_is(client, entry, VALUE_LIST)) pop_some(client, i, entry, pops);
        return true;
    }
    return false;
}

static void lmpop_now(struct client *client) {
    struct pops pops;
    if (pops_parse(client, 1, &pops) && !pop_first(client, &pops)) reply_null_array(client);
}

static void lmpop_command(struct client *client) {
    struct pops pops;
    if (!pops_parse(client, 1, &pops)) return;
    if (pops.count > EXCLUSIVE_PARTS_AT_ONCE)
        exclusive_run_change(client, lmpop_now);
    else
        lmpop_now(client);
}

static bool retry_blmpop(struct client *client) {
    struct pops pops;
    uint32_t index = key_wait_index(client);
    struct dict_entry *entry = keyspace_find_write(client, index);
    if (!entry || store_value(entry)->type != VALUE_LIST) return false;
    if (pops_parse(client, 2, &pops)) pop_some(client, index, entry, &pops);
    return true;
}

/* Waits for any of `count` keys from argument `first` on. */
static void wait_for_keys(struct client *client, uint32_t first, uint32_t count, uint64_t deadline_us,
                          bool (*retry)(struct client *)) {
    key_wait_on_range(client, first, count, deadline_us, retry, reply_null_array);
}

static void blmpop_command(struct client *client) {
    struct pops pops;
    uint64_t deadline_us;
    if (pops_parse(client, 2, &pops) && key_wait_deadline(client, 1, &deadline_us) && !pop_first(client, &pops))
        wait_for_keys(client, pops.first_key, pops.keys, deadline_us, retry_blmpop);
}

/* ---- BLPOP and BRPOP --------------------------------------------------------------------------------------------- */

static void pop_pair(struct client *client, uint32_t index, struct dict_entry *entry, bool from_left) {
    reply_array(client, 2);
    reply_bulk(client, client->argv[index].data, client->argv[index].length);
    reply_popped(client, list_of(entry), from_left);
    propagate_as(client, from_left ? "LPOP" : "RPOP", index, 1);
    list_changed(client, entry);
}

static bool retry_pop(struct client *client, bool from_left) {
    uint32_t index = key_wait_index(client);
    struct dict_entry *entry = keyspace_find_write(client, index);
    if (!entry || store_value(entry)->type != VALUE_LIST) return false;
    pop_pair(client, index, entry, from_left);
    return true;
}

static bool retry_blpop(struct client *client) {
    return retry_pop(client, true);
}

static bool retry_brpop(struct client *client) {
    return retry_pop(client, false);
}

static void pop_or_wait(struct client *client, bool from_left) {
    uint64_t deadline_us;
    uint32_t keys = client->argc - 2;
    if (!key_wait_deadline(client, client->argc - 1, &deadline_us)) return;
    for (uint32_t i = 1; i <= keys; i++) {
        struct dict_entry *entry = keyspace_find_write(client, i);
        if (!entry) continue;
        if (keyspace_type_is(client, entry, VALUE_LIST)) pop_pair(client, i, entry, from_left);
        return;
    }
    wait_for_keys(client, 1, keys, deadline_us, from_left ? retry_blpop : retry_brpop);
}

static void blpop_command(struct client *client) {
    pop_or_wait(client, true);
}

static void brpop_command(struct client *client) {
    pop_or_wait(client, false);
}

#define WAITS (COMMAND_WRITE | COMMAND_NOSCRIPT | COMMAND_BLOCKING)

const struct command commands_list_move[] = {
    {"blmove", blmove_command, 6, WAITS | COMMAND_DENYOOM, &group_list,
     "Pops an element from a list, pushes it to another list and returns it. Waits until there is one.", "6.2.0",
     .keys = key_moved_from_and_to, .event = KEY_EVENT(LIST, "", MOVES_ELEMENT_BY_ENDS)},
    {"blmpop", blmpop_command, -5, COMMAND_WRITE | COMMAND_MOVABLEKEYS | COMMAND_BLOCKING, &group_list,
     "Pops elements from the first of several lists. Waits until there are some.", "7.0.0",
     .keys = counted_keys_taken_from_till_timeout, .event = KEY_EVENT(LIST, "lpop", POPS_OF_MANY)},
    {"blpop", blpop_command, -3, WAITS, &group_list,
     "Removes and returns the first element of a list. Waits until there is one.", "2.0.0",
     .keys = keys_taken_from_till_timeout, .event = KEY_EVENT(LIST, "lpop", IN_PLACE)},
    {"brpop", brpop_command, -3, WAITS, &group_list,
     "Removes and returns the last element of a list. Waits until there is one.", "2.0.0",
     .keys = keys_taken_from_till_timeout, .event = KEY_EVENT(LIST, "rpop", IN_PLACE)},
    {"brpoplpush", brpoplpush_command, 4, WAITS | COMMAND_DENYOOM, &group_list,
     "Pops the last element of a list, pushes it to another list and returns it. Waits until there is one.", "2.2.0",
     .keys = key_moved_from_and_to, .event = KEY_EVENT(LIST, "", MOVES_ELEMENT)},
    {"lmove", lmove_command, 5, COMMAND_WRITE | COMMAND_DENYOOM, &group_list,
     "Pops an element from a list, pushes it to another list and returns it.", "6.2.0", .keys = key_moved_from_and_to,
     .event = KEY_EVENT(LIST, "", MOVES_ELEMENT_BY_ENDS)},
    {"lmpop", lmpop_command, -4, COMMAND_WRITE | COMMAND_MOVABLEKEYS, &group_list,
     "Pops elements from the first of several lists that is not empty.", "7.0.0", .keys = counted_keys_taken_from,
     .event = KEY_EVENT(LIST, "lpop", POPS_OF_MANY)},
    {"rpoplpush", rpoplpush_command, 3, COMMAND_WRITE | COMMAND_DENYOOM, &group_list,
     "Pops the last element of a list, pushes it to another list and returns it.", "1.2.0",
     .keys = key_moved_from_and_to, .event = KEY_EVENT(LIST, "", MOVES_ELEMENT)},
    {0},
};

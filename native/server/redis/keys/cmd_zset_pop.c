/* cmd_zset_pop: commands that take the members of lowest or highest score out of sorted sets, at once or when there are
 * some. Order of checks and error texts follow Redis 7.0. */
#include "server/core/command_table.h"
#include "server/core/exclusive_execution.h"
#include "server/core/propagate.h"
#include "server/redis/keys/cmd_zset.h"
#include "server/redis/keys/key_wait.h"
#include "server/redis/pubsub/notify.h"
#include "server/redis/redis_rows.h"

struct pops {
    uint32_t first_key, keys;
    bool highest;
    int64_t count;
    bool with_key; /* the reply begins with the key */
    bool in_pairs; /* each member and its score are an array of their own */
    bool in_array; /* and all of those too, behind the key */
};

/* Replies and removes up to pops->count members of the set, which is under the key in argument `index`. */
static void pop(struct client *client, uint32_t index, struct dict_entry *entry, const struct pops *pops) {
    const struct zset *zset = zset_of(entry);
    uint64_t all = zset_count(zset), count = (uint64_t)pops->count < all ? (uint64_t)pops->count : all;
    uint64_t first = pops->highest ? all - count : 0;
    size_t parts = pops->in_pairs ? count : count * 2;
    reply_array(client, pops->in_array ? 2 : parts + pops->with_key);
    if (pops->with_key) reply_bulk(client, client->argv[index].data, client->argv[index].length);
    if (pops->in_array) reply_array(client, parts);
    struct zset_position position;
    struct zset_item item;
    zset_seek(zset, pops->highest ? all : 0, &position);
    for (uint64_t left = count; left > 0 && exclusive_goes_on_at(client, left); left--) {
        if (pops->highest)
            zset_previous(zset, &position, &item);
        else
            zset_next(zset, &position, &item);
        if (pops->in_pairs) reply_array(client, 2);
        reply_bulk(client, item.member, item.length);
        reply_double(client, item.score);
    }
    while (count < all && count > EXCLUSIVE_PARTS_TO_REST && exclusive_goes_on(client)) {
        zset_remove_range(zset_of(entry), first, EXCLUSIVE_PARTS_TO_REST);
        count -= EXCLUSIVE_PARTS_TO_REST;
        all -= EXCLUSIVE_PARTS_TO_REST;
    }
    zset_remove_from(client, entry, first, count);
}

/* Pops from the first of the keys that is there. True: that, or an error, is replied; *index is the argument, 0 after an
 * error. */
static bool pop_first(struct client *client, const struct pops *pops, uint32_t *index) {
    for (*index = pops->first_key; *index < pops->first_key + pops->keys; *index += 1) {
        struct dict_entry *entry = keyspace_find_write(client, *index);
        if (!entry) continue;
        if (keyspace_type_is(client, entry, VALUE_SORTED_SET))
            pop(client, *index, entry, pops);
        else
            *index = 0;
        return true;
    }
    return false;
}

/* Records a pop as the command that does not wait. */
static void record(struct client *client, uint32_t index, const struct pops *pops) {
    char count[NUMBER_INT64_TEXT];
    number_format_int64(pops->count, count);
    propagate_key_words(client, pops->highest ? "ZPOPMAX" : "ZPOPMIN", index, count, NULL);
}

/* Inside the retry of a wait. */
static bool pop_changed(struct client *client, const struct pops *pops) {
    uint32_t index = key_wait_index(client);
    struct dict_entry *entry = keyspace_find_write(client, index);
    if (!entry || store_value(entry)->type != VALUE_SORTED_SET) return false;
    pop(client, index, entry, pops);
    record(client, index, pops);
    return true;
}

static void pop_or_wait(struct client *client, const struct pops *pops, uint64_t deadline_us,
                        bool (*retry)(struct client *)) {
    uint32_t index;
    if (!pop_first(client, pops, &index))
        key_wait_on_range(client, pops->first_key, pops->keys, deadline_us, retry, reply_null_array);
    else if (index != 0)
        record(client, index, pops);
}

/* ---- ZPOPMIN and ZPOPMAX ----------------------------------------------------------------------------------------- */

/* A count that is at least `least`; false: the error is replied. */
static bool count_argument(struct client *client, uint32_t index, int64_t least, const char *error, int64_t *count) {
    const struct resp_argument *argument = &client->argv[index];
    if (number_parse_int64(argument->data, argument->length, count) && *count >= least) return true;
    reply_error(client, "ERR %s", error);
    return false;
}

/* `in_slices` calls this again, with NULL, for many. */
static void pop_counted(struct client *client, bool highest, void (*in_slices)(struct client *client)) {
    struct pops pops = {.first_key = 1, .keys = 1, .highest = highest, .count = 1};
    uint32_t index;
    if (client->argc > 3) {
        reply_syntax_error(client);
        return;
    }
    if (client->argc == 3) {
        if (!count_argument(client, 2, 0, "value is out of range, must be positive", &pops.count)) return;
        pops.in_pairs = client->resp > 2;
    }
    if (in_slices && pops.count > EXCLUSIVE_PARTS_AT_ONCE)
        exclusive_run_change(client, in_slices);
    else if (!pop_first(client, &pops, &index))
        reply_array(client, 0);
}

static void pop_lowest_in_slices(struct client *client) {
    pop_counted(client, false, NULL);
}

static void pop_highest_in_slices(struct client *client) {
    pop_counted(client, true, NULL);
}

static void zpopmin_command(struct client *client) {
    pop_counted(client, false, pop_lowest_in_slices);
}

static void zpopmax_command(struct client *client) {
    pop_counted(client, true, pop_highest_in_slices);
}

/* ---- BZPOPMIN and BZPOPMAX --------------------------------------------------------------------------------------- */

static struct pops blocking_pops(const struct client *client, bool highest) {
    return (struct pops){.first_key = 1, .keys = client->argc - 2, .highest = highest, .count = 1, .with_key = true};
}

static bool retry_bzpopmin(struct client *client) {
    struct pops pops = blocking_pops(client, false);
    return pop_changed(client, &pops);
}

static bool retry_bzpopmax(struct client *client) {
    struct pops pops = blocking_pops(client, true);
    return pop_changed(client, &pops);
}

static void blocking_pop_command(struct client *client, bool highest) {
    struct pops pops = blocking_pops(client, highest);
    uint64_t deadline_us;
    if (key_wait_deadline(client, client->argc - 1, &deadline_us))
        pop_or_wait(client, &pops, deadline_us, highest ? retry_bzpopmax : retry_bzpopmin);
}

static void bzpopmin_command(struct client *client) {
    blocking_pop_command(client, false);
}

static void bzpopmax_command(struct client *client) {
    blocking_pop_command(client, true);
}

/* ---- ZMPOP and BZMPOP -------------------------------------------------------------------------------------------- */

/* Reads `numkeys key … MIN|MAX [COUNT count]` from argument `at` on; false: the error is replied. */
static bool pops_parse(struct client *client, uint32_t at, struct pops *pops) {
    int64_t keys;
    *pops = (struct pops){.first_key = at + 1, .count = -1, .with_key = true, .in_pairs = true, .in_array = true};
    if (!count_argument(client, at, 1, "numkeys should be greater than 0", &keys)) return false;
    if (keys > (int64_t)client->argc - at - 2) {
        reply_syntax_error(client);
        return false;
    }
    pops->keys = (uint32_t)keys;
    uint32_t end = at + 1 + pops->keys;
    pops->highest = argument_is(&client->argv[end], "max");
    bool valid = pops->highest || argument_is(&client->argv[end], "min");
    for (uint32_t i = end + 1; valid && i < client->argc; i += 2) {
        valid = pops->count == -1 && i + 1 < client->argc && argument_is(&client->argv[i], "count");
        if (valid && !count_argument(client, i + 1, 1, "count should be greater than 0", &pops->count)) return false;
    }
    if (!valid) reply_syntax_error(client);
    if (pops->count == -1) pops->count = 1;
    return valid;
}

static void zmpop_now(struct client *client) {
    struct pops pops;
    uint32_t index;
    if (pops_parse(client, 1, &pops) && !pop_first(client, &pops, &index)) reply_null_array(client);
}

static void zmpop_command(struct client *client) {
    struct pops pops;
    if (!pops_parse(client, 1, &pops)) return;
    if (pops.count > EXCLUSIVE_PARTS_AT_ONCE)
        exclusive_run_change(client, zmpop_now);
    else
        zmpop_now(client);
}

static bool retry_bzmpop(struct client *client) {
    struct pops pops;
    return !pops_parse(client, 2, &pops) || pop_changed(client, &pops);
}

static void bzmpop_command(struct client *client) {
    struct pops pops;
    uint64_t deadline_us;
    if (pops_parse(client, 2, &pops) && key_wait_deadline(client, 1, &deadline_us))
        pop_or_wait(client, &pops, deadline_us, retry_bzmpop);
}

#define WAITS (COMMAND_WRITE | COMMAND_NOSCRIPT | COMMAND_BLOCKING | COMMAND_FAST)
#define COUNTED (COMMAND_WRITE | COMMAND_MOVABLEKEYS)

const struct command commands_zset_pop[] = {
    {"bzmpop", bzmpop_command, -5, COUNTED | COMMAND_BLOCKING, &group_sorted_set,
     "Removes and returns members of the first of several sorted sets. Waits until there are some.", "7.0.0",
     .keys = counted_keys_taken_from_till_timeout, .event = KEY_EVENT(ZSET, "zpopmin", POPS_OF_MANY)},
    {"bzpopmax", bzpopmax_command, -3, WAITS, &group_sorted_set,
     "Removes and returns the member of the highest score of a sorted set. Waits until there is one.", "5.0.0",
     .keys = keys_taken_from_till_timeout, .event = KEY_EVENT(ZSET, "zpopmax", IN_PLACE)},
    {"bzpopmin", bzpopmin_command, -3, WAITS, &group_sorted_set,
     "Removes and returns the member of the lowest score of a sorted set. Waits until there is one.", "5.0.0",
     .keys = keys_taken_from_till_timeout, .event = KEY_EVENT(ZSET, "zpopmin", IN_PLACE)},
    {"zmpop", zmpop_command, -4, COUNTED, &group_sorted_set,
     "Removes and returns members of the first of several sorted sets that is not empty.", "7.0.0",
     .keys = counted_keys_taken_from, .event = KEY_EVENT(ZSET, "zpopmin", POPS_OF_MANY)},
    {"zpopmax", zpopmax_command, -2, COMMAND_WRITE | COMMAND_FAST, &group_sorted_set,
     "Removes and returns the members of the highest scores of a sorted set.", "5.0.0", .keys = key_taken_from,
     .event = KEY_EVENT(ZSET, "zpopmax", IN_PLACE)},
    {"zpopmin", zpopmin_command, -2, COMMAND_WRITE | COMMAND_FAST, &group_sorted_set,
     "Removes and returns the members of the lowest scores of a sorted set.", "5.0.0", .keys = key_taken_from,
     .event = KEY_EVENT(ZSET, "zpopmin", IN_PLACE)},
    {0},
};

/* cmd_set_random: members of a set that chance picks: SPOP and SRANDMEMBER. */
#include <string.h>

#include "base/memory.h"
#include "server/core/exclusive_execution.h"
#include "server/core/propagate.h"
#include "server/redis/keys/cmd_set.h"
#include "server/redis/keys/random_replies.h"

#define SPARSE_FACTOR 4 /* a set has so many times the members wanted: then picking one by one is cheaper than a walk */

/* What is popped is recorded by name: chance would pick others when the command is run again. */
static void propagate_removal(struct client *client, struct set_member *member) {
    set_member_text(member);
    const struct resp_argument words[] = {
        {.data = (const uint8_t *)"SREM", .length = 4},
        client->argv[1],
        {.data = member->data, .length = member->length},
    };
    propagate_instead(client, 3, words);
}

static void pop_one(struct client *client, struct dict_entry *entry) {
    struct set_member member;
    set_random(store_value(entry), &client->server->store->random, &member);
    propagate_removal(client, &member);
    reply_member(client, &member);
    take_out(entry, &member);
}

/* `count` is not 0. */
static void pop_some(struct client *client, struct dict_entry *entry, uint64_t count) {
    const struct value *set = store_value(entry);
    if (count >= set_count(set)) {
        reply_set(client, set_count(set));
        reply_members(client, set);
        propagate_key_words(client, "DEL", 1, NULL);
        keyspace_remove(client, entry);
        return;
    }
    reply_set(client, count);
    for (; count > 0 && exclusive_goes_on_at(client, count); count--) pop_one(client, entry);
    set_shrunk(client, entry);
}

static uint64_t count_argument(const struct client *client) {
    int64_t count = 0;
    number_parse_int64(client->argv[2].data, client->argv[2].length, &count);
    return (uint64_t)count;
}

static void pop_in_slices(struct client *client) {
    pop_some(client, find_again(client, 1), count_argument(client));
}

/* Whether so many members of a set, or what has to be looked at for them, are too many for one slice. */
static bool is_long(const struct value *set, uint64_t count) {
    return count > EXCLUSIVE_PARTS_AT_ONCE / SPARSE_FACTOR && set_count(set) > EXCLUSIVE_PARTS_AT_ONCE / SPARSE_FACTOR;
}

static void spop_count(struct client *client) {
    int64_t count;
    if (!number_parse_int64(client->argv[2].data, client->argv[2].length, &count) || count < 0) {
        reply_error(client, "ERR value is out of range, must be positive");
        return;
    }
    struct dict_entry *entry = keyspace_find_write(client, 1);
    if (!keyspace_type_is(client, entry, VALUE_SET)) return;
    if (!entry || count == 0) {
        reply_set(client, 0);
        return;
    }
    if (is_long(store_value(entry), (uint64_t)count))
        exclusive_run_change(client, pop_in_slices);
    else
        pop_some(client, entry, (uint64_t)count);
}

void spop_command(struct client *client) {
    if (client->argc > 3) {
        reply_syntax_error(client);
        return;
    }
    if (client->argc == 3) {
        spop_count(client);
        return;
    }
    struct dict_entry *entry = keyspace_find_write(client, 1);
    if (!keyspace_type_is(client, entry, VALUE_SET)) return;
    if (!entry) {
        reply_null(client);
        return;
    }
    pop_one(client, entry);
    set_shrunk(client, entry);
}

/* ---- SRANDMEMBER ------------------------------------------------------------------------------------------------- */

static void reply_random(struct client *client, struct value *set) {
    struct set_member member;
    set_random(set, &client->server->store->random, &member);
    reply_member(client, &member);
}

static void pick_member(struct client *client, struct value *set, struct random_element *element) {
    struct set_member member;
    set_random(set, &client->server->store->random, &member);
    set_member_text(&member);
    element->name = member.data;
    element->length = member.length;
    if (member.data != (const uint8_t *)member.digits) return;
    memcpy(element->digits, member.digits, sizeof element->digits);
    element->name = (const uint8_t *)element->digits;
}

static void reply_name(struct client *client, const struct random_element *element, bool with_value) {
    (void)with_value;
    reply_bulk(client, element->name, element->length);
}

static const struct random_kind repeated_members = {VALUE_SET, pick_member, reply_name};

/* ---- without --------------------------------------------------------------------------------------------------------- */

/* One walk: each member is taken with the chance that is left for it (selection sampling: Knuth, vol. 2, 3.4.2, S). */
static void reply_selected(struct client *client, const struct value *set, uint64_t count) {
    uint64_t left = set_count(set);
    struct set_position position = {0};
    struct set_member member;
    reply_array(client, count);
    for (uint64_t seen = 1; count > 0 && set_next(set, &position, &member); seen++) {
        if (!exclusive_goes_on_at(client, seen)) return;
        if (random_below(&client->server->store->random, left--) >= count) continue;
        reply_member(client, &member);
        count--;
    }
}

/* Members of a dict that were picked, by open addressing on where they lie. */
struct picked {
    const uint8_t **places;
    uint64_t mask;
};

static bool pick(struct picked *picked, const uint8_t *place, uint32_t hash) {
    uint64_t slot = hash & picked->mask;
    for (; picked->places[slot]; slot = (slot + 1) & picked->mask)
        if (picked->places[slot] == place) return false;
    picked->places[slot] = place;
    return true;
}

/* Few of many: picks again what was picked before. */
static void reply_picked(struct client *client, struct value *set, uint64_t count) {
    struct picked picked = {.mask = 1};
    while (picked.mask < 2 * count) picked.mask = 2 * picked.mask + 1;
    picked.places = memory_calloc(picked.mask + 1, sizeof *picked.places);
    if (!picked.places) {
        reply_out_of_memory(client);
        return;
    }
    reply_array(client, count);
    for (uint64_t drawn = 1; count > 0 && exclusive_goes_on_at(client, drawn); drawn++) {
        struct set_member member;
        set_random(set, &client->server->store->random, &member);
        if (!pick(&picked, member.data, member.hash)) continue;
        reply_member(client, &member);
        count--;
    }
    memory_free(picked.places);
}

/* Without repetitions. */
static void reply_some(struct client *client, struct value *set, uint64_t count) {
    if (count >= set_count(set)) {
        reply_array(client, set_count(set));
        reply_members(client, set);
    } else if (!set_dict(set) || count > set_count(set) / SPARSE_FACTOR) {
        reply_selected(client, set, count);
    } else {
        reply_picked(client, set, count);
    }
}

static void reply_in_slices(struct client *client) {
    reply_some(client, store_value(find_again(client, 1)), count_argument(client));
}

static void srandmember_count(struct client *client) {
    int64_t count;
    if (!integer_argument(client, 2, &count)) return;
    if (count == INT64_MIN) {
        reply_error(client, "ERR value is out of range, value must between %lld and %lld", -(long long)INT64_MAX,
                    (long long)INT64_MAX);
        return;
    }
    struct value *set;
    if (!find_set(client, &set)) return;
    if (!set || count == 0)
        reply_array(client, 0);
    else if (count < 0)
        reply_repeated(client, set, &repeated_members, (uint64_t)-count, false);
    else if (is_long(set, (uint64_t)count))
        exclusive_run_command(client, reply_in_slices);
    else
        reply_some(client, set, (uint64_t)count);
}

void srandmember_command(struct client *client) {
    if (client->argc > 3) {
        reply_syntax_error(client);
        return;
    }
    if (client->argc == 3) {
        srandmember_count(client);
        return;
    }
    struct value *set;
    if (!find_set(client, &set)) return;
    if (!set)
        reply_null(client);
    else
        reply_random(client, set);
}

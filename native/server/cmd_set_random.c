/* cmd_set_random: members of a set that chance picks: SPOP and SRANDMEMBER. */
#include <string.h>

#include "base/memory.h"
#include "server/cmd_set.h"
#include "server/propagate.h"
#include "server/pubsub.h"
#include "server/slices.h"

#define AT_ONCE 1000          /* members with repetitions that are replied in one go */
#define AT_ONCE_LIMIT 1000000 /* that may be asked for where nothing else can run meanwhile */
#define SLICE_MEMBERS 16      /* between two looks at the clock */
#define SPARSE_FACTOR 4 /* a set has so many times the members wanted: then picking one by one is cheaper than a walk */

/* What is popped is taken down by name: chance would pick others when the command is run again. */
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

static void spop_count(struct client *client) {
    int64_t count;
    if (!number_parse_int64(client->argv[2].data, client->argv[2].length, &count) || count < 0) {
        reply_error(client, "ERR value is out of range, must be positive");
        return;
    }
    struct dict_entry *entry = keyspace_find_write(client, 1);
    if (!keyspace_type_is(client, entry, VALUE_SET)) return;
    if (entry == NULL || count == 0) {
        reply_set(client, 0);
        return;
    }
    const struct value *set = store_value(entry);
    if ((uint64_t)count >= set_count(set)) {
        reply_set(client, set_count(set));
        reply_members(client, set);
        propagate_key_words(client, "DEL", 1, NULL);
        keyspace_remove(client, entry);
        return;
    }
    reply_set(client, (size_t)count);
    for (; count > 0; count--) pop_one(client, entry);
    set_shrunk(client, entry);
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
    if (entry == NULL) {
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

/* ---- with repetitions: a short request for a long reply ---------------------------------------------------------- */

/* What is left to reply. The set may change meanwhile, or go: then one of its members is repeated that was there. */
struct repeated {
    uint64_t left;
    uint8_t *last;
    size_t last_length, last_capacity;
};

static bool keep_last(struct repeated *repeated, struct set_member *member) {
    set_member_text(member);
    if (member->length >= repeated->last_capacity) {
        uint8_t *grown = memory_realloc(repeated->last, member->length + 1);
        if (grown == NULL) return false; /* the one before will do */
        repeated->last = grown;
        repeated->last_capacity = member->length + 1;
    }
    memcpy(repeated->last, member->data, member->length);
    repeated->last_length = member->length;
    return true;
}

static void drop_repeated(struct client *client, void *state) {
    struct repeated *repeated = state;
    (void)client;
    memory_free(repeated->last);
    memory_free(repeated);
}

static bool repeat_some(struct client *client) {
    struct repeated *repeated = client_state(client);
    struct dict_entry *entry = find_again(client, 1);
    struct value *set = entry != NULL && store_value(entry)->type == VALUE_SET ? store_value(entry) : NULL;
    struct set_member member;
    bool picked = false;
    set_member_of(&member, repeated->last, repeated->last_length);
    while (repeated->left > 0 && reply_is_wanted(client) && slices_have_time(client)) {
        for (int i = 0; i < SLICE_MEMBERS && repeated->left > 0; i++, repeated->left--) {
            if (set != NULL) set_random(set, &client->server->store->random, &member);
            reply_member(client, &member);
        }
        picked = set != NULL;
    }
    if (picked) keep_last(repeated, &member);
    return repeated->left == 0 || !reply_is_wanted(client);
}

static void reply_in_slices(struct client *client, struct value *set, uint64_t count) {
    struct repeated *repeated = memory_calloc(1, sizeof *repeated);
    struct set_member member;
    set_random(set, &client->server->store->random, &member);
    if (repeated == NULL || !keep_last(repeated, &member)) {
        memory_free(repeated);
        reply_out_of_memory(client);
        return;
    }
    repeated->left = count;
    reply_array(client, count);
    client_set_state(client, repeated, drop_repeated);
    slices_begin(client, repeat_some);
}

static void reply_repeated(struct client *client, struct value *set, uint64_t count) {
    /* What a subscriber or a monitor is sent meanwhile would stand in the midst of the reply. */
    bool is_told_more = pubsub_is_subscriber(client) || client->is_monitor;
    if (count > AT_ONCE && client_may_block(client) && !is_told_more) {
        reply_in_slices(client, set, count);
        return;
    }
    if (count > AT_ONCE_LIMIT) {
        reply_error(client,
                    "LIMIT %llu members are too many in a transaction, in a script or for a subscriber: ask for %d "
                    "at most",
                    (unsigned long long)count, AT_ONCE_LIMIT);
        return;
    }
    reply_array(client, count);
    for (; count > 0 && reply_is_wanted(client); count--) reply_random(client, set);
}

/* ---- without --------------------------------------------------------------------------------------------------------- */

/* One walk: each member is taken with the chance that is left for it (selection sampling: Knuth, vol. 2, 3.4.2, S). */
static void reply_selected(struct client *client, const struct value *set, uint64_t count) {
    uint64_t left = set_count(set);
    struct set_position position = {0};
    struct set_member member;
    reply_array(client, count);
    while (count > 0 && set_next(set, &position, &member)) {
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
    for (; picked->places[slot] != NULL; slot = (slot + 1) & picked->mask)
        if (picked->places[slot] == place) return false;
    picked->places[slot] = place;
    return true;
}

/* Few of many: picks again what was picked before. */
static void reply_picked(struct client *client, struct value *set, uint64_t count) {
    struct picked picked = {.mask = 1};
    while (picked.mask < 2 * count) picked.mask = 2 * picked.mask + 1;
    picked.places = memory_calloc(picked.mask + 1, sizeof *picked.places);
    if (picked.places == NULL) {
        reply_out_of_memory(client);
        return;
    }
    reply_array(client, count);
    while (count > 0) {
        struct set_member member;
        set_random(set, &client->server->store->random, &member);
        if (!pick(&picked, member.data, member.hash)) continue;
        reply_member(client, &member);
        count--;
    }
    memory_free(picked.places);
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
    if (set == NULL || count == 0) {
        reply_array(client, 0);
    } else if (count < 0) {
        reply_repeated(client, set, (uint64_t)-count);
    } else if ((uint64_t)count >= set_count(set)) {
        reply_array(client, set_count(set));
        reply_members(client, set);
    } else if (set_dict(set) == NULL || (uint64_t)count > set_count(set) / SPARSE_FACTOR) {
        reply_selected(client, set, (uint64_t)count);
    } else {
        reply_picked(client, set, (uint64_t)count);
    }
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
    if (set == NULL)
        reply_null(client);
    else
        reply_random(client, set);
}

/* cmd_zset_random: members of sorted sets by chance. */

#include "base/memory.h"
#include "server/core/command_table.h"
#include "server/core/exclusive_execution.h"
#include "server/redis/keys/cmd_zset.h"
#include "server/redis/keys/random_replies.h"
#include "server/redis/redis_rows.h"

static void item_at(const struct zset *zset, uint64_t rank, struct zset_item *item) {
    struct zset_position position;
    zset_seek(zset, rank, &position);
    zset_next(zset, &position, item);
}

static uint64_t random_rank(struct client *client, const struct zset *zset) {
    return random_below(&client->server->store->random, zset_count(zset));
}

/* After each member that was looked at. False: the client is lost. */
static bool go_on(struct client *client, uint64_t looked_at) {
    return looked_at % EXCLUSIVE_PARTS_TO_REST != 0 || exclusive_goes_on(client);
}

/* Any member at each place, also one that was there before. */
static void pick_member(struct client *client, struct value *value, struct random_element *element) {
    const struct zset *zset = (const struct zset *)value;
    struct zset_item item;
    item_at(zset, random_rank(client, zset), &item);
    element->name = item.member;
    element->length = item.length;
    element->score = item.score;
}

static void reply_member(struct client *client, const struct random_element *element, bool with_score) {
    reply_item(client, &(struct zset_item){element->score, element->name, element->length}, with_score);
}

static const struct random_kind repeated_members = {VALUE_SORTED_SET, pick_member, reply_member};

/* Much of the set: a walk over all of it, that takes each member with the chance that it needs (Knuth's algorithm S). */
static void reply_most(struct client *client, const struct zset *zset, uint64_t count, bool with_scores) {
    struct zset_position position = {0};
    struct zset_item item;
    reply_items_head(client, count, with_scores);
    for (uint64_t left = zset_count(zset); count > 0 && zset_next(zset, &position, &item); left--) {
        if (!go_on(client, left)) return;
        if (random_below(&client->server->store->random, left) >= count) continue;
        reply_item(client, &item, with_scores);
        count--;
    }
}

/* Ranks that were drawn: open addressing, at most half full; 0 is a free place, rank r stands as r + 1. */
struct drawn {
    uint64_t *places;
    uint64_t mask;
};

static bool draw(struct drawn *drawn, uint64_t rank) {
    uint64_t at = rank * 0x9E3779B97F4A7C15u >> 20 & drawn->mask;
    for (; drawn->places[at] != 0; at = (at + 1) & drawn->mask)
        if (drawn->places[at] == rank + 1) return false;
    drawn->places[at] = rank + 1;
    return true;
}

/* Few of a large set: ranks are drawn, and drawn again when they were drawn before. */
static void reply_few(struct client *client, const struct zset *zset, uint64_t count, bool with_scores) {
    struct drawn drawn = {.mask = 15};
    while (drawn.mask < count * 2) drawn.mask = drawn.mask * 2 + 1;
    drawn.places = memory_calloc(drawn.mask + 1, sizeof *drawn.places);
    if (!drawn.places) {
        reply_out_of_memory(client);
        return;
    }
    reply_items_head(client, count, with_scores);
    while (count > 0 && go_on(client, count)) {
        struct zset_item item;
        uint64_t rank = random_rank(client, zset);
        if (!draw(&drawn, rank)) continue;
        item_at(zset, rank, &item);
        reply_item(client, &item, with_scores);
        count--;
    }
    memory_free(drawn.places);
}

static void reply_drawn(struct client *client, const struct zset *zset, int64_t count, bool with_scores) {
    uint64_t all = zset_count(zset);
    if ((uint64_t)count > all / 4 || zset->head.encoding == ENCODING_PACKED)
        reply_most(client, zset, (uint64_t)count < all ? (uint64_t)count : all, with_scores);
    else
        reply_few(client, zset, (uint64_t)count, with_scores);
}

/* Within the slices: the arguments are good, but the key's time may be over just now. */
static void draw_in_slices(struct client *client) {
    int64_t count;
    bool with_scores;
    if (!random_count_arguments(client, "withscores", &count, &with_scores)) return;
    const struct dict_entry *entry = keyspace_find(client, 1);
    if (entry)
        reply_drawn(client, zset_of(entry), count, with_scores);
    else
        reply_array(client, 0);
}

static void reply_random(struct client *client) {
    int64_t count;
    bool with_scores;
    struct zset *zset;
    if (!random_count_arguments(client, "withscores", &count, &with_scores) || !zset_for_reading(client, 1, &zset))
        return;
    bool is_long = zset && zset_count(zset) > EXCLUSIVE_PARTS_AT_ONCE && count > EXCLUSIVE_PARTS_AT_ONCE / 4;
    if (!zset || count == 0)
        reply_array(client, 0);
    else if (count < 0)
        reply_repeated(client, &zset->head, &repeated_members, (uint64_t)-count, with_scores);
    else if (is_long && !client->server->exclusive.inside)
        exclusive_run_command(client, draw_in_slices);
    else
        reply_drawn(client, zset, count, with_scores);
}

static void zrandmember_command(struct client *client) {
    struct zset *zset;
    struct zset_item item;
    if (client->argc > 2) {
        reply_random(client);
        return;
    }
    if (!zset_for_reading(client, 1, &zset)) return;
    if (!zset) {
        reply_null(client);
        return;
    }
    item_at(zset, random_rank(client, zset), &item);
    reply_bulk(client, item.member, item.length);
}

const struct command commands_zset_random[] = {
    {"zrandmember", zrandmember_command, -2, COMMAND_READONLY, &group_sorted_set,
     "Returns one or more members of a sorted set by chance.", "6.2.0", .tips = "nondeterministic_output",
     .keys = key_read},
    {0},
};

/* cmd_zset_range: ranges of sorted sets by rank, by score and by member: read, counted, stored, removed. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/core/command_table.h"
#include "server/redis/keys/cmd_zset.h"
#include "server/redis/pubsub/notify.h"
#include "server/redis/redis_rows.h"

enum range_kind { RANGE_RANK, RANGE_SCORE, RANGE_MEMBER, RANGE_ANY };
enum range_direction { FORWARD, BACKWARDS, EITHER };

struct range {
    enum range_kind kind;
    bool backwards;
    bool with_scores;
    int64_t offset, limit;              /* limit < 0: none */
    int64_t start, end;                 /* RANGE_RANK: as given, negative from the end */
    struct zset_bound least, greatest;  /* otherwise */
};

/* ---- what begins and ends a range -------------------------------------------------------------------------------- */

/* What strtod takes up to the end of the word, nothing at all included, which is 0; behind "(", the score itself is left
 * out. */
static bool parse_score_bound(const struct resp_argument *argument, bool greatest, struct zset_bound *bound) {
    char text[NUMBER_LONG_DOUBLE_TEXT], *end;
    if (argument->length >= sizeof text) return false;
    memcpy(text, argument->data, argument->length);
    text[argument->length] = '\0';
    bool exclusive = text[0] == '(';
    double score = strtod(text + exclusive, &end);
    if (*end != '\0' || isnan(score)) return false;
    *bound = (struct zset_bound){.kind = ZSET_BOUND_SCORE, .score = score, .past = exclusive != greatest};
    return true;
}

static bool parse_member_bound(const struct resp_argument *argument, bool greatest, struct zset_bound *bound) {
    uint8_t mark = argument->length > 0 ? argument->data[0] : 0;
    if (mark == '-' || mark == '+') {
        *bound = (struct zset_bound){.kind = mark == '-' ? ZSET_BOUND_FIRST : ZSET_BOUND_LAST};
        return argument->length == 1 || argument->data[1] == '\0';
    }
    bool exclusive = mark == '(';
    *bound = (struct zset_bound){.kind = ZSET_BOUND_MEMBER,
                                 .past = exclusive != greatest,
                                 .member = argument->data + 1,
                                 .length = argument->length - 1};
    return exclusive || mark == '[';
}

/* Reads the bounds of a range whose kind is known. False: the error is replied. */
static bool parse_bounds(struct client *client, uint32_t least, uint32_t greatest, struct range *range) {
    const struct resp_argument *first = &client->argv[least], *last = &client->argv[greatest];
    if (range->kind == RANGE_SCORE) {
        if (parse_score_bound(first, false, &range->least) && parse_score_bound(last, true, &range->greatest))
            return true;
        reply_error(client, "ERR min or max is not a float");
        return false;
    }
    if (range->kind == RANGE_MEMBER) {
        if (parse_member_bound(first, false, &range->least) && parse_member_bound(last, true, &range->greatest))
            return true;
        reply_error(client, "ERR min or max not valid string range item");
        return false;
    }
    return integer_argument(client, least, &range->start) && integer_argument(client, greatest, &range->end);
}

/* The ranks [first, last) that the range covers in this set. */
static void find_range(const struct zset *zset, const struct range *range, uint64_t *first, uint64_t *last) {
    *first = *last = 0;
    if (range->kind != RANGE_RANK) {
        zset_range(zset, &range->least, &range->greatest, range->backwards, first, last);
        return;
    }
    int64_t count = (int64_t)zset_count(zset), start = range->start, end = range->end;
    if (start < 0) start += count;
    if (start < 0) start = 0;
    if (end < 0) end += count;
    if (end >= count) end = count - 1;
    if (start > end) return;
    *first = (uint64_t)(range->backwards ? count - 1 - end : start);
    *last = *first + (uint64_t)(end - start) + 1;
}

/* Leaves of the ranks what LIMIT says. */
static void apply_limit(const struct range *range, uint64_t *first, uint64_t *last) {
    uint64_t count = *last - *first, skip = (uint64_t)range->offset, kept;
    if (range->offset < 0 || skip > count) skip = count;
    kept = count - skip;
    if (range->limit >= 0 && (uint64_t)range->limit < kept) kept = (uint64_t)range->limit;
    if (range->backwards) {
        *last -= skip;
        *first = *last - kept;
    } else {
        *first += skip;
        *last = *first + kept;
    }
}

/* ---- reading and storing ----------------------------------------------------------------------------------------- */

/* Reads the words behind the bounds: what the command leaves open, LIMIT and WITHSCORES. False: the error is replied. */
static bool parse_range_options(struct client *client, uint32_t first, bool store, enum range_direction direction,
                                struct range *range) {
    enum range_kind kind = range->kind;
    for (uint32_t i = first; i < client->argc; i++) {
        const struct resp_argument *word = &client->argv[i];
        if (!store && argument_is(word, "withscores")) {
            range->with_scores = true;
        } else if (client->argc - i > 2 && argument_is(word, "limit")) {
            if (!integer_argument(client, i + 1, &range->offset) || !integer_argument(client, i + 2, &range->limit))
                return false;
            i += 2;
        } else if (direction == EITHER && argument_is(word, "rev")) {
            direction = BACKWARDS;
        } else if (kind == RANGE_ANY && argument_is(word, "bylex")) {
            kind = RANGE_MEMBER;
        } else if (kind == RANGE_ANY && argument_is(word, "byscore")) {
            kind = RANGE_SCORE;
        } else {
            reply_syntax_error(client);
            return false;
        }
    }
    range->kind = kind == RANGE_ANY ? RANGE_RANK : kind;
    range->backwards = direction == BACKWARDS;
    return true;
}

static bool parse_range(struct client *client, uint32_t key, bool store, enum range_direction direction,
                        struct range *range) {
    range->limit = -1;
    if (!parse_range_options(client, key + 3, store, direction, range)) return false;
    if (range->limit != -1 && range->kind == RANGE_RANK) {
        reply_error(client, "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX");
        return false;
    }
    if (range->with_scores && range->kind == RANGE_MEMBER) {
        reply_error(client, "ERR syntax error, WITHSCORES not supported in combination with BYLEX");
        return false;
    }
    /* Backwards the greater bound comes first, but not so for ranks. */
    bool swapped = range->backwards && range->kind != RANGE_RANK;
    return parse_bounds(client, key + (swapped ? 2 : 1), key + (swapped ? 1 : 2), range);
}

static void range_command(struct client *client, enum range_kind kind, enum range_direction direction) {
    struct range range = {.kind = kind};
    struct zset *zset;
    uint64_t first, last;
    if (!parse_range(client, 1, false, direction, &range) || !zset_for_reading(client, 1, &zset)) return;
    if (!zset) {
        reply_array(client, 0);
        return;
    }
    find_range(zset, &range, &first, &last);
    if (range.kind != RANGE_RANK) apply_limit(&range, &first, &last);
    reply_items(client, zset, first, last, range.backwards, range.with_scores);
}

static void zrange_command(struct client *client) {
    range_command(client, RANGE_ANY, EITHER);
}

static void zrevrange_command(struct client *client) {
    range_command(client, RANGE_RANK, BACKWARDS);
}

static void zrangebyscore_command(struct client *client) {
    range_command(client, RANGE_SCORE, FORWARD);
}

static void zrevrangebyscore_command(struct client *client) {
    range_command(client, RANGE_SCORE, BACKWARDS);
}

static void zrangebylex_command(struct client *client) {
    range_command(client, RANGE_MEMBER, FORWARD);
}

static void zrevrangebylex_command(struct client *client) {
    range_command(client, RANGE_MEMBER, BACKWARDS);
}

static void zrangestore_command(struct client *client) {
    struct range range = {.kind = RANGE_ANY};
    struct zset *zset;
    uint64_t first = 0, last = 0;
    if (!parse_range(client, 2, true, EITHER, &range) || !zset_for_reading(client, 2, &zset)) return;
    if (zset) find_range(zset, &range, &first, &last);
    if (range.kind != RANGE_RANK) apply_limit(&range, &first, &last);
    zset_store_items(client, 1, zset, first, last);
}

/* ---- counting and removing --------------------------------------------------------------------------------------- */

static void count_command(struct client *client, enum range_kind kind) {
    struct range range = {.kind = kind};
    struct zset *zset;
    uint64_t first = 0, last = 0;
    if (!parse_bounds(client, 2, 3, &range) || !zset_for_reading(client, 1, &zset)) return;
    if (zset) find_range(zset, &range, &first, &last);
    reply_integer(client, (int64_t)(last - first));
}

static void zcount_command(struct client *client) {
    count_command(client, RANGE_SCORE);
}

static void zlexcount_command(struct client *client) {
    count_command(client, RANGE_MEMBER);
}

static void remove_range_command(struct client *client, enum range_kind kind) {
    struct range range = {.kind = kind};
    uint64_t first = 0, last = 0;
    if (!parse_bounds(client, 2, 3, &range)) return;
    struct dict_entry *entry = keyspace_find_write(client, 1);
    if (!keyspace_type_is(client, entry, VALUE_SORTED_SET)) return;
    if (entry) {
        find_range(zset_of(entry), &range, &first, &last);
        zset_remove_from(client, entry, first, last - first);
    }
    reply_integer(client, (int64_t)(last - first));
}

static void zremrangebyrank_command(struct client *client) {
    remove_range_command(client, RANGE_RANK);
}

static void zremrangebyscore_command(struct client *client) {
    remove_range_command(client, RANGE_SCORE);
}

static void zremrangebylex_command(struct client *client) {
    remove_range_command(client, RANGE_MEMBER);
}

#define READ COMMAND_READONLY

const struct command commands_zset_range[] = {
    {"zcount", zcount_command, 4, READ | COMMAND_FAST, &group_sorted_set,
     "Returns the number of members of a sorted set between two scores.", "2.0.0", .keys = key_read},
    {"zlexcount", zlexcount_command, 4, READ | COMMAND_FAST, &group_sorted_set,
     "Returns the number of members of a sorted set between two members.", "2.8.9", .keys = key_read},
    {"zrange", zrange_command, -4, READ, &group_sorted_set,
     "Returns members of a sorted set within a range of ranks, scores or members.", "1.2.0", .keys = key_read},
    {"zrangebylex", zrangebylex_command, -4, READ, &group_sorted_set,
     "Returns members of a sorted set between two members.", "2.8.9", .keys = key_read},
    {"zrangebyscore", zrangebyscore_command, -4, READ, &group_sorted_set,
     "Returns members of a sorted set between two scores.", "1.0.5", .keys = key_read},
    {"zrangestore", zrangestore_command, -5, COMMAND_WRITE | COMMAND_DENYOOM, &group_sorted_set,
     "Stores a range of members of a sorted set in another key.", "6.2.0", .keys = key_set_from_key,
     .event = KEY_EVENT(ZSET, "zrangestore", STORES)},
    {"zremrangebylex", zremrangebylex_command, 4, COMMAND_WRITE, &group_sorted_set,
     "Removes members of a sorted set between two members.", "2.8.9", .keys = key_removed_from,
     .event = KEY_EVENT(ZSET, "zremrangebylex", IN_PLACE)},
    {"zremrangebyrank", zremrangebyrank_command, 4, COMMAND_WRITE, &group_sorted_set,
     "Removes members of a sorted set within a range of ranks.", "2.0.0", .keys = key_removed_from,
     .event = KEY_EVENT(ZSET, "zremrangebyrank", IN_PLACE)},
    {"zremrangebyscore", zremrangebyscore_command, 4, COMMAND_WRITE, &group_sorted_set,
     "Removes members of a sorted set between two scores.", "1.2.0", .keys = key_removed_from,
     .event = KEY_EVENT(ZSET, "zremrangebyscore", IN_PLACE)},
    {"zrevrange", zrevrange_command, -4, READ, &group_sorted_set,
     "Returns members of a sorted set within a range of ranks, the highest first.", "1.2.0", .keys = key_read},
    {"zrevrangebylex", zrevrangebylex_command, -4, READ, &group_sorted_set,
     "Returns members of a sorted set between two members, the greatest first.", "2.8.9", .keys = key_read},
    {"zrevrangebyscore", zrevrangebyscore_command, -4, READ, &group_sorted_set,
     "Returns members of a sorted set between two scores, the highest first.", "2.2.0", .keys = key_read},
    {0},
};

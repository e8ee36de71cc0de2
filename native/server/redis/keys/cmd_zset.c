/* cmd_zset: commands on members of sorted sets, and what the other files of them share. Order of checks and error texts
 * follow Redis 7.0. */
#include "server/redis/keys/cmd_zset.h"

#include <math.h>

#include "base/memory.h"
#include "server/core/command_table.h"
#include "server/core/exclusive_execution.h"
#include "server/redis/pubsub/notify.h"
#include "server/redis/redis_rows.h"

/* ---- shared ------------------------------------------------------------------------------------------------------ */

bool zset_for_reading(struct client *client, uint32_t index, struct zset **zset) {
    struct dict_entry *entry = keyspace_find_read(client, index);
    if (!keyspace_type_is(client, entry, VALUE_SORTED_SET)) return false;
    *zset = entry ? zset_of(entry) : NULL;
    return true;
}

bool score_argument(struct client *client, uint32_t index, double *score, const char *error) {
    if (number_parse_double(client->argv[index].data, client->argv[index].length, score)) return true;
    reply_error(client, "ERR %s", error ? error : "value is not a valid float");
    return false;
}

void reply_items_head(struct client *client, uint64_t count, bool with_scores) {
    reply_array(client, with_scores && client->resp == 2 ? count * 2 : count);
}

void reply_item(struct client *client, const struct zset_item *item, bool with_score) {
    if (with_score && client->resp > 2) reply_array(client, 2);
    reply_bulk(client, item->member, item->length);
    if (with_score) reply_double(client, item->score);
}

void zset_remove_from(struct client *client, struct dict_entry *entry, uint64_t first, uint64_t count) {
    if (count == 0) return;
    if (count == zset_count(zset_of(entry))) {
        keyspace_remove(client, entry);
        return;
    }
    zset_remove_range(zset_of(entry), first, count);
    keyspace_changed(client, entry);
}

void zset_store_result(struct client *client, uint32_t index, struct zset *result) {
    uint64_t count = result ? zset_count(result) : 0;
    if (!result || count > 0) {
        if (keyspace_put(client, index, (struct value *)result, false)) reply_integer(client, (int64_t)count);
        return;
    }
    value_free(&result->head);
    struct dict_entry *entry = keyspace_find(client, index);
    if (entry) keyspace_remove(client, entry);
    reply_integer(client, 0);
}

/* ---- adding ------------------------------------------------------------------------------------------------------ */

struct add_counts {
    int64_t added, updated;
    bool refused; /* the last one: by NX, XX, GT or LT */
    double score; /* the last one's */
};

enum add_result { ADD_DONE, ADD_NAN, ADD_EXHAUSTED };

static enum add_result add_member(struct zset *zset, const struct zset_add_options *options, double score,
                                  const struct resp_argument *member, struct add_counts *counts) {
    struct zset_place place;
    bool found = zset_find(zset, member->data, member->length, &place);
    counts->refused = found ? options->nx : options->xx;
    if (counts->refused) return ADD_DONE;
    if (found) {
        if (options->increment) score += place.score;
        if (isnan(score)) return ADD_NAN;
        counts->refused = (options->lt && score >= place.score) || (options->gt && score <= place.score);
        if (counts->refused) return ADD_DONE;
    }
    counts->score = score;
    if (found && score == place.score) return ADD_DONE;
    if (!zset_put(zset, &place, member->data, member->length, score)) return ADD_EXHAUSTED;
    *(found ? &counts->updated : &counts->added) += 1;
    return ADD_DONE;
}

/* Adds every `stride`-th argument from `first` on. */
static enum add_result add_members(struct client *client, struct zset *zset, const struct zset_add_options *options,
                                   uint32_t first, uint32_t stride, const double *scores, struct add_counts *counts) {
    enum add_result result = ADD_DONE;
    for (uint32_t i = first; i < client->argc && result == ADD_DONE; i += stride) {
        if (!exclusive_goes_on_at(client, (i - first) / stride)) break;
        result = add_member(zset, options, *scores++, &client->argv[i], counts);
    }
    return result;
}

/* To the set that is there, or to a new one, which is stored when it is complete. False: an error is replied. */
static bool add_to_key(struct client *client, const struct zset_add_options *options, uint32_t first, uint32_t stride,
                       const double *scores, struct add_counts *counts) {
    struct dict_entry *entry = keyspace_find_write(client, 1);
    if (!keyspace_type_is(client, entry, VALUE_SORTED_SET)) return false;
    if (!entry && options->xx) {
        counts->refused = true;
        return true;
    }
    struct zset *zset = entry ? zset_of(entry) : zset_new();
    enum add_result result = zset ? add_members(client, zset, options, first, stride, scores, counts) : ADD_EXHAUSTED;
    if (entry && counts->added + counts->updated > 0) keyspace_changed(client, entry);
    if (result == ADD_DONE) return entry || keyspace_put(client, 1, &zset->head, false);
    if (!entry && zset) value_free(&zset->head);
    if (result == ADD_NAN)
        reply_error(client, "ERR resulting score is not a number (NaN)");
    else
        reply_out_of_memory(client);
    return false;
}

void zset_add(struct client *client, const struct zset_add_options *options, uint32_t first, uint32_t stride,
              const double *scores) {
    struct add_counts counts = {0};
    if (!add_to_key(client, options, first, stride, scores, &counts)) return;
    if (!options->increment)
        reply_integer(client, options->changed ? counts.added + counts.updated : counts.added);
    else if (counts.refused)
        reply_null(client);
    else
        reply_double(client, counts.score);
}

#define SCORES_AT_HAND 16

static void add_pairs(struct client *client, const struct zset_add_options *options, uint32_t first) {
    double few[SCORES_AT_HAND], *scores = few;
    uint32_t count = (client->argc - first) / 2;
    if (count > SCORES_AT_HAND && !(scores = memory_alloc(count * sizeof *scores))) {
        reply_out_of_memory(client);
        return;
    }
    /* All scores are checked before anything is added. */
    bool valid = true;
    for (uint32_t i = 0; i < count && valid && exclusive_goes_on_at(client, i); i++)
        valid = score_argument(client, first + 2 * i, &scores[i], NULL);
    if (valid) zset_add(client, options, first + 1, 2, scores);
    if (scores != few) memory_free(scores);
}

uint32_t zset_add_words(struct client *client, bool all, struct zset_add_options *options) {
    uint32_t i = 2;
    for (; i < client->argc; i++) {
        const struct resp_argument *word = &client->argv[i];
        bool *flag = argument_is(word, "nx")            ? &options->nx
                     : argument_is(word, "xx")          ? &options->xx
                     : argument_is(word, "ch")          ? &options->changed
                     : all && argument_is(word, "incr") ? &options->increment
                     : all && argument_is(word, "gt")   ? &options->gt
                     : all && argument_is(word, "lt")   ? &options->lt
                                                        : NULL;
        if (!flag) break;
        *flag = true;
    }
    return i;
}

static void zadd_command(struct client *client) {
    struct zset_add_options options = {0};
    uint32_t first = zset_add_words(client, true, &options), rest = client->argc - first;
    if (rest == 0 || rest % 2 == 1)
        reply_syntax_error(client);
    else if (options.nx && options.xx)
        reply_error(client, "ERR XX and NX options at the same time are not compatible");
    else if ((options.gt || options.lt) && (options.nx || (options.gt && options.lt)))
        reply_error(client, "ERR GT, LT, and/or NX options at the same time are not compatible");
    else if (options.increment && rest > 2)
        reply_error(client, "ERR INCR option supports a single increment-element pair");
    else
        add_pairs(client, &options, first);
}

static void zincrby_command(struct client *client) {
    add_pairs(client, &(struct zset_add_options){.increment = true}, 2);
}

static void zrem_command(struct client *client) {
    struct dict_entry *entry = keyspace_find_write(client, 1);
    if (!keyspace_type_is(client, entry, VALUE_SORTED_SET)) return;
    int64_t removed = 0;
    for (uint32_t i = 2; entry && i < client->argc && exclusive_goes_on_at(client, i); i++) {
        struct zset_place place;
        if (!zset_find(zset_of(entry), client->argv[i].data, client->argv[i].length, &place)) continue;
        zset_take(zset_of(entry), &place);
        removed++;
    }
    if (removed > 0) {
        keyspace_changed(client, entry);
        if (zset_count(zset_of(entry)) == 0) keyspace_remove(client, entry);
    }
    reply_integer(client, removed);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static bool find_member(struct client *client, struct zset *zset, uint32_t index, struct zset_place *place) {
    return zset && zset_find(zset, client->argv[index].data, client->argv[index].length, place);
}

static void reply_score(struct client *client, struct zset *zset, uint32_t index) {
    struct zset_place place;
    if (find_member(client, zset, index, &place))
        reply_double(client, place.score);
    else
        reply_null(client);
}

static void zcard_command(struct client *client) {
    struct zset *zset;
    if (zset_for_reading(client, 1, &zset)) reply_integer(client, zset ? (int64_t)zset_count(zset) : 0);
}

static void zscore_command(struct client *client) {
    struct zset *zset;
    if (zset_for_reading(client, 1, &zset)) reply_score(client, zset, 2);
}

static void zmscore_command(struct client *client) {
    struct zset *zset;
    if (!zset_for_reading(client, 1, &zset)) return;
    reply_array(client, client->argc - 2);
    for (uint32_t i = 2; i < client->argc && exclusive_goes_on_at(client, i); i++) reply_score(client, zset, i);
}

/* ZRANK key member [WITHSCORE] */
static void rank_command(struct client *client, bool backwards) {
    struct zset *zset;
    struct zset_place place;
    bool with_score = client->argc == 4 && argument_is(&client->argv[3], "withscore");
    if (client->argc > 4) {
        reply_arity_error(client);
        return;
    }
    if (client->argc == 4 && !with_score) {
        reply_syntax_error(client);
        return;
    }
    if (!zset_for_reading(client, 1, &zset)) return;
    if (!find_member(client, zset, 2, &place)) {
        if (with_score)
            reply_null_array(client);
        else
            reply_null(client);
        return;
    }
    uint64_t rank = zset_rank(zset, &place, client->argv[2].data, client->argv[2].length);
    if (with_score) reply_array(client, 2);
    reply_integer(client, (int64_t)(backwards ? zset_count(zset) - 1 - rank : rank));
    if (with_score) reply_double(client, place.score);
}

static void zrank_command(struct client *client) {
    rank_command(client, false);
}

static void zrevrank_command(struct client *client) {
    rank_command(client, true);
}

/* ---- scanning ---------------------------------------------------------------------------------------------------- */

/* Scores come as strings here, in either version of the protocol, and large whole ones of a small set without an
 * exponent. */
static void reply_scanned(struct client *client, const uint8_t *member, size_t length, double score, bool packed) {
    char text[NUMBER_DOUBLE_TEXT];
    bool whole = packed && fabs(score) < (double)(INT64_MAX / 2) && (double)(int64_t)score == score;
    reply_bulk(client, member, length);
    reply_bulk(client, text, whole ? number_format_int64((int64_t)score, text) : number_format_double(score, text));
}

/* A packed set is small: its members are all replied at once. */
static void scan_packed(struct client *client, const struct zset *zset, const struct scan_options *options) {
    reply_scan_cursor(client, 0);
    size_t mark = reply_array_deferred(client), replied = 0;
    struct zset_position position = {0};
    struct zset_item item;
    while (zset_next(zset, &position, &item)) {
        if (!scan_matches(options, item.member, item.length)) continue;
        reply_scanned(client, item.member, item.length, item.score, true);
        replied += 2;
    }
    reply_set_array_length(client, mark, replied);
}

static void zscan_command(struct client *client) {
    uint64_t cursor;
    struct scan_options options;
    struct scan_found found;
    if (!scan_cursor_argument(client, 2, &cursor)) return;
    struct zset *zset;
    if (!zset_for_reading(client, 1, &zset)) return;
    if (!zset) {
        /* Redis does not look at the options of a scan over nothing. */
        reply_scan_cursor(client, 0);
        reply_array(client, 0);
        return;
    }
    if (!scan_options_parse(client, 3, false, &options)) return;
    if (zset->head.encoding == ENCODING_PACKED) {
        scan_packed(client, zset, &options);
        return;
    }
    if (!scan_dict(client, &zset->large->members, &options, &cursor, &found)) return;
    reply_scan_cursor(client, cursor);
    reply_array(client, found.count * 2);
    for (size_t i = 0; i < found.count; i++)
        reply_scanned(client, found.entries[i]->key, found.entries[i]->key_length, zset_entry_score(found.entries[i]),
                      false);
    scan_found_free(&found);
}

#define WRITE (COMMAND_WRITE | COMMAND_DENYOOM)
#define READ COMMAND_READONLY
#define FAST COMMAND_FAST
#define RESTS COMMAND_RESTS

const struct command commands_zset[] = {
    {"zadd", zadd_command, -4, WRITE | FAST | RESTS, &group_sorted_set,
     "Adds members to a sorted set, or gives them other scores. Creates the key if needed.", "1.2.0",
     .keys = key_updated, .event = KEY_EVENT(ZSET, "zadd", ADDS_OR_INCREMENTS)},
    {"zcard", zcard_command, 2, READ | FAST, &group_sorted_set, "Returns the number of members in a sorted set.",
     "1.2.0", .keys = key_known},
    {"zincrby", zincrby_command, 4, WRITE | FAST, &group_sorted_set,
     "Increments the score of a member of a sorted set.", "1.2.0", .keys = key_changed,
     .event = KEY_EVENT(ZSET, "zincr", IN_PLACE)},
    {"zmscore", zmscore_command, -3, READ | FAST | RESTS, &group_sorted_set,
     "Returns the scores of members of a sorted set.", "6.2.0", .keys = key_read},
    {"zrank", zrank_command, -3, READ | FAST, &group_sorted_set,
     "Returns the place of a member in a sorted set, from the lowest score on.", "2.0.0", .keys = key_read},
    {"zrem", zrem_command, -3, COMMAND_WRITE | FAST | RESTS, &group_sorted_set,
     "Removes members of a sorted set. Deletes the set if no members remain.", "1.2.0", .keys = key_removed_from,
     .event = KEY_EVENT(ZSET, "zrem", IN_PLACE)},
    {"zrevrank", zrevrank_command, -3, READ | FAST, &group_sorted_set,
     "Returns the place of a member in a sorted set, from the highest score on.", "2.0.0", .keys = key_read},
    {"zscan", zscan_command, -3, READ, &group_sorted_set, "Iterates over members and scores of a sorted set.", "2.8.0",
     .tips = "nondeterministic_output", .keys = key_read},
    {"zscore", zscore_command, 3, READ | FAST, &group_sorted_set, "Returns the score of a member of a sorted set.",
     "1.2.0", .keys = key_read},
    {0},
};

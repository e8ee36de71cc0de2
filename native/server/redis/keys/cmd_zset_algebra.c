/* cmd_zset_algebra: unions, intersections and differences of sorted sets and sets, whose members all have the score 1.
 * Order of checks and error texts follow Redis 7.0. */
#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "server/core/command_table.h"
#include "server/core/exclusive_execution.h"
#include "server/redis/keys/cmd_zset.h"
#include "server/redis/pubsub/notify.h"
#include "server/redis/redis_rows.h"
#include "store/t_set.h"

enum operation { UNION, INTERSECTION, DIFFERENCE };
enum aggregate { SUM, LEAST, GREATEST };

struct source {
    struct value *value; /* NULL: no such key */
    uint64_t count;
    uint32_t order;      /* among the arguments */
    double weight;
};

struct algebra {
    enum operation operation;
    enum aggregate aggregate;
    bool with_scores;
    bool store;          /* under argument 1 */
    bool count_alone;    /* ZINTERCARD */
    int64_t limit;       /* of ZINTERCARD; 0: none */
    uint32_t count;
    struct source *sources;
    struct client *client;
    uint32_t looked_up;  /* members since the start, to know when to rest */
};

/* ---- sources ----------------------------------------------------------------------------------------------------- */

struct source_position {
    struct zset_position in_zset;
    struct set_position in_set;
    struct set_member member;
};

static bool source_next(const struct source *source, struct source_position *position, struct zset_item *item) {
    if (!source->value) return false;
    if (source->value->type == VALUE_SORTED_SET)
        return zset_next((struct zset *)source->value, &position->in_zset, item);
    if (!set_next(source->value, &position->in_set, &position->member)) return false;
    set_member_text(&position->member);
    *item = (struct zset_item){1, position->member.data, position->member.length};
    return true;
}

static bool source_find(const struct source *source, const struct zset_item *item, double *score) {
    if (!source->value) return false;
    if (source->value->type == VALUE_SET) {
        struct set_member member;
        set_member_of(&member, item->member, item->length);
        *score = 1;
        return set_contains(source->value, &member);
    }
    struct zset_place place;
    bool found = zset_find((struct zset *)source->value, item->member, item->length, &place);
    *score = place.score;
    return found;
}

static uint64_t source_count(const struct value *value) {
    if (!value) return 0;
    return value->type == VALUE_SET ? set_count(value) : zset_count((const struct zset *)value);
}

/* Fewest members first, as Redis takes them: the order in which floating point scores are added up shows. */
static int compare_sources(const void *left, const void *right) {
    const struct source *a = left, *b = right;
    if (a->count != b->count) return a->count < b->count ? -1 : 1;
    return a->order < b->order ? -1 : a->order > b->order;
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */

/* Finds the keys behind argument `at`, which says how many they are. False: the error is replied. */
static bool find_sources(struct client *client, uint32_t at, struct algebra *algebra) {
    int64_t count;
    if (!integer_argument(client, at, &count)) return false;
    if (count < 1) {
        reply_error(client, "ERR at least 1 input key is needed for '%s' command", client->command->name);
        return false;
    }
    if (count > (int64_t)client->argc - at - 1) {
        reply_syntax_error(client);
        return false;
    }
    algebra->count = (uint32_t)count;
    algebra->sources = memory_alloc(algebra->count * sizeof *algebra->sources);
    if (!algebra->sources) {
        reply_out_of_memory(client);
        return false;
    }
    for (uint32_t i = 0; i < algebra->count; i++) {
        struct dict_entry *entry = keyspace_find_read(client, at + 1 + i);
        struct value *value = entry ? store_value(entry) : NULL;
        if (value && value->type != VALUE_SET && !keyspace_type_is(client, entry, VALUE_SORTED_SET)) return false;
        if (value && value->type == VALUE_SET) set_tidy(value);
        algebra->sources[i] = (struct source){.value = value, .count = source_count(value), .order = i, .weight = 1};
    }
    return true;
}

static bool parse_aggregate(const struct resp_argument *word, enum aggregate *aggregate) {
    *aggregate = argument_is(word, "min") ? LEAST : argument_is(word, "max") ? GREATEST : SUM;
    return *aggregate != SUM || argument_is(word, "sum");
}

/* Reads a word of WEIGHTS, AGGREGATE or WITHSCORES at argument *at and moves behind it. False: the error is replied. */
static bool parse_option(struct client *client, uint32_t *at, struct algebra *algebra) {
    const struct resp_argument *word = &client->argv[*at];
    uint32_t left = client->argc - *at;
    bool scored = algebra->operation != DIFFERENCE;
    if (scored && left > algebra->count && argument_is(word, "weights")) {
        for (uint32_t i = 0; i < algebra->count; i++)
            if (!score_argument(client, *at + 1 + i, &algebra->sources[i].weight, "weight value is not a float"))
                return false;
        *at += 1 + algebra->count;
        return true;
    }
    if (scored && left >= 2 && argument_is(word, "aggregate") &&
        parse_aggregate(&client->argv[*at + 1], &algebra->aggregate)) {
        *at += 2;
        return true;
    }
    if (!algebra->store && argument_is(word, "withscores")) {
        algebra->with_scores = true;
        *at += 1;
        return true;
    }
    reply_syntax_error(client);
    return false;
}

/* Reads LIMIT of ZINTERCARD at argument *at and moves behind it. False: the error is replied. */
static bool parse_limit(struct client *client, uint32_t *at, struct algebra *algebra) {
    if (client->argc - *at < 2 || !argument_is(&client->argv[*at], "limit")) {
        reply_syntax_error(client);
        return false;
    }
    const struct resp_argument *limit = &client->argv[*at + 1];
    if (!number_parse_int64(limit->data, limit->length, &algebra->limit) || algebra->limit < 0) {
        reply_error(client, "ERR LIMIT can't be negative");
        return false;
    }
    *at += 2;
    return true;
}

/* ---- the work ---------------------------------------------------------------------------------------------------- */

static double weighted(const struct source *source, double score) {
    score *= source->weight;
    return isnan(score) ? 0 : score; /* infinity times zero */
}

static double aggregated(enum aggregate aggregate, double score, double other) {
    switch (aggregate) {
    case LEAST: return other < score ? other : score;
    case GREATEST: return other > score ? other : score;
    case SUM: break;
    }
    score += other;
    return isnan(score) ? 0 : score; /* infinities of both signs, or infinity times zero */
}

/* The score of a member of the first source in the intersection; false: another source lacks it. */
static bool in_all(const struct algebra *algebra, const struct zset_item *item, double *score) {
    const struct source *first = &algebra->sources[0];
    *score = weighted(first, item->score);
    for (uint32_t i = 1; i < algebra->count; i++) {
        const struct source *source = &algebra->sources[i];
        double other = item->score;
        if (source->value != first->value && !source_find(source, item, &other)) return false;
        *score = aggregated(algebra->aggregate, *score, other * source->weight);
    }
    return true;
}

static bool in_another(const struct algebra *algebra, const struct zset_item *item) {
    double score;
    for (uint32_t i = 1; i < algebra->count; i++)
        if (algebra->sources[i].value == algebra->sources[0].value || source_find(&algebra->sources[i], item, &score))
            return true;
    return false;
}

/* `more` members were looked up. False: the client is lost, and the sources with it. */
static bool go_on(struct algebra *algebra, uint32_t more) {
    uint32_t before = algebra->looked_up / EXCLUSIVE_PARTS_TO_REST;
    algebra->looked_up += more;
    return algebra->looked_up / EXCLUSIVE_PARTS_TO_REST == before || exclusive_goes_on(algebra->client);
}

/* These return false also where the client is lost. */

static bool unite(struct algebra *algebra, struct zset *result) {
    for (uint32_t i = 0; i < algebra->count; i++) {
        struct source_position position = {0};
        struct zset_item item;
        while (source_next(&algebra->sources[i], &position, &item)) {
            struct zset_place place;
            double score = weighted(&algebra->sources[i], item.score);
            bool found = zset_find(result, item.member, item.length, &place);
            if (found) score = aggregated(algebra->aggregate, place.score, score);
            if (!zset_note(result, &place, item.member, item.length, score) || !go_on(algebra, 1)) return false;
        }
    }
    return true;
}

static bool choose(struct algebra *algebra, struct zset *result) {
    struct source_position position = {0};
    struct zset_item item;
    while (source_next(&algebra->sources[0], &position, &item)) {
        struct zset_item chosen = item;
        bool is_chosen =
            algebra->operation == INTERSECTION ? in_all(algebra, &item, &chosen.score) : !in_another(algebra, &item);
        if (is_chosen) {
            struct zset_place place;
            zset_find(result, chosen.member, chosen.length, &place);
            if (!zset_note(result, &place, chosen.member, chosen.length, chosen.score)) return false;
        }
        if (!go_on(algebra, algebra->count)) return false;
    }
    return true;
}

static bool count_chosen(struct algebra *algebra, int64_t *count) {
    struct source_position position = {0};
    struct zset_item item;
    double score;
    *count = 0;
    while (source_next(&algebra->sources[0], &position, &item)) {
        *count += in_all(algebra, &item, &score);
        if (*count == algebra->limit && *count > 0) return true;
        if (!go_on(algebra, algebra->count)) return false;
    }
    return true;
}

static void rest(void *context) {
    exclusive_rest(context);
}

/* The result, in the large form. NULL: memory is exhausted, or the client is lost. */
static struct zset *work_out(struct algebra *algebra) {
    struct zset *result = zset_new_unordered();
    if (!result) return NULL;
    if ((algebra->operation == UNION ? unite(algebra, result) : choose(algebra, result)) &&
        zset_order(result, rest, algebra->client->server) && !exclusive_is_lost(algebra->client))
        return result;
    store_discard(algebra->client->server->store, &result->head);
    return NULL;
}

static void run_count(struct client *client, struct algebra *algebra) {
    int64_t count;
    if (count_chosen(algebra, &count)) reply_integer(client, count);
}

static void run_operation(struct client *client, struct algebra *algebra) {
    struct zset *result = work_out(algebra);
    if (exclusive_is_lost(client)) return;
    if (algebra->store) {
        if (result && !zset_pack(result)) {
            value_free(&result->head);
            result = NULL;
        }
        zset_store_result(client, 1, result);
    } else if (result) {
        reply_items_here(client, result, algebra->with_scores);
        store_discard(client->server->store, &result->head);
    } else {
        reply_out_of_memory(client);
    }
}

static void run(struct client *client, struct algebra *algebra) {
    if (algebra->count_alone)
        run_count(client, algebra);
    else
        run_operation(client, algebra);
}

static void drop_algebra(struct client *client, void *state) {
    (void)client;
    struct algebra *algebra = state;
    memory_free(algebra->sources);
    memory_free(algebra);
}

/* The client's state, and the sources with it, goes with the client. */
static void run_in_slices(struct client *client) {
    struct algebra algebra = *(struct algebra *)client_state(client);
    run(client, &algebra);
}

/* Takes the sources over. */
static void begin(struct client *client, struct algebra *algebra) {
    uint64_t members = 0;
    for (uint32_t i = 0; i < algebra->count; i++) members += algebra->sources[i].count;
    struct algebra *kept = NULL;
    if (members > EXCLUSIVE_PARTS_AT_ONCE && !client->server->exclusive.inside) kept = memory_alloc(sizeof *kept);
    if (kept) {
        *kept = *algebra;
        client_set_state(client, kept, drop_algebra);
        exclusive_run_command(client, run_in_slices);
    } else {
        run(client, algebra);
        memory_free(algebra->sources);
    }
}

static void sort_sources(struct algebra *algebra) {
    if (algebra->operation != DIFFERENCE)
        qsort(algebra->sources, algebra->count, sizeof *algebra->sources, compare_sources);
}

/* Reads the arguments from `at` on; false: the error is replied. */
static bool parse(struct client *client, uint32_t at, struct algebra *algebra) {
    bool valid = find_sources(client, at, algebra);
    for (uint32_t i = at + 1 + algebra->count; valid && i < client->argc;)
        valid = algebra->count_alone ? parse_limit(client, &i, algebra) : parse_option(client, &i, algebra);
    return valid;
}

static void algebra_command(struct client *client, struct algebra *algebra) {
    algebra->client = client;
    if (parse(client, algebra->store ? 2 : 1, algebra)) {
        sort_sources(algebra);
        begin(client, algebra);
    } else {
        memory_free(algebra->sources);
    }
}

static void reply_command(struct client *client, enum operation operation) {
    algebra_command(client, &(struct algebra){.operation = operation});
}

static void store_command(struct client *client, enum operation operation) {
    algebra_command(client, &(struct algebra){.operation = operation, .store = true});
}

static void zunion_command(struct client *client) {
    reply_command(client, UNION);
}

static void zinter_command(struct client *client) {
    reply_command(client, INTERSECTION);
}

static void zdiff_command(struct client *client) {
    reply_command(client, DIFFERENCE);
}

static void zunionstore_command(struct client *client) {
    store_command(client, UNION);
}

static void zinterstore_command(struct client *client) {
    store_command(client, INTERSECTION);
}

static void zdiffstore_command(struct client *client) {
    store_command(client, DIFFERENCE);
}

static void zintercard_command(struct client *client) {
    algebra_command(client, &(struct algebra){.operation = INTERSECTION, .count_alone = true});
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

const struct command commands_zset_algebra[] = {
    {"zdiff", zdiff_command, -3, COMMAND_READONLY | COMMAND_MOVABLEKEYS, &group_sorted_set,
     "Returns the members of the first of several sorted sets that the others lack.", "6.2.0",
     .keys = counted_keys_read},
    {"zdiffstore", zdiffstore_command, -4, COMMAND_WRITE | COMMAND_DENYOOM | COMMAND_MOVABLEKEYS, &group_sorted_set,
     "Stores the members of the first of several sorted sets that the others lack.", "6.2.0",
     .keys = key_set_from_counted_keys, .event = KEY_EVENT(ZSET, "zdiffstore", STORES)},
    {"zinter", zinter_command, -3, COMMAND_READONLY | COMMAND_MOVABLEKEYS, &group_sorted_set,
     "Returns the members that several sorted sets have in common.", "6.2.0", .keys = counted_keys_read},
    {"zintercard", zintercard_command, -3, COMMAND_READONLY | COMMAND_MOVABLEKEYS, &group_sorted_set,
     "Returns how many members several sorted sets have in common.", "7.0.0", .keys = counted_keys_read},
    {"zinterstore", zinterstore_command, -4, COMMAND_WRITE | COMMAND_DENYOOM | COMMAND_MOVABLEKEYS, &group_sorted_set,
     "Stores the members that several sorted sets have in common.", "2.0.0", .keys = key_set_from_counted_keys,
     .event = KEY_EVENT(ZSET, "zinterstore", STORES)},
    {"zunion", zunion_command, -3, COMMAND_READONLY | COMMAND_MOVABLEKEYS, &group_sorted_set,
     "Returns the members of several sorted sets together.", "6.2.0", .keys = counted_keys_read},
    {"zunionstore", zunionstore_command, -4, COMMAND_WRITE | COMMAND_DENYOOM | COMMAND_MOVABLEKEYS, &group_sorted_set,
     "Stores the members of several sorted sets together.", "2.0.0", .keys = key_set_from_counted_keys,
     .event = KEY_EVENT(ZSET, "zunionstore", STORES)},
    {0},
};

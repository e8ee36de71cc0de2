/* cmd_geo_search: members within a circle or a box. Order of checks and error texts follow Redis 7.0.
 *
 * Nine cells around the centre are ranges of scores that hold every member within. They are walked in Redis's order, which
 * shows where nothing is sorted, and with ANY. Many members are searched in slices. */
#include <stdio.h>

#include "base/memory.h"
#include "server/core/command_table.h"
#include "server/core/exclusive_execution.h"
#include "server/redis/keys/cmd_geo.h"
#include "server/redis/pubsub/notify.h"
#include "server/redis/redis_rows.h"

enum from { FROM_POINT, FROM_MEMBER, FROM_OPTIONS };
enum order { AS_FOUND, NEAREST_FIRST, FARTHEST_FIRST };

struct search {
    enum from from;
    bool may_store, always_stores;
    uint32_t key_at, store_at; /* arguments; store_at 0: the result is replied */
    struct zset *zset;
    struct geo_shape shape;
    double unit_m;
    enum order order;
    int64_t count; /* 0: all */
    bool any, with_distance, with_hash, with_point, store_distance;
    bool has_center, from_member, by_radius, by_box;
};

struct found {
    const uint8_t *member; /* in the set, which stays as it is meanwhile */
    size_t length;
    double score, distance_m;
    struct geo_point point;
};

struct found_list {
    struct found *items;
    size_t count, capacity;
    bool failed; /* memory is exhausted */
};

/* ---- options ------------------------------------------------------------------------------------------------------- */

static bool numeric_argument(struct client *client, uint32_t index, const char *name, double *value) {
    char error[32];
    snprintf(error, sizeof error, "need numeric %s", name);
    return score_argument(client, index, value, error);
}

static bool parse_radius(struct client *client, uint32_t index, struct search *search) {
    double radius;
    if (!numeric_argument(client, index, "radius", &radius)) return false;
    if (radius < 0) {
        reply_error(client, "ERR radius cannot be negative");
        return false;
    }
    if (!geo_unit_argument(client, index + 1, &search->unit_m)) return false;
    search->shape.is_box = false;
    search->shape.radius_m = radius * search->unit_m;
    return true;
}

static bool parse_box(struct client *client, uint32_t index, struct search *search) {
    double width, height;
    if (!numeric_argument(client, index, "width", &width) || !numeric_argument(client, index + 1, "height", &height))
        return false;
    if (width < 0 || height < 0) {
        reply_error(client, "ERR height or width cannot be negative");
        return false;
    }
    if (!geo_unit_argument(client, index + 2, &search->unit_m)) return false;
    search->shape.is_box = true;
    search->shape.width_m = width * search->unit_m;
    search->shape.height_m = height * search->unit_m;
    return true;
}

/* Where there is no set, the member is not looked for. */
static bool find_center(struct client *client, uint32_t index, struct search *search) {
    if (!search->zset || geo_point_of(search->zset, &client->argv[index], &search->shape.center)) return true;
    reply_error(client, "ERR could not decode requested zset member");
    return false;
}

static bool *flag_named(struct search *search, const struct resp_argument *word) {
    return argument_is(word, "withdist")    ? &search->with_distance
           : argument_is(word, "withhash")  ? &search->with_hash
           : argument_is(word, "withcoord") ? &search->with_point
           : argument_is(word, "any")       ? &search->any
                                            : NULL;
}

enum parsed { PARSED, NOT_MINE, REFUSED };

/* What every search takes. */
static enum parsed parse_common(struct client *client, uint32_t *at, struct search *search) {
    const struct resp_argument *word = &client->argv[*at];
    bool *flag = flag_named(search, word);
    if (flag) {
        *flag = true;
    } else if (argument_is(word, "asc")) {
        search->order = NEAREST_FIRST;
    } else if (argument_is(word, "desc")) {
        search->order = FARTHEST_FIRST;
    } else if (argument_is(word, "count") && *at + 1 < client->argc) {
        if (!integer_argument(client, ++*at, &search->count)) return REFUSED;
        if (search->count <= 0) {
            reply_error(client, "ERR COUNT must be > 0");
            return REFUSED;
        }
    } else {
        return NOT_MINE;
    }
    return PARSED;
}

/* STORE and STOREDIST of GEORADIUS. */
static enum parsed parse_store(struct client *client, uint32_t *at, struct search *search) {
    const struct resp_argument *word = &client->argv[*at];
    bool stores = argument_is(word, "store"), stores_distance = argument_is(word, "storedist");
    if (!search->may_store || *at + 1 >= client->argc || (!stores && !stores_distance)) return NOT_MINE;
    search->store_at = ++*at;
    search->store_distance = stores_distance;
    return PARSED;
}

/* What GEOSEARCH says of centre and shape. */
static enum parsed parse_shape(struct client *client, uint32_t *at, struct search *search) {
    const struct resp_argument *word = &client->argv[*at];
    uint32_t rest = client->argc - *at - 1;
    bool valid;
    if (argument_is(word, "frommember") && rest >= 1 && (!search->has_center || search->from_member)) {
        valid = find_center(client, *at + 1, search);
        search->from_member = search->has_center = true;
        *at += 1;
    } else if (argument_is(word, "fromlonlat") && rest >= 2 && !search->from_member) {
        valid = geo_point_argument(client, *at + 1, &search->shape.center);
        search->has_center = true;
        *at += 2;
    } else if (argument_is(word, "byradius") && rest >= 2 && !search->by_box) {
        valid = parse_radius(client, *at + 1, search);
        search->by_radius = true;
        *at += 2;
    } else if (argument_is(word, "bybox") && rest >= 3 && !search->by_radius) {
        valid = parse_box(client, *at + 1, search);
        search->by_box = true;
        *at += 3;
    } else if (search->always_stores && argument_is(word, "storedist")) {
        search->store_distance = valid = true;
    } else {
        return NOT_MINE;
    }
    return valid ? PARSED : REFUSED;
}

/* Whether what was said goes together; false: the error is replied. */
static bool agrees(struct client *client, const struct search *search) {
    const struct resp_argument *name = &client->argv[0];
    int length = (int)name->length;
    if (search->store_at > 0 && (search->with_distance || search->with_hash || search->with_point))
        reply_error(client, "ERR %s is not compatible with WITHDIST, WITHHASH and WITHCOORD options",
                    search->always_stores ? "GEOSEARCHSTORE" : "STORE option in GEORADIUS");
    else if (!search->has_center)
        reply_error(client, "ERR exactly one of FROMMEMBER or FROMLONLAT can be specified for %.*s", length,
                    (const char *)name->data);
    else if (!search->by_radius && !search->by_box)
        reply_error(client, "ERR exactly one of BYRADIUS and BYBOX can be specified for %.*s", length,
                    (const char *)name->data);
    else if (search->any && search->count == 0)
        reply_error(client, "ERR the ANY argument requires COUNT argument");
    else
        return true;
    return false;
}

/* The arguments before the options. Returns where those begin; 0: the error is replied. */
static uint32_t parse_head(struct client *client, struct search *search) {
    if (search->from == FROM_OPTIONS) return search->key_at + 1;
    search->has_center = search->by_radius = true;
    if (search->from == FROM_POINT) {
        bool valid = geo_point_argument(client, 2, &search->shape.center) && parse_radius(client, 4, search);
        return valid ? 6 : 0;
    }
    /* Redis does not look at the radius where there is no set. */
    bool valid = !search->zset || (find_center(client, 2, search) && parse_radius(client, 3, search));
    return valid ? 5 : 0;
}

static bool parse(struct client *client, struct search *search) {
    uint32_t at = parse_head(client, search);
    if (at == 0) return false;
    for (; at < client->argc; at++) {
        enum parsed parsed = parse_common(client, &at, search);
        if (parsed == NOT_MINE)
            parsed = search->from == FROM_OPTIONS ? parse_shape(client, &at, search) : parse_store(client, &at, search);
        if (parsed == NOT_MINE) reply_syntax_error(client);
        if (parsed != PARSED) return false;
    }
    return agrees(client, search);
}

/* ---- searching ----------------------------------------------------------------------------------------------------- */

static void add_found(struct found_list *list, const struct found *found) {
    if (list->count == list->capacity) {
        size_t capacity = list->capacity == 0 ? 32 : list->capacity * 2;
        struct found *grown = memory_realloc(list->items, capacity * sizeof *grown);
        list->failed = !grown;
        if (!grown) return;
        list->items = grown;
        list->capacity = capacity;
    }
    list->items[list->count++] = *found;
}

static void ranks_of(const struct zset *zset, const struct geo_range *range, uint64_t *first, uint64_t *last) {
    struct zset_bound least = {.kind = ZSET_BOUND_SCORE, .score = (double)range->least};
    struct zset_bound beyond = {.kind = ZSET_BOUND_SCORE, .score = (double)range->beyond};
    zset_range(zset, &least, &beyond, false, first, last);
}

/* Collects the members of a range. False: the client is lost. */
static bool search_range(struct client *client, const struct search *search, const struct geo_range *range,
                         struct found_list *list) {
    uint64_t first, last, limit = search->any ? (uint64_t)search->count : UINT64_MAX;
    ranks_of(search->zset, range, &first, &last);
    struct zset_position position;
    struct zset_item item;
    zset_seek(search->zset, first, &position);
    for (uint64_t left = last - first; left > 0 && list->count < limit && !list->failed; left--) {
        if (!zset_next(search->zset, &position, &item)) break;
        struct found found = {item.member, item.length, item.score, 0, geohash_decode(item.score)};
        if (geo_within(&search->shape, &found.point, &found.distance_m)) add_found(list, &found);
        if (left % EXCLUSIVE_PARTS_TO_REST == 0 && !exclusive_goes_on(client)) return false;
    }
    return true;
}

static bool comes_first(const struct found *left, const struct found *right, enum order order) {
    return order == NEAREST_FIRST ? left->distance_m <= right->distance_m : left->distance_m >= right->distance_m;
}

static void merge(const struct found *items, struct found *out, size_t middle, size_t end, enum order order) {
    size_t left = 0, right = middle;
    for (size_t i = 0; i < end; i++) {
        bool takes_left = left < middle && (right >= end || comes_first(&items[left], &items[right], order));
        out[i] = items[takes_left ? left++ : right++];
    }
}

/* By merging, so that equal distances stay in order and it can be suspended between. False: the client is lost. */
static bool sort_found(struct client *client, struct found_list *list, enum order order) {
    if (list->count < 2) return true;
    struct found *spare = memory_alloc(list->count * sizeof *spare);
    list->failed = !spare;
    for (size_t width = 1; spare && width < list->count; width *= 2) {
        size_t since_rest = 0;
        for (size_t at = 0; at < list->count; at += 2 * width) {
            size_t left = list->count - at, end = left < 2 * width ? left : 2 * width;
            merge(list->items + at, spare + at, width < end ? width : end, end, order);
            if ((since_rest += end) < EXCLUSIVE_PARTS_AT_ONCE) continue;
            since_rest = 0;
            if (exclusive_goes_on(client)) continue;
            memory_free(spare);
            return false;
        }
        struct found *sorted = spare;
        spare = list->items;
        list->items = sorted;
    }
    if (spare) list->capacity = list->count;
    memory_free(spare);
    return true;
}

/* ---- results ------------------------------------------------------------------------------------------------------- */

static void reply_found(struct client *client, const struct search *search, const struct found *found) {
    int extras = search->with_distance + search->with_hash + search->with_point;
    if (extras > 0) reply_array(client, (size_t)extras + 1);
    reply_bulk(client, found->member, found->length);
    if (search->with_distance) reply_distance(client, found->distance_m / search->unit_m);
    if (search->with_hash) reply_integer(client, (int64_t)found->score);
    if (search->with_point) reply_point(client, &found->point);
}

static void reply_all(struct client *client, const struct search *search, const struct found *items, size_t count) {
    reply_array(client, count);
    for (size_t i = 0; i < count; i++) {
        reply_found(client, search, &items[i]);
        if (i % EXCLUSIVE_PARTS_TO_REST == EXCLUSIVE_PARTS_TO_REST - 1 && !exclusive_goes_on(client)) return;
    }
}

static void nothing(void *context) {
    (void)context;
}

static void store_all(struct client *client, const struct search *search, const struct found *items, size_t count) {
    struct zset *result = zset_new_unordered();
    for (size_t i = 0; i < count && result; i++) {
        struct zset_place place;
        double score = search->store_distance ? items[i].distance_m / search->unit_m : items[i].score;
        zset_find(result, items[i].member, items[i].length, &place);
        bool noted = zset_note(result, &place, items[i].member, items[i].length, score);
        bool lost = i % EXCLUSIVE_PARTS_TO_REST == EXCLUSIVE_PARTS_TO_REST - 1 && !exclusive_goes_on(client);
        if (noted && !lost) continue;
        store_discard(client->server->store, &result->head);
        if (lost) return;
        result = NULL;
    }
    if (result && (!zset_order(result, nothing, NULL) || !zset_pack(result))) {
        store_discard(client->server->store, &result->head);
        result = NULL;
    }
    zset_store_result(client, search->store_at, result);
}

static void run(struct client *client, const struct search *search) {
    struct found_list list = {0};
    struct geo_range ranges[GEO_CELLS];
    int count = geo_ranges(&search->shape, ranges);
    bool goes_on = true;
    for (int i = 0; i < count && goes_on && !list.failed; i++)
        goes_on = search_range(client, search, &ranges[i], &list);
    if (goes_on && !list.failed && search->order != AS_FOUND) goes_on = sort_found(client, &list, search->order);
    size_t shown = search->count > 0 && (uint64_t)search->count < list.count ? (size_t)search->count : list.count;
    if (!goes_on) {
    } else if (list.failed) {
        reply_out_of_memory(client);
    } else if (search->store_at > 0) {
        store_all(client, search, list.items, shown);
    } else {
        reply_all(client, search, list.items, shown);
    }
    memory_free(list.items);
}

static void run_in_slices(struct client *client) {
    struct search search = *(struct search *)client_state(client);
    run(client, &search);
}

/* How many members the cells hold. */
static uint64_t members_to_look_at(const struct search *search) {
    struct geo_range ranges[GEO_CELLS];
    uint64_t members = 0;
    for (int i = geo_ranges(&search->shape, ranges) - 1; i >= 0; i--) {
        uint64_t first, last;
        ranks_of(search->zset, &ranges[i], &first, &last);
        members += last - first;
    }
    return members;
}

static void begin(struct client *client, const struct search *search) {
    if (zset_count(search->zset) <= EXCLUSIVE_PARTS_AT_ONCE || members_to_look_at(search) <= EXCLUSIVE_PARTS_AT_ONCE ||
        !exclusive_run_with(client, search, sizeof *search, run_in_slices))
        run(client, search);
}

/* ---- commands ------------------------------------------------------------------------------------------------------ */

static void search_command(struct client *client, struct search *search) {
    if (!zset_for_reading(client, search->key_at, &search->zset) || !parse(client, search)) return;
    if (search->count > 0 && search->order == AS_FOUND && !search->any) search->order = NEAREST_FIRST;
    if (search->zset)
        begin(client, search);
    else if (search->store_at > 0)
        zset_store_items(client, search->store_at, NULL, 0, 0);
    else
        reply_array(client, 0);
}

static void georadius_command(struct client *client) {
    search_command(client, &(struct search){.from = FROM_POINT, .key_at = 1, .may_store = true});
}

static void georadius_ro_command(struct client *client) {
    search_command(client, &(struct search){.from = FROM_POINT, .key_at = 1});
}

static void georadiusbymember_command(struct client *client) {
    search_command(client, &(struct search){.from = FROM_MEMBER, .key_at = 1, .may_store = true});
}

static void georadiusbymember_ro_command(struct client *client) {
    search_command(client, &(struct search){.from = FROM_MEMBER, .key_at = 1});
}

static void geosearch_command(struct client *client) {
    search_command(client, &(struct search){.from = FROM_OPTIONS, .key_at = 1});
}

static void geosearchstore_command(struct client *client) {
    search_command(client, &(struct search){.from = FROM_OPTIONS, .key_at = 2, .store_at = 1, .always_stores = true});
}

#define STORES (COMMAND_WRITE | COMMAND_DENYOOM | COMMAND_MOVABLEKEYS)

/* The set, and every key that a STORE or STOREDIST names, although the last alone is written. */
static int radius_keys(uint32_t argc, const struct resp_argument *argv, struct key_place *places, int max) {
    int count = 1;
    if (max > 0) places[0] = (struct key_place){1, KEY_READ};
    for (uint32_t i = 5; i + 1 < argc; i++) {
        if (!argument_is(&argv[i], "store") && !argument_is(&argv[i], "storedist")) continue;
        i++;
        if (count < max) places[count] = (struct key_place){i, KEY_WRITE};
        count++;
    }
    return count;
}

static const struct key_specification key_searched_and_stored[] = {
    {"RO access", KEY_READ, KEY_RANGE, 1, {0, 1}},
    {"OW update", KEY_WRITE, KEY_AFTER_WORD, 6, {0, 1}, "STORE"},
    {"OW update", KEY_WRITE, KEY_AFTER_WORD, 6, {0, 1}, "STOREDIST"},
    {0},
};
static const struct key_specification key_searched_by_member_and_stored[] = {
    {"RO access", KEY_READ, KEY_RANGE, 1, {0, 1}},
    {"OW update", KEY_WRITE, KEY_AFTER_WORD, 5, {0, 1}, "STORE"},
    {"OW update", KEY_WRITE, KEY_AFTER_WORD, 5, {0, 1}, "STOREDIST"},
    {0},
};

const struct command commands_geo_search[] = {
    {"georadius", georadius_command, -6, STORES, &group_geo, "Returns or stores the members within a circle.", "3.2.0",
     .keys = key_searched_and_stored, .find_keys = radius_keys, .event = KEY_EVENT(ZSET, "georadiusstore", STORES)},
    {"georadius_ro", georadius_ro_command, -6, COMMAND_READONLY, &group_geo, "Returns the members within a circle.",
     "3.2.10", .keys = key_read},
    {"georadiusbymember", georadiusbymember_command, -5, STORES, &group_geo,
     "Returns or stores the members within a circle around a member.", "3.2.0",
     .keys = key_searched_by_member_and_stored, .find_keys = radius_keys,
     .event = KEY_EVENT(ZSET, "georadiusstore", STORES)},
    {"georadiusbymember_ro", georadiusbymember_ro_command, -5, COMMAND_READONLY, &group_geo,
     "Returns the members within a circle around a member.", "3.2.10", .keys = key_read},
    {"geosearch", geosearch_command, -7, COMMAND_READONLY, &group_geo, "Returns the members within a circle or a box.",
     "6.2.0", .keys = key_read},
    {"geosearchstore", geosearchstore_command, -8, COMMAND_WRITE | COMMAND_DENYOOM, &group_geo,
     "Stores the members within a circle or a box.", "6.2.0", .keys = key_set_from_key,
     .event = KEY_EVENT(ZSET, "geosearchstore", STORES)},
    {0},
};

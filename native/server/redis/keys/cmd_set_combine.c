/* cmd_set_combine: what several sets have in common, together, or one more than the others. */
#include <stdlib.h>

#include "base/memory.h"
#include "server/redis/keys/cmd_set.h"

#define UNION_BY_SEARCH 4 /* sets, at most, whose union is replied without being made */

/* The sets named by `count` arguments from `first` on; NULL where there is no key. */
struct operands {
    struct value **sets;
    uint32_t count, missing;
};

/* False: an error is replied. The caller frees with operands_free. */
static bool operands_find(struct client *client, uint32_t first, uint32_t count, struct operands *operands) {
    /* All are found before any is kept: finding one may end another. */
    for (uint32_t i = 0; i < count; i++)
        if (!keyspace_type_is(client, keyspace_find_read(client, first + i), VALUE_SET)) return false;
    operands->count = count;
    operands->missing = 0;
    operands->sets = memory_alloc(count * sizeof *operands->sets);
    if (!operands->sets) {
        reply_out_of_memory(client);
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct dict_entry *entry = find_again(client, first + i);
        operands->sets[i] = entry ? store_value(entry) : NULL;
        operands->missing += !entry;
    }
    return true;
}

static void operands_free(struct operands *operands) {
    memory_free(operands->sets);
}

/* Where the members that were found go: into the reply, into a set, or nowhere but into a count. */
struct result {
    struct client *client;
    struct value *set; /* NULL: they are replied */
    bool counted_only;
    uint64_t count;
};

/* False: memory is exhausted. */
static bool result_add(struct result *result, struct set_member *member) {
    if (result->set) {
        enum set_add_result added = set_add(&result->set, member);
        result->count += added == SET_ADD_ADDED;
        return added != SET_ADD_EXHAUSTED;
    }
    if (!result->counted_only) reply_member(result->client, member);
    result->count++;
    return true;
}

/* ---- the three operations ---------------------------------------------------------------------------------------- */

static bool unite(const struct operands *operands, struct result *result) {
    struct set_member member;
    for (uint32_t i = 0; i < operands->count; i++) {
        struct set_position position = {0};
        while (operands->sets[i] && set_next(operands->sets[i], &position, &member))
            if (!result_add(result, &member)) return false;
    }
    return true;
}

/* Looks for every member in the sets before its own, which costs less than making a set where there are few. */
static void reply_union(const struct operands *operands, struct result *result) {
    struct set_member member;
    for (uint32_t i = 0; i < operands->count; i++) {
        struct set_position position = {0};
        while (set_next(operands->sets[i], &position, &member)) {
            uint32_t before = 0;
            while (before < i && !set_contains(operands->sets[before], &member)) before++;
            if (before == i) result_add(result, &member);
        }
    }
}

static int compare_counts(const void *left, const void *right) {
    size_t a = set_count(*(struct value *const *)left), b = set_count(*(struct value *const *)right);
    return a < b ? -1 : a > b;
}

static int compare_counts_falling(const void *left, const void *right) {
    return compare_counts(right, left);
}

/* Every member of the smallest set is looked for in the others, the smaller ones first. */
static bool intersect(struct operands *operands, uint64_t limit, struct result *result) {
    if (operands->missing > 0) return true;
    qsort(operands->sets, operands->count, sizeof *operands->sets, compare_counts);
    struct set_position position = {0};
    struct set_member member;
    while ((limit == 0 || result->count < limit) && set_next(operands->sets[0], &position, &member)) {
        uint32_t i = 1;
        while (i < operands->count &&
               (operands->sets[i] == operands->sets[0] || set_contains(operands->sets[i], &member)))
            i++;
        if (i == operands->count && !result_add(result, &member)) return false;
    }
    return true;
}

/* Takes out of the operands those that are not there. */
static void compact(struct operands *operands) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < operands->count; i++)
        if (operands->sets[i]) operands->sets[kept++] = operands->sets[i];
    operands->count = kept;
}

/* Looks for every member of the first set in the others: O(first set * number of sets). */
static bool subtract_by_search(const struct operands *operands, struct result *result) {
    struct set_position position = {0};
    struct set_member member;
    while (set_next(operands->sets[0], &position, &member)) {
        uint32_t i = 1;
        while (i < operands->count && !set_contains(operands->sets[i], &member)) i++;
        if (i == operands->count && !result_add(result, &member)) return false;
    }
    return true;
}

/* Removes the members of the others from a copy of the first set: O(members of all sets). */
static bool subtract_by_removal(const struct operands *operands, struct result *result) {
    const struct operands first = {.sets = operands->sets, .count = 1};
    struct set_member member;
    if (!unite(&first, result)) return false;
    for (uint32_t i = 1; i < operands->count && result->count > 0; i++) {
        struct set_position position = {0};
        while (result->count > 0 && set_next(operands->sets[i], &position, &member))
            result->count -= set_remove(&result->set, &member);
    }
    return true;
}

/* True where removal takes fewer steps. Looking something up is given credit: it changes nothing. */
static bool removal_is_cheaper(const struct operands *operands) {
    uint64_t search = 0, removal = 0;
    for (uint32_t i = 0; i < operands->count; i++) {
        search += set_count(operands->sets[0]);
        removal += set_count(operands->sets[i]);
    }
    return search / 2 > removal;
}

static bool holds_first_twice(const struct operands *operands) {
    for (uint32_t i = 1; i < operands->count; i++)
        if (operands->sets[i] == operands->sets[0]) return true;
    return false;
}

/* Removal needs result->set. */
static bool subtract(struct operands *operands, bool by_removal, struct result *result) {
    if (by_removal) return subtract_by_removal(operands, result);
    /* Larger ones first: what is in any of them is found sooner. */
    if (operands->count > 2)
        qsort(operands->sets + 1, operands->count - 1, sizeof *operands->sets, compare_counts_falling);
    return subtract_by_search(operands, result);
}

/* ---- replying and storing ---------------------------------------------------------------------------------------- */

static struct value *result_set(struct client *client) {
    struct value *set = set_new();
    if (!set) reply_out_of_memory(client);
    return set;
}

/* Replies a set that was made for this, or the error when it was not made whole. */
static void reply_result_set(struct client *client, struct value *set, bool whole) {
    if (whole) {
        reply_set(client, set_count(set));
        reply_members(client, set);
    } else {
        reply_out_of_memory(client);
    }
    store_discard(client->server->store, set);
}

/* Stores the set in argument 1's key; an empty one deletes the key. */
static void store_result_set(struct client *client, struct value *set, bool whole) {
    int64_t count = whole ? (int64_t)set_count(set) : 0;
    if (count > 0) {
        if (keyspace_put(client, 1, set, false)) reply_integer(client, count);
        return;
    }
    value_free(set);
    if (!whole) {
        reply_out_of_memory(client);
        return;
    }
    struct dict_entry *entry = keyspace_find_write(client, 1);
    if (entry) keyspace_remove(client, entry);
    reply_integer(client, 0);
}

void sunion_command(struct client *client) {
    struct operands operands;
    if (!operands_find(client, 1, client->argc - 1, &operands)) return;
    compact(&operands);
    struct result result = {.client = client};
    if (operands.count <= UNION_BY_SEARCH) {
        size_t mark = reply_array_deferred(client);
        /* What the largest set holds is not looked for. */
        qsort(operands.sets, operands.count, sizeof *operands.sets, compare_counts_falling);
        reply_union(&operands, &result);
        reply_set_set_length(client, mark, result.count);
    } else if ((result.set = result_set(client))) {
        bool whole = unite(&operands, &result);
        reply_result_set(client, result.set, whole);
    }
    operands_free(&operands);
}

void sunionstore_command(struct client *client) {
    struct operands operands;
    if (!operands_find(client, 2, client->argc - 2, &operands)) return;
    struct result result = {.client = client, .set = result_set(client)};
    if (result.set) {
        bool whole = unite(&operands, &result);
        store_result_set(client, result.set, whole);
    }
    operands_free(&operands);
}

void sinter_command(struct client *client) {
    struct operands operands;
    if (!operands_find(client, 1, client->argc - 1, &operands)) return;
    struct result result = {.client = client};
    size_t mark = reply_array_deferred(client);
    intersect(&operands, 0, &result);
    reply_set_set_length(client, mark, result.count);
    operands_free(&operands);
}

void sinterstore_command(struct client *client) {
    struct operands operands;
    if (!operands_find(client, 2, client->argc - 2, &operands)) return;
    struct result result = {.client = client, .set = result_set(client)};
    if (result.set) {
        bool whole = intersect(&operands, 0, &result);
        store_result_set(client, result.set, whole);
    }
    operands_free(&operands);
}

/* LIMIT of SINTERCARD, from argument `first` on; false: an error is replied. */
static bool limit_argument(struct client *client, uint32_t first, int64_t *limit) {
    *limit = 0;
    for (uint32_t i = first; i < client->argc; i += 2) {
        if (!argument_is(&client->argv[i], "limit") || i + 1 == client->argc) {
            reply_syntax_error(client);
            return false;
        }
        if (!number_parse_int64(client->argv[i + 1].data, client->argv[i + 1].length, limit) || *limit < 0) {
            reply_error(client, "ERR LIMIT can't be negative");
            return false;
        }
    }
    return true;
}

void sintercard_command(struct client *client) {
    int64_t keys, limit;
    if (!number_parse_int64(client->argv[1].data, client->argv[1].length, &keys) || keys < 1) {
        reply_error(client, "ERR numkeys should be greater than 0");
        return;
    }
    if (keys > (int64_t)client->argc - 2) {
        reply_error(client, "ERR Number of keys can't be greater than number of args");
        return;
    }
    if (!limit_argument(client, 2 + (uint32_t)keys, &limit)) return;
    struct operands operands;
    if (!operands_find(client, 2, (uint32_t)keys, &operands)) return;
    struct result result = {.client = client, .counted_only = true};
    intersect(&operands, (uint64_t)limit, &result);
    reply_integer(client, (int64_t)result.count);
    operands_free(&operands);
}

void sdiff_command(struct client *client) {
    struct operands operands;
    if (!operands_find(client, 1, client->argc - 1, &operands)) return;
    bool empty = !operands.sets[0] || holds_first_twice(&operands);
    compact(&operands);
    struct result result = {.client = client};
    if (empty) {
        reply_set(client, 0);
    } else if (!removal_is_cheaper(&operands)) {
        size_t mark = reply_array_deferred(client);
        subtract(&operands, false, &result);
        reply_set_set_length(client, mark, result.count);
    } else if ((result.set = result_set(client))) {
        bool whole = subtract(&operands, true, &result);
        reply_result_set(client, result.set, whole);
    }
    operands_free(&operands);
}

void sdiffstore_command(struct client *client) {
    struct operands operands;
    if (!operands_find(client, 2, client->argc - 2, &operands)) return;
    bool empty = !operands.sets[0] || holds_first_twice(&operands);
    compact(&operands);
    struct result result = {.client = client, .set = result_set(client)};
    if (result.set) {
        bool whole = empty || subtract(&operands, removal_is_cheaper(&operands), &result);
        store_result_set(client, result.set, whole);
    }
    operands_free(&operands);
}

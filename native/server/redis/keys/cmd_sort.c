/* cmd_sort: SORT and SORT_RO. Order of checks and error texts follow Redis 7.0's sort.c. Texts are compared byte by byte, as
 * Redis does in the C locale. */
#include "base/memory.h"
#include "server/core/command_table.h"
#include "server/core/propagate.h"
#include "server/redis/acl/acl.h"
#include "server/redis/keys/sort.h"
#include "server/redis/pubsub/notify.h"
#include "server/redis/redis_rows.h"

#define PROPAGATED_AT_ONCE 64 /* elements in one RPUSH of what is recorded */

struct sort_request {
    bool descending, alpha;
    bool in_order_found; /* BY something without a star: nothing is sorted */
    bool looks_elsewhere; /* a pattern leads to other keys */
    int64_t offset, limit; /* limit < 0: all */
    uint32_t store_at; /* argument; 0: the result is replied */
    bool weighed; /* by the pattern: */
    struct sort_pattern by;
    struct sort_pattern *gets;
    uint32_t get_count;
};

/* ---- options ----------------------------------------------------------------------------------------------------- */

static void option_by(struct sort_request *request, const struct resp_argument *argument) {
    sort_pattern_parse(argument, &request->by);
    /* One without a star stays in force, whatever comes after it. */
    if (!request->by.has_star) request->in_order_found = true;
    request->weighed = true;
    request->looks_elsewhere |= request->by.has_star;
}

static void option_get(struct sort_request *request, const struct resp_argument *argument) {
    struct sort_pattern *pattern = &request->gets[request->get_count++];
    sort_pattern_parse(argument, pattern);
    request->looks_elsewhere |= pattern->has_star;
}

/* Patterns lead to keys that the rights of a user do not know of, and that may be on another shard. False: the error is
 * replied. */
static bool may_look_elsewhere(struct client *client, const char *option) {
    if (client->server->config.cluster_enabled) {
        reply_error(client, "ERR %s option of SORT denied in Cluster mode.", option);
        return false;
    }
    if (acl_may_read_every_key(client)) return true;
    reply_error(client, "ERR %s option of SORT denied due to insufficient ACL permissions.", option);
    return false;
}

/* False: an error is replied. */
static bool parse(struct client *client, bool may_store, struct sort_request *request) {
    *request = (struct sort_request){.limit = -1};
    request->gets = memory_alloc(client->argc / 2 * sizeof *request->gets);
    if (!request->gets) {
        reply_out_of_memory(client);
        return false;
    }
    for (uint32_t i = 2; i < client->argc; i++) {
        const struct resp_argument *word = &client->argv[i];
        uint32_t left = client->argc - i - 1;
        if (argument_is(word, "asc")) {
            request->descending = false;
        } else if (argument_is(word, "desc")) {
            request->descending = true;
        } else if (argument_is(word, "alpha")) {
            request->alpha = true;
        } else if (argument_is(word, "limit") && left >= 2) {
            if (!integer_argument(client, i + 1, &request->offset) || !integer_argument(client, i + 2, &request->limit))
                return false;
            i += 2;
        } else if (may_store && argument_is(word, "store") && left >= 1) {
            request->store_at = ++i;
        } else if (argument_is(word, "by") && left >= 1) {
            option_by(request, &client->argv[++i]);
            if (request->by.has_star && !may_look_elsewhere(client, "BY")) return false;
        } else if (argument_is(word, "get") && left >= 1) {
            if (!may_look_elsewhere(client, "GET")) return false;
            option_get(request, &client->argv[++i]);
        } else {
            reply_syntax_error(client);
            return false;
        }
    }
    return true;
}

/* Which of `count` elements are wanted. */
static void clamp(const struct sort_request *request, size_t count, size_t *first, size_t *wanted) {
    *first = request->offset <= 0 ? 0 : (uint64_t)request->offset < count ? (size_t)request->offset : count;
    *wanted = count - *first;
    if (request->limit >= 0 && (uint64_t)request->limit < *wanted) *wanted = (size_t)request->limit;
}

/* ---- sorting ----------------------------------------------------------------------------------------------------- */

enum outcome { DONE, NOT_A_NUMBER, EXHAUSTED };

struct sort {
    struct client *client;
    struct sort_request request;
    struct sort_elements elements;
    struct sort_key_buffer buffer;
    size_t first, wanted; /* of the elements, once they are in order */
};

static enum outcome weigh(struct sort *sort, struct sort_element *element) {
    struct string_view view = {.data = element->text.data, .length = element->text.length};
    if (sort->request.weighed) {
        enum sort_found found =
            sort_pattern_find(sort->client, &sort->request.by, &element->text, &sort->buffer, &view);
        if (found == SORT_EXHAUSTED) return EXHAUSTED;
        if (found == SORT_MISSING) return DONE; /* its score is zero, its weight is none */
    }
    if (!sort->request.alpha) return sort_score(view.data, view.length, &element->score) ? DONE : NOT_A_NUMBER;
    if (!sort->request.weighed) return DONE;
    return sort_elements_keep(&sort->elements, &view, &element->weight) ? DONE : EXHAUSTED;
}

static enum outcome put_in_order(struct sort *sort) {
    bool all_numbers = true;
    for (size_t i = 0; i < sort->elements.count; i++) {
        enum outcome outcome = weigh(sort, &sort->elements.elements[i]);
        if (outcome == EXHAUSTED) return EXHAUSTED;
        all_numbers = all_numbers && outcome == DONE;
    }
    if (!all_numbers) return NOT_A_NUMBER;
    enum sort_order order = SORT_BY_SCORE;
    if (sort->request.alpha) order = sort->request.weighed ? SORT_BY_WEIGHT : SORT_BY_TEXT;
    return sort_elements_order(&sort->elements, order, sort->request.descending) ? DONE : EXHAUSTED;
}

static enum outcome load_and_order(struct sort *sort, struct value *value) {
    struct sort_request *request = &sort->request;
    bool sorted = !request->in_order_found;
    /* A set has no order that would be the same where the command is run again. */
    if (!sorted && value->type == VALUE_SET && (request->store_at > 0 || sort->client->deny_blocking)) {
        sorted = true;
        request->alpha = true;
        request->weighed = false;
    }
    clamp(request, sort_value_count(value), &sort->first, &sort->wanted);
    bool loads_all = sorted || value->type == VALUE_SET;
    if (!sort_elements_load(&sort->elements, value, !sorted && request->descending, loads_all ? 0 : sort->first,
                            loads_all ? sort_value_count(value) : sort->wanted))
        return EXHAUSTED;
    if (!loads_all) sort->first = 0;
    return sorted ? put_in_order(sort) : DONE;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static void reply_sorted(struct sort *sort) {
    struct client *client = sort->client;
    const struct sort_request *request = &sort->request;
    reply_array(client, sort->wanted * (request->get_count > 0 ? request->get_count : 1));
    for (size_t i = 0; i < sort->wanted; i++) {
        const struct sort_text *element = &sort->elements.elements[sort->first + i].text;
        if (request->get_count == 0) reply_bulk(client, element->data, element->length);
        for (uint32_t get = 0; get < request->get_count; get++) {
            struct string_view view;
            if (sort_pattern_find(client, &request->gets[get], element, &sort->buffer, &view) == SORT_FOUND)
                reply_view(client, &view);
            else
                reply_null(client);
        }
    }
}

static bool push_text(struct list *list, const uint8_t *data, size_t length) {
    struct value *string = string_new(data, length, NULL);
    if (string && list_push(list, false, string)) return true;
    value_free(string);
    return false;
}

static bool push_result(struct sort *sort, struct list *list, const struct sort_text *element) {
    const struct sort_request *request = &sort->request;
    if (request->get_count == 0) return push_text(list, element->data, element->length);
    for (uint32_t get = 0; get < request->get_count; get++) {
        struct string_view view;
        enum sort_found found = sort_pattern_find(sort->client, &request->gets[get], element, &sort->buffer, &view);
        if (found == SORT_EXHAUSTED) return false;
        bool pushed =
            found == SORT_FOUND ? push_text(list, view.data, view.length) : push_text(list, (const uint8_t *)"", 0);
        if (!pushed) return false;
    }
    return true;
}

/* NULL: memory is exhausted. */
static struct list *result_list(struct sort *sort) {
    struct list *list = list_new();
    for (size_t i = 0; list && i < sort->wanted; i++) {
        if (push_result(sort, list, &sort->elements.elements[sort->first + i].text)) continue;
        value_free(&list->head);
        list = NULL;
    }
    return list;
}

/* The list itself is recorded: keys that patterns led to may be others, or gone, when the command is run again. */
static void propagate_list(struct sort *sort, const struct list *list) {
    struct client *client = sort->client;
    struct resp_argument words[2 + PROPAGATED_AT_ONCE] = {{.data = (const uint8_t *)"RPUSH", .length = 5},
                                                          client->argv[sort->request.store_at]};
    struct string_view views[PROPAGATED_AT_ONCE];
    propagate_key_words(client, "DEL", sort->request.store_at, NULL);
    struct list_position position = list_at(list, 0);
    uint32_t filled = 0;
    for (bool more = true; more;) {
        string_view(*list_element(position), &views[filled]);
        words[2 + filled] = (struct resp_argument){.data = views[filled].data, .length = views[filled].length};
        filled++;
        more = list_step(&position, false);
        if (filled < PROPAGATED_AT_ONCE && more) continue;
        propagate_instead(client, 2 + filled, words);
        filled = 0;
    }
}

static void store_sorted(struct sort *sort) {
    struct client *client = sort->client;
    struct list *list = result_list(sort);
    if (!list) {
        reply_out_of_memory(client);
        return;
    }
    int64_t count = (int64_t)list_length(list);
    if (count > 0) {
        if (!keyspace_put(client, sort->request.store_at, &list->head, false)) return;
        if (sort->request.looks_elsewhere) propagate_list(sort, list);
    } else {
        value_free(&list->head);
        struct dict_entry *entry = keyspace_find_write(client, sort->request.store_at);
        if (entry) keyspace_remove(client, entry);
    }
    reply_integer(client, count);
}

static void sort_value(struct sort *sort, struct value *value) {
    switch (value ? load_and_order(sort, value) : DONE) {
    case EXHAUSTED: reply_out_of_memory(sort->client); break;
    case NOT_A_NUMBER: reply_error(sort->client, "ERR One or more scores can't be converted into double"); break;
    default:
        if (sort->request.store_at > 0)
            store_sorted(sort);
        else
            reply_sorted(sort);
    }
}

static void sort_generic(struct client *client, bool may_store) {
    struct sort sort = {.client = client};
    if (parse(client, may_store, &sort.request)) {
        struct dict_entry *entry = keyspace_find_read(client, 1);
        struct value *value = entry ? store_value(entry) : NULL;
        if (!value || value->type == VALUE_LIST || value->type == VALUE_SET || value->type == VALUE_SORTED_SET)
            sort_value(&sort, value);
        else
            keyspace_type_is(client, entry, VALUE_LIST);
    }
    memory_free(sort.request.gets);
    memory_free(sort.buffer.bytes);
    sort_elements_free(&sort.elements);
}

static void sort_command(struct client *client) {
    sort_generic(client, true);
}

static void sort_ro_command(struct client *client) {
    sort_generic(client, false);
}

/* How many arguments an option of SORT takes that might read like STORE. */
static uint32_t option_values(const struct resp_argument *word) {
    if (argument_is(word, "limit")) return 2;
    return argument_is(word, "get") || argument_is(word, "by") ? 1 : 0;
}

/* The key, and where the last STORE leads to; patterns may lead to any key. */
static int sort_keys(uint32_t argc, const struct resp_argument *argv, struct key_place *places, int max) {
    uint32_t store_at = 0;
    for (uint32_t i = 2; i + 1 < argc; i += 1 + option_values(&argv[i]))
        if (argument_is(&argv[i], "store")) store_at = i + 1;
    if (max > 0) places[0] = (struct key_place){1, KEY_READ};
    if (max > 1 && store_at > 0) places[1] = (struct key_place){store_at, KEY_WRITE};
    return store_at > 0 ? 2 : 1;
}

#define MOVABLE (COMMAND_MOVABLEKEYS | COMMAND_DANGEROUS)

const struct command commands_sort[] = {
    {"sort", sort_command, -2, COMMAND_WRITE | COMMAND_DENYOOM | MOVABLE, &group_generic,
     "Sorts the elements of a list, a set or a sorted set, and replies or stores them.", "1.0.0",
     .categories = ACL_WRITE | ACL_SET | ACL_SORTEDSET | ACL_LIST | ACL_SLOW | ACL_DANGEROUS,
     .keys = key_sorted_and_stored, .find_keys = sort_keys, .event = KEY_EVENT(LIST, "sortstore", STORES)},
    {"sort_ro", sort_ro_command, -2, COMMAND_READONLY | MOVABLE, &group_generic,
     "Returns the sorted elements of a list, a set or a sorted set.", "7.0.0",
     .categories = ACL_READ | ACL_SET | ACL_SORTEDSET | ACL_LIST | ACL_SLOW | ACL_DANGEROUS, .keys = key_sorted},
    {0},
};

/* cmd_stream_read: XREAD and XREADGROUP, at once or when there is something to read. Order of checks and error texts follow
 * Redis 7.0.
 *
 * A client that waits remembers behind which id it reads each of its streams, since "$" means the last id of the moment when
 * it began. One that waits as a consumer reads behind what its group has read, and is told where stream or group go. */
#include <string.h>

#include "base/memory.h"
#include "server/core/command_table.h"
#include "server/core/exclusive_execution.h"
#include "server/redis/keys/cmd_stream.h"
#include "server/redis/keys/key_wait.h"
#include "server/redis/redis_rows.h"

#define COUNT_AFTER_WAIT 1000 /* entries that a client is given at most when its wait ends, if it does not say */

struct request {
    bool is_group, no_ack, waits;
    uint32_t group; /* the argument with its name; the consumer's follows */
    uint32_t keys, count; /* the first argument with a key; how many keys, and ids behind them */
    int64_t most; /* entries of each stream; 0: all */
    uint64_t deadline_us;
};

/* What is kept across a wait. */
struct reading {
    struct request request;
    struct reading_place {
        struct xstream_id behind; /* XSTREAM_ID_LAST: what the group has not read */
        struct xstream_id newest; /* the stream's last id when the wait began */
    } at[]; /* of each key */
};

/* ---- the request ------------------------------------------------------------------------------------------------- */

/* Milliseconds to wait; 0: for ever. */
static bool parse_timeout(struct client *client, uint32_t index, struct request *request) {
    int64_t ms;
    if (!number_parse_int64(client->argv[index].data, client->argv[index].length, &ms)) {
        reply_error(client, "ERR timeout is not an integer or out of range");
        return false;
    }
    if (ms < 0) {
        reply_error(client, "ERR timeout is negative");
        return false;
    }
    uint64_t longest_ms = (UINT64_MAX - client->server->now_us) / 1000 - 1;
    request->waits = true;
    request->deadline_us =
        ms == 0 || (uint64_t)ms > longest_ms ? CLOCK_NEVER : client->server->now_us + (uint64_t)ms * 1000;
    return true;
}

static bool refuse_for_readers(struct client *client, const struct request *request, const char *option) {
    if (request->is_group) return false;
    reply_error(client, "ERR The %s option is only supported by XREADGROUP. You called XREAD instead.", option);
    return true;
}

static bool parse_keys(struct client *client, uint32_t first, struct request *request) {
    request->keys = first;
    request->count = (client->argc - first) / 2;
    if ((client->argc - first) % 2 == 0) return true;
    reply_error(client, "ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified.");
    return false;
}

/* One word before STREAMS, at *at, which moves to its last argument. */
static bool parse_word(struct client *client, uint32_t *at, struct request *request) {
    const struct resp_argument *word = &client->argv[*at];
    uint32_t more = client->argc - *at - 1;
    if (more > 0 && argument_is(word, "block")) {
        if (!client->connection && !client->server->loading) {
            reply_error(client, "ERR %.*s command is not allowed with BLOCK option from scripts",
                        (int)client->argv[0].length, (const char *)client->argv[0].data);
            return false;
        }
        return parse_timeout(client, *at += 1, request);
    }
    if (more > 0 && argument_is(word, "count")) {
        if (!integer_argument(client, *at += 1, &request->most)) return false;
        if (request->most < 0) request->most = 0;
        return true;
    }
    if (more > 1 && argument_is(word, "group")) {
        if (refuse_for_readers(client, request, "GROUP")) return false;
        request->group = *at + 1;
        *at += 2;
        return true;
    }
    if (argument_is(word, "noack")) {
        request->no_ack = true;
        return !refuse_for_readers(client, request, "NOACK");
    }
    reply_syntax_error(client);
    return false;
}

static bool parse_request(struct client *client, bool is_group, struct request *request) {
    *request = (struct request){.is_group = is_group};
    for (uint32_t i = 1; i < client->argc; i++) {
        if (i + 1 < client->argc && argument_is(&client->argv[i], "streams")) {
            if (!parse_keys(client, i + 1, request)) return false;
            break;
        }
        if (!parse_word(client, &i, request)) return false;
    }
    if (request->keys == 0) {
        reply_syntax_error(client);
        return false;
    }
    if (is_group && request->group == 0) reply_error(client, "ERR Missing GROUP option for XREADGROUP");
    return !is_group || request->group > 0;
}

static bool is_byte(const struct resp_argument *argument, uint8_t byte) {
    return argument->length == 1 && argument->data[0] == byte;
}

/* Behind which id key `i` is read. */
static bool parse_id(struct client *client, const struct request *request, uint32_t i, struct xstream_id *behind) {
    struct xstream *stream;
    uint32_t key = request->keys + i, index = key + request->count;
    const struct resp_argument *word = &client->argv[index];
    if (!stream_for_reading(client, key, &stream)) return false;
    if (request->is_group && !stream_group_named(stream, &client->argv[request->group])) {
        const struct resp_argument *name = &client->argv[key], *group = &client->argv[request->group];
        reply_error(client, "NOGROUP No such key '%.*s' or consumer group '%.*s' in XREADGROUP with GROUP option",
                    name->length < 256 ? (int)name->length : 256, (const char *)name->data,
                    group->length < 256 ? (int)group->length : 256, (const char *)group->data);
        return false;
    }
    if (is_byte(word, '$')) {
        if (request->is_group)
            reply_error(client,
                        "ERR The $ ID is meaningless in the context of XREADGROUP: you want to read the history "
                        "of this consumer by specifying a proper ID, or use the > ID to get new messages. The $ ID "
                        "would just return an empty result set.");
        *behind = stream ? stream->last_id : XSTREAM_ID_FIRST;
        return !request->is_group;
    }
    if (is_byte(word, '>')) {
        if (!request->is_group)
            reply_error(client, "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> "
                                "<consumer> option.");
        *behind = XSTREAM_ID_LAST;
        return request->is_group;
    }
    return stream_id_argument(client, index, 0, behind);
}

/* ---- serving a reader -------------------------------------------------------------------------------------------- */

/* True where there are entries behind the id. */
static bool has_behind(const struct xstream *stream, struct xstream_id behind) {
    return stream->length > 0 && xstream_id_compare(xstream_edge(stream, true), behind) > 0;
}

static bool is_new(struct xstream_id behind) {
    return xstream_id_compare(behind, XSTREAM_ID_LAST) == 0;
}

/* The key and its entries; false: the client was lost meanwhile. */
static bool reply_entries(struct client *client, uint32_t key, const struct xstream *stream, struct xstream_id behind,
                          int64_t most) {
    xstream_id_increment(&behind); /* it is not the last one that there may be: the stream's is behind it */
    if (client->resp == 2) reply_array(client, 2);
    reply_bulk(client, client->argv[key].data, client->argv[key].length);
    return reply_stream_range(client, stream, behind, XSTREAM_ID_LAST, most == 0 ? UINT64_MAX : (uint64_t)most, false);
}

/* ---- serving a consumer ------------------------------------------------------------------------------------------ */

struct serving {
    struct client *client;
    uint32_t key; /* argument */
    struct xstream *stream;
    struct xstream_group *group;
    struct xstream_consumer *consumer;
    bool no_ack;
    int64_t most;
};

/* New entries, which are pending with the consumer from then on. How far the group has come is recorded last, since
 * XCLAIM does not tell how many it has read. */
static void serve_new(const struct serving *serving) {
    struct client *client = serving->client;
    struct xstream_walk walk;
    struct xstream_entry entry;
    const struct resp_argument *key = &client->argv[serving->key];
    size_t mark = reply_array_deferred(client), count = 0;
    struct xstream_id from = serving->group->last_id;
    xstream_id_increment(&from); /* the stream's last id is behind it */
    xstream_walk_begin(serving->stream, from, XSTREAM_ID_LAST, false, &walk);
    while ((serving->most == 0 || count < (uint64_t)serving->most) && xstream_walk_next(&walk, &entry)) {
        xstream_group_read(serving->stream, serving->group, entry.id);
        if (!serving->no_ack) {
            struct xstream_pending *pending = xstream_pending_give(serving->group, serving->consumer, entry.id);
            if (!pending) break; /* memory is exhausted: the rest is for another time */
            pending->delivered_ms = stream_now_ms(client);
            pending->deliveries = 1;
            stream_record_pending(client, key, serving->group, entry.id, pending);
        }
        reply_stream_entry(client, &entry);
        count++;
    }
    reply_set_array_length(client, mark, count);
    stream_record_group(client, key, serving->group);
    stream_changed_aside(client, NULL, serving->key);
}

/* What the consumer was given and has not acknowledged. */
static void serve_history(const struct serving *serving, struct xstream_id behind) {
    struct client *client = serving->client;
    size_t mark = reply_array_deferred(client), count = 0;
    struct id_position position = {NULL, 0};
    if (xstream_id_increment(&behind)) position = id_index_from(&serving->consumer->pending, behind);
    for (; position.leaf && (serving->most == 0 || count < (uint64_t)serving->most);
         position = id_index_next(position), count++) {
        struct xstream_id id = id_index_slot(position)->id;
        struct xstream_pending *pending = id_index_slot(position)->value;
        if (reply_stream_entry_of(client, serving->stream, id)) {
            pending->delivered_ms = stream_now_ms(client);
            xstream_pending_count_delivery(pending);
            stream_record_pending(client, &client->argv[serving->key], serving->group, id, pending);
            stream_changed_aside(client, NULL, serving->key);
        } else {
            reply_array(client, 2);
            reply_stream_id(client, id);
            reply_null_array(client);
        }
    }
    reply_set_array_length(client, mark, count);
}

/* The consumer, which is made where there is none. False: memory is exhausted. */
static bool find_consumer(struct serving *serving, const struct request *request) {
    bool created;
    struct client *client = serving->client;
    store_will_change(client->server->store, (unsigned)client->database, keyspace_find(client, serving->key));
    const struct resp_argument *name = &client->argv[request->group + 1];
    serving->consumer = stream_consumer_named(client, serving->key, serving->group, name, &created);
    if (created && serving->consumer)
        stream_record_consumer(client, &client->argv[serving->key], serving->group, serving->consumer);
    return serving->consumer;
}

static void serve(const struct serving *serving, struct xstream_id behind) {
    struct client *client = serving->client;
    if (client->resp == 2) reply_array(client, 2);
    reply_bulk(client, client->argv[serving->key].data, client->argv[serving->key].length);
    if (is_new(behind))
        serve_new(serving);
    else
        serve_history(serving, behind);
}

/* ---- now --------------------------------------------------------------------------------------------------------- */

static struct xstream *stream_at(struct client *client, uint32_t key) {
    struct dict_entry *entry = keyspace_find(client, key);
    return entry && store_value(entry)->type == VALUE_STREAM ? xstream_of(store_value(entry)) : NULL;
}

static void place_serving(struct client *client, const struct request *request, uint32_t i, struct serving *serving) {
    *serving = (struct serving){.client = client, .key = request->keys + i, .no_ack = request->no_ack};
    serving->most = request->most;
    serving->stream = stream_at(client, serving->key);
    if (serving->stream && request->is_group)
        serving->group = stream_group_named(serving->stream, &client->argv[request->group]);
}

static bool can_serve(const struct serving *serving, struct xstream_id behind) {
    if (!serving->stream || (serving->group && !is_new(behind))) return serving->stream;
    return has_behind(serving->stream, serving->group ? serving->group->last_id : behind);
}

/* The head of a reply of so many streams. */
static void reply_streams_head(struct client *client, size_t streams) {
    if (client->resp == 2)
        reply_array(client, streams);
    else
        reply_map(client, streams);
}

/* How many streams can be served now; their consumers are made. False: memory is exhausted, which is replied. */
static bool count_servable(struct client *client, const struct reading *reading, size_t *streams) {
    const struct request *request = &reading->request;
    struct serving serving;
    *streams = 0;
    for (uint32_t i = 0; i < request->count; i++) {
        place_serving(client, request, i, &serving);
        if (!can_serve(&serving, reading->at[i].behind)) continue;
        ++*streams;
        if (!serving.group || find_consumer(&serving, request)) continue;
        reply_out_of_memory(client);
        return false;
    }
    return true;
}

/* Nothing that is served makes another stream empty. */
static void serve_reader(struct client *client, const struct reading *reading, size_t streams) {
    const struct request *request = &reading->request;
    struct serving serving;
    reply_streams_head(client, streams);
    for (uint32_t i = 0; i < request->count; i++) {
        place_serving(client, request, i, &serving);
        if (!can_serve(&serving, reading->at[i].behind)) continue;
        if (!reply_entries(client, serving.key, serving.stream, reading->at[i].behind, request->most)) return;
    }
}

/* A stream that is named twice may have nothing new the second time, and is then left out. */
static void serve_consumer(struct client *client, const struct reading *reading) {
    const struct request *request = &reading->request;
    const struct resp_argument *name = &client->argv[request->group + 1];
    struct serving serving;
    size_t mark = reply_array_deferred(client), streams = 0;
    for (uint32_t i = 0; i < request->count; i++) {
        place_serving(client, request, i, &serving);
        if (!can_serve(&serving, reading->at[i].behind)) continue;
        serving.consumer = xstream_consumer_find(serving.group, name->data, name->length);
        serve(&serving, reading->at[i].behind);
        streams++;
    }
    if (client->resp == 2)
        reply_set_array_length(client, mark, streams);
    else
        reply_set_map_length(client, mark, streams);
}

/* Serves what can be served; false: nothing can be, and nothing is replied. */
static bool read_now(struct client *client, const struct reading *reading) {
    size_t streams;
    if (!count_servable(client, reading, &streams)) return true;
    if (streams == 0) return false;
    if (reading->request.is_group)
        serve_consumer(client, reading);
    else
        serve_reader(client, reading, streams);
    return true;
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

/* True: what has happened to the key is replied. */
static bool reply_if_gone(struct client *client, const struct serving *serving) {
    if (!serving->stream)
        reply_error(client, "UNBLOCKED the stream key no longer exists");
    else if (!serving->group)
        reply_error(client, "NOGROUP the consumer group this client was blocked on no longer exists");
    else
        return false;
    return true;
}

/* As in Redis a wait also ends where entries came and were deleted in one transaction: with none. */
static bool ends_wait(const struct serving *serving, const struct reading_place *at) {
    if (can_serve(serving, at->behind)) return true;
    if (!serving->stream || xstream_id_compare(serving->stream->last_id, at->newest) == 0) return false;
    return xstream_id_compare(serving->stream->last_id, serving->group ? serving->group->last_id : at->behind) > 0;
}

static bool retry(struct client *client) {
    const struct reading *reading = client_state(client);
    const struct request *request = &reading->request;
    uint32_t i = key_wait_index(client) - request->keys;
    struct serving serving;
    place_serving(client, request, i, &serving);
    if (serving.most == 0) serving.most = COUNT_AFTER_WAIT;
    if (request->is_group && reply_if_gone(client, &serving)) return true;
    if (!ends_wait(&serving, &reading->at[i])) return false;
    if (request->is_group) {
        if (!find_consumer(&serving, request)) return false;
        reply_streams_head(client, 1);
        serve(&serving, reading->at[i].behind);
    } else {
        reply_streams_head(client, 1);
        reply_entries(client, serving.key, serving.stream, reading->at[i].behind, serving.most);
    }
    return true;
}

/* ---- the commands ------------------------------------------------------------------------------------------------ */

static void wait_or_reply_nothing(struct client *client, struct reading *reading) {
    const struct request *request = &reading->request;
    if (!request->waits || !client_may_block(client)) {
        reply_null_array(client);
        return;
    }
    for (uint32_t i = 0; i < request->count; i++) {
        const struct xstream *stream = stream_at(client, request->keys + i);
        reading->at[i].newest = stream ? stream->last_id : XSTREAM_ID_FIRST;
    }
    key_wait_on_range(client, request->keys, request->count, request->deadline_us, retry, reply_null_array);
    if (request->is_group) key_wait_also_when_gone(client);
}

/* A reader of much is served in slices, in which nothing changes. */
static void read_in_slices(struct client *client) {
    read_now(client, client_state(client));
}

static bool reads_much(struct client *client, const struct reading *reading) {
    const struct request *request = &reading->request;
    uint64_t entries = 0;
    for (uint32_t i = 0; i < request->count; i++) {
        const struct xstream *stream = stream_at(client, request->keys + i);
        if (!stream || !has_behind(stream, reading->at[i].behind)) continue;
        uint64_t most = request->most > 0 ? (uint64_t)request->most : UINT64_MAX;
        entries += stream->length < most ? stream->length : most;
    }
    return entries > EXCLUSIVE_PARTS_AT_ONCE && !client->server->exclusive.inside;
}

static void read_command(struct client *client, bool is_group) {
    struct request request;
    if (!parse_request(client, is_group, &request)) return;
    struct reading *reading = memory_alloc(sizeof *reading + request.count * sizeof *reading->at);
    if (!reading) {
        reply_out_of_memory(client);
        return;
    }
    reading->request = request;
    client_set_state(client, reading, client_free_state);
    for (uint32_t i = 0; i < request.count; i++)
        if (!parse_id(client, &request, i, &reading->at[i].behind)) return;
    if (!is_group && reads_much(client, reading)) {
        exclusive_run_command(client, read_in_slices);
        return;
    }
    if (!read_now(client, reading)) wait_or_reply_nothing(client, reading);
}

static void xread_command(struct client *client) {
    read_command(client, false);
}

static void xreadgroup_command(struct client *client) {
    read_command(client, true);
}

const struct command commands_stream_read[] = {
    {"xread", xread_command, -4, COMMAND_READONLY | COMMAND_BLOCKING | COMMAND_MOVABLEKEYS, &group_stream,
     "Returns entries of streams behind given ids. Can wait until there are some.", "5.0.0", .keys = keys_of_streams},
    {"xreadgroup", xreadgroup_command, -7, COMMAND_WRITE | COMMAND_BLOCKING | COMMAND_MOVABLEKEYS, &group_stream,
     "Returns entries of streams that no consumer of a group was given yet, or those that the consumer has not "
     "acknowledged. Can wait until there are some.",
     "5.0.0", .keys = keys_of_streams_for_group},
    {0},
};

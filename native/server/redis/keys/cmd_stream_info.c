/* cmd_stream_info: XINFO. Order of checks and error texts follow Redis 7.0. */
#include "server/redis/keys/cmd_stream.h"
#include "server/redis/redis_rows.h"

#define KEY 2 /* the argument */
#define FULL_COUNT 10

static bool find_stream(struct client *client, struct xstream **stream) {
    if (!stream_for_reading(client, KEY, stream)) return false;
    if (!*stream) reply_no_such_key(client);
    return *stream;
}

static void reply_name(struct client *client, const struct xstream_name *name) {
    reply_bulk_string(client, "name");
    reply_bulk(client, name->bytes, name->length);
}

static void reply_count(struct client *client, const char *name, uint64_t count) {
    reply_bulk_string(client, name);
    reply_integer(client, (int64_t)count);
}

static void reply_named_id(struct client *client, const char *name, struct xstream_id id) {
    reply_bulk_string(client, name);
    reply_stream_id(client, id);
}

static void reply_progress(struct client *client, const struct xstream *stream, const struct xstream_group *group) {
    int64_t lag;
    reply_bulk_string(client, "entries-read");
    if (group->entries_read == XSTREAM_READ_UNKNOWN)
        reply_null(client);
    else
        reply_integer(client, group->entries_read);
    reply_bulk_string(client, "lag");
    if (xstream_group_lag(stream, group, &lag))
        reply_integer(client, lag);
    else
        reply_null(client);
}

/* ---- STREAM ------------------------------------------------------------------------------------------------------ */

static void reply_edge(struct client *client, const struct xstream *stream, bool last) {
    struct xstream_walk walk;
    struct xstream_entry entry;
    reply_bulk_string(client, last ? "last-entry" : "first-entry");
    xstream_walk_begin(stream, XSTREAM_ID_FIRST, XSTREAM_ID_LAST, last, &walk);
    if (xstream_walk_next(&walk, &entry))
        reply_stream_entry(client, &entry);
    else
        reply_null(client);
}

/* Redis counts the nodes of its radix tree; of the index here the blocks are told, and as nodes those and one above. */
static void reply_numbers(struct client *client, const struct xstream *stream) {
    reply_count(client, "length", stream->length);
    reply_count(client, "radix-tree-keys", stream->blocks.count);
    reply_count(client, "radix-tree-nodes", stream->blocks.count + 1);
    reply_named_id(client, "last-generated-id", stream->last_id);
    reply_named_id(client, "max-deleted-entry-id", stream->max_deleted_id);
    reply_count(client, "entries-added", stream->entries_added);
    reply_named_id(client, "recorded-first-entry-id", stream->first_id);
}

/* At most `most` entries; 0: all. */
static void reply_entries(struct client *client, const struct xstream *stream, uint64_t most) {
    struct xstream_walk walk;
    struct xstream_entry entry;
    reply_bulk_string(client, "entries");
    size_t mark = reply_array_deferred(client), count = 0;
    xstream_walk_begin(stream, XSTREAM_ID_FIRST, XSTREAM_ID_LAST, false, &walk);
    for (; (most == 0 || count < most) && xstream_walk_next(&walk, &entry); count++) reply_stream_entry(client, &entry);
    reply_set_array_length(client, mark, count);
}

static void reply_pending(struct client *client, const struct id_index *index, uint64_t most, bool with_consumer) {
    reply_bulk_string(client, "pending");
    uint64_t count = most == 0 || index->count < most ? index->count : most;
    reply_array(client, count);
    struct id_position position = id_index_first(index);
    for (; count > 0; count--, position = id_index_next(position)) {
        const struct xstream_pending *pending = id_index_slot(position)->value;
        reply_array(client, with_consumer ? 4 : 3);
        reply_stream_id(client, id_index_slot(position)->id);
        if (with_consumer) reply_bulk(client, pending->consumer->name.bytes, pending->consumer->name.length);
        reply_integer(client, pending->delivered_ms);
        reply_integer(client, (int64_t)pending->deliveries);
    }
}

static void reply_full_group(struct client *client, const struct xstream *stream, const struct xstream_group *group,
                             uint64_t most) {
    reply_map(client, 7);
    reply_name(client, &group->name);
    reply_named_id(client, "last-delivered-id", group->last_id);
    reply_progress(client, stream, group);
    reply_count(client, "pel-count", group->pending.count);
    reply_pending(client, &group->pending, most, true);
    reply_bulk_string(client, "consumers");
    reply_array(client, group->consumers.count);
    for (uint32_t i = 0; i < group->consumers.count; i++) {
        const struct xstream_consumer *consumer = xstream_consumer_at(group, i);
        reply_map(client, 4);
        reply_name(client, &consumer->name);
        reply_count(client, "seen-time", (uint64_t)consumer->seen_ms);
        reply_count(client, "pel-count", consumer->pending.count);
        reply_pending(client, &consumer->pending, most, false);
    }
}

static void xinfo_stream(struct client *client) {
    struct xstream *stream;
    int64_t most = FULL_COUNT;
    bool full = client->argc > 3;
    if (!find_stream(client, &stream)) return;
    if (full && (!argument_is(&client->argv[3], "full") || client->argc == 5 || client->argc > 6 ||
                 (client->argc == 6 && !argument_is(&client->argv[4], "count")))) {
        reply_subcommand_syntax_error(client);
        return;
    }
    if (client->argc == 6 && !integer_argument(client, 5, &most)) return;
    if (most < 0) most = FULL_COUNT;
    reply_map(client, full ? 9 : 10);
    reply_numbers(client, stream);
    uint32_t groups = stream->groups.names.count;
    if (!full) {
        reply_count(client, "groups", groups);
        reply_edge(client, stream, false);
        reply_edge(client, stream, true);
        return;
    }
    reply_entries(client, stream, (uint64_t)most);
    reply_bulk_string(client, "groups");
    reply_array(client, groups);
    for (uint32_t i = 0; i < groups; i++)
        reply_full_group(client, stream, xstream_group_at(&stream->groups, i), (uint64_t)most);
}

/* ---- GROUPS, CONSUMERS ------------------------------------------------------------------------------------------- */

static void xinfo_groups(struct client *client) {
    struct xstream *stream;
    if (!find_stream(client, &stream)) return;
    reply_array(client, stream->groups.names.count);
    for (uint32_t i = 0; i < stream->groups.names.count; i++) {
        const struct xstream_group *group = xstream_group_at(&stream->groups, i);
        reply_map(client, 6);
        reply_name(client, &group->name);
        reply_count(client, "consumers", group->consumers.count);
        reply_count(client, "pending", group->pending.count);
        reply_named_id(client, "last-delivered-id", group->last_id);
        reply_progress(client, stream, group);
    }
}

static void xinfo_consumers(struct client *client) {
    struct xstream *stream;
    if (!find_stream(client, &stream)) return;
    const struct resp_argument *key = &client->argv[KEY], *name = &client->argv[KEY + 1];
    const struct xstream_group *group = stream_group_named(stream, name);
    if (!group) {
        reply_no_such_group(client, key, name);
        return;
    }
    int64_t now_ms = stream_now_ms(client);
    reply_array(client, group->consumers.count);
    for (uint32_t i = 0; i < group->consumers.count; i++) {
        const struct xstream_consumer *consumer = xstream_consumer_at(group, i);
        reply_map(client, 3);
        reply_name(client, &consumer->name);
        reply_count(client, "pending", consumer->pending.count);
        reply_count(client, "idle", now_ms > consumer->seen_ms ? (uint64_t)(now_ms - consumer->seen_ms) : 0);
    }
}

static const struct command xinfo_subcommands[] = {
    {"xinfo|consumers", xinfo_consumers, 4, COMMAND_READONLY, &group_stream, "Returns the consumers of a group.",
     "5.0.0", .tips = "nondeterministic_output", .keys = second_key_read, .usage = "<key> <groupname>"},
    {"xinfo|groups", xinfo_groups, 3, COMMAND_READONLY, &group_stream, "Returns the groups of consumers of a stream.",
     "5.0.0", .keys = second_key_read, .usage = "<key>"},
    {"xinfo|help", reply_help, 2, COMMAND_LOADING | COMMAND_STALE, &group_stream, "Lists the subcommands.", "5.0.0"},
    {"xinfo|stream", xinfo_stream, -3, COMMAND_READONLY, &group_stream, "Returns what is known of a stream.", "5.0.0",
     .keys = second_key_read, .usage = "<key> [FULL [COUNT <count>]]"},
    {0},
};

const struct command commands_stream_info[] = {
    {"xinfo", command_container, -2, 0, &group_stream, "Tells of streams, groups and consumers.", "5.0.0",
     .categories = ACL_SLOW, .subcommands = xinfo_subcommands},
    {0},
};

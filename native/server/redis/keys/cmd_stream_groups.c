/* cmd_stream_groups: XGROUP and XACK. Order of checks and error texts follow Redis 7.0. */
#include "server/core/exclusive_execution.h"
#include "server/redis/keys/cmd_stream.h"
#include "server/redis/keys/key_wait.h"
#include "server/redis/pubsub/notify.h"
#include "server/redis/redis_rows.h"

/* ---- XGROUP ------------------------------------------------------------------------------------------------------ */

#define KEY 2 /* the argument; the group's name follows */

struct group_options {
    bool makes_stream;
    int64_t entries_read;
};

static bool parse_options(struct client *client, bool creates, struct group_options *options) {
    *options = (struct group_options){.entries_read = XSTREAM_READ_UNKNOWN};
    for (uint32_t i = 5; i < client->argc; i++) {
        const struct resp_argument *word = &client->argv[i];
        if (creates && argument_is(word, "mkstream")) {
            options->makes_stream = true;
        } else if (i + 1 < client->argc && argument_is(word, "entriesread")) {
            if (!integer_argument(client, ++i, &options->entries_read)) return false;
            if (options->entries_read < 0 && options->entries_read != XSTREAM_READ_UNKNOWN) {
                reply_error(client, "ERR value for ENTRIESREAD must be positive or -1");
                return false;
            }
        } else {
            reply_subcommand_syntax_error(client);
            return false;
        }
    }
    return true;
}

/* The stream and the group of the arguments. False: an error is replied. */
static bool find_place(struct client *client, bool may_lack_stream, bool may_lack_group, struct stream_place *place) {
    *place = (struct stream_place){.entry = keyspace_find_write(client, KEY)};
    if (!keyspace_type_is(client, place->entry, VALUE_STREAM)) return false;
    if (!place->entry) {
        if (may_lack_stream) return true;
        reply_error(client,
                    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use "
                    "the MKSTREAM option to create an empty stream automatically.");
        return false;
    }
    const struct resp_argument *key = &client->argv[KEY], *name = &client->argv[KEY + 1];
    place->stream = xstream_of(store_value(place->entry));
    place->group = stream_group_named(place->stream, name);
    if (place->group || may_lack_group) return true;
    reply_no_such_group(client, key, name);
    return false;
}

/* An id or "$": the last. */
static bool group_id_argument(struct client *client, const struct xstream *stream, bool with_ends,
                              struct xstream_id *id) {
    const struct resp_argument *word = &client->argv[4];
    if (word->length == 1 && word->data[0] == '$') {
        *id = stream ? stream->last_id : XSTREAM_ID_FIRST;
        return true;
    }
    return with_ends ? stream_id_or_end_argument(client, 4, 0, id) : stream_id_argument(client, 4, 0, id);
}

static struct xstream_group *add_group(struct client *client, struct xstream *stream, struct xstream_id id,
                                       int64_t entries_read) {
    const struct resp_argument *name = &client->argv[KEY + 1];
    return stream ? xstream_group_add(&stream->groups, name->data, name->length, id, entries_read) : NULL;
}

static void xgroup_create(struct client *client) {
    struct group_options options;
    struct stream_place place;
    struct xstream_id id;
    if (!parse_options(client, true, &options) || !find_place(client, options.makes_stream, true, &place) ||
        !group_id_argument(client, place.stream, false, &id))
        return;
    if (place.group) {
        reply_error(client, "BUSYGROUP Consumer Group name already exists");
        return;
    }
    struct xstream *stream = place.entry ? place.stream : xstream_new();
    if (!add_group(client, stream, id, options.entries_read)) {
        if (stream && !place.entry) value_free(&stream->head);
        reply_out_of_memory(client);
    } else if (place.entry) {
        reply_status(client, "OK");
        stream_changed_aside(client, "xgroup-create", KEY);
    } else if (keyspace_put(client, KEY, &stream->head, false)) { /* its row says what is told of */
        reply_status(client, "OK");
    }
}

static void xgroup_setid(struct client *client) {
    struct group_options options;
    struct stream_place place;
    struct xstream_id id;
    if (!parse_options(client, false, &options) || !find_place(client, false, false, &place) ||
        !group_id_argument(client, place.stream, true, &id))
        return;
    place.group->last_id = id;
    place.group->entries_read = options.entries_read;
    reply_status(client, "OK");
    stream_changed_aside(client, "xgroup-setid", KEY);
}

/* A group may hold much: it is freed as values are, in a stream of its own. */
static void discard_group(struct client *client, struct xstream *stream, struct xstream_group *group) {
    struct xstream *grave = xstream_new();
    xstream_group_unlink(&stream->groups, group);
    if (grave && xstream_group_adopt(&grave->groups, group)) {
        store_discard(client->server->store, &grave->head);
        return;
    }
    size_t steps = SIZE_MAX;
    if (grave) value_free(&grave->head);
    xstream_group_release(group, &steps);
}

static void xgroup_destroy(struct client *client) {
    struct stream_place place;
    const struct resp_argument *key = &client->argv[KEY];
    if (!find_place(client, false, true, &place)) return;
    reply_integer(client, place.group ? 1 : 0);
    if (!place.group) return;
    discard_group(client, place.stream, place.group);
    stream_changed_aside(client, "xgroup-destroy", KEY);
    /* Its consumers that wait are told. */
    key_wait_changed(client->server, (unsigned)client->database, key->data, key->length);
}

static void xgroup_createconsumer(struct client *client) {
    struct stream_place place;
    const struct resp_argument *name = &client->argv[4];
    bool created;
    if (!find_place(client, false, false, &place)) return;
    if (xstream_consumer_find(place.group, name->data, name->length))
        reply_integer(client, 0);
    else if (stream_consumer_named(client, KEY, place.group, name, &created))
        reply_integer(client, 1);
    else
        reply_out_of_memory(client);
}

static void xgroup_delconsumer(struct client *client) {
    struct stream_place place;
    const struct resp_argument *name = &client->argv[4];
    if (!find_place(client, false, false, &place)) return;
    struct xstream_consumer *consumer = xstream_consumer_find(place.group, name->data, name->length);
    reply_integer(client, consumer ? (int64_t)consumer->pending.count : 0);
    if (!consumer) return;
    xstream_consumer_remove(place.group, consumer);
    stream_changed_aside(client, "xgroup-delconsumer", KEY);
}

/* ---- XACK -------------------------------------------------------------------------------------------------------- */

static void xack_command(struct client *client) {
    struct xstream *stream;
    struct xstream_id id;
    int64_t acknowledged = 0;
    if (!stream_for_reading(client, 1, &stream)) return;
    struct xstream_group *group = stream_group_named(stream, &client->argv[2]);
    if (!group) {
        reply_integer(client, 0);
        return;
    }
    for (uint32_t i = 3; i < client->argc && exclusive_goes_on_at(client, i); i++)
        if (!stream_id_argument(client, i, 0, &id)) return;
    store_will_change(client->server->store, (unsigned)client->database, keyspace_find(client, 1));
    for (uint32_t i = 3; i < client->argc && exclusive_goes_on_at(client, i); i++) {
        stream_id_parse(&client->argv[i], 0, &id);
        acknowledged += xstream_pending_remove(group, id);
    }
    reply_integer(client, acknowledged);
    if (acknowledged > 0) stream_changed_aside(client, NULL, 1);
}

#define ADDS (COMMAND_WRITE | COMMAND_DENYOOM)

static const struct command xgroup_subcommands[] = {
    {"xgroup|create", xgroup_create, -5, ADDS, &group_stream, "Creates a group of consumers of a stream.", "5.0.0",
     .keys = second_key_added_to, .event = KEY_EVENT(STREAM, "xgroup-create", IN_PLACE),
     .usage = "<key> <groupname> <id|$> [MKSTREAM] [ENTRIESREAD <entries-read>]"},
    {"xgroup|createconsumer", xgroup_createconsumer, 5, ADDS, &group_stream, "Creates a consumer in a group.", "6.2.0",
     .keys = second_key_added_to, .usage = "<key> <groupname> <consumer>"},
    {"xgroup|delconsumer", xgroup_delconsumer, 5, COMMAND_WRITE, &group_stream,
     "Deletes a consumer of a group, and what is pending with it.", "5.0.0", .keys = second_key_removed_from,
     .usage = "<key> <groupname> <consumer>"},
    {"xgroup|destroy", xgroup_destroy, 4, COMMAND_WRITE, &group_stream, "Destroys a group of consumers.", "5.0.0",
     .keys = second_key_removed_from, .usage = "<key> <groupname>"},
    {"xgroup|help", reply_help, 2, COMMAND_LOADING | COMMAND_STALE, &group_stream, "Lists the subcommands.", "5.0.0"},
    {"xgroup|setid", xgroup_setid, -5, COMMAND_WRITE, &group_stream, "Sets the id that a group has read up to.",
     "5.0.0", .keys = second_key_updated, .usage = "<key> <groupname> <id|$> [ENTRIESREAD <entries-read>]"},
    {0},
};

const struct command commands_stream_groups[] = {
    {"xack", xack_command, -4, COMMAND_WRITE | COMMAND_FAST | COMMAND_RESTS, &group_stream,
     "Acknowledges entries: they are pending no longer.", "5.0.0", .keys = key_updated},
    {"xgroup", command_container, -2, 0, &group_stream, "Manages the groups of consumers of a stream.", "5.0.0",
     .categories = ACL_SLOW, .subcommands = xgroup_subcommands},
    {0},
};

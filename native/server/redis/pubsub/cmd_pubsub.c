/* cmd_pubsub: SUBSCRIBE, PUBLISH and PUBSUB, in their forms for channels, patterns and shard channels. */
#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/core/exclusive_execution.h"
#include "server/core/server.h"
#include "server/core/slices.h"
#include "server/redis/keys/keyspace.h"
#include "server/redis/pubsub/pubsub.h"
#include "server/redis/redis_rows.h"
#include "server/redis/redis_subsystem.h"

#define UNSUBSCRIBED_AT_ONCE 64

static const struct {
    const char *subscribed, *unsubscribed;
    const char *refusal; /* where a client expects one reply to each command */
} words[PUBSUB_KINDS] = {
    {"subscribe", "unsubscribe", "ERR SUBSCRIBE isn't allowed for a DENY BLOCKING client"},
    {"psubscribe", "punsubscribe", "ERR PSUBSCRIBE isn't allowed for a DENY BLOCKING client"},
    {"ssubscribe", "sunsubscribe", "ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client"},
};

/* Channels and patterns are counted together, shard channels apart. */
static int64_t shown_count(const struct client *client, enum pubsub_kind kind) {
    if (kind == PUBSUB_SHARD) return (int64_t)pubsub_count(client, PUBSUB_SHARD);
    return (int64_t)(pubsub_count(client, PUBSUB_CHANNEL) + pubsub_count(client, PUBSUB_PATTERN));
}

/* What a client is told of its subscriptions comes as messages do, whatever CLIENT REPLY says. */
static void tell(struct client *client, const char *word, const void *name, size_t length, int64_t count) {
    enum client_reply_mode mode = client->reply_mode;
    client->reply_mode = CLIENT_REPLY_ON;
    reply_push(client, 3);
    reply_bulk_string(client, word);
    if (name)
        reply_bulk(client, name, length);
    else
        reply_null(client);
    reply_integer(client, count);
    client->reply_mode = mode;
}

static void subscribe(struct client *client, enum pubsub_kind kind) {
    /* In a transaction the older two are let through, as in Redis; for scripts there is no connection. */
    if (!client->connection || (kind == PUBSUB_SHARD && client->deny_blocking)) {
        reply_error(client, "%s", words[kind].refusal);
        return;
    }
    /* It may be lost amid its transaction, which goes on. */
    for (uint32_t i = 1; i < client->argc && exclusive_goes_on_at(client, i) && !client->closing; i++) {
        const struct resp_argument *name = &client->argv[i];
        if (!pubsub_subscribe(client, kind, name->data, name->length)) {
            reply_out_of_memory(client);
            return;
        }
        tell(client, words[kind].subscribed, name->data, name->length, shown_count(client, kind));
    }
}

/* With RESP2 a client without subscriptions may send any command again. */
static void end_if_none(struct client *client) {
    uint64_t left = 0;
    for (int each = 0; each < PUBSUB_KINDS; each++) left += pubsub_count(client, each);
    if (left == 0 && client->pubsub) client->pubsub->is_subscriber = false;
}

/* True: it is over. The client can be closed for having too much output, or be lost amid its transaction. */
static bool unsubscribe_some(struct client *client) {
    for (int i = 0; i < UNSUBSCRIBED_AT_ONCE && !client->closing; i++) {
        enum pubsub_kind kind = client->pubsub->leaving;
        struct dict_entry *entry = pubsub_unsubscribe_oldest(client, kind);
        if (!entry) {
            end_if_none(client);
            return true;
        }
        tell(client, words[kind].unsubscribed, entry->key, entry->key_length, shown_count(client, kind));
        dict_entry_free(entry);
    }
    return client->closing;
}

static bool go_on(struct client *client) {
    do {
        if (unsubscribe_some(client)) return true;
    } while (slices_have_time(client));
    return false;
}

static void unsubscribe_all(struct client *client, enum pubsub_kind kind) {
    if (pubsub_count(client, kind) == 0) {
        tell(client, words[kind].unsubscribed, NULL, 0, shown_count(client, kind));
        end_if_none(client);
        return;
    }
    client->pubsub->leaving = kind;
    if (!unsubscribe_some(client)) slices_run(client, go_on);
}

static void unsubscribe(struct client *client, enum pubsub_kind kind) {
    if (client->argc == 1) {
        unsubscribe_all(client, kind);
        return;
    }
    for (uint32_t i = 1; i < client->argc && exclusive_goes_on_at(client, i) && !client->closing; i++) {
        const struct resp_argument *name = &client->argv[i];
        pubsub_unsubscribe(client, kind, name->data, name->length);
        tell(client, words[kind].unsubscribed, name->data, name->length, shown_count(client, kind));
    }
    if (!client->closing) end_if_none(client);
}

static void subscribe_command(struct client *client) {
    subscribe(client, PUBSUB_CHANNEL);
}

static void psubscribe_command(struct client *client) {
    subscribe(client, PUBSUB_PATTERN);
}

static void ssubscribe_command(struct client *client) {
    subscribe(client, PUBSUB_SHARD);
}

static void unsubscribe_command(struct client *client) {
    unsubscribe(client, PUBSUB_CHANNEL);
}

static void punsubscribe_command(struct client *client) {
    unsubscribe(client, PUBSUB_PATTERN);
}

static void sunsubscribe_command(struct client *client) {
    unsubscribe(client, PUBSUB_SHARD);
}

static void publish(struct client *client, enum pubsub_kind kind) {
    const struct resp_argument *channel = &client->argv[1], *message = &client->argv[2];
    reply_integer(client,
                  (int64_t)pubsub_publish(client->server, kind,
                                          &(struct pubsub_bytes){channel->data, channel->length, channel->blob},
                                          &(struct pubsub_bytes){message->data, message->length, message->blob}));
}

static void publish_command(struct client *client) {
    publish(client, PUBSUB_CHANNEL);
}

static void spublish_command(struct client *client) {
    publish(client, PUBSUB_SHARD);
}

/* ---- PUBSUB ------------------------------------------------------------------------------------------ */

static void list_topics(struct client *client, enum pubsub_kind kind) {
    const struct resp_argument *pattern = client->argc == 3 ? &client->argv[2] : NULL;
    struct dict_position position = {0};
    const struct dict_entry *entry;
    size_t mark = reply_array_deferred(client), count = 0;
    while ((entry = dict_next(&client->server->redis->pubsub->topics[kind], &position))) {
        if (pattern && !pubsub_matches(pattern->data, pattern->length, entry->key, entry->key_length)) continue;
        reply_bulk(client, entry->key, entry->key_length);
        count++;
    }
    reply_set_array_length(client, mark, count);
}

static void count_subscribers(struct client *client, enum pubsub_kind kind) {
    reply_array(client, 2 * (client->argc - 2));
    for (uint32_t i = 2; i < client->argc; i++) {
        const struct resp_argument *name = &client->argv[i];
        reply_bulk(client, name->data, name->length);
        reply_integer(client, (int64_t)pubsub_subscribers(client->server, kind, name->data, name->length));
    }
}

/* Two arguments at most, although the arity says at least: Redis answers as to an unknown subcommand. */
static void pubsub_channels(struct client *client) {
    if (client->argc > 3)
        reply_subcommand_syntax_error(client);
    else
        list_topics(client, PUBSUB_CHANNEL);
}

static void pubsub_shardchannels(struct client *client) {
    if (client->argc > 3)
        reply_subcommand_syntax_error(client);
    else
        list_topics(client, PUBSUB_SHARD);
}

static void pubsub_numsub(struct client *client) {
    count_subscribers(client, PUBSUB_CHANNEL);
}

static void pubsub_shardnumsub(struct client *client) {
    count_subscribers(client, PUBSUB_SHARD);
}

static void pubsub_numpat(struct client *client) {
    reply_integer(client, (int64_t)pubsub_topics(client->server, PUBSUB_PATTERN));
}

#define ASK (COMMAND_PUBSUB | COMMAND_LOADING | COMMAND_STALE)
#define LISTEN (COMMAND_PUBSUB | COMMAND_NOSCRIPT | COMMAND_LOADING | COMMAND_STALE)
#define SEND (COMMAND_PUBSUB | COMMAND_LOADING | COMMAND_STALE | COMMAND_FAST | COMMAND_MAY_REPLICATE)

static const struct command subcommands[] = {
    {"pubsub|channels", pubsub_channels, -2, ASK, &group_pubsub, "Lists the channels in use.", "2.8.0",
     .usage = "[<pattern>]"},
    {"pubsub|help", reply_help, 2, COMMAND_LOADING | COMMAND_STALE, &group_pubsub, "Lists the subcommands.", "6.2.0",
     .categories = ACL_SLOW},
    {"pubsub|numpat", pubsub_numpat, 2, ASK, &group_pubsub, "Counts the patterns in use.", "2.8.0"},
    {"pubsub|numsub", pubsub_numsub, -2, ASK, &group_pubsub, "Counts subscribers of channels.", "2.8.0",
     .usage = "[<channel> ...]"},
    {"pubsub|shardchannels", pubsub_shardchannels, -2, ASK, &group_pubsub, "Lists the shard channels in use.", "7.0.0",
     .usage = "[<pattern>]"},
    {"pubsub|shardnumsub", pubsub_shardnumsub, -2, ASK, &group_pubsub, "Counts subscribers of shard channels.", "7.0.0",
     .usage = "[<shardchannel> ...]"},
    {0},
};

const struct command commands_pubsub[] = {
    {"psubscribe", psubscribe_command, -2, LISTEN | COMMAND_SUBSCRIBER | COMMAND_RESTS, &group_pubsub,
     "Listens to the channels whose names match.", "2.0.0", .channels = CHANNEL_PATTERNS},
    {"publish", publish_command, 3, SEND, &group_pubsub, "Sends a message to a channel's subscribers.", "2.0.0",
     .channels = CHANNEL_FIRST},
    {"pubsub", command_container, -2, 0, &group_pubsub, "Tells of channels and subscribers.", "2.8.0",
     .subcommands = subcommands},
    {"punsubscribe", punsubscribe_command, -1, LISTEN | COMMAND_SUBSCRIBER | COMMAND_RESTS, &group_pubsub,
     "Listens to patterns no more.", "2.0.0"},
    {"spublish", spublish_command, 3, SEND, &group_pubsub, "Sends a message to a shard channel's subscribers.", "7.0.0",
     .keys = shard_channel, .channels = CHANNEL_FIRST},
    {"ssubscribe", ssubscribe_command, -2, LISTEN | COMMAND_SUBSCRIBER | COMMAND_RESTS, &group_pubsub,
     "Listens to shard channels.", "7.0.0", .keys = shard_channels, .channels = CHANNEL_ALL},
    {"subscribe", subscribe_command, -2, LISTEN | COMMAND_SUBSCRIBER | COMMAND_RESTS, &group_pubsub,
     "Listens to channels.", "2.0.0", .channels = CHANNEL_ALL},
    {"sunsubscribe", sunsubscribe_command, -1, LISTEN | COMMAND_SUBSCRIBER | COMMAND_RESTS, &group_pubsub,
     "Listens to shard channels no more.", "7.0.0", .keys = shard_channels},
    {"unsubscribe", unsubscribe_command, -1, LISTEN | COMMAND_SUBSCRIBER | COMMAND_RESTS, &group_pubsub,
     "Listens to channels no more.", "2.0.0"},
    {0},
};

#include "server/redis/pubsub/pubsub.h"

#include <string.h>

#include "base/list.h"
#include "base/memory.h"
#include "server/core/client.h"
#include "server/core/server.h"
#include "server/redis/redis_subsystem.h"
#include "store/glob.h"

#define SHARED_MESSAGE_BYTES 4096u /* from here on all receivers are sent one copy of it */

struct pubsub *pubsub_new(void) {
    struct pubsub *pubsub = memory_calloc(1, sizeof *pubsub);
    for (int kind = 0; pubsub && kind < PUBSUB_KINDS; kind++) dict_init(&pubsub->topics[kind]);
    return pubsub;
}

void pubsub_free(struct pubsub *pubsub) {
    for (int kind = 0; pubsub && kind < PUBSUB_KINDS; kind++) dict_clear(&pubsub->topics[kind], NULL, NULL);
    memory_free(pubsub);
}

/* ---- subscribing ------------------------------------------------------------------------------------- */

static struct pubsub_topic *topic_find(struct dict *topics, const void *name, size_t length) {
    struct dict_entry *entry = dict_find(topics, dict_hash(name, length), name, length);
    return entry ? entry->value : NULL;
}

static struct pubsub_topic *topic_make(struct dict *topics, const void *name, size_t length) {
    struct pubsub_topic *topic = topic_find(topics, name, length);
    if (topic) return topic;
    topic = memory_calloc(1, sizeof *topic);
    if (!topic) return NULL;
    topic->entry = dict_add(topics, dict_hash(name, length), name, length);
    if (!topic->entry) {
        memory_free(topic);
        return NULL;
    }
    topic->entry->value = topic;
    return topic;
}

static void topic_drop_if_unused(struct dict *topics, struct pubsub_topic *topic) {
    if (topic->subscribers > 0) return;
    dict_unlink(topics, topic->entry);
    dict_entry_free(topic->entry);
    memory_free(topic);
}

static void join(struct pubsub_topic *topic, struct pubsub_subscription *subscription, enum pubsub_kind kind) {
    struct client_pubsub *own = subscription->client->pubsub;
    subscription->topic = topic;
    LIST_APPEND(topic->head, topic->tail, subscription, next, previous);
    LIST_APPEND(own->lists[kind].head, own->lists[kind].tail, subscription, own_next, own_previous);
    topic->subscribers++;
}

static void leave(struct pubsub_subscription *subscription, enum pubsub_kind kind) {
    struct pubsub_topic *topic = subscription->topic;
    struct client_pubsub *own = subscription->client->pubsub;
    LIST_REMOVE(topic->head, topic->tail, subscription, next, previous);
    LIST_REMOVE(own->lists[kind].head, own->lists[kind].tail, subscription, own_next, own_previous);
    topic->subscribers--;
}

static uint64_t count_all(const struct client *client) {
    uint64_t count = 0;
    for (int kind = 0; kind < PUBSUB_KINDS; kind++) count += pubsub_count(client, kind);
    return count;
}

static bool make_own(struct client *client) {
    if (client->pubsub) return true;
    client->pubsub = memory_calloc(1, sizeof *client->pubsub);
    for (int kind = 0; client->pubsub && kind < PUBSUB_KINDS; kind++) dict_init(&client->pubsub->subscriptions[kind]);
    return client->pubsub;
}

bool pubsub_subscribe(struct client *client, enum pubsub_kind kind, const void *name, size_t length) {
    if (!make_own(client)) return false;
    struct dict *own = &client->pubsub->subscriptions[kind], *topics = &client->server->redis->pubsub->topics[kind];
    uint32_t hash = dict_hash(name, length);
    client->pubsub->is_subscriber = true;
    if (dict_find(own, hash, name, length)) return true;
    struct pubsub_subscription *subscription = memory_calloc(1, sizeof *subscription);
    struct pubsub_topic *topic = subscription ? topic_make(topics, name, length) : NULL;
    struct dict_entry *entry = topic ? dict_add(own, hash, name, length) : NULL;
    if (!entry) {
        if (topic) topic_drop_if_unused(topics, topic);
        memory_free(subscription);
        return false;
    }
    if (count_all(client) == 1) client->server->redis->pubsub->clients++;
    entry->value = subscription;
    subscription->entry = entry;
    subscription->client = client;
    join(topic, subscription, kind);
    return true;
}

static struct dict_entry *end(struct pubsub_subscription *subscription, enum pubsub_kind kind) {
    struct client *client = subscription->client;
    struct dict_entry *entry = subscription->entry;
    leave(subscription, kind);
    topic_drop_if_unused(&client->server->redis->pubsub->topics[kind], subscription->topic);
    dict_unlink(&client->pubsub->subscriptions[kind], entry);
    memory_free(subscription);
    if (count_all(client) == 0) client->server->redis->pubsub->clients--;
    return entry;
}

bool pubsub_unsubscribe(struct client *client, enum pubsub_kind kind, const void *name, size_t length) {
    if (!client->pubsub) return false;
    struct dict *own = &client->pubsub->subscriptions[kind];
    struct dict_entry *entry = dict_find(own, dict_hash(name, length), name, length);
    if (!entry) return false;
    dict_entry_free(end(entry->value, kind));
    return true;
}

struct dict_entry *pubsub_unsubscribe_oldest(struct client *client, enum pubsub_kind kind) {
    struct pubsub_subscription *oldest = client->pubsub ? client->pubsub->lists[kind].head : NULL;
    return oldest ? end(oldest, kind) : NULL;
}

void pubsub_client_gone(struct client *client) {
    struct dict_entry *entry;
    for (int kind = 0; client->pubsub && kind < PUBSUB_KINDS; kind++) {
        while ((entry = pubsub_unsubscribe_oldest(client, kind))) dict_entry_free(entry);
        dict_clear(&client->pubsub->subscriptions[kind], NULL, NULL);
    }
    memory_free(client->pubsub);
    client->pubsub = NULL;
}

uint64_t pubsub_count(const struct client *client, enum pubsub_kind kind) {
    return client->pubsub ? dict_count(&client->pubsub->subscriptions[kind]) : 0;
}

bool pubsub_is_subscriber(const struct client *client) {
    return client->pubsub && client->pubsub->is_subscriber;
}

uint64_t pubsub_topics(const struct server *server, enum pubsub_kind kind) {
    return dict_count(&server->redis->pubsub->topics[kind]);
}

uint64_t pubsub_subscribers(struct server *server, enum pubsub_kind kind, const void *name, size_t length) {
    const struct pubsub_topic *topic = topic_find(&server->redis->pubsub->topics[kind], name, length);
    return topic ? topic->subscribers : 0;
}

/* ---- publishing -------------------------------------------------------------------------------------- */

static void reply_bytes(struct client *client, const struct pubsub_bytes *bytes) {
    if (bytes->blob)
        reply_blob(client, bytes->blob);
    else
        reply_bulk(client, bytes->data, bytes->length);
}

/* A message is no reply: CLIENT REPLY OFF does not keep it back. */
static void deliver(struct client *client, const char *type, const struct pubsub_bytes *pattern,
                    const struct pubsub_bytes *channel, const struct pubsub_bytes *message) {
    enum client_reply_mode mode = client->reply_mode;
    client->reply_mode = CLIENT_REPLY_ON;
    reply_push(client, pattern ? 4 : 3);
    reply_bulk_string(client, type);
    if (pattern) reply_bytes(client, pattern);
    reply_bytes(client, channel);
    reply_bytes(client, message);
    client->reply_mode = mode;
}

static uint64_t deliver_to_all(const struct pubsub_topic *topic, const char *type, const struct pubsub_bytes *pattern,
                               const struct pubsub_bytes *channel, const struct pubsub_bytes *message) {
    for (const struct pubsub_subscription *subscription = topic->head; subscription; subscription = subscription->next)
        deliver(subscription->client, type, pattern, channel, message);
    return topic->subscribers;
}

bool pubsub_matches(const void *pattern, size_t pattern_length, const void *name, size_t length) {
    return glob_match(pattern, pattern_length, name, length);
}

static uint64_t publish_to_patterns(struct server *server, const struct pubsub_bytes *channel,
                                    const struct pubsub_bytes *message) {
    uint64_t receivers = 0;
    struct dict_position position = {0};
    const struct dict_entry *entry;
    while ((entry = dict_next(&server->redis->pubsub->topics[PUBSUB_PATTERN], &position))) {
        if (!pubsub_matches(entry->key, entry->key_length, channel->data, channel->length)) continue;
        struct pubsub_bytes pattern = {.data = entry->key, .length = entry->key_length};
        receivers += deliver_to_all(entry->value, "pmessage", &pattern, channel, message);
    }
    return receivers;
}

/* The message in a blob of its own where that saves copies; NULL: send it as it is. */
static struct blob *share_message(const struct pubsub_bytes *message) {
    if (message->length < SHARED_MESSAGE_BYTES) return NULL;
    if (message->blob) return blob_retain(message->blob);
    struct blob *blob = blob_new(message->length);
    if (blob) memcpy(blob->data, message->data, message->length);
    return blob;
}

uint64_t pubsub_publish(struct server *server, enum pubsub_kind kind, const struct pubsub_bytes *channel,
                        const struct pubsub_bytes *message) {
    struct pubsub *pubsub = server->redis->pubsub;
    if (pubsub->clients == 0) return 0;
    struct pubsub_bytes sent = *message;
    struct blob *shared = sent.blob = share_message(message);
    const struct pubsub_topic *topic = topic_find(&pubsub->topics[kind], channel->data, channel->length);
    uint64_t receivers = 0;
    if (topic) receivers = deliver_to_all(topic, kind == PUBSUB_SHARD ? "smessage" : "message", NULL, channel, &sent);
    if (kind == PUBSUB_CHANNEL && pubsub_topics(server, PUBSUB_PATTERN) > 0)
        receivers += publish_to_patterns(server, channel, &sent);
    blob_release(shared);
    return receivers;
}

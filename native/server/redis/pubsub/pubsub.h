/* pubsub: who has subscribed to which channels and patterns, and messages to them. */
#ifndef REPLAY_SERVER_PUBSUB_H
#define REPLAY_SERVER_PUBSUB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/blob.h"
#include "store/dict.h"

struct client;
struct server;

enum pubsub_kind { PUBSUB_CHANNEL, PUBSUB_PATTERN, PUBSUB_SHARD, PUBSUB_KINDS };

/* What some client has subscribed to. It goes with its last subscription. */
struct pubsub_topic {
    struct dict_entry *entry; /* its name */
    struct pubsub_subscription *head, *tail; /* in the order they came */
    uint64_t subscribers;
};

struct pubsub_subscription {
    struct client *client;
    struct pubsub_topic *topic;
    struct dict_entry *entry; /* of the client's, its name */
    struct pubsub_subscription *next, *previous; /* of the topic */
    struct pubsub_subscription *own_next, *own_previous; /* of the client */
};

/* The server's. */
struct pubsub {
    struct dict topics[PUBSUB_KINDS]; /* of struct pubsub_topic */
    uint32_t clients; /* with any subscription */
};

/* A client's; made with its first subscription. */
struct client_pubsub {
    struct dict subscriptions[PUBSUB_KINDS]; /* of struct pubsub_subscription */
    struct {
        struct pubsub_subscription *head, *tail;
    } lists[PUBSUB_KINDS]; /* the same, in the order they came */
    enum pubsub_kind leaving; /* all of this kind: UNSUBSCRIBE without arguments is being served */
    bool is_subscriber; /* has subscribed and not yet unsubscribed from everything */
};

struct pubsub_bytes {
    const void *data;
    size_t length;
    struct blob *blob; /* that holds them, or NULL */
};

struct pubsub *pubsub_new(void); /* NULL: memory is exhausted */
void pubsub_free(struct pubsub *pubsub); /* after all clients */

/* Subscribes, or ends a subscription, if the client has not done so yet. False: memory is exhausted. */
bool pubsub_subscribe(struct client *client, enum pubsub_kind kind, const void *name, size_t length);
bool pubsub_unsubscribe(struct client *client, enum pubsub_kind kind, const void *name, size_t length);
/* Ends the oldest one of that kind. Its name, which the caller frees by dict_entry_free; NULL: there is none. */
struct dict_entry *pubsub_unsubscribe_oldest(struct client *client, enum pubsub_kind kind);
/* Ends all of the client's subscriptions without telling it. */
void pubsub_client_gone(struct client *client);

bool pubsub_is_subscriber(const struct client *client);
uint64_t pubsub_count(const struct client *client, enum pubsub_kind kind); /* of the client's subscriptions */
uint64_t pubsub_topics(const struct server *server, enum pubsub_kind kind);
uint64_t pubsub_subscribers(struct server *server, enum pubsub_kind kind, const void *name, size_t length);

/* As glob_match, but a channel without a name is matched by no pattern except the empty one, as in Redis. */
bool pubsub_matches(const void *pattern, size_t pattern_length, const void *name, size_t length);
/* Sends the message to everybody who has subscribed to the channel (PUBSUB_CHANNEL: or to a pattern that matches it).
 * Returns how many messages that were. */
uint64_t pubsub_publish(struct server *server, enum pubsub_kind kind, const struct pubsub_bytes *channel,
                        const struct pubsub_bytes *message);

#endif

/* acl_channels: closes subscribers whose user has lost the right to their channels. */
#include "server/core/client.h"
#include "server/core/server.h"
#include "server/redis/acl/acl.h"
#include "server/redis/pubsub/pubsub.h"

static bool may_listen(const struct acl_user *user, const struct dict_entry *topic, bool is_pattern) {
    const struct resp_argument name = {.data = topic->key, .length = topic->key_length};
    for (uint32_t i = 0; i < user->selector_count; i++)
        if (acl_allows_channel(user->selectors[i], &name, is_pattern)) return true;
    return false;
}

static bool may_stay(const struct client *client) {
    for (int kind = 0; client->pubsub && kind < PUBSUB_KINDS; kind++) {
        struct dict_position position = {0};
        const struct dict_entry *topic;
        while ((topic = dict_next(&client->pubsub->subscriptions[kind], &position)))
            if (!may_listen(client->user, topic, kind == PUBSUB_PATTERN)) return false;
    }
    return true;
}

void acl_close_subscribers(struct acl *acl, const struct acl_user *user, struct client *asking) {
    for (uint32_t i = 0; i < user->selector_count; i++)
        if (user->selectors[i]->flags & ACL_ALL_CHANNELS) return;
    for (struct client *client = acl->server->clients.head; client; client = client->next) {
        if (client->user != user || may_stay(client)) continue;
        if (client == asking)
            client->close_after_reply = true;
        else
            client_close(client);
    }
}

#include "server/redis/pubsub/notify.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "server/core/client.h"
#include "server/core/exclusive_execution.h"
#include "server/core/server.h"
#include "server/redis/pubsub/pubsub.h"
#include "server/redis/redis_subsystem.h"
#include "store/store.h"

/* ---- what has changed -------------------------------------------------------------------------------- */

struct change {
    uint32_t database, length;
    bool added; /* there was no such key */
    uint8_t key[];
};

static size_t room_of(size_t length) {
    return (sizeof(struct change) + length + 7) & ~(size_t)7;
}

void notify_free(struct notify *notify) {
    memory_free(notify->changes);
    *notify = (struct notify){0};
}

/* The latest change where it is of that key; or NULL. */
static struct change *last_of(const struct notify *notify, unsigned database, const uint8_t *key, size_t length) {
    if (notify->length == 0) return NULL;
    struct change *last = (struct change *)(void *)(notify->changes + notify->last);
    bool same = last->database == database && last->length == length && memcmp(last->key, key, length) == 0;
    return same ? last : NULL;
}

void notify_will_add(struct server *server) {
    server->redis->notify.adds_next = server->redis->notify.flags != 0;
}

void notify_changed(struct server *server, unsigned database, const uint8_t *key, size_t length) {
    struct notify *notify = &server->redis->notify;
    if (notify->passes_over_next) {
        notify->passes_over_next = false;
        return;
    }
    bool added = notify->adds_next;
    notify->adds_next = false;
    struct change *last = last_of(notify, database, key, length);
    if (last) {
        last->added |= added;
        return;
    }
    size_t room = room_of(length);
    if (notify->length + room > notify->capacity) {
        size_t capacity = 2 * (notify->length + room);
        uint8_t *grown = memory_realloc(notify->changes, capacity);
        if (!grown) return; /* a message that nobody will get: they are sent at most once anyway */
        notify->changes = grown;
        notify->capacity = capacity;
    }
    struct change *change = (struct change *)(void *)(notify->changes + notify->length);
    change->database = database;
    change->length = (uint32_t)length;
    change->added = added;
    memcpy(change->key, key, length);
    notify->last = notify->length;
    notify->length += room;
}

void notify_also(struct server *server, const char *event) {
    server->redis->notify.also = event;
}

void notify_gone(struct server *server, enum notify_class class, const char *event, unsigned database,
                 const uint8_t *key, size_t length) {
    server->redis->notify.passes_over_next = server->redis->notify.flags != 0;
    notify_event(server, class, event, database, key, length);
}

/* ---- messages ---------------------------------------------------------------------------------------- */

static void publish(struct server *server, const char *kind, unsigned database, const void *name, size_t name_length,
                    const void *message, size_t message_length) {
    char prefix[40];
    int prefix_length = snprintf(prefix, sizeof prefix, "__%s@%u__:", kind, database);
    size_t length = (size_t)prefix_length + name_length;
    char *channel = memory_alloc(length);
    if (!channel) return;
    memcpy(channel, prefix, (size_t)prefix_length);
    memcpy(channel + prefix_length, name, name_length);
    pubsub_publish(server, PUBSUB_CHANNEL, &(struct pubsub_bytes){channel, length, NULL},
                   &(struct pubsub_bytes){message, message_length, NULL});
    memory_free(channel);
}

void notify_event(struct server *server, enum notify_class class, const char *event, unsigned database, const void *key,
                  size_t length) {
    if (!(server->redis->notify.flags & (int)class) || server->redis->pubsub->clients == 0) return;
    if (server->redis->notify.flags & NOTIFY_KEYSPACE)
        publish(server, "keyspace", database, key, length, event, strlen(event));
    if (server->redis->notify.flags & NOTIFY_KEYEVENT)
        publish(server, "keyevent", database, event, strlen(event), key, length);
}

/* ---- events of commands ------------------------------------------------------------------------------ */

static bool has_word(const struct client *client, uint32_t from, const char *word) {
    for (uint32_t i = from; i < client->argc; i++)
        if (argument_is(&client->argv[i], word)) return true;
    return false;
}

static bool is_there(struct server *server, unsigned database, const void *key, size_t length) {
    return dict_find(&server->store->databases[database].keys, dict_hash(key, length), key, length);
}

static void tell_if_gone(struct server *server, unsigned database, const void *key, size_t length) {
    if (!is_there(server, database, key, length)) notify_event(server, NOTIFY_GENERIC, "del", database, key, length);
}

static bool is_argument(const struct client *client, uint32_t index, const struct change *change) {
    const struct resp_argument *argument = &client->argv[index];
    return argument->length == change->length && memcmp(argument->data, change->key, change->length) == 0;
}

static void tell_if_added(struct server *server, const struct change *change) {
    if (change->added) notify_event(server, NOTIFY_NEW, "new", change->database, change->key, change->length);
}

static void tell_of_added(struct server *server, size_t length) {
    for (size_t at = 0; at < length;) {
        const struct change *change = (const struct change *)(const void *)(server->redis->notify.changes + at);
        tell_if_added(server, change);
        at += room_of(change->length);
    }
}

/* LMOVE and its like: the push is told of first, as in Redis. */
static void tell_of_move(struct client *client, const struct command *command) {
    struct server *server = client->server;
    unsigned database = (unsigned)client->database;
    const struct resp_argument *from = &client->argv[1], *to = &client->argv[2];
    bool named = command->event->kind == EVENT_MOVES_ELEMENT_BY_ENDS; /* which ends, in words */
    bool from_left = named && argument_is(&client->argv[3], "left");
    bool to_left = !named || argument_is(&client->argv[4], "left");
    notify_event(server, NOTIFY_LIST, to_left ? "lpush" : "rpush", database, to->data, to->length);
    notify_event(server, NOTIFY_LIST, from_left ? "lpop" : "rpop", database, from->data, from->length);
    tell_if_gone(server, database, from->data, from->length);
}

static const char *event_of(const struct client *client, const struct key_event *rule, const struct change *change) {
    switch (rule->kind) {
    case EVENT_MOVES_MEMBER: return is_argument(client, 1, change) ? "srem" : "sadd";
    case EVENT_RENAMES: return is_argument(client, 1, change) ? "rename_from" : "rename_to";
    case EVENT_MOVES: return change->database == (unsigned)client->database ? "move_from" : "move_to";
    case EVENT_POPS_OF_MANY:
        if (rule->class == NOTIFY_LIST) return has_word(client, 2, "left") ? "lpop" : "rpop";
        return has_word(client, 2, "min") ? "zpopmin" : "zpopmax";
    case EVENT_ADDS_OR_INCREMENTS: return has_word(client, 2, "incr") ? "zincr" : rule->name;
    case EVENT_EXPIRES_OR_PERSISTS: return has_word(client, 2, "persist") ? "persist" : rule->name;
    default: return rule->name;
    }
}

static bool has_expiry(const struct client *client, const struct key_event *rule) {
    if (rule->kind != EVENT_WITH_EXPIRY_IF_ASKED) return rule->kind == EVENT_WITH_EXPIRY;
    return has_word(client, 3, "ex") || has_word(client, 3, "px") || has_word(client, 3, "exat") ||
           has_word(client, 3, "pxat");
}

static void tell_of(struct client *client, const struct key_event *rule, const struct change *change) {
    struct server *server = client->server;
    bool gone = !is_there(server, change->database, change->key, change->length);
    const char *event = event_of(client, rule, change);
    enum notify_class class = rule->class;
    if (gone &&
        (rule->kind == EVENT_STORES || rule->kind == EVENT_EXPIRES || rule->kind == EVENT_EXPIRES_OR_PERSISTS)) {
        event = "del";
        class = NOTIFY_GENERIC;
    }
    if (rule->kind == EVENT_COPIES) /* also where another key went for it */
        notify_event(server, NOTIFY_NEW, "new", change->database, change->key, change->length);
    else if (rule->kind != EVENT_RENAMES && rule->kind != EVENT_MOVES)
        tell_if_added(server, change);
    notify_event(server, class, event, change->database, change->key, change->length);
    if (server->redis->notify.also)
        notify_event(server, class, server->redis->notify.also, change->database, change->key, change->length);
    if (has_expiry(client, rule))
        notify_event(server, NOTIFY_GENERIC, "expire", change->database, change->key, change->length);
    if (gone &&
        (rule->kind == EVENT_IN_PLACE || rule->kind == EVENT_ADDS_OR_INCREMENTS || rule->kind == EVENT_POPS_OF_MANY ||
         (rule->kind == EVENT_MOVES_MEMBER && is_argument(client, 1, change))))
        notify_event(server, NOTIFY_GENERIC, "del", change->database, change->key, change->length);
}

/* Of the changes of the key in the first argument, or of all others. */
static void tell_of_all(struct client *client, const struct key_event *rule, size_t length, bool of_first) {
    for (size_t at = 0; at < length;) {
        const struct change *change = (const struct change *)(const void *)(client->server->redis->notify.changes + at);
        if (is_argument(client, 1, change) == of_first) tell_of(client, rule, change);
        at += room_of(change->length);
    }
}

static void tell_of_changes(struct client *client, const struct command *command) {
    struct notify *notify = &client->server->redis->notify;
    size_t length = notify->length;
    notify->length = 0;
    if (!command || !client->argv) return;
    const struct key_event *rule = command->event;
    if (!rule) return;
    /* Of a key that takes another's place before all else. */
    bool moves_element = rule->kind == EVENT_MOVES_ELEMENT || rule->kind == EVENT_MOVES_ELEMENT_BY_ENDS;
    if (moves_element || rule->kind == EVENT_RENAMES || rule->kind == EVENT_MOVES)
        tell_of_added(client->server, length);
    if (moves_element) {
        tell_of_move(client, command);
        return;
    }
    if (rule->kind == EVENT_MOVES_MEMBER) { /* of where it came from first */
        tell_of_all(client, rule, length, true);
        tell_of_all(client, rule, length, false);
        return;
    }
    for (size_t at = 0; at < length;) {
        const struct change *change = (const struct change *)(const void *)(notify->changes + at);
        tell_of(client, rule, change);
        at += room_of(change->length);
    }
}

/* Of a command that rests: of all but the last, which it may change further. Of that it tells once. */
static void tell_of_earlier(struct client *client) {
    struct notify *notify = &client->server->redis->notify;
    size_t last = notify->last, kept = notify->length - last;
    if (notify->length == 0 || last == 0) return;
    notify->length = last;
    tell_of_changes(client, client->command);
    memmove(notify->changes, notify->changes + last, kept);
    notify->length = kept;
    notify->last = 0;
}

void notify_command(struct client *client) {
    struct notify *notify = &client->server->redis->notify;
    if (exclusive_is_resting(client->server)) {
        tell_of_earlier(client);
        return;
    }
    if (notify->length > 0) tell_of_changes(client, client->command);
    notify->also = NULL;
}

/* notify: keyspace notifications: messages to subscribers about what happens to keys, as notify-keyspace-events says.
 *
 * The store tells which keys a command changed; the name of the event follows from the command. */
#ifndef REPLAY_SERVER_NOTIFY_H
#define REPLAY_SERVER_NOTIFY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/core/command.h"
#include "server/core/notify_classes.h"

/* What a command does to a key that it changes. Where the key is gone afterwards, `del` follows, or stands alone. */
enum key_event_manner {
    EVENT_IN_PLACE,
    EVENT_STORES,
    EVENT_WITH_EXPIRY,
    EVENT_WITH_EXPIRY_IF_ASKED, /* SET: by EX and its like */
    EVENT_EXPIRES,
    EVENT_EXPIRES_OR_PERSISTS, /* GETEX: the event is `persist` with PERSIST */
    EVENT_ADDS_OR_INCREMENTS, /* ZADD: the event is `zincr` with INCR */
    EVENT_ENDS,
    EVENT_MOVES_ELEMENT, /* from the end of a list to the beginning of another */
    EVENT_MOVES_ELEMENT_BY_ENDS, /* the arguments say from and to which ends */
    EVENT_MOVES_MEMBER,
    EVENT_POPS_OF_MANY,
    EVENT_RENAMES,
    EVENT_MOVES,
    EVENT_COPIES
};

/* Of a command's row: what subscribers are told of the keys that it changes. */
struct key_event {
    enum notify_class class;
    const char *name; /* "": it follows from the manner */
    enum key_event_manner manner;
};
#define KEY_EVENT(class, name, manner) (&(const struct key_event){NOTIFY_##class, name, EVENT_##manner})

/* Keys that the command that runs has changed, in order. */
struct notify {
    int flags; /* 0: nobody is told of anything */
    bool adds_next; /* the change that follows adds a key */
    const char *also; /* what else is told of the next change; NULL: nothing */
    bool passes_over_next; /* the change that follows was told of already: the key ran out or was evicted */
    uint8_t *changes; /* a header and the key's bytes, one after the other */
    size_t length, capacity;
    size_t last; /* where the last of them begins */
};

void notify_free(struct notify *notify);
void notify_command(struct client *client); /* see struct upcalls */
/* From the store: a key has changed. */
void notify_changed(struct server *server, unsigned database, const uint8_t *key, size_t length);
/* From the store: the change that follows adds a key. */
void notify_will_add(struct server *server);
/* The command that runs changes a key in two ways: this is told after its own event. */
void notify_also(struct server *server, const char *event);
/* The key goes by itself. */
void notify_gone(struct server *server, enum notify_class class, const char *event, unsigned database,
                 const uint8_t *key, size_t length);
/* Sends the message, if such are wanted. */
void notify_event(struct server *server, enum notify_class class, const char *event, unsigned database, const void *key,
                  size_t length);

#endif

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

/* What a command does to keys, and which messages follow from it for each key that it changed. "The event" is the row's
 * name. Before these messages comes `new`, if there was no such key. */
enum key_event_kind {
    EVENT_IN_PLACE, /* changes the value: the event; then `del`, if the key is gone */
    EVENT_STORES, /* stores a new value: the event; or `del` instead, if the key is gone since the value was empty */
    EVENT_WITH_EXPIRY, /* stores a value that expires: the event, then `expire` */
    EVENT_WITH_EXPIRY_IF_ASKED, /* SET: the event; then `expire`, if EX, PX, EXAT or PXAT is given */
    EVENT_EXPIRES, /* sets an expiry time: the event; or `del` instead, if that time was over already */
    EVENT_EXPIRES_OR_PERSISTS, /* GETEX: as EVENT_EXPIRES, but with PERSIST the event is `persist` */
    EVENT_ADDS_OR_INCREMENTS, /* ZADD: as EVENT_IN_PLACE, but with INCR the event is `zincr` */
    EVENT_REMOVES, /* removes the key: the event alone */
    EVENT_MOVES_ELEMENT, /* RPOPLPUSH: `lpush` of the second key, `rpop` of the first, `del` if that is gone */
    EVENT_MOVES_ELEMENT_BY_ENDS, /* LMOVE: the same, but the arguments say from which end and to which */
    EVENT_MOVES_MEMBER, /* SMOVE: `srem` of the first key, `del` if that is gone, then `sadd` of the second */
    EVENT_POPS_OF_MANY, /* LMPOP, ZMPOP: the arguments say from which end; then `del`, if the key is gone */
    EVENT_RENAMES, /* `rename_from` of the first key, `rename_to` of the second */
    EVENT_MOVES, /* MOVE: `move_from` in the client's database, `move_to` in the other */
    EVENT_COPIES /* COPY: `new` even if it replaced a key, then the event */
};

/* Of a command's row: what subscribers are told of the keys that it changes. */
struct key_event {
    enum notify_class class;
    const char *name; /* "": it follows from the kind */
    enum key_event_kind kind;
};
#define KEY_EVENT(class, name, kind) (&(const struct key_event){NOTIFY_##class, name, EVENT_##kind})

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

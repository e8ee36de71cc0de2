/* notify_classes: the setting notify-keyspace-events: letters for the kinds of changes that subscribers are told
 * of. */
#ifndef REPLAY_SERVER_NOTIFY_CLASSES_H
#define REPLAY_SERVER_NOTIFY_CLASSES_H

enum notify_class {
    NOTIFY_GENERIC = 1 << 0,  /* g */
    NOTIFY_STRING = 1 << 1,   /* $ */
    NOTIFY_LIST = 1 << 2,     /* l */
    NOTIFY_SET = 1 << 3,      /* s */
    NOTIFY_HASH = 1 << 4,     /* h */
    NOTIFY_ZSET = 1 << 5,     /* z */
    NOTIFY_EXPIRED = 1 << 6,  /* x */
    NOTIFY_EVICTED = 1 << 7,  /* e */
    NOTIFY_STREAM = 1 << 8,   /* t */
    NOTIFY_MODULE = 1 << 9,   /* d: accepted; there are no modules */
    NOTIFY_KEYSPACE = 1 << 10, /* K: on channels named after keys */
    NOTIFY_KEYEVENT = 1 << 11, /* E: on channels named after events */
    NOTIFY_MISS = 1 << 12,    /* m */
    NOTIFY_NEW = 1 << 13,     /* n: keys that were added */
};

#define NOTIFY_TEXT_BYTES 24u

/* −1: a letter that stands for nothing. */
int notify_parse(const char *text);
void notify_text(int flags, char text[NOTIFY_TEXT_BYTES]);

#endif

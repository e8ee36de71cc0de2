/* notify_classes: letters for classes of keyspace events. */
#include "server/core/notify_classes.h"

#include <stdbool.h>
#include <stddef.h>

static const struct {
    char letter;
    int flag;
} letters[] = {
    {'g', NOTIFY_GENERIC}, {'$', NOTIFY_STRING},   {'l', NOTIFY_LIST},     {'s', NOTIFY_SET},    {'h', NOTIFY_HASH},
    {'z', NOTIFY_ZSET},    {'x', NOTIFY_EXPIRED},  {'e', NOTIFY_EVICTED},  {'t', NOTIFY_STREAM}, {'d', NOTIFY_MODULE},
    {'n', NOTIFY_NEW},     {'K', NOTIFY_KEYSPACE}, {'E', NOTIFY_KEYEVENT}, {'m', NOTIFY_MISS},
};

#define ALL                                                                                                   \
    (NOTIFY_GENERIC | NOTIFY_STRING | NOTIFY_LIST | NOTIFY_SET | NOTIFY_HASH | NOTIFY_ZSET | NOTIFY_EXPIRED | \
     NOTIFY_EVICTED | NOTIFY_STREAM | NOTIFY_MODULE)

int notify_parse(const char *text) {
    int flags = 0;
    for (; *text; text++) {
        int flag = *text == 'A' ? ALL : 0;
        for (size_t i = 0; i < sizeof letters / sizeof *letters; i++)
            if (letters[i].letter == *text) flag = letters[i].flag;
        if (flag == 0) return -1;
        flags |= flag;
    }
    return flags;
}

void notify_text(int flags, char text[NOTIFY_TEXT_BYTES]) {
    bool all = (flags & ALL) == ALL;
    if (all) *text++ = 'A';
    for (size_t i = 0; i < sizeof letters / sizeof *letters; i++) {
        bool is_said = all && (letters[i].flag & (ALL | NOTIFY_NEW));
        if ((flags & letters[i].flag) && !is_said) *text++ = letters[i].letter;
    }
    *text = '\0';
}

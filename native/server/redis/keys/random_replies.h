/* random_replies: random elements of a collection, with repetitions: a short request can ask for a very long
 * reply. */
#ifndef REPLAY_SERVER_RANDOM_REPLIES_H
#define REPLAY_SERVER_RANDOM_REPLIES_H

#include "server/core/command.h"
#include "store/number.h"
#include "store/t_string.h"
#include "store/value.h"

struct random_element {
    const uint8_t *name;
    size_t length;
    struct string_view value; /* of a field of a hash */
    double score; /* of a member of a sorted set */
    char digits[NUMBER_INT64_TEXT]; /* room for a name that is a number */
};

struct random_kind {
    enum value_type type;
    void (*pick)(struct client *client, struct value *collection, struct random_element *element);
    void (*reply)(struct client *client, const struct random_element *element, bool with_value);
};

/* The count in argument 2, and whether the word is behind it; false: the error is replied. */
bool random_count_arguments(struct client *client, const char *word, int64_t *count, bool *with_values);
/* Replies an array of `count` elements of the collection, which is under the key in argument 1; with their values or
 * scores where wanted, which RESP3 has in pairs. Many are replied in slices, between which the collection may change, or
 * go: then one of its elements is repeated that was there. Where nothing else can run meanwhile very many are refused. */
void reply_repeated(struct client *client, struct value *collection, const struct random_kind *kind, uint64_t count,
                    bool with_value);

#endif

/* sort: what SORT puts in order: elements with their weights, and the patterns that lead from one to other keys. */
#ifndef REPLAY_SERVER_SORT_H
#define REPLAY_SERVER_SORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/core/client.h"
#include "server/redis/keys/keyspace.h"

/* Bytes that lie in a value, or in the digits of the elements. */
struct sort_text {
    const uint8_t *data; /* NULL: there is none */
    uint32_t length;
};

struct sort_element {
    struct sort_text text;
    union {
        double score;
        struct sort_text weight;
    };
};

enum sort_order {
    SORT_BY_SCORE,
    SORT_BY_TEXT,
    SORT_BY_WEIGHT, /* one without a weight comes first */
};

struct sort_digits; /* integers written out: stays where it is */

struct sort_elements {
    struct sort_element *elements;
    size_t count;
    struct sort_digits *digits;
};

/* Loads a list, a set or a sorted set, in its own order, or that reversed; of a list or a sorted set only `count` elements
 * from `first` on. False: memory exhausted. In any case freed by sort_elements_free. What is loaded refers to the value,
 * which must not change. */
bool sort_elements_load(struct sort_elements *elements, struct value *value, bool reversed, size_t first, size_t count);
size_t sort_value_count(const struct value *value);
/* The text of the view, which may be written over afterwards. False: memory exhausted. */
bool sort_elements_keep(struct sort_elements *elements, const struct string_view *view, struct sort_text *text);
/* Stable; those with equal scores are ordered by their text. False: memory exhausted. */
bool sort_elements_order(struct sort_elements *elements, enum sort_order order, bool descending);
void sort_elements_free(struct sort_elements *elements);

/* As strtod takes it whole, up to a zero byte, as Redis does. False: it is no number. */
bool sort_score(const uint8_t *text, size_t length, double *score);

/* BY and GET: a key with a star in it, for which the element stands, perhaps followed by -> and a field of a hash. */
struct sort_pattern {
    bool is_element; /* "#" */
    bool has_star;
    const uint8_t *prefix, *suffix, *field;
    size_t prefix_length, suffix_length, field_length; /* field_length 0: the key is a string */
};

struct sort_key_buffer {
    uint8_t *bytes;
    size_t capacity;
};

void sort_pattern_parse(const struct resp_argument *argument, struct sort_pattern *pattern);

enum sort_found { SORT_FOUND, SORT_MISSING, SORT_EXHAUSTED };
/* What the pattern leads to from this element. Changes nothing, so that what was found before stays. */
enum sort_found sort_pattern_find(struct client *client, const struct sort_pattern *pattern,
                                  const struct sort_text *element, struct sort_key_buffer *buffer,
                                  struct string_view *view);

#endif

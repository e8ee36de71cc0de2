/* sort_elements: the elements of a list, a set or a sorted set, and putting them in order. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "server/redis/keys/sort.h"
#include "store/t_set.h"
#include "store/t_zset.h"

#define DIGITS_BYTES 16000
#define SCORE_TEXT_BYTES 256 /* longer texts are copied to the heap to be read as numbers */
#define INSERTION_RUN 8      /* so many are sorted by insertion before runs are merged */

/* ---- loading ----------------------------------------------------------------------------------------------------- */

struct sort_digits {
    struct sort_digits *next;
    size_t used;
    uint8_t bytes[DIGITS_BYTES];
};

static uint8_t *digits_take(struct sort_elements *elements, size_t length) {
    if (!elements->digits || DIGITS_BYTES - elements->digits->used < length) {
        struct sort_digits *digits = memory_alloc(sizeof *digits);
        if (!digits) return NULL;
        digits->next = elements->digits;
        digits->used = 0;
        elements->digits = digits;
    }
    uint8_t *place = elements->digits->bytes + elements->digits->used;
    elements->digits->used += length;
    return place;
}

static bool keep(struct sort_elements *elements, const uint8_t *data, size_t length, bool passing,
                 struct sort_text *text) {
    uint8_t *place = NULL;
    if (passing) {
        place = digits_take(elements, length);
        if (!place) return false;
        memcpy(place, data, length);
    }
    *text = (struct sort_text){.data = passing ? place : data, .length = (uint32_t)length};
    return true;
}

bool sort_elements_keep(struct sort_elements *elements, const struct string_view *view, struct sort_text *text) {
    return keep(elements, view->data, view->length, view->data == (const uint8_t *)view->digits, text);
}

static bool load_list(struct sort_elements *elements, const struct list *list, bool reversed, size_t first,
                      size_t count) {
    if (count == 0) return true;
    struct list_position position = list_at(list, reversed ? list_length(list) - 1 - first : first);
    struct string_view view;
    for (; elements->count < count; elements->count++) {
        string_view(*list_element(position), &view);
        if (!sort_elements_keep(elements, &view, &elements->elements[elements->count].text)) return false;
        list_step(&position, reversed);
    }
    return true;
}

static bool load_set(struct sort_elements *elements, const struct value *set) {
    struct set_position position = {0};
    struct set_member member;
    for (; set_next(set, &position, &member); elements->count++) {
        bool passing = !member.data;
        set_member_text(&member);
        if (!keep(elements, member.data, member.length, passing, &elements->elements[elements->count].text))
            return false;
    }
    return true;
}

static bool load_zset(struct sort_elements *elements, const struct zset *zset, bool reversed, size_t first,
                      size_t count) {
    if (count == 0) return true;
    struct zset_position position;
    struct zset_item item;
    zset_seek(zset, reversed ? zset_count(zset) - first : first, &position);
    for (; elements->count < count; elements->count++) {
        if (reversed ? !zset_previous(zset, &position, &item) : !zset_next(zset, &position, &item)) break;
        elements->elements[elements->count].text = (struct sort_text){item.member, (uint32_t)item.length};
    }
    return true;
}

size_t sort_value_count(const struct value *value) {
    switch (value->type) {
    case VALUE_LIST: return (size_t)list_length((const struct list *)value);
    case VALUE_SORTED_SET: return (size_t)zset_count((const struct zset *)value);
    default: return set_count(value);
    }
}

bool sort_elements_load(struct sort_elements *elements, struct value *value, bool reversed, size_t first,
                        size_t count) {
    *elements = (struct sort_elements){0};
    if (value->type == VALUE_SET) count = set_count(value);
    elements->elements = memory_calloc(count > 0 ? count : 1, sizeof *elements->elements);
    if (!elements->elements) return false;
    if (value->type == VALUE_LIST) return load_list(elements, (const struct list *)value, reversed, first, count);
    if (value->type == VALUE_SORTED_SET) return load_zset(elements, (const struct zset *)value, reversed, first, count);
    return load_set(elements, value);
}

void sort_elements_free(struct sort_elements *elements) {
    memory_free(elements->elements);
    for (struct sort_digits *digits = elements->digits, *next; digits; digits = next) {
        next = digits->next;
        memory_free(digits);
    }
    *elements = (struct sort_elements){0};
}

/* ---- scores ------------------------------------------------------------------------------------------------------ */

static bool read_score(const char *text, double *score) {
    char *end;
    errno = 0;
    *score = strtod(text, &end);
    return *end == '\0' && errno != ERANGE && !isnan(*score);
}

bool sort_score(const uint8_t *text, size_t length, double *score) {
    int64_t integer;
    if (number_parse_int64(text, length, &integer)) {
        *score = (double)integer;
        return true;
    }
    char small[SCORE_TEXT_BYTES], *terminated = length < sizeof small ? small : memory_alloc(length + 1);
    if (!terminated) return false;
    if (length > 0) memcpy(terminated, text, length);
    terminated[length] = '\0';
    bool is_number = read_score(terminated, score);
    if (terminated != small) memory_free(terminated);
    return is_number;
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

static int compare_texts(const struct sort_text *a, const struct sort_text *b) {
    uint32_t shorter = a->length < b->length ? a->length : b->length;
    int order = shorter > 0 ? memcmp(a->data, b->data, shorter) : 0;
    if (order != 0) return order;
    return a->length < b->length ? -1 : a->length > b->length;
}

static int compare_weights(const struct sort_text *a, const struct sort_text *b) {
    if (!a->data || !b->data) return a->data == b->data ? 0 : !a->data ? -1 : 1;
    return compare_texts(a, b);
}

static int compare(const struct sort_element *a, const struct sort_element *b, enum sort_order order) {
    switch (order) {
    case SORT_BY_TEXT: return compare_texts(&a->text, &b->text);
    case SORT_BY_WEIGHT: return compare_weights(&a->weight, &b->weight);
    default:
        if (a->score != b->score) return a->score < b->score ? -1 : 1;
        return compare_texts(&a->text, &b->text);
    }
}

/* True where b belongs before a, which now stands before it. */
static bool is_misplaced(const struct sort_element *a, const struct sort_element *b, enum sort_order order,
                         bool descending) {
    int result = compare(a, b, order);
    return descending ? result < 0 : result > 0;
}

static void sort_run(struct sort_element *run, size_t count, enum sort_order order, bool descending) {
    for (size_t i = 1; i < count; i++) {
        struct sort_element moved = run[i];
        size_t at = i;
        for (; at > 0 && is_misplaced(&run[at - 1], &moved, order, descending); at--) run[at] = run[at - 1];
        run[at] = moved;
    }
}

static void merge(const struct sort_element *from, size_t middle, size_t count, struct sort_element *to,
                  enum sort_order order, bool descending) {
    size_t left = 0, right = middle;
    for (size_t i = 0; i < count; i++) {
        bool take_right =
            left == middle || (right < count && is_misplaced(&from[left], &from[right], order, descending));
        to[i] = take_right ? from[right++] : from[left++];
    }
}

bool sort_elements_order(struct sort_elements *elements, enum sort_order order, bool descending) {
    size_t count = elements->count;
    for (size_t i = 0; i < count; i += INSERTION_RUN)
        sort_run(elements->elements + i, count - i < INSERTION_RUN ? count - i : INSERTION_RUN, order, descending);
    if (count <= INSERTION_RUN) return true;
    struct sort_element *from = elements->elements, *to = memory_alloc(count * sizeof *to);
    if (!to) return false;
    for (size_t width = INSERTION_RUN; width < count; width *= 2) {
        for (size_t i = 0; i < count; i += 2 * width) {
            size_t both = count - i < 2 * width ? count - i : 2 * width;
            merge(from + i, width < both ? width : both, both, to + i, order, descending);
        }
        struct sort_element *merged = to;
        to = from;
        from = merged;
    }
    elements->elements = from;
    memory_free(to);
    return true;
}

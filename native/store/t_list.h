/* t_list: lists, as a deque of chunks of up to 128 strings: O(1) at both ends, O(n / 128) in the middle. */
#ifndef REPLAY_STORE_T_LIST_H
#define REPLAY_STORE_T_LIST_H

#include "store/value.h"

struct list_chunk;

struct list {
    struct value head;
    struct list_chunk *first, *last;
    uint64_t length;
};

struct list_position {
    struct list_chunk *chunk;
    uint32_t offset; /* within the chunk's elements */
};

struct list *list_new(void); /* NULL: memory exhausted */
static inline uint64_t list_length(const struct list *list) {
    return list->length;
}

/* The list takes the element over. False: memory exhausted, the element is still the caller's. */
bool list_push(struct list *list, bool at_head, struct value *element);
struct value *list_pop(struct list *list, bool at_head); /* the caller's; NULL when empty */

/* The position of element `index` (0 = head), which must be there. */
struct list_position list_at(const struct list *list, uint64_t index);
/* Steps to the next element, or the one before; false at the end, position then invalid. */
bool list_step(struct list_position *position, bool backwards);
struct value **list_element(struct list_position position);

/* Inserts before or behind the position, which is invalid afterwards. False: memory exhausted. */
bool list_insert(struct list *list, struct list_position position, bool after, struct value *element);
/* Takes the element out (the caller's then) and moves the position to its neighbour: the next one, or backwards the one
 * before; *more is false where there is none. */
struct value *list_remove(struct list *list, struct list_position *position, bool backwards, bool *more);

/* Moves whole chunks among the first (or last) `count` elements to `dropped`, an empty list, and frees the rest of
 * them, fewer than two chunks' worth. */
void list_drop(struct list *list, bool from_head, uint64_t count, struct list *dropped);

struct list *list_copy(const struct list *list); /* NULL: memory exhausted */
bool list_release(struct list *list, size_t *steps);
size_t list_memory_bytes(const struct list *list); /* extrapolated from the first chunk */

#endif

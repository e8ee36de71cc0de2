/* t_set_small: the two small forms of sets: a sorted array of integers, and few short members one behind the other. Both
 * are one allocation, which grows and shrinks with its contents. */
#ifndef REPLAY_STORE_T_SET_SMALL_H
#define REPLAY_STORE_T_SET_SMALL_H

#include "store/value.h"

struct set_integers {
    struct value head;
    uint32_t count;
    uint32_t width; /* bytes of each: 2, 4 or 8, as the largest of them needs */
    uint8_t data[];
};

/* Per member: a byte of length, then its bytes. */
struct set_packed {
    struct value head;
    uint32_t count;
    uint32_t used;
    uint8_t data[];
};

struct set_integers *set_integers_new(void); /* NULL: memory exhausted */
int64_t set_integers_at(const struct set_integers *set, uint32_t index);
/* Where the integer stands, or would; true when it is there. */
bool set_integers_find(const struct set_integers *set, int64_t integer, uint32_t *index);
/* Both may move the set. An integer must not be there yet. False: memory exhausted, nothing changed. */
bool set_integers_insert(struct set_integers **set, uint32_t index, int64_t integer);
void set_integers_delete(struct set_integers **set, uint32_t index);

struct set_packed *set_packed_new(void); /* NULL: memory exhausted */
/* Steps over the member at `offset`; false at the end. */
bool set_packed_next(const struct set_packed *set, uint32_t *offset, const uint8_t **data, size_t *length);
bool set_packed_find(const struct set_packed *set, const uint8_t *data, size_t length, uint32_t *offset);
/* As with integers: both may move the set, a member must not be there yet. */
bool set_packed_append(struct set_packed **set, const uint8_t *data, size_t length);
void set_packed_delete(struct set_packed **set, uint32_t offset);

#endif

/* t_set: sets: integers as a sorted array, few short members packed in one piece, otherwise a dict.
 *
 * The small forms lie right after their header, so that a small set is one allocation. Adding and removing may move a
 * set to another address, which the owner has to store. */
#ifndef REPLAY_STORE_T_SET_H
#define REPLAY_STORE_T_SET_H

#include "base/random.h"
#include "store/dict.h"
#include "store/number.h"
#include "store/value.h"

#define SET_INTEGERS 512      /* Redis's default for set-max-intset-entries */
#define SET_PACKED_MEMBERS 64 /* where walking all of them still takes no longer than hashing one */
#define SET_PACKED_BYTES 64   /* of the longest member that is packed */

/* A member: given, or found in a set, whose bytes it refers to until the set changes. Not to be copied. */
struct set_member {
    const uint8_t *data; /* NULL: an integer whose digits nobody has asked for; see set_member_text */
    size_t length;
    int64_t integer;
    uint32_t hash;
    bool hashed; /* `hash` is known */
    char digits[NUMBER_INT64_TEXT];
};

static inline void set_member_of(struct set_member *member, const uint8_t *data, size_t length) {
    member->data = data;
    member->length = length;
    member->hashed = false;
}
/* Makes sure that the member's bytes are in data and length. */
void set_member_text(struct set_member *member);

struct value *set_new(void); /* NULL: memory exhausted */
size_t set_count(const struct value *set);
bool set_contains(const struct value *set, struct set_member *member);

enum set_add_result {
    SET_ADD_PRESENT = 0,
    SET_ADD_ADDED = 1,
    SET_ADD_EXHAUSTED = -1, /* memory; the set has the members that it had */
};
/* These may move the set. A member to be added must not lie in it; one that is removed is gone. */
enum set_add_result set_add(struct value **set, struct set_member *member);
bool set_remove(struct value **set, struct set_member *member); /* false: not there */

struct set_position {
    uint32_t offset; /* in the small forms: index of an integer, or place of a packed member */
    struct dict_position position;
};
/* Walks all members, integers in ascending order; the set must not change in between. Start from a zeroed position; false
 * at the end. */
bool set_next(const struct value *set, struct set_position *position, struct set_member *member);
/* A member by chance; the set must not be empty. */
void set_random(struct value *set, struct random_state *random, struct set_member *member);
/* Goes on with moving a dict to another size. Whoever reads a set once in a while calls it; never while walking. */
void set_tidy(struct value *set);

struct value *set_copy(const struct value *set); /* in the same form; NULL: memory exhausted */
bool set_release(struct value *set, size_t *steps);
size_t set_memory_bytes(const struct value *set); /* a dict's is extrapolated from some of its members */

/* The dict, where the set has one, for scans; NULL: it is small. */
struct dict *set_dict(struct value *set);

#endif

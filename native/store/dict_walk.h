/* dict_walk: each entry of a dict exactly once, a bucket at a time, however the dict changes its size in between.
 *
 * A scan's cursor, read from its lowest bit on, only ever grows, and entries are passed in the order of their hashes read
 * so: whether one was passed can be told from its hash. Entries that come or go meanwhile are met if they were not passed
 * yet. */
#ifndef REPLAY_STORE_DICT_WALK_H
#define REPLAY_STORE_DICT_WALK_H

#include "store/dict.h"

/* Begin with zeros. */
struct dict_walk {
    uint64_t cursor;
    bool ended;
};

/* Visits the entries of the next bucket; `visit` must not change the dict. False: there are no more. */
bool dict_walk_step(struct dict_walk *walk, struct dict *dict, dict_visit visit, void *context);
bool dict_walk_has_passed(const struct dict_walk *walk, const struct dict_entry *entry);

#endif

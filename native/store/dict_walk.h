/* dict_walk: visits each entry of a dict exactly once, a bucket at a time, even if the dict changes its size in
 * between.
 *
 * A scan's cursor, read with its bits reversed, only grows, and entries are visited in the order of their reversed
 * hashes. So a hash tells whether its entry was passed. An entry that is added meanwhile is visited if the walk has
 * not passed its hash. */
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

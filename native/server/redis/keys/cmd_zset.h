/* cmd_zset: what the files of commands on sorted sets share. */
#ifndef REPLAY_SERVER_CMD_ZSET_H
#define REPLAY_SERVER_CMD_ZSET_H

#include "server/redis/keys/keyspace.h"
#include "store/t_zset.h"

static inline struct zset *zset_of(const struct dict_entry *entry) {
    return (struct zset *)store_value(entry);
}

/* The sorted set under the key named by argument `index`, for reading. False: an error is replied. *zset is NULL where
 * there is no key. */
bool zset_for_reading(struct client *client, uint32_t index, struct zset **zset);

/* A score as ZADD takes it; false: `error`, or "ERR value is not a valid float" where NULL, is replied. */
bool score_argument(struct client *client, uint32_t index, double *score, const char *error);
/* Replies a member, and its score where wanted: in RESP3 as a pair of its own. */
void reply_item(struct client *client, const struct zset_item *item, bool with_score);
/* The head of an array of `count` such replies. */
void reply_items_head(struct client *client, uint64_t count, bool with_scores);
/* Members [first, last) by rank of a set in the store, in order or backwards, with their head; or stored under argument
 * `index`, and counted in the reply. Many are replied or stored in slices: the handler does nothing after it. NULL: a set
 * that is not there. */
void reply_items(struct client *client, const struct zset *zset, uint64_t first, uint64_t last, bool backwards,
                 bool with_scores);
void zset_store_items(struct client *client, uint32_t index, const struct zset *zset, uint64_t first, uint64_t last);
/* All members of a set that is the command's own, from here. */
void reply_items_here(struct client *client, const struct zset *zset, bool with_scores);

struct zset_add_options {
    bool nx, xx, gt, lt, changed, increment;
};
/* Reads ZADD's words from argument 2 on, up to the first that is none; returns where that is. GEOADD knows NX, XX and CH
 * alone. */
uint32_t zset_add_words(struct client *client, bool all, struct zset_add_options *options);
/* Adds every `stride`-th argument from `first` on to the sorted set of argument 1, with these scores, and replies as ZADD
 * does. */
void zset_add(struct client *client, const struct zset_add_options *options, uint32_t first, uint32_t stride,
              const double *scores);

/* Removes members by rank, and the key with the last of them. The entry was found for writing. */
void zset_remove_from(struct client *client, struct dict_entry *entry, uint64_t first, uint64_t count);
/* Stores a result under argument `index`, in place of what is there, and replies how many members it has; an empty one
 * is freed and the key removed. NULL: memory is exhausted, which is replied. */
void zset_store_result(struct client *client, uint32_t index, struct zset *result);

#endif

/* replay_follow: the durable tables of a replica. They are what its primary has, cut at one offset, and change by records
 * alone (replay/table_apply.h), in one order with keys.
 *
 * A record names the slot that an item enters, and that slot must be free here as well. So nothing on a replica holds a slot:
 * clients cannot write, GET copies what it reads before the next record, and a snapshot copies at once what leaves. When the
 * replica becomes a primary, it looks for the free slots in slices, and its tables work as any others meanwhile. One with
 * max_times_sampled first looks at every item, and lets nothing in or out before, as after a change of settings: if new settings
 * were among the last records, it may still hold items that were sampled often enough. */
#ifndef REPLAY_SERVER_REPLAY_FOLLOW_H
#define REPLAY_SERVER_REPLAY_FOLLOW_H

#include "server/replay/replay_registry.h"

/* These tables, which are the registry's then, in the place of all durable ones, and of others of their names. -1: nothing has
 * changed. */
int replay_follow_adopt(struct replay_registry *registry, struct table *const *tables, uint32_t count,
                        struct error *error);
/* -1: it is refused, and the table is gone: all tables have to be sent again. A reset, or new settings, of a large table leave
 * work, and the next record may come when that is done. */
int replay_follow_apply(struct replay_registry *registry, const char *name, const uint8_t *record, size_t length,
                        struct error *error);
/* Does a slice of such work. True: there is more. */
bool replay_follow_step(struct replay_registry *registry);
/* The tables are this server's own from here on, and what looks at every slot or item is done in slices. `streams`: its
 * replicas, which have them as well, are told what happens to them. False: there is no memory to tell it of one of them. */
bool replay_follow_end(struct replay_registry *registry, bool streams);

#endif

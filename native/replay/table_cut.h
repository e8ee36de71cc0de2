/* table_cut: a table as it is at one moment, written out piece by piece while it goes on changing.
 *
 * table_cut_begin is the moment; it copies nothing but counters. From then on table_cut_step hands out records of what
 * was there, and the table's own code calls the hooks below before it changes anything: what the index says of 64 slots is
 * handed out before the first of them changes, and the bytes of an item that leaves before its turn stay in their slot
 * (it is held, as if a reply in flight pinned it), or, where too many are held, are handed out at once. Items that enter
 * after the moment are none of the cut's business. Each item goes out once. Where items see steps these are held, and an item
 * that leaves is handed out at once, since it is small.
 *
 * The cost: one test and branch a change while no cut is under way; memory for one bit a slot, one bit for 64 slots, and
 * the items held. Records are in no order, save that what the index says of an item comes before its bytes; table_restore.h
 * reads them. docs/snapshot.md gives them byte by byte. */
#ifndef REPLAY_REPLAY_TABLE_CUT_H
#define REPLAY_REPLAY_TABLE_CUT_H

#include "base/msgpack.h"
#include "replay/cut_sink.h"
#include "replay/table_state.h"

/* Begins a cut; a table can have one. At most `held_bytes` of items or steps that left are kept in their slots. -1 when memory is
 * exhausted. */
int table_cut_begin(struct table *table, struct table_cut_sink *sink, uint64_t held_bytes, struct error *error);
/* Writes what table_restore_begin wants to know beside the records: a msgpack map. To be called at the moment of the cut. */
void table_cut_describe(const struct table *table, struct msgpack_writer *writer);
/* Hands out the next few records (about TABLE_CUT_RECORD_BYTES); false when there are no more, or the cut has failed. */
bool table_cut_step(struct table *table);
/* The sink had no room when something had to be handed out: what was written is of no use. */
bool table_cut_failed(const struct table *table);
void table_cut_end(struct table *table); /* gives back what is held */

#endif

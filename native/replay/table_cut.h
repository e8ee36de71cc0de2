/* table_cut: a table as it is at one moment, the cut, written out piece by piece while the table goes on changing.
 *
 * table_cut_begin is the moment; it copies nothing but counters. table_cut_step then hands out records of what was there:
 *   - What the index says of 64 slots is one record, the chunk. The table calls table_cut_before_change before it changes
 *     anything that a chunk says of a slot, and a store of slots before it enters one or gives one back; the first such call
 *     writes the chunk. So every chunk is written once, as it was at the cut.
 *   - The bytes of items and of steps are handed out by slot_cut.h, each once. What the index says of an item comes before
 *     its bytes: they are handed out in turn after all chunks, and out of turn only when they are about to go, which is after
 *     a call that wrote the chunk.
 *   - What enters after the moment is none of the cut's business: a chunk says that its slot held nothing.
 * It would break if a field of `struct slot`, an age or a priority were written without the call.
 *
 * The cost: one test and branch a change while no cut is under way; memory for one bit a slot, one bit for 64 slots, and the
 * slots held. Where items see steps, the steps are held, and an item that leaves is handed out at once, since it is small.
 * table_restore.h reads the records. docs/snapshot.md gives them byte by byte. */
#ifndef REPLAY_REPLAY_TABLE_CUT_H
#define REPLAY_REPLAY_TABLE_CUT_H

#include "base/msgpack.h"
#include "replay/cut_sink.h"
#include "replay/table_state.h"

#define TABLE_CUT_CHUNK 64u /* slots that are described together */

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

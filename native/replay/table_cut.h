/* table_cut: writes out a table piece by piece, as it was at one moment, the cut, while the table changes.
 *
 * table_cut_begin is the moment; it copies nothing but counters. table_cut_step then hands out records of the table
 * at that moment:
 *   - A chunk is one record with what the index says of 64 slots. table_cut_before_change is called before anything
 *     in a chunk changes: by the table, and by a store of slots before it enters a slot or gives one back. The first
 *     such call writes the chunk. So every chunk is written once, as it was at the cut.
 *   - slot_cut.h hands out the bytes of items and steps, each once. An item's chunk comes before its bytes: bytes are
 *     handed out after all chunks, or earlier if their slot is about to be freed, and that is after a call that wrote
 *     the chunk.
 *   - What enters after the moment is not part of the cut: the chunk says that its slot held nothing.
 * This would break if a field of `struct slot`, an age or a priority were written without that call.
 *
 * The cost: one test and branch for each change while no cut is under way; during a cut, memory for one bit a slot,
 * one bit for each 64 slots, and the slots that are kept. In a table with windows the steps are kept, and an item
 * that leaves is handed out at once, because it is small. table_restore.h reads the records. docs/snapshot.md gives
 * them byte by byte. */
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

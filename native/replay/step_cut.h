/* step_cut: the steps of a table as they are at one moment, handed out piece by piece: those that are there at the cut, and
 * still are, or are held in their slots for it after their last reference went. Part of table_cut.h. */
#ifndef REPLAY_REPLAY_STEP_CUT_H
#define REPLAY_REPLAY_STEP_CUT_H

#include <stdbool.h>

#include "replay/cut_sink.h"
#include "replay/step_store.h"

/* -1: memory is exhausted. At most `held_limit` steps stay in their slots. */
int step_cut_begin(struct step_store *store, struct table_cut_sink *sink, uint32_t held_limit);
/* Hands out the next record; false when there are no more, or the sink had no room. */
bool step_cut_step(struct step_store *store);
bool step_cut_failed(const struct step_store *store);
void step_cut_end(struct step_store *store); /* gives back what is held; NULL-safe: without a cut it does nothing */

#endif

/* table_adopt: gives one table the settings of another that differs from it in nothing else, as after a restore. */
#ifndef REPLAY_REPLAY_TABLE_ADOPT_H
#define REPLAY_REPLAY_TABLE_ADOPT_H

#include "replay/table.h"

/* Puts the settings of `given` over those of `table`; `*changed` says whether any differed, and the table may then have work
 * left. -1 with ERROR_EXISTS: they differ in what a live table cannot change; nothing has changed. */
int table_adopt(struct table *table, const struct table_config *given, bool *changed, struct error *error);

#endif

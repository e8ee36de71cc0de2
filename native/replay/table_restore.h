/* table_restore: makes a table anew from what table_cut wrote of one: the same items under the same ids, in the same
 * order, with their priorities and counts; the same counters, limits and random state. Nothing in the records is
 * trusted: each is checked, and a table is made only if all of them are there. The records may come in any order in
 * which an item's index comes before its bytes. */
#ifndef REPLAY_REPLAY_TABLE_RESTORE_H
#define REPLAY_REPLAY_TABLE_RESTORE_H

#include "replay/table_cut.h"

struct table_restore;

/* From the map that table_cut_describe wrote. NULL with `error` set. */
struct table_restore *table_restore_begin(const uint8_t *description, size_t length, struct error *error);
/* Of a table with steps_of, before any of its records: `owner` is the restore of that table. Its finish comes after this
 * one's, and then table_apply_settle of this table. -1 with `error` set. */
int table_restore_share(struct table_restore *restore, struct table_restore *owner, struct error *error);
const struct table_config *table_restore_config(const struct table_restore *restore);
int table_restore_record(struct table_restore *restore, uint32_t kind, const uint8_t *body, size_t length,
                         struct error *error);
/* The table. NULL with `error` set when something is missing or does not fit. `restore` is gone either way. */
struct table *table_restore_finish(struct table_restore *restore, struct error *error);
void table_restore_free(struct table_restore *restore); /* gives up; NULL is allowed */

#endif

/* table_apply: a table made again out of the records of its journal (table_journal.h). Nothing of a record is trusted: what
 * cannot follow from the table as it is, is refused, with what was expected.
 *
 * While records are applied slots are taken by the numbers that the records name, and what is given back is not kept for
 * reuse. Nothing else may enter meanwhile. At the end the free slots are found; from then on the table is as any other. */
#ifndef REPLAY_REPLAY_TABLE_APPLY_H
#define REPLAY_REPLAY_TABLE_APPLY_H

#include "replay/table_journal.h"

/* The kind of a record; 0: it is none. */
uint32_t table_apply_kind(const uint8_t *record, size_t length);
const uint8_t *table_apply_body(const uint8_t *record, size_t length, size_t *body_length); /* what follows the head */

/* The table of a TABLE_JOURNAL_CREATE, to which more can be applied at once. */
struct table *table_apply_create(const uint8_t *record, size_t length, const char *name, struct error *error);
void table_apply_begin(struct table *table); /* of one that was restored: it takes records from now on */
/* All kinds but those of its beginning and its end. -1: it is refused, and the table is of no use any more. A reset and
 * new settings look at every item, which is work of table_step. Until table_has_work is false no other record may be given, neither
 * to this table, which refuses it, nor to one that shares steps with it. */
int table_apply(struct table *table, const uint8_t *record, size_t length, struct error *error);
/* Records end. Free slots are found by table_step, and items can enter before. */
void table_apply_stop(struct table *table);
void table_apply_end(struct table *table); /* the same, with all that is to be done */
/* Afterwards, when changes are told again: lets go of what the settings do not allow, where a record of new settings was the
 * last, or one of the last. And of a restored table that shares steps, once their owner is restored. */
void table_apply_settle(struct table *table);
void table_apply_begin_to_settle(struct table *table); /* table_step does it */

#endif

/* slot_record: the slots of a store as they stand in a snapshot: a number of slots, which they are, what each of them sees,
 * and then each column of all of them, in the order of the signature.
 *
 *   u32 n; u32 slots[n]; u32 list[n][list_length]; of each column n values; where it is coded, u32 sizes[n] and n blocks;
 *   where it is ragged, u32 lengths[n] and the rows of n values
 *
 * docs/snapshot.md tells of it byte by byte (kinds 3 and 4). */
#ifndef REPLAY_REPLAY_SLOT_RECORD_H
#define REPLAY_REPLAY_SLOT_RECORD_H

#include "replay/slot_store.h"

#define SLOT_RECORD_MOST 64u /* slots in one */

/* Of n occupied slots; what write fills. */
size_t slot_record_bytes(const struct slot_store *store, const uint32_t *slots, uint32_t n);
void slot_record_write(const struct slot_store *store, const uint32_t *slots, uint32_t n, uint8_t *to);

/* Nothing that is read is trusted. First which slots a record is of: NULL, or why it is no record. Nothing is changed. */
const char *slot_record_read_slots(const struct slot_store *store, const uint8_t *body, size_t length, uint32_t *slots,
                                   uint32_t *n);
/* Then what those slots hold, once the caller has found that they may hold it: NULL, or what is wrong with it. A list is
 * taken as it is: it can be checked when all slots of the other store are there. */
const char *slot_record_read(struct slot_store *store, const uint8_t *body, size_t length);

#endif

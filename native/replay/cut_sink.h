/* cut_sink: where the records of a table's cut go, and what kinds there are. */
#ifndef REPLAY_REPLAY_CUT_SINK_H
#define REPLAY_REPLAY_CUT_SINK_H

#include <stddef.h>
#include <stdint.h>

enum table_record {
    TABLE_RECORD_SLOTS = 2, /* generation, times sampled, age, priority of up to 64 slots; which of them hold an item */
    TABLE_RECORD_ITEMS = 3, /* bytes of items, and which steps they see */
    TABLE_RECORD_STEPS = 4 /* bytes of steps */
};

#define TABLE_CUT_RECORD_BYTES (128u << 10) /* of items or steps in one record, unless a single one is larger */

/* Embedded in something of the owner's. */
struct table_cut_sink {
    /* Room for a record, to be filled before the next call. NULL: there is none; the cut has then failed. */
    uint8_t *(*record)(struct table_cut_sink *sink, enum table_record kind, size_t bytes);
};

#endif

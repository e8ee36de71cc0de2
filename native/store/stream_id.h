/* stream_id: ids of the entries of streams: a time in milliseconds and a number within it, in this order. */
#ifndef REPLAY_STORE_STREAM_ID_H
#define REPLAY_STORE_STREAM_ID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct xstream_id {
    uint64_t ms, sequence;
};

#define XSTREAM_ID_TEXT 44u /* two uint64, a dash, a terminator */
#define XSTREAM_ID_FIRST ((struct xstream_id){0, 0})
#define XSTREAM_ID_LAST ((struct xstream_id){UINT64_MAX, UINT64_MAX})

static inline int xstream_id_compare(struct xstream_id left, struct xstream_id right) {
    if (left.ms != right.ms) return left.ms < right.ms ? -1 : 1;
    return left.sequence == right.sequence ? 0 : left.sequence < right.sequence ? -1 : 1;
}
static inline bool xstream_id_is_zero(struct xstream_id id) {
    return id.ms == 0 && id.sequence == 0;
}
/* The id after this one, or before it; false: there is none, it is as it was. */
bool xstream_id_increment(struct xstream_id *id);
bool xstream_id_decrement(struct xstream_id *id);
/* "ms-sequence"; returns the length. */
size_t xstream_id_format(struct xstream_id id, char text[XSTREAM_ID_TEXT]);

#endif

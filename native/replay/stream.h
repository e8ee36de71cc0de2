/* stream: one writer's sequence of steps, its episodes, and which of its last steps a window shows.
 *
 * The last `history` steps are kept in a ring, each with the number of its episode's first step. So the beginning of
 * an episode is known at once, and its end is found by bisection. */
#ifndef REPLAY_REPLAY_STREAM_H
#define REPLAY_REPLAY_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "replay/slot_store.h"
#include "replay/table.h"

struct stream_step {
    uint64_t episode; /* number of its episode's first step */
    uint32_t step;    /* slot in the step store */
};

struct stream {
    struct table *table;
    struct stream *previous, *next; /* among the table's */
    uint64_t steps;                 /* appended so far: the number of the next one */
    uint64_t episode;               /* number of the first step of the newest episode */
    bool open;                      /* the newest episode goes on */
    uint32_t history;
    uint32_t expected; /* steps of one append that have still to enter (reservation_expect) */
    uint32_t cleared; /* of the steps that it keeps, how many of the oldest were given back already */
    struct stream_step ring[];
};

/* Number of the oldest step that is still known. */
static inline uint64_t stream_oldest(const struct stream *stream) {
    return stream->steps > stream->history ? stream->steps - stream->history : 0;
}

static inline const struct stream_step *stream_at(const struct stream *stream, uint64_t number) {
    return &stream->ring[number % stream->history];
}

/* Appends a live step, whose reference the stream takes over; the step that leaves the history loses its own. */
void stream_append(struct stream *stream, struct slot_store *store, uint32_t step, uint8_t flags);
/* Gives at most `most` of its references back, the oldest first, and returns how many. The stream is good for
 * nothing else then. */
uint32_t stream_clear(struct stream *stream, struct slot_store *store, uint32_t most);

/* Writes the slots of the steps that the window (length >= 1, offset) of an item at step `number` shows; takes no
 * references. -1 where a step is not there yet, or has left the history. */
int stream_window(const struct stream *stream, uint64_t number, uint32_t length, int32_t offset, uint32_t *steps,
                  struct error *error);

/* Writes the places of a ragged window of at most `most` steps (item_windows.h), and takes no references. -1 where a step is not
 * there yet, or has left the history, or where the span is longer or goes beyond its episode. */
int stream_span(const struct stream *stream, const struct table_span *span, uint32_t most, uint32_t *steps,
                struct error *error);

#endif

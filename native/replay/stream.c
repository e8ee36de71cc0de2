/* stream: the ring of a stream's last steps, and windows over it. */
#include "replay/stream.h"

#include <inttypes.h>

void stream_append(struct stream *stream, struct slot_store *store, uint32_t step, uint8_t flags) {
    if (!stream->open || flags & STEP_FIRST) stream->episode = stream->steps;
    stream->open = !(flags & STEP_LAST);
    struct stream_step *entry = &stream->ring[stream->steps % stream->history];
    if (stream->steps >= stream->history) slot_store_drop(store, entry->step);
    *entry = (struct stream_step){stream->episode, step};
    stream->steps++;
}

void stream_end_episode(struct stream *stream) {
    stream->open = false;
}

uint32_t stream_clear(struct stream *stream, struct slot_store *store, uint32_t most) {
    uint64_t number = stream_oldest(stream) + stream->cleared, left = stream->steps - number;
    uint32_t n = left < most ? (uint32_t)left : most;
    for (uint32_t i = 0; i < n; i++) slot_store_drop(store, stream_at(stream, number + i)->step);
    stream->cleared += n;
    return n;
}

static int refuse_past(const struct stream *stream, uint64_t number, struct error *error) {
    return error_set(error, ERROR_GENERIC,
                     "step %" PRIu64 " is no longer among the last %" PRIu32 " of its stream, which has %" PRIu64
                     " steps; make items sooner, or begin the stream with a larger history",
                     number, stream->history, stream->steps);
}

/* The last step of the episode of step `number` that is not after `most`; both are in the ring. */
static uint64_t last_of_episode(const struct stream *stream, uint64_t number, uint64_t most) {
    uint64_t episode = stream_at(stream, number)->episode, low = number, high = most;
    while (low < high) {
        uint64_t middle = high - (high - low) / 2;
        if (stream_at(stream, middle)->episode == episode)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Number of the step that a window ends at. */
static int end_of_window(const struct stream *stream, uint64_t number, int32_t offset, uint64_t *end,
                         struct error *error) {
    uint64_t episode = stream_at(stream, number)->episode, newest = stream->steps - 1;
    if (offset <= 0) {
        uint64_t back = (uint64_t)-(int64_t)offset;
        *end = number - episode >= back ? number - back : episode;
        return 0;
    }
    uint64_t target = number + (uint64_t)offset;
    if (target > newest && stream->open && stream->episode == episode) {
        return error_set(error, ERROR_GENERIC,
                         "a window of the item at step %" PRIu64 " reaches to step %" PRIu64
                         ", and its stream has %" PRIu64
                         " steps in an open episode; append those steps first, or end the episode",
                         number, target, stream->steps);
    }
    *end = last_of_episode(stream, number, target < newest ? target : newest);
    return 0;
}

int stream_window(const struct stream *stream, uint64_t number, uint32_t length, int32_t offset, uint32_t *steps,
                  struct error *error) {
    if (number >= stream->steps) {
        return error_set(error, ERROR_GENERIC,
                         "step %" PRIu64 " is not there yet: its stream has %" PRIu64 " steps; append it first", number,
                         stream->steps);
    }
    if (number < stream_oldest(stream)) return refuse_past(stream, number, error);
    uint64_t end, episode = stream_at(stream, number)->episode;
    if (end_of_window(stream, number, offset, &end, error)) return -1;
    uint64_t least = end - episode >= length - 1 ? end - (length - 1) : episode;
    if (least < stream_oldest(stream)) return refuse_past(stream, least, error);
    uint32_t repeated = length - (uint32_t)(end - least + 1); /* the episode's first, before it began */
    for (uint32_t i = 0; i < length; i++)
        steps[i] = stream_at(stream, i < repeated ? least : least + (i - repeated))->step;
    return 0;
}

int stream_span(const struct stream *stream, const struct table_span *span, uint32_t most, uint32_t *steps,
                struct error *error) {
    uint64_t first = span->first, count = span->count;
    if (count > most) {
        return error_set(error, ERROR_BADSHAPE,
                         "a ragged window shows at most %" PRIu32 " steps (its max_length), got %" PRIu64, most, count);
    }
    if (count > 0 && (first >= stream->steps || count > stream->steps - first)) {
        return error_set(error, ERROR_GENERIC,
                         "%" PRIu64 " steps from step %" PRIu64 " on are not there yet: their stream has %" PRIu64
                         " steps; append them first",
                         count, first, stream->steps);
    }
    if (count > 0 && first < stream_oldest(stream)) return refuse_past(stream, first, error);
    if (count > 0 && stream_at(stream, first)->episode != stream_at(stream, first + count - 1)->episode) {
        return error_set(error, ERROR_GENERIC,
                         "%" PRIu64 " steps from step %" PRIu64
                         " on are of more than one episode; an item shows steps of one",
                         count, first);
    }
    for (uint32_t i = 0; i < most; i++) steps[i] = i < count ? stream_at(stream, first + i)->step : SLOT_NONE;
    if (count < most) steps[most - 1] = SLOT_STEPS_MOST + (uint32_t)count;
    return 0;
}

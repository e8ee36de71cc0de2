/* stream_piece: streams as parts, and back.
 *
 * A consumer belongs to the group before it, what is pending to the consumer before it. Groups and consumers are written in
 * the order of their names, so that the one before is the last of the list when it is read. */
#include "persist/stream_piece.h"

#include <string.h>

enum part_kind { PART_NUMBERS, PART_BLOCK, PART_GROUP, PART_CONSUMER, PART_PENDING };

uint64_t stream_piece_parts(const struct xstream *stream) {
    uint64_t parts = 1 + stream->blocks.count;
    for (uint32_t i = 0; i < stream->groups.names.count; i++) {
        const struct xstream_group *group = xstream_group_at(&stream->groups, i);
        parts += 1 + group->consumers.count + group->pending.count;
    }
    return parts;
}

/* ---- writing ------------------------------------------------------------------------------------------------------- */

static void begin_part(struct stream_part *part, enum part_kind kind, const uint8_t *data, size_t length) {
    *part = (struct stream_part){.head = {(uint8_t)kind}, .head_length = 1, .data = data, .length = length};
}

static void put_number(struct stream_part *part, uint64_t number) {
    for (unsigned i = 0; i < 8; i++) part->head[part->head_length++] = (uint8_t)(number >> (8 * i));
}

static void put_id(struct stream_part *part, struct xstream_id id) {
    put_number(part, id.ms);
    put_number(part, id.sequence);
}

static bool next_block(const struct xstream *stream, struct stream_piece_walk *walk, struct stream_part *part) {
    if (walk->blocks_ended) return false;
    if (!walk->position.leaf) walk->position = id_index_first(&stream->blocks);
    walk->blocks_ended = !walk->position.leaf;
    if (walk->blocks_ended) return false;
    const struct id_slot *slot = id_index_slot(walk->position);
    begin_part(part, PART_BLOCK, slot->value, listpack_bytes(slot->value));
    put_id(part, slot->id);
    walk->position = id_index_next(walk->position);
    walk->blocks_ended = !walk->position.leaf;
    return true;
}

static bool next_pending(const struct xstream_consumer *consumer, struct stream_piece_walk *walk,
                         struct stream_part *part) {
    if (!walk->pending_begun) walk->position = id_index_first(&consumer->pending);
    walk->pending_begun = true;
    if (!walk->position.leaf) return false;
    const struct id_slot *slot = id_index_slot(walk->position);
    const struct xstream_pending *pending = slot->value;
    begin_part(part, PART_PENDING, NULL, 0);
    put_id(part, slot->id);
    put_number(part, (uint64_t)pending->delivered_ms);
    put_number(part, pending->deliveries);
    walk->position = id_index_next(walk->position);
    return true;
}

/* What is pending with the consumer before, or the next consumer. */
static bool next_of_group(const struct xstream_group *group, struct stream_piece_walk *walk, struct stream_part *part) {
    if (walk->consumers_begun) {
        if (next_pending(xstream_consumer_at(group, walk->consumer), walk, part)) return true;
        walk->consumer++;
    }
    walk->pending_begun = false;
    if (walk->consumer >= group->consumers.count) return false;
    walk->consumers_begun = true;
    const struct xstream_consumer *consumer = xstream_consumer_at(group, walk->consumer);
    begin_part(part, PART_CONSUMER, consumer->name.bytes, consumer->name.length);
    put_number(part, (uint64_t)consumer->seen_ms);
    return true;
}

bool stream_piece_next(const struct xstream *stream, struct stream_piece_walk *walk, struct stream_part *part) {
    if (!walk->begun) {
        walk->begun = true;
        begin_part(part, PART_NUMBERS, NULL, 0);
        put_id(part, stream->last_id);
        put_id(part, stream->max_deleted_id);
        put_number(part, stream->entries_added);
        return true;
    }
    if (next_block(stream, walk, part)) return true;
    if (walk->group > 0 && next_of_group(xstream_group_at(&stream->groups, walk->group - 1), walk, part)) return true;
    if (walk->group == stream->groups.names.count) return false;
    const struct xstream_group *group = xstream_group_at(&stream->groups, walk->group++);
    walk->consumers_begun = false;
    walk->consumer = 0;
    begin_part(part, PART_GROUP, group->name.bytes, group->name.length);
    put_id(part, group->last_id);
    put_number(part, (uint64_t)group->entries_read);
    return true;
}

/* ---- reading ------------------------------------------------------------------------------------------------------- */

struct reading {
    const uint8_t *at;
    size_t left;
    bool short_of;
};

static uint64_t take_number(struct reading *reading) {
    uint64_t number = 0;
    if (reading->left < 8) {
        reading->short_of = true;
        return 0;
    }
    for (unsigned i = 0; i < 8; i++) number |= (uint64_t)reading->at[i] << (8 * i);
    reading->at += 8;
    reading->left -= 8;
    return number;
}

static struct xstream_id take_id(struct reading *reading) {
    struct xstream_id id;
    id.ms = take_number(reading);
    id.sequence = take_number(reading);
    return id;
}

static const char *const malformed = "a part of a stream is malformed";

static const char *add_block(struct xstream *stream, struct reading *reading) {
    struct xstream_id id = take_id(reading);
    if (reading->short_of) return malformed;
    const char *wrong = xstream_append_block(stream, id, reading->at, reading->left);
    if (wrong) return wrong;
    if (xstream_id_compare(xstream_edge(stream, true), stream->last_id) > 0)
        return "a stream holds an entry behind its last id";
    return "";
}

static struct xstream_group *last_group(const struct xstream *stream) {
    uint32_t count = stream->groups.names.count;
    return count > 0 ? xstream_group_at(&stream->groups, count - 1) : NULL;
}

static const char *add_group(struct xstream *stream, struct reading *reading) {
    struct xstream_id last_id = take_id(reading);
    int64_t entries_read = (int64_t)take_number(reading);
    if (reading->short_of) return malformed;
    if (xstream_group_find(&stream->groups, reading->at, reading->left)) return "a group of a stream is there twice";
    struct xstream_group *group = xstream_group_add(&stream->groups, reading->at, reading->left, last_id, entries_read);
    if (!group) return NULL;
    return last_group(stream) == group ? "" : "groups of a stream are out of order";
}

static const char *add_consumer(const struct xstream *stream, struct reading *reading) {
    struct xstream_group *group = last_group(stream);
    int64_t seen_ms = (int64_t)take_number(reading);
    if (!group || reading->short_of) return malformed;
    if (xstream_consumer_find(group, reading->at, reading->left)) return "a consumer of a stream is there twice";
    struct xstream_consumer *consumer = xstream_consumer_add(group, reading->at, reading->left, seen_ms);
    if (!consumer) return NULL;
    bool is_last = xstream_consumer_at(group, group->consumers.count - 1) == consumer;
    return is_last ? "" : "consumers of a stream are out of order";
}

static const char *add_pending(const struct xstream *stream, struct reading *reading) {
    struct xstream_group *group = last_group(stream);
    struct xstream_id id = take_id(reading);
    int64_t delivered_ms = (int64_t)take_number(reading);
    uint64_t deliveries = take_number(reading);
    if (!group || group->consumers.count == 0 || reading->short_of || reading->left > 0) return malformed;
    if (xstream_pending_find(group, id)) return "an entry of a stream is pending twice";
    struct xstream_pending *pending =
        xstream_pending_give(group, xstream_consumer_at(group, group->consumers.count - 1), id);
    if (!pending) return NULL;
    pending->delivered_ms = delivered_ms;
    xstream_pending_set_deliveries(pending, deliveries);
    return "";
}

const char *stream_piece_add(struct xstream *stream, const uint8_t *part, size_t length) {
    if (length == 0) return malformed;
    struct reading reading = {part + 1, length - 1, false};
    switch ((enum part_kind)part[0]) {
    case PART_NUMBERS:
        stream->last_id = take_id(&reading);
        stream->max_deleted_id = take_id(&reading);
        stream->entries_added = take_number(&reading);
        return reading.short_of || reading.left > 0 ? malformed : "";
    case PART_BLOCK: return add_block(stream, &reading);
    case PART_GROUP: return add_group(stream, &reading);
    case PART_CONSUMER: return add_consumer(stream, &reading);
    case PART_PENDING: return add_pending(stream, &reading);
    }
    return malformed;
}

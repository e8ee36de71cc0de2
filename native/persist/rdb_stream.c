/* rdb_stream: streams in Redis's forms.
 *
 * What is pending stands there twice: once for the group, with times and counts, and once for each consumer, ids alone. So the
 * group's list is passed over first, and read when its consumers have said whose each entry is: an entry of one list alone
 * is damage. */
#include "persist/rdb_stream.h"

#include "persist/rdb_format.h"

#define ID_BYTES 16u

/* ---- writing ---------------------------------------------------------------------------------------------------------- */

static void put_raw_id(uint8_t bytes[ID_BYTES], struct xstream_id id) {
    for (unsigned i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)(id.ms >> (56 - 8 * i));
        bytes[8 + i] = (uint8_t)(id.sequence >> (56 - 8 * i));
    }
}

static void write_raw_id(struct rdb_writer *writer, struct xstream_id id) {
    uint8_t bytes[ID_BYTES];
    put_raw_id(bytes, id);
    piece_bytes_add(&writer->bytes, bytes, sizeof bytes);
}

static void write_id(struct rdb_writer *writer, struct xstream_id id) {
    rdb_write_length(writer, id.ms);
    rdb_write_length(writer, id.sequence);
}

/* `whole`: with times and counts. */
static bool write_pending(struct rdb_writer *writer, const struct id_index *pending, bool whole,
                          struct rdb_pace *pace) {
    rdb_write_length(writer, pending->count);
    for (struct id_position at = id_index_first(pending); at.leaf; at = id_index_next(at)) {
        const struct id_slot *slot = id_index_slot(at);
        const struct xstream_pending *entry = slot->value;
        write_raw_id(writer, slot->id);
        if (whole) {
            rdb_write_little_endian(writer, (uint64_t)entry->delivered_ms, 8);
            rdb_write_length(writer, entry->deliveries);
        }
        if (!rdb_goes_on(pace)) return false;
    }
    return true;
}

static bool write_group(struct rdb_writer *writer, const struct xstream_group *group, struct rdb_pace *pace) {
    rdb_write_string(writer, group->name.bytes, group->name.length);
    write_id(writer, group->last_id);
    rdb_write_length(writer, (uint64_t)group->entries_read);
    if (!write_pending(writer, &group->pending, true, pace)) return false;
    rdb_write_length(writer, group->consumers.count);
    for (uint32_t i = 0; i < group->consumers.count; i++) {
        const struct xstream_consumer *consumer = xstream_consumer_at(group, i);
        rdb_write_string(writer, consumer->name.bytes, consumer->name.length);
        rdb_write_little_endian(writer, (uint64_t)consumer->seen_ms, 8);
        if (!write_pending(writer, &consumer->pending, false, pace)) return false;
    }
    return true;
}

bool rdb_write_stream(struct rdb_writer *writer, const struct xstream *stream, const struct rdb_rest *rest) {
    struct rdb_pace pace = {.rest = rest};
    rdb_write_length(writer, stream->blocks.count);
    for (struct id_position at = id_index_first(&stream->blocks); at.leaf; at = id_index_next(at)) {
        const struct id_slot *slot = id_index_slot(at);
        uint8_t id[ID_BYTES];
        put_raw_id(id, slot->id);
        rdb_write_string(writer, id, sizeof id);
        rdb_write_string(writer, slot->value, listpack_bytes(slot->value));
        if (!rdb_goes_on(&pace)) return false;
    }
    rdb_write_length(writer, stream->length);
    write_id(writer, stream->last_id);
    write_id(writer, stream->first_id);
    write_id(writer, stream->max_deleted_id);
    rdb_write_length(writer, stream->entries_added);
    rdb_write_length(writer, stream->groups.names.count);
    for (uint32_t i = 0; i < stream->groups.names.count; i++)
        if (!write_group(writer, xstream_group_at(&stream->groups, i), &pace)) return false;
    return true;
}

/* ---- reading ---------------------------------------------------------------------------------------------------------- */

struct reading {
    struct rdb_reader *reader;
    struct xstream *stream;
    uint8_t type;
    struct rdb_pace pace;
};

static bool problem(const struct reading *reading, const char *what) {
    return rdb_problem(reading->reader, reading->reader->at, "%s", what);
}

static struct xstream_id raw_id(const uint8_t *bytes) {
    struct xstream_id id = {0};
    for (unsigned i = 0; i < 8; i++) {
        id.ms = id.ms << 8 | bytes[i];
        id.sequence = id.sequence << 8 | bytes[8 + i];
    }
    return id;
}

static bool read_raw_id(struct rdb_reader *reader, struct xstream_id *id) {
    const uint8_t *bytes;
    if (!rdb_read_bytes(reader, ID_BYTES, &bytes)) return false;
    *id = raw_id(bytes);
    return true;
}

static bool read_id(struct rdb_reader *reader, struct xstream_id *id) {
    return rdb_read_length(reader, &id->ms) && rdb_read_length(reader, &id->sequence);
}

static bool add_block(struct reading *reading, const struct rdb_string *id, const struct rdb_string *block) {
    if (id->length != ID_BYTES) return problem(reading, "the id of a block of a stream has not 16 bytes");
    const char *wrong = xstream_append_block(reading->stream, raw_id(id->data), block->data, block->length);
    return wrong ? problem(reading, wrong) : rdb_goes_on(&reading->pace);
}

static bool read_blocks(struct reading *reading) {
    uint64_t count;
    if (!rdb_read_length(reading->reader, &count)) return false;
    for (uint64_t i = 0; i < count; i++) {
        struct rdb_string id = {0}, block = {0};
        bool read = rdb_read_string(reading->reader, &id) && rdb_read_string(reading->reader, &block) &&
                    add_block(reading, &id, &block);
        rdb_string_free(&id);
        rdb_string_free(&block);
        if (!read) return false;
    }
    return true;
}

static bool read_numbers(struct reading *reading) {
    struct rdb_reader *reader = reading->reader;
    struct xstream *stream = reading->stream;
    uint64_t length;
    struct xstream_id first;
    if (!rdb_read_length(reader, &length) || !read_id(reader, &stream->last_id)) return false;
    if (length != stream->length) return problem(reading, "a stream has not as many entries as it says");
    if (xstream_id_compare(xstream_edge(stream, true), stream->last_id) > 0)
        return problem(reading, "a stream holds an entry behind its last id");
    stream->entries_added = length;
    if (reading->type == RDB_STREAM_LISTPACKS) return true;
    return read_id(reader, &first) && read_id(reader, &stream->max_deleted_id) &&
           rdb_read_length(reader, &stream->entries_added);
}

/* Passes over the group's list, so that its bytes are there. */
static bool pass_over_pending(struct reading *reading, uint64_t *count) {
    uint64_t deliveries, delivered_ms;
    struct xstream_id id;
    if (!rdb_read_length(reading->reader, count)) return false;
    for (uint64_t i = 0; i < *count; i++)
        if (!read_raw_id(reading->reader, &id) || !rdb_read_little_endian(reading->reader, 8, &delivered_ms) ||
            !rdb_read_length(reading->reader, &deliveries) || !rdb_goes_on(&reading->pace))
            return false;
    return true;
}

static bool read_consumer(struct reading *reading, struct xstream_group *group) {
    struct rdb_reader *reader = reading->reader;
    struct rdb_string name = {0};
    struct xstream_consumer *consumer = NULL;
    uint64_t seen_ms, active_ms, count;
    struct xstream_id id;
    if (!rdb_read_string(reader, &name)) return false;
    bool twice = xstream_consumer_find(group, name.data, name.length) != NULL;
    if (!twice) consumer = xstream_consumer_add(group, name.data, name.length, 0);
    rdb_string_free(&name);
    if (twice) return problem(reading, "a consumer of a stream is there twice");
    if (!consumer) return problem(reading, "no memory for a consumer of a stream");
    if (!rdb_read_little_endian(reader, 8, &seen_ms)) return false;
    if (reading->type == RDB_STREAM_LISTPACKS_3 && !rdb_read_little_endian(reader, 8, &active_ms)) return false;
    consumer->seen_ms = (int64_t)seen_ms;
    if (!rdb_read_length(reader, &count)) return false;
    for (uint64_t i = 0; i < count; i++) {
        if (!read_raw_id(reader, &id)) return false;
        if (xstream_pending_find(group, id)) return problem(reading, "an entry of a stream is pending twice");
        if (!xstream_pending_give(group, consumer, id)) return problem(reading, "no memory for what is pending");
        if (!rdb_goes_on(&reading->pace)) return false;
    }
    return true;
}

/* Again over the group's list, of which every entry has a consumer now. */
static bool read_pending(struct reading *reading, const struct xstream_group *group, uint64_t count) {
    struct xstream_id id;
    if (count != group->pending.count)
        return problem(reading, "a group of a stream and its consumers differ in what is pending");
    for (uint64_t i = 0; i < count; i++) {
        uint64_t delivered_ms, deliveries;
        if (!read_raw_id(reading->reader, &id)) return false;
        struct xstream_pending *pending = xstream_pending_find(group, id);
        if (!pending) return problem(reading, "an entry of a stream is pending with no consumer");
        if (!rdb_read_little_endian(reading->reader, 8, &delivered_ms)) return false;
        if (!rdb_read_length(reading->reader, &deliveries)) return false;
        pending->delivered_ms = (int64_t)delivered_ms;
        xstream_pending_set_deliveries(pending, deliveries);
        if (!rdb_goes_on(&reading->pace)) return false;
    }
    return true;
}

static bool read_consumers(struct reading *reading, struct xstream_group *group) {
    struct rdb_reader *reader = reading->reader;
    uint64_t pending_count, consumers;
    size_t pending_at = reader->at;
    if (!pass_over_pending(reading, &pending_count) || !rdb_read_length(reader, &consumers)) return false;
    for (uint64_t i = 0; i < consumers; i++)
        if (!read_consumer(reading, group)) return false;
    size_t end = reader->at;
    reader->at = pending_at;
    if (!rdb_read_length(reader, &pending_count) || !read_pending(reading, group, pending_count)) return false;
    reader->at = end;
    return true;
}

static bool read_group(struct reading *reading) {
    struct rdb_reader *reader = reading->reader;
    struct rdb_string name = {0};
    struct xstream_id last_id;
    uint64_t entries_read = 0;
    bool read = rdb_read_string(reader, &name) && read_id(reader, &last_id) &&
                (reading->type == RDB_STREAM_LISTPACKS || rdb_read_length(reader, &entries_read));
    struct xstream_group *group = NULL;
    bool twice = read && xstream_group_find(&reading->stream->groups, name.data, name.length);
    if (reading->type == RDB_STREAM_LISTPACKS && read)
        entries_read = (uint64_t)xstream_count_until(reading->stream, last_id);
    if (read && !twice)
        group = xstream_group_add(&reading->stream->groups, name.data, name.length, last_id, (int64_t)entries_read);
    rdb_string_free(&name);
    if (!read) return false;
    if (twice) return problem(reading, "a group of a stream is there twice");
    if (!group) return problem(reading, "no memory for a group of a stream");
    return read_consumers(reading, group);
}

bool rdb_read_stream(struct rdb_reader *reader, uint8_t type, const struct rdb_rest *rest, struct xstream *stream) {
    struct reading reading = {reader, stream, type, {.rest = rest}};
    uint64_t groups;
    if (!read_blocks(&reading) || !read_numbers(&reading) || !rdb_read_length(reader, &groups)) return false;
    for (uint64_t i = 0; i < groups; i++)
        if (!read_group(&reading)) return false;
    return true;
}

/* t_stream: entries appended, deleted and trimmed.
 *
 * A block's head counts its live and its deleted entries. These numbers change in place, and their encodings may grow by
 * SLACK_BYTES together at most, once a block holds more than one-byte numbers count. Each block that does has so many bytes
 * to spare, so that nothing is allocated where an entry is deleted. */
#include "store/t_stream.h"

#include <assert.h>
#include <string.h>

#include "base/memory.h"

#define SLACK_BYTES 4u
#define COUNT_ONE_BYTE 127

/* ---- heads of blocks --------------------------------------------------------------------------------------------- */

struct block_head {
    int64_t live, deleted, fields;
    const uint8_t *behind_counts;
    const uint8_t *first_field, *entries;
};

static void read_head(const uint8_t *listpack, struct block_head *head) {
    struct listpack_element live, deleted, fields;
    head->behind_counts = listpack_get(listpack_get(listpack_first(listpack), &live), &deleted);
    const uint8_t *at = head->first_field = listpack_get(head->behind_counts, &fields);
    for (int64_t i = 0; i <= fields.integer; i++) at = listpack_next(at); /* the fields and a zero */
    head->entries = at;
    head->live = live.integer;
    head->deleted = deleted.integer;
    head->fields = fields.integer;
}

static size_t slack_of(const struct block_head *head) {
    return head->live + head->deleted > COUNT_ONE_BYTE ? SLACK_BYTES : 0;
}

static void add_counts(uint8_t *listpack, int64_t live, int64_t deleted) {
    struct block_head head;
    read_head(listpack, &head);
    live += head.live;
    deleted += head.deleted;
    size_t bytes = listpack_bytes(listpack), old = (size_t)(head.behind_counts - listpack_first(listpack));
    size_t changed = listpack_integer_bytes(live) + listpack_integer_bytes(deleted);
    uint8_t *counts = listpack + LISTPACK_HEAD_BYTES;
    if (changed != old) {
        memmove(counts + changed, counts + old, bytes - LISTPACK_HEAD_BYTES - old);
        bytes = bytes - old + changed;
        listpack_set_head(listpack, bytes, listpack_count(listpack));
    }
    listpack_put_integer(listpack_put_integer(counts, live), deleted);
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

static bool add_block(struct xstream *stream, struct xstream_id id, uint8_t *listpack, size_t capacity) {
    if (!id_index_insert(&stream->blocks, id, listpack)) return false;
    stream->last_capacity = (uint32_t)capacity;
    stream->block_bytes += capacity;
    return true;
}

/* Gives back what the last block does not need, since no more is appended to it. */
static void close_last(struct xstream *stream) {
    struct id_position last = id_index_last(&stream->blocks);
    if (!last.leaf || stream->last_capacity == 0) return;
    uint8_t *listpack = id_index_slot(last)->value;
    struct block_head head;
    read_head(listpack, &head);
    size_t bytes = listpack_bytes(listpack) + slack_of(&head);
    if (bytes < stream->last_capacity) {
        uint8_t *fitted = memory_realloc(listpack, bytes);
        if (fitted) {
            id_index_slot(last)->value = fitted;
            stream->block_bytes -= stream->last_capacity - bytes;
        }
    }
    stream->last_capacity = 0;
}

/* Makes room for `more` bytes at the end of the last block; NULL: memory is exhausted. */
static uint8_t *grow_last(struct xstream *stream, size_t more, const struct xstream_bounds *bounds) {
    struct id_slot *slot = id_index_slot(id_index_last(&stream->blocks));
    uint8_t *listpack = slot->value;
    size_t needed = listpack_bytes(listpack) + more + 2 * SLACK_BYTES;
    if (needed <= stream->last_capacity) return listpack;
    size_t capacity = needed + needed / 2;
    if (bounds->block_bytes > 0 && capacity > bounds->block_bytes) capacity = bounds->block_bytes;
    if (capacity < needed) capacity = needed;
    uint8_t *grown = memory_realloc(listpack, capacity);
    if (!grown) return NULL;
    size_t before = stream->last_capacity > 0 ? stream->last_capacity : listpack_bytes(grown);
    stream->block_bytes += capacity - before;
    stream->last_capacity = (uint32_t)capacity;
    slot->value = grown;
    return grown;
}

static void remove_block(struct xstream *stream, struct xstream_id id) {
    struct id_position last = id_index_last(&stream->blocks);
    bool is_last = xstream_id_compare(id_index_slot(last)->id, id) == 0;
    uint8_t *listpack = id_index_remove(&stream->blocks, id);
    size_t bytes = is_last && stream->last_capacity > 0 ? stream->last_capacity : listpack_bytes(listpack);
    stream->block_bytes -= bytes < stream->block_bytes ? bytes : stream->block_bytes;
    if (is_last) stream->last_capacity = 0;
    if (stream->blocks.count == 0) stream->block_bytes = 0;
    memory_free(listpack);
}

/* ---- appending --------------------------------------------------------------------------------------------------- */

static size_t strings_bytes(const struct xstream_string *strings, uint32_t first, uint32_t step, uint32_t count) {
    size_t bytes = 0;
    for (uint32_t i = first; i < count; i += step) bytes += listpack_string_bytes(strings[i].data, strings[i].length);
    return bytes;
}

static uint8_t *put_strings(uint8_t *at, const struct xstream_string *strings, uint32_t first, uint32_t step,
                            uint32_t count) {
    for (uint32_t i = first; i < count; i += step) at = listpack_put_string(at, strings[i].data, strings[i].length);
    return at;
}

static bool has_fields_of(const struct block_head *head, const struct xstream_string *strings, uint32_t pairs) {
    if (head->fields != pairs) return false;
    const uint8_t *at = head->first_field;
    for (uint32_t i = 0; i < pairs; i++) {
        struct listpack_element field;
        at = listpack_get(at, &field);
        if (!listpack_equals(&field, strings[2 * i].data, strings[2 * i].length)) return false;
    }
    return true;
}

/* Elements of an entry, but for the number that says how many. */
static int64_t elements_of(uint32_t pairs, bool same_fields) {
    return 3 + (same_fields ? (int64_t)pairs : 2 * (int64_t)pairs + 1);
}

static size_t entry_bytes(struct xstream_id id, struct xstream_id master, const struct xstream_string *strings,
                          uint32_t pairs, bool same_fields) {
    size_t strings_size = strings_bytes(strings, same_fields ? 1 : 0, same_fields ? 2 : 1, 2 * pairs);
    return listpack_integer_bytes(XSTREAM_SAME_FIELDS) + listpack_integer_bytes((int64_t)(id.ms - master.ms)) +
           listpack_integer_bytes((int64_t)(id.sequence - master.sequence)) +
           (same_fields ? 0 : listpack_integer_bytes(pairs)) + strings_size +
           listpack_integer_bytes(elements_of(pairs, same_fields));
}

static uint8_t *put_entry(uint8_t *at, struct xstream_id id, struct xstream_id master,
                          const struct xstream_string *strings, uint32_t pairs, bool same_fields) {
    at = listpack_put_integer(at, same_fields ? XSTREAM_SAME_FIELDS : 0);
    at = listpack_put_integer(at, (int64_t)(id.ms - master.ms));
    at = listpack_put_integer(at, (int64_t)(id.sequence - master.sequence));
    if (!same_fields) at = listpack_put_integer(at, pairs);
    at = put_strings(at, strings, same_fields ? 1 : 0, same_fields ? 2 : 1, 2 * pairs);
    at = listpack_put_integer(at, elements_of(pairs, same_fields));
    *at = LISTPACK_END;
    return at + 1;
}

/* A block of this one entry. */
static bool append_block(struct xstream *stream, struct xstream_id id, const struct xstream_string *strings,
                         uint32_t pairs) {
    size_t bytes = LISTPACK_EMPTY_BYTES + listpack_integer_bytes(1) + listpack_integer_bytes(0) +
                   listpack_integer_bytes(pairs) + strings_bytes(strings, 0, 2, 2 * pairs) + listpack_integer_bytes(0) +
                   entry_bytes(id, id, strings, pairs, true);
    uint8_t *listpack = memory_alloc(bytes);
    if (!listpack) return false;
    uint8_t *at = listpack_put_integer(listpack_put_integer(listpack + LISTPACK_HEAD_BYTES, 1), 0);
    at = put_strings(listpack_put_integer(at, pairs), strings, 0, 2, 2 * pairs);
    at = put_entry(listpack_put_integer(at, 0), id, id, strings, pairs, true);
    assert(at == listpack + bytes);
    listpack_set_head(listpack, bytes, 4 + (size_t)pairs + (size_t)elements_of(pairs, true) + 1);
    close_last(stream);
    if (add_block(stream, id, listpack, bytes)) return true;
    memory_free(listpack);
    return false;
}

static bool append_to_last(struct xstream *stream, struct xstream_id id, const struct xstream_string *strings,
                           uint32_t pairs, const struct xstream_bounds *bounds) {
    const struct id_slot *slot = id_index_slot(id_index_last(&stream->blocks));
    struct xstream_id master = slot->id;
    struct block_head head;
    read_head(slot->value, &head);
    bool same_fields = has_fields_of(&head, strings, pairs);
    uint8_t *listpack = grow_last(stream, entry_bytes(id, master, strings, pairs, same_fields), bounds);
    if (!listpack) return false;
    size_t count = listpack_count(listpack);
    uint8_t *end = put_entry(listpack + listpack_bytes(listpack) - 1, id, master, strings, pairs, same_fields);
    listpack_set_head(listpack, (size_t)(end - listpack), count + (size_t)elements_of(pairs, same_fields) + 1);
    add_counts(listpack, 1, 0);
    return true;
}

/* Whether the last block takes no further entry of so many bytes. */
static bool last_is_full(const struct xstream *stream, size_t bytes, const struct xstream_bounds *bounds) {
    struct id_position last = id_index_last(&stream->blocks);
    if (!last.leaf) return true;
    const uint8_t *listpack = id_index_slot(last)->value;
    uint64_t most = bounds->block_bytes;
    if (most == 0 || most > XSTREAM_ENTRY_MOST_BYTES) most = XSTREAM_ENTRY_MOST_BYTES;
    if (listpack_bytes(listpack) + bytes >= most) return true;
    if (bounds->block_entries == 0) return false;
    struct block_head head;
    read_head(listpack, &head);
    return (uint64_t)(head.live + head.deleted) >= bounds->block_entries;
}

bool xstream_append(struct xstream *stream, struct xstream_id id, const struct xstream_string *strings, uint32_t pairs,
                    const struct xstream_bounds *bounds) {
    assert(xstream_id_compare(id, stream->last_id) > 0);
    size_t bytes = 0;
    for (uint32_t i = 0; i < 2 * pairs; i++) bytes += strings[i].length;
    bool appended = last_is_full(stream, bytes, bounds) ? append_block(stream, id, strings, pairs)
                                                        : append_to_last(stream, id, strings, pairs, bounds);
    if (!appended) return false;
    if (stream->length++ == 0) stream->first_id = id;
    stream->entries_added++;
    stream->last_id = id;
    return true;
}

/* ---- removing ---------------------------------------------------------------------------------------------------- */

/* The entry is marked, or its block goes with it. */
static void remove_entry(struct xstream *stream, struct xstream_id block_id, uint8_t *flags) {
    uint8_t *listpack = id_index_find(&stream->blocks, block_id);
    struct block_head head;
    read_head(listpack, &head);
    stream->length--;
    if (head.live <= 1) {
        remove_block(stream, block_id);
        return;
    }
    *flags |= XSTREAM_DELETED; /* a small number: it is its own encoding */
    add_counts(listpack, -1, 1);
}

static void find_first(struct xstream *stream) {
    stream->first_id = xstream_edge(stream, false);
}

bool xstream_delete(struct xstream *stream, struct xstream_id id) {
    struct xstream_walk walk;
    struct xstream_entry entry;
    xstream_walk_begin(stream, id, id, false, &walk);
    if (!xstream_walk_next(&walk, &entry)) return false;
    remove_entry(stream, walk.master, entry.flags);
    if (xstream_id_compare(id, stream->max_deleted_id) > 0) stream->max_deleted_id = id;
    if (stream->length == 0 || xstream_id_compare(id, stream->first_id) == 0) find_first(stream);
    return true;
}

/* The id of the last entry of a block, deleted or not. */
static struct xstream_id last_of_block(const struct id_slot *slot) {
    const uint8_t *listpack = slot->value, *end = listpack + listpack_bytes(listpack) - 1;
    struct listpack_element count, ms, sequence;
    const uint8_t *at = listpack_previous(end);
    listpack_get(at, &count);
    for (int64_t i = 0; i < count.integer - 1; i++) at = listpack_previous(at);
    listpack_get(listpack_get(at, &ms), &sequence);
    return (struct xstream_id){slot->id.ms + (uint64_t)ms.integer, slot->id.sequence + (uint64_t)sequence.integer};
}

static bool goes_whole(const struct xstream *stream, const struct xstream_trim *trim, const struct id_slot *slot,
                       uint64_t live) {
    if (trim->by_id) return xstream_id_compare(last_of_block(slot), trim->least) < 0;
    return stream->length - live >= trim->most;
}

/* Removes single entries from the front of the first block: they are marked first, then counted at once. */
static uint64_t trim_first_block(struct xstream *stream, const struct xstream_trim *trim, int64_t live) {
    struct id_slot slot = *id_index_slot(id_index_first(&stream->blocks));
    struct xstream_id until = XSTREAM_ID_LAST;
    if (trim->by_id) {
        until = trim->least;
        if (!xstream_id_decrement(&until)) return 0;
    }
    struct xstream_walk walk;
    struct xstream_entry entry;
    int64_t removed = 0;
    xstream_walk_begin(stream, slot.id, until, false, &walk);
    while ((trim->by_id || stream->length - (uint64_t)removed > trim->most) && xstream_walk_next(&walk, &entry) &&
           xstream_id_compare(walk.master, slot.id) == 0) {
        *entry.flags |= XSTREAM_DELETED; /* a small number: it is its own encoding */
        removed++;
    }
    stream->length -= (uint64_t)removed;
    if (removed == live)
        remove_block(stream, slot.id);
    else
        add_counts(slot.value, -removed, removed);
    return (uint64_t)removed;
}

uint64_t xstream_trim(struct xstream *stream, const struct xstream_trim *trim) {
    uint64_t removed = 0;
    while (stream->blocks.count > 0 && (trim->by_id || stream->length > trim->most)) {
        struct id_slot slot = *id_index_slot(id_index_first(&stream->blocks));
        struct block_head head;
        read_head(slot.value, &head);
        uint64_t live = (uint64_t)head.live;
        if (trim->limit > 0 && removed + live > trim->limit) break;
        if (!goes_whole(stream, trim, &slot, live)) {
            if (!trim->approximate) removed += trim_first_block(stream, trim, head.live);
            break;
        }
        remove_block(stream, slot.id);
        stream->length -= live;
        removed += live;
    }
    if (removed > 0 || stream->length == 0) find_first(stream);
    return removed;
}

/* ---- as a value -------------------------------------------------------------------------------------------------- */

struct xstream *xstream_new(void) {
    struct xstream *stream = memory_calloc(1, sizeof *stream);
    if (stream) {
        stream->head.type = VALUE_STREAM;
        stream->head.encoding = ENCODING_LISTPACKS;
    }
    return stream;
}

const char *xstream_append_block(struct xstream *stream, struct xstream_id id, const uint8_t *listpack, size_t bytes) {
    const char *wrong = xstream_block_check(id, listpack, bytes);
    if (wrong) return wrong;
    struct id_position last = id_index_last(&stream->blocks);
    if (last.leaf && xstream_id_compare(last_of_block(id_index_slot(last)), id) >= 0)
        return "blocks of a stream are out of order";
    struct block_head head;
    read_head(listpack, &head);
    size_t capacity = bytes + slack_of(&head);
    uint8_t *copied = memory_alloc(capacity);
    if (!copied) return "no memory for a block of a stream";
    memcpy(copied, listpack, bytes);
    if (!add_block(stream, id, copied, capacity)) {
        memory_free(copied);
        return "no memory for a block of a stream";
    }
    stream->last_capacity = 0;
    bool was_empty = stream->length == 0;
    stream->length += (uint64_t)head.live;
    if (was_empty) find_first(stream);
    return NULL;
}

struct xstream *xstream_copy(const struct xstream *stream) {
    struct xstream *copy = xstream_new();
    if (!copy) return NULL;
    struct id_position position = id_index_first(&stream->blocks);
    const char *wrong = NULL;
    for (; position.leaf && !wrong; position = id_index_next(position)) {
        const struct id_slot *slot = id_index_slot(position);
        wrong = xstream_append_block(copy, slot->id, slot->value, listpack_bytes(slot->value));
    }
    if (wrong || !xstream_groups_copy(&copy->groups, &stream->groups)) {
        value_free(&copy->head);
        return NULL;
    }
    copy->entries_added = stream->entries_added;
    copy->first_id = stream->first_id;
    copy->last_id = stream->last_id;
    copy->max_deleted_id = stream->max_deleted_id;
    return copy;
}

size_t xstream_free_effort(const struct xstream *stream) {
    return 1 + (size_t)stream->blocks.count + xstream_groups_free_effort(&stream->groups);
}

bool xstream_release(struct xstream *stream, size_t *steps) {
    if (!id_index_release(&stream->blocks, steps, memory_free) || !xstream_groups_release(&stream->groups, steps))
        return false;
    memory_free(stream);
    return true;
}

size_t xstream_memory_bytes(const struct xstream *stream) {
    return sizeof *stream + stream->block_bytes + stream->blocks.bytes + xstream_groups_bytes(&stream->groups);
}

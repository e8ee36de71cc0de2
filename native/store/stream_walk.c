/* stream_walk: walks over the entries of streams, and what follows from where an entry is. */
#include <string.h>

#include "store/t_stream.h"

/* ---- a block --------------------------------------------------------------------------------------------------------- */

static void enter_block(struct xstream_walk *walk) {
    const struct id_slot *slot = id_index_slot(walk->block);
    const uint8_t *listpack = slot->value;
    struct listpack_element fields;
    const uint8_t *at = listpack_next(listpack_next(listpack_first(listpack)));
    walk->fields = at = listpack_get(at, &fields);
    for (int64_t i = 0; i <= fields.integer; i++) at = listpack_next(at);
    walk->master = slot->id;
    walk->field_count = (uint32_t)fields.integer;
    walk->entries = at;
    walk->at = walk->backwards ? listpack + listpack_bytes(listpack) - 1 : at;
}

/* Reads the entry at `at`; returns where its fields or values begin. */
static const uint8_t *read_entry(const struct xstream_walk *walk, const uint8_t *at, uint8_t *flags,
                                 struct xstream_entry *entry) {
    struct listpack_element word, ms, sequence, fields;
    entry->flags = (uint8_t *)(uintptr_t)at;
    at = listpack_get(listpack_get(listpack_get(at, &word), &ms), &sequence);
    *flags = (uint8_t)word.integer;
    entry->id =
        (struct xstream_id){walk->master.ms + (uint64_t)ms.integer, walk->master.sequence + (uint64_t)sequence.integer};
    entry->field = walk->fields;
    entry->fields = walk->field_count;
    entry->value = at;
    if (!(*flags & XSTREAM_SAME_FIELDS)) {
        entry->field = at = listpack_get(at, &fields);
        entry->fields = (uint32_t)fields.integer;
        entry->value = NULL;
    }
    return at;
}

/* The next entry of the block, deleted or not; false: there is none. */
static bool step_forwards(struct xstream_walk *walk, uint8_t *flags, struct xstream_entry *entry) {
    if (listpack_is_end(walk->at)) return false;
    const uint8_t *at = read_entry(walk, walk->at, flags, entry);
    uint32_t rest = (*flags & XSTREAM_SAME_FIELDS ? entry->fields : 2 * entry->fields) + 1;
    while (rest-- > 0) at = listpack_next(at);
    walk->at = at;
    return true;
}

static bool step_backwards(struct xstream_walk *walk, uint8_t *flags, struct xstream_entry *entry) {
    if (walk->at == walk->entries) return false;
    struct listpack_element count;
    const uint8_t *at = listpack_previous(walk->at);
    listpack_get(at, &count);
    for (int64_t i = 0; i < count.integer; i++) at = listpack_previous(at);
    read_entry(walk, at, flags, entry);
    walk->at = at;
    return true;
}

/* ---- walks ----------------------------------------------------------------------------------------------------------- */

void xstream_walk_begin(const struct xstream *stream, struct xstream_id from, struct xstream_id until, bool backwards,
                        struct xstream_walk *walk) {
    *walk = (struct xstream_walk){.from = from, .until = until, .backwards = backwards};
    walk->block = id_index_until(&stream->blocks, backwards ? until : from);
    if (!walk->block.leaf && !backwards) walk->block = id_index_first(&stream->blocks);
}

bool xstream_walk_next(struct xstream_walk *walk, struct xstream_entry *entry) {
    while (walk->block.leaf) {
        uint8_t flags;
        if (!walk->at) enter_block(walk);
        while (walk->backwards ? step_backwards(walk, &flags, entry) : step_forwards(walk, &flags, entry)) {
            bool before = xstream_id_compare(entry->id, walk->from) < 0;
            bool behind = xstream_id_compare(entry->id, walk->until) > 0;
            if (walk->backwards ? before : behind) {
                walk->block.leaf = NULL;
                return false;
            }
            if (!(flags & XSTREAM_DELETED) && !before && !behind) return true;
        }
        walk->block = walk->backwards ? id_index_previous(walk->block) : id_index_next(walk->block);
        walk->at = NULL;
    }
    return false;
}

void xstream_entry_pair(struct xstream_entry *entry, struct listpack_element *field, struct listpack_element *value) {
    const uint8_t *behind = listpack_get(entry->field, field);
    if (entry->value) {
        entry->field = behind;
        entry->value = listpack_get(entry->value, value);
    } else {
        entry->field = listpack_get(behind, value);
    }
}

bool xstream_has(const struct xstream *stream, struct xstream_id id) {
    struct xstream_walk walk;
    struct xstream_entry entry;
    xstream_walk_begin(stream, id, id, false, &walk);
    return xstream_walk_next(&walk, &entry);
}

struct xstream_id xstream_edge(const struct xstream *stream, bool last) {
    struct xstream_walk walk;
    struct xstream_entry entry;
    xstream_walk_begin(stream, XSTREAM_ID_FIRST, XSTREAM_ID_LAST, last, &walk);
    return xstream_walk_next(&walk, &entry) ? entry.id : XSTREAM_ID_FIRST;
}

/* ---- how far groups have come ------------------------------------------------------------------------------------------ */

/* Whether an entry at the id or behind it has been deleted in the midst of the stream. */
static bool xstream_has_tombstone_from(const struct xstream *stream, struct xstream_id id) {
    if (stream->length == 0 || xstream_id_is_zero(stream->max_deleted_id)) return false;
    return xstream_id_compare(stream->first_id, stream->max_deleted_id) <= 0 &&
           xstream_id_compare(id, stream->max_deleted_id) <= 0;
}

/* XSETID may name any number as what was added. */
static int64_t as_count(uint64_t entries) {
    return entries < INT64_MAX ? (int64_t)entries : INT64_MAX;
}

int64_t xstream_count_until(const struct xstream *stream, struct xstream_id id) {
    if (stream->entries_added == 0) return 0;
    int to_last = xstream_id_compare(id, stream->last_id);
    if (stream->length == 0 && to_last <= 0) return as_count(stream->entries_added);
    if (to_last == 0) return as_count(stream->entries_added);
    if (to_last > 0) return XSTREAM_READ_UNKNOWN;
    if (!xstream_id_is_zero(stream->max_deleted_id) &&
        xstream_id_compare(stream->max_deleted_id, stream->first_id) >= 0)
        return XSTREAM_READ_UNKNOWN;
    /* Nothing is missing from the first entry on. */
    int to_first = xstream_id_compare(id, stream->first_id);
    if (to_first > 0) return XSTREAM_READ_UNKNOWN;
    return as_count(stream->entries_added - stream->length + (to_first == 0 ? 1 : 0));
}

void xstream_group_read(const struct xstream *stream, struct xstream_group *group, struct xstream_id id) {
    if (xstream_id_compare(id, group->last_id) <= 0) return;
    if (group->entries_read != XSTREAM_READ_UNKNOWN && !xstream_has_tombstone_from(stream, id))
        group->entries_read = as_count((uint64_t)group->entries_read + 1);
    else if (stream->entries_added > 0)
        group->entries_read = xstream_count_until(stream, id);
    group->last_id = id;
}

bool xstream_group_lag(const struct xstream *stream, const struct xstream_group *group, int64_t *lag) {
    int64_t read = 0;
    if (stream->entries_added > 0) {
        read = group->entries_read;
        if (read == XSTREAM_READ_UNKNOWN || xstream_has_tombstone_from(stream, group->last_id))
            read = xstream_count_until(stream, group->last_id);
        if (read == XSTREAM_READ_UNKNOWN) return false;
    }
    *lag = (int64_t)(stream->entries_added - (uint64_t)read);
    return true;
}

/* ---- blocks from elsewhere ----------------------------------------------------------------------------------------------- */

/* Reads an integer that is at least `least`; NULL: there is none. */
static const uint8_t *get_integer(const uint8_t *at, int64_t least, int64_t *value) {
    struct listpack_element element;
    if (listpack_is_end(at)) return NULL;
    at = listpack_get(at, &element);
    *value = element.integer;
    return element.is_integer && element.integer >= least ? at : NULL;
}

static const uint8_t *pass(const uint8_t *at, int64_t count) {
    for (; count > 0 && at; count--) at = listpack_is_end(at) ? NULL : listpack_next(at);
    return at;
}

/* Checks the entry at `at` and returns what follows it; NULL: it is malformed. */
static const uint8_t *check_entry(const uint8_t *at, struct xstream_id master, int64_t master_fields,
                                  struct xstream_id *last, bool is_first, bool *deleted) {
    int64_t flags, ms, sequence, fields = master_fields, count;
    at = get_integer(at, 0, &flags);
    if (at) at = get_integer(at, INT64_MIN, &ms);
    if (at) at = get_integer(at, INT64_MIN, &sequence);
    if (!at || flags > 3) return NULL;
    struct xstream_id id = {master.ms + (uint64_t)ms, master.sequence + (uint64_t)sequence};
    if (xstream_id_compare(id, *last) < (is_first ? 0 : 1)) return NULL;
    *last = id;
    *deleted = flags & XSTREAM_DELETED;
    bool same = flags & XSTREAM_SAME_FIELDS;
    if (!same) at = get_integer(at, 0, &fields);
    if (!at || fields > UINT32_MAX / 2) return NULL;
    at = pass(at, same ? fields : 2 * fields);
    if (at) at = get_integer(at, 0, &count);
    return at && count == 3 + (same ? fields : 2 * fields + 1) ? at : NULL;
}

const char *xstream_block_check(struct xstream_id id, const uint8_t *listpack, size_t bytes) {
    static const char *const malformed = "a block of a stream is malformed";
    if (!listpack_is_whole(listpack, bytes)) return malformed;
    int64_t live, deleted, fields, zero;
    const uint8_t *at = get_integer(listpack_first(listpack), 1, &live);
    if (at) at = get_integer(at, 0, &deleted);
    if (at) at = get_integer(at, 0, &fields);
    if (!at || fields > UINT32_MAX / 2) return malformed;
    at = pass(at, fields);
    if (at) at = get_integer(at, 0, &zero);
    if (!at || zero != 0) return malformed;
    struct xstream_id last = id;
    for (bool is_first = true; !listpack_is_end(at); is_first = false) {
        bool is_deleted;
        at = check_entry(at, id, fields, &last, is_first, &is_deleted);
        if (!at) return malformed;
        *(is_deleted ? &deleted : &live) -= 1;
    }
    return live == 0 && deleted == 0 ? NULL : "a block of a stream holds another number of entries than it says";
}

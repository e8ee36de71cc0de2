/* stream_groups: groups, consumers, pending entries.
 *
 * A pending entry is one allocation, owned by its group's index and known to its consumer's as well: both hold the same ids,
 * the consumers' apart from one another. Whatever changes one of them changes the other. */
#include "store/stream_groups.h"

#include <string.h>

#include "base/memory.h"

/* ---- names in order ---------------------------------------------------------------------------------------------- */

static int compare_names(const struct xstream_name *name, const uint8_t *bytes, size_t length) {
    size_t shorter = name->length < length ? name->length : length;
    int order = shorter > 0 ? memcmp(name->bytes, bytes, shorter) : 0;
    if (order != 0 || name->length == length) return order;
    return name->length < length ? -1 : 1;
}

/* How many names are before this one. */
static uint32_t names_before(const struct xstream_names *names, const uint8_t *bytes, size_t length) {
    uint32_t low = 0, high = names->count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (compare_names(names->items[middle], bytes, length) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct xstream_name *names_find(const struct xstream_names *names, const uint8_t *bytes, size_t length) {
    uint32_t at = names_before(names, bytes, length);
    return at < names->count && compare_names(names->items[at], bytes, length) == 0 ? names->items[at] : NULL;
}

/* Makes a struct of `size` bytes that begins with its name, and puts it in the list. */
static struct xstream_name *names_add(struct xstream_names *names, size_t size, const uint8_t *bytes, size_t length) {
    struct xstream_name **items = memory_grow(names->items, names->count, &names->capacity, 1, sizeof *items);
    if (!items) return NULL;
    names->items = items;
    struct xstream_name *name = memory_calloc(1, size + length);
    if (!name) return NULL;
    uint8_t *copied = (uint8_t *)name + size;
    if (length) memcpy(copied, bytes, length);
    *name = (struct xstream_name){copied, length};
    uint32_t at = names_before(names, bytes, length);
    memmove(names->items + at + 1, names->items + at, (names->count - at) * sizeof *names->items);
    names->items[at] = name;
    names->count++;
    return name;
}

static void names_remove(struct xstream_names *names, const struct xstream_name *name) {
    uint32_t at = names_before(names, name->bytes, name->length);
    names->count--;
    memmove(names->items + at, names->items + at + 1, (names->count - at) * sizeof *names->items);
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

struct xstream_group *xstream_group_find(const struct xstream_groups *groups, const uint8_t *name, size_t length) {
    return (struct xstream_group *)names_find(&groups->names, name, length);
}

struct xstream_group *xstream_group_add(struct xstream_groups *groups, const uint8_t *name, size_t length,
                                        struct xstream_id last_id, int64_t entries_read) {
    struct xstream_group *group =
        (struct xstream_group *)names_add(&groups->names, sizeof(struct xstream_group), name, length);
    if (!group) return NULL;
    group->last_id = last_id;
    /* One that wrapped around, as Redis's may, tells nothing. */
    group->entries_read = entries_read < 0 ? XSTREAM_READ_UNKNOWN : entries_read;
    return group;
}

void xstream_group_unlink(struct xstream_groups *groups, const struct xstream_group *group) {
    names_remove(&groups->names, &group->name);
}

bool xstream_group_adopt(struct xstream_groups *groups, struct xstream_group *group) {
    groups->names.items = memory_alloc(sizeof *groups->names.items);
    if (!groups->names.items) return false;
    groups->names.items[0] = &group->name;
    groups->names.count = groups->names.capacity = 1;
    return true;
}

bool xstream_group_release(struct xstream_group *group, size_t *steps) {
    while (group->consumers.count > 0) {
        struct xstream_consumer *consumer = xstream_consumer_at(group, group->consumers.count - 1);
        if (!id_index_release(&consumer->pending, steps, NULL) || *steps == 0) return false;
        *steps -= 1;
        memory_free(consumer);
        group->consumers.count--;
    }
    if (!id_index_release(&group->pending, steps, memory_free)) return false;
    memory_free(group->consumers.items);
    memory_free(group);
    return true;
}

/* ---- consumers --------------------------------------------------------------------------------------------------- */

struct xstream_consumer *xstream_consumer_find(const struct xstream_group *group, const uint8_t *name, size_t length) {
    return (struct xstream_consumer *)names_find(&group->consumers, name, length);
}

struct xstream_consumer *xstream_consumer_add(struct xstream_group *group, const uint8_t *name, size_t length,
                                              int64_t now_ms) {
    struct xstream_consumer *consumer =
        (struct xstream_consumer *)names_add(&group->consumers, sizeof(struct xstream_consumer), name, length);
    if (consumer) consumer->seen_ms = now_ms;
    return consumer;
}

void xstream_consumer_remove(struct xstream_group *group, struct xstream_consumer *consumer) {
    struct id_position position = id_index_first(&consumer->pending);
    for (; position.leaf; position = id_index_next(position))
        memory_free(id_index_remove(&group->pending, id_index_slot(position)->id));
    size_t steps = SIZE_MAX;
    id_index_release(&consumer->pending, &steps, NULL);
    names_remove(&group->consumers, &consumer->name);
    memory_free(consumer);
}

/* ---- pending entries --------------------------------------------------------------------------------------------- */

static struct xstream_pending *pending_new(struct xstream_group *group, struct xstream_consumer *consumer,
                                           struct xstream_id id) {
    struct xstream_pending *pending = memory_calloc(1, sizeof *pending);
    if (!pending) return NULL;
    pending->consumer = consumer;
    if (!id_index_insert(&group->pending, id, pending)) {
        memory_free(pending);
        return NULL;
    }
    if (!id_index_insert(&consumer->pending, id, pending)) {
        id_index_remove(&group->pending, id);
        memory_free(pending);
        return NULL;
    }
    return pending;
}

struct xstream_pending *xstream_pending_give(struct xstream_group *group, struct xstream_consumer *consumer,
                                             struct xstream_id id) {
    struct xstream_pending *pending = xstream_pending_find(group, id);
    if (!pending) return pending_new(group, consumer, id);
    if (pending->consumer == consumer) return pending;
    if (!id_index_insert(&consumer->pending, id, pending)) return NULL;
    id_index_remove(&pending->consumer->pending, id);
    pending->consumer = consumer;
    return pending;
}

bool xstream_pending_remove(struct xstream_group *group, struct xstream_id id) {
    struct xstream_pending *pending = id_index_remove(&group->pending, id);
    if (!pending) return false;
    id_index_remove(&pending->consumer->pending, id);
    memory_free(pending);
    return true;
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static bool consumer_copy(struct xstream_group *group, const struct xstream_consumer *from) {
    struct xstream_consumer *consumer = xstream_consumer_add(group, from->name.bytes, from->name.length, from->seen_ms);
    if (!consumer) return false;
    struct id_position position = id_index_first(&from->pending);
    for (; position.leaf; position = id_index_next(position)) {
        const struct xstream_pending *old = id_index_slot(position)->value;
        struct xstream_pending *pending = pending_new(group, consumer, id_index_slot(position)->id);
        if (!pending) return false;
        pending->delivered_ms = old->delivered_ms;
        pending->deliveries = old->deliveries;
    }
    return true;
}

bool xstream_groups_copy(struct xstream_groups *groups, const struct xstream_groups *from) {
    for (uint32_t i = 0; i < from->names.count; i++) {
        const struct xstream_group *old = xstream_group_at(from, i);
        struct xstream_group *group =
            xstream_group_add(groups, old->name.bytes, old->name.length, old->last_id, old->entries_read);
        if (!group) return false;
        for (uint32_t j = 0; j < old->consumers.count; j++)
            if (!consumer_copy(group, xstream_consumer_at(old, j))) return false;
    }
    return true;
}

size_t xstream_groups_free_effort(const struct xstream_groups *groups) {
    size_t effort = 0;
    for (uint32_t i = 0; i < groups->names.count; i++) {
        const struct xstream_group *group = xstream_group_at(groups, i);
        effort += 1 + group->consumers.count + 2 * group->pending.count;
    }
    return effort;
}

bool xstream_groups_release(struct xstream_groups *groups, size_t *steps) {
    while (groups->names.count > 0) {
        if (!xstream_group_release(xstream_group_at(groups, groups->names.count - 1), steps)) return false;
        groups->names.count--;
    }
    memory_free(groups->names.items);
    *groups = (struct xstream_groups){0};
    return true;
}

size_t xstream_groups_bytes(const struct xstream_groups *groups) {
    size_t bytes = groups->names.capacity * sizeof *groups->names.items;
    for (uint32_t i = 0; i < groups->names.count; i++) {
        const struct xstream_group *group = xstream_group_at(groups, i);
        bytes += sizeof *group + group->name.length + group->pending.bytes +
                 group->consumers.capacity * sizeof *group->consumers.items +
                 (size_t)group->pending.count * sizeof(struct xstream_pending);
        for (uint32_t j = 0; j < group->consumers.count; j++) {
            const struct xstream_consumer *consumer = xstream_consumer_at(group, j);
            bytes += sizeof *consumer + consumer->name.length + consumer->pending.bytes;
        }
    }
    return bytes;
}

/* stream_groups: groups of consumers of a stream, and the entries that each was given and has not acknowledged. */
#ifndef REPLAY_STORE_STREAM_GROUPS_H
#define REPLAY_STORE_STREAM_GROUPS_H

#include "store/id_index.h"

#define XSTREAM_READ_UNKNOWN (-1)

/* Groups and consumers begin with their names; lists of them are in the order of these. */
struct xstream_name {
    const uint8_t *bytes; /* behind the struct */
    size_t length;
};
struct xstream_names {
    struct xstream_name **items;
    uint32_t count, capacity;
};

struct xstream_consumer {
    struct xstream_name name;
    int64_t seen_ms;
    struct id_index pending; /* of struct xstream_pending, which the group owns */
};

/* An entry that was delivered and not acknowledged. */
struct xstream_pending {
    struct xstream_consumer *consumer;
    int64_t delivered_ms; /* the last time */
    uint64_t deliveries; /* at most INT64_MAX, which commands can name */
};

struct xstream_group {
    struct xstream_name name;
    struct xstream_id last_id;
    int64_t entries_read; /* XSTREAM_READ_UNKNOWN, or how many of those ever added were read */
    struct id_index pending;
    struct xstream_names consumers;
};

struct xstream_groups {
    struct xstream_names names;
};

static inline struct xstream_group *xstream_group_at(const struct xstream_groups *groups, uint32_t index) {
    return (struct xstream_group *)groups->names.items[index];
}
static inline struct xstream_consumer *xstream_consumer_at(const struct xstream_group *group, uint32_t index) {
    return (struct xstream_consumer *)group->consumers.items[index];
}

struct xstream_group *xstream_group_find(const struct xstream_groups *groups, const uint8_t *name, size_t length);
/* The name must be free. NULL: memory is exhausted. */
struct xstream_group *xstream_group_add(struct xstream_groups *groups, const uint8_t *name, size_t length,
                                        struct xstream_id last_id, int64_t entries_read);
/* How often an entry was delivered, as somebody else has counted. */
static inline void xstream_pending_set_deliveries(struct xstream_pending *pending, uint64_t deliveries) {
    pending->deliveries = deliveries < INT64_MAX ? deliveries : INT64_MAX;
}
/* It is delivered once more. */
static inline void xstream_pending_count_delivery(struct xstream_pending *pending) {
    xstream_pending_set_deliveries(pending, pending->deliveries + 1);
}

/* Takes the group out of the list; the caller frees it. */
void xstream_group_unlink(struct xstream_groups *groups, const struct xstream_group *group);
/* Puts a group that is in no list into an empty one. False: memory is exhausted. */
bool xstream_group_adopt(struct xstream_groups *groups, struct xstream_group *group);
/* Frees up to *steps parts of a group that is in no list, and lowers *steps by as many; true when it is gone. */
bool xstream_group_release(struct xstream_group *group, size_t *steps);

struct xstream_consumer *xstream_consumer_find(const struct xstream_group *group, const uint8_t *name, size_t length);
/* The name must be free. NULL: memory is exhausted. */
struct xstream_consumer *xstream_consumer_add(struct xstream_group *group, const uint8_t *name, size_t length,
                                              int64_t now_ms);
/* Its pending entries go with it. */
void xstream_consumer_remove(struct xstream_group *group, struct xstream_consumer *consumer);

static inline struct xstream_pending *xstream_pending_find(const struct xstream_group *group, struct xstream_id id) {
    return (struct xstream_pending *)id_index_find(&group->pending, id);
}
/* Makes the entry pending with the consumer, whoever had it before. NULL: memory is exhausted, nothing has changed. */
struct xstream_pending *xstream_pending_give(struct xstream_group *group, struct xstream_consumer *consumer,
                                             struct xstream_id id);
/* False: it was not pending. */
bool xstream_pending_remove(struct xstream_group *group, struct xstream_id id);

bool xstream_groups_copy(struct xstream_groups *groups,
                         const struct xstream_groups *from); /* false: memory is exhausted */
size_t xstream_groups_free_effort(const struct xstream_groups *groups);
bool xstream_groups_release(struct xstream_groups *groups, size_t *steps);
size_t xstream_groups_bytes(const struct xstream_groups *groups);

#endif

/* id_index: an ordered map from ids of entries to pointers: the blocks of a stream, the entries that a group or a consumer
 * has not acknowledged.
 *
 * A B+ tree: leaves of up to 64 ids, linked in order; branches that hold for each child an id that is not greater
 * than any id below the child, and greater than all ids before it. Ids that arrive in order fill leaves completely. A
 * single leaf grows with what it holds, because most maps are small. A node that has become half empty is joined with
 * a neighbour if both fit in three quarters of one node. */
#ifndef REPLAY_STORE_ID_INDEX_H
#define REPLAY_STORE_ID_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/stream_id.h"

struct id_slot {
    struct xstream_id id;
    void *value;
};

struct id_node {
    uint16_t count; /* slots, or children */
    uint16_t capacity; /* of slots: of a leaf */
    uint32_t height; /* 0: a leaf */
};

struct id_leaf {
    struct id_node head;
    struct id_leaf *next, *previous;
    struct id_slot slots[];
};

/* Begin with zeros: nothing is allocated until the first id. */
struct id_index {
    struct id_node *root; /* NULL: empty */
    struct id_leaf *first, *last;
    uint64_t count;
    size_t bytes; /* of nodes */
};

/* Where an id is. It holds until ids are added or removed. */
struct id_position {
    struct id_leaf *leaf; /* NULL: there is none */
    uint32_t slot;
};

static inline struct id_slot *id_index_slot(struct id_position position) {
    return &position.leaf->slots[position.slot];
}

void *id_index_find(const struct id_index *index, struct xstream_id id); /* NULL: it is not there */
struct id_position id_index_first(const struct id_index *index);
struct id_position id_index_last(const struct id_index *index);
/* The first id that is not before this one; the last that is not behind it. */
struct id_position id_index_from(const struct id_index *index, struct xstream_id id);
struct id_position id_index_until(const struct id_index *index, struct xstream_id id);
struct id_position id_index_next(struct id_position position);
struct id_position id_index_previous(struct id_position position);

/* The id must not be there. False: memory is exhausted, nothing has changed. */
bool id_index_insert(struct id_index *index, struct xstream_id id, void *value);
/* Returns the value; NULL: the id was not there. */
void *id_index_remove(struct id_index *index, struct xstream_id id);
/* Frees up to *steps values, by `drop` (NULL: they are somebody else's), and their nodes, and lowers *steps by as
 * many; true when all are gone. Until then it may only be released further. */
bool id_index_release(struct id_index *index, size_t *steps, void (*drop)(void *value));

#endif

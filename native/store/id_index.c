/* id_index: a B+ tree from ids to pointers. */
#include "store/id_index.h"

#include <assert.h>
#include <string.h>

#include "base/list.h"
#include "base/memory.h"

#define FANOUT 64
#define SLOTS_FIRST 4  /* of a leaf that is alone */
#define JOINED_MOST 48 /* two neighbours are joined when they hold no more together */
#define JOIN_BELOW 32  /* and one of them has fallen below this */
#define HEIGHT_MOST \
    16 /* 24 children at least on average, two neighbours taken together: far beyond what fits in memory */

struct branch {
    struct id_node head;
    struct xstream_id firsts[FANOUT];
    struct id_node *children[FANOUT];
};

/* The way from the root down to a leaf. */
struct path {
    struct branch *branches[HEIGHT_MOST];
    uint32_t children[HEIGHT_MOST];
    uint32_t length;
};

/* ---- finding ----------------------------------------------------------------------------------------------------- */

/* The last child that begins at the id or before it; the first where none does. */
static uint32_t child_for(const struct branch *branch, struct xstream_id id) {
    uint32_t low = 1, high = branch->head.count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (xstream_id_compare(branch->firsts[middle], id) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low - 1;
}

/* How many of the leaf's ids are before this one. */
static uint32_t slot_for(const struct id_leaf *leaf, struct xstream_id id) {
    uint32_t low = 0, high = leaf->head.count;
    if (high > 0 && xstream_id_compare(leaf->slots[high - 1].id, id) < 0) return high; /* ids mostly come in order */
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (xstream_id_compare(leaf->slots[middle].id, id) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct id_leaf *leaf_for(const struct id_index *index, struct xstream_id id, struct path *path) {
    struct id_node *node = index->root;
    for (path->length = 0; node && node->height > 0; path->length++) {
        struct branch *branch = (struct branch *)node;
        uint32_t at = child_for(branch, id);
        path->branches[path->length] = branch;
        path->children[path->length] = at;
        node = branch->children[at];
    }
    return (struct id_leaf *)node;
}

struct id_position id_index_first(const struct id_index *index) {
    return (struct id_position){index->first, 0};
}

struct id_position id_index_last(const struct id_index *index) {
    return (struct id_position){index->last, index->last ? index->last->head.count - 1u : 0};
}

struct id_position id_index_next(struct id_position position) {
    if (++position.slot == position.leaf->head.count) return (struct id_position){position.leaf->next, 0};
    return position;
}

struct id_position id_index_previous(struct id_position position) {
    if (position.slot-- > 0) return position;
    struct id_leaf *leaf = position.leaf->previous;
    return (struct id_position){leaf, leaf ? leaf->head.count - 1u : 0};
}

struct id_position id_index_from(const struct id_index *index, struct xstream_id id) {
    struct path path;
    struct id_leaf *leaf = leaf_for(index, id, &path);
    if (!leaf) return (struct id_position){NULL, 0};
    uint32_t slot = slot_for(leaf, id);
    return slot < leaf->head.count ? (struct id_position){leaf, slot} : (struct id_position){leaf->next, 0};
}

struct id_position id_index_until(const struct id_index *index, struct xstream_id id) {
    struct id_position position = id_index_from(index, id);
    if (!position.leaf) return id_index_last(index);
    return xstream_id_compare(id_index_slot(position)->id, id) == 0 ? position : id_index_previous(position);
}

void *id_index_find(const struct id_index *index, struct xstream_id id) {
    struct id_position position = id_index_from(index, id);
    if (!position.leaf || xstream_id_compare(id_index_slot(position)->id, id) != 0) return NULL;
    return id_index_slot(position)->value;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

static size_t leaf_bytes(uint32_t capacity) {
    return sizeof(struct id_leaf) + capacity * sizeof(struct id_slot);
}

static struct id_leaf *leaf_new(struct id_index *index, uint32_t capacity) {
    struct id_leaf *leaf = memory_alloc(leaf_bytes(capacity));
    if (!leaf) return NULL;
    leaf->head = (struct id_node){.capacity = (uint16_t)capacity};
    leaf->next = leaf->previous = NULL;
    index->bytes += leaf_bytes(capacity);
    return leaf;
}

static struct branch *branch_new(struct id_index *index, uint32_t height) {
    struct branch *branch = memory_alloc(sizeof *branch);
    if (!branch) return NULL;
    branch->head = (struct id_node){.height = height};
    index->bytes += sizeof *branch;
    return branch;
}

static void node_free(struct id_index *index, struct id_node *node) {
    if (node->height == 0) {
        struct id_leaf *leaf = (struct id_leaf *)node;
        LIST_REMOVE(index->first, index->last, leaf, next, previous);
        index->bytes -= leaf_bytes(node->capacity);
    } else {
        index->bytes -= sizeof(struct branch);
    }
    memory_free(node);
}

/* Moves `count` children within a branch or to another. */
static void children_move(struct branch *to, uint32_t to_at, const struct branch *from, uint32_t from_at,
                          uint32_t count) {
    memmove(to->firsts + to_at, from->firsts + from_at, count * sizeof *to->firsts);
    memmove(to->children + to_at, from->children + from_at, count * sizeof *to->children);
}

static void child_insert(struct branch *branch, uint32_t at, struct xstream_id first, struct id_node *child) {
    children_move(branch, at + 1, branch, at, branch->head.count - at);
    branch->firsts[at] = first;
    branch->children[at] = child;
    branch->head.count++;
}

static void child_remove(struct branch *branch, uint32_t at) {
    children_move(branch, at, branch, at + 1, branch->head.count - at - 1);
    branch->head.count--;
}

/* ---- splitting: nodes that are full are split on the way down, so that what is inserted below finds room ---------- */

/* Moves the upper part of a full node to a new one behind it, whose first id is put in *first. An id that goes behind all
 * others moves only the last child or slot, so that ids in order leave full nodes behind. */
static struct id_node *split(struct id_index *index, struct id_node *node, bool at_end, struct xstream_id *first) {
    uint32_t at = at_end ? node->count - 1u : node->count / 2u, moved = node->count - at;
    struct id_node *right;
    if (node->height == 0) {
        struct id_leaf *leaf = (struct id_leaf *)node, *new_leaf = leaf_new(index, FANOUT);
        if (!new_leaf) return NULL;
        memcpy(new_leaf->slots, leaf->slots + at, moved * sizeof *leaf->slots);
        new_leaf->previous = leaf;
        new_leaf->next = leaf->next;
        *(leaf->next ? &leaf->next->previous : &index->last) = new_leaf;
        leaf->next = new_leaf;
        *first = new_leaf->slots[0].id;
        right = &new_leaf->head;
    } else {
        struct branch *new_branch = branch_new(index, node->height);
        if (!new_branch) return NULL;
        children_move(new_branch, 0, (struct branch *)node, at, moved);
        *first = new_branch->firsts[0];
        right = &new_branch->head;
    }
    right->count = (uint16_t)moved;
    node->count = (uint16_t)at;
    return right;
}

static bool split_child(struct id_index *index, struct branch *branch, uint32_t at, bool at_end) {
    struct xstream_id first;
    struct id_node *right = split(index, branch->children[at], at_end, &first);
    if (right) child_insert(branch, at + 1, first, right);
    return right;
}

/* Makes sure that the root is there and has room. */
static bool prepare_root(struct id_index *index, bool at_end) {
    struct id_node *old = index->root;
    if (!old) {
        struct id_leaf *leaf = leaf_new(index, SLOTS_FIRST);
        if (!leaf) return false;
        index->root = &leaf->head;
        index->first = index->last = leaf;
        return true;
    }
    if (old->height == 0 && old->count == old->capacity && old->capacity < FANOUT) {
        uint32_t capacity = 2u * old->capacity;
        struct id_leaf *grown = memory_realloc(old, leaf_bytes(capacity));
        if (!grown) return false;
        index->bytes += leaf_bytes(capacity) - leaf_bytes(grown->head.capacity);
        grown->head.capacity = (uint16_t)capacity;
        index->root = &grown->head;
        index->first = index->last = grown;
        return true;
    }
    if (old->count < FANOUT) return true;
    struct branch *root = branch_new(index, old->height + 1);
    if (!root) return false;
    child_insert(root, 0, old->height == 0 ? index->first->slots[0].id : ((struct branch *)old)->firsts[0], old);
    if (!split_child(index, root, 0, at_end)) {
        node_free(index, &root->head);
        return false;
    }
    index->root = &root->head;
    assert(root->head.height < HEIGHT_MOST);
    return true;
}

bool id_index_insert(struct id_index *index, struct xstream_id id, void *value) {
    struct id_position last = id_index_last(index);
    bool at_end = last.leaf && xstream_id_compare(id_index_slot(last)->id, id) < 0;
    if (!prepare_root(index, at_end)) return false;
    struct id_node *node = index->root;
    while (node->height > 0) {
        struct branch *branch = (struct branch *)node;
        uint32_t at = child_for(branch, id);
        if (branch->children[at]->count == FANOUT) {
            if (!split_child(index, branch, at, at_end)) return false;
            at = child_for(branch, id);
        }
        if (xstream_id_compare(id, branch->firsts[at]) < 0) branch->firsts[at] = id;
        node = branch->children[at];
    }
    struct id_leaf *leaf = (struct id_leaf *)node;
    uint32_t slot = slot_for(leaf, id);
    memmove(leaf->slots + slot + 1, leaf->slots + slot, (leaf->head.count - slot) * sizeof *leaf->slots);
    leaf->slots[slot] = (struct id_slot){id, value};
    leaf->head.count++;
    index->count++;
    return true;
}

/* ---- removing ---------------------------------------------------------------------------------------------------- */

/* Joins child `at` with the one behind it, where both fit; true if so. */
static bool join(struct id_index *index, struct branch *branch, uint32_t at) {
    if (at + 1 >= branch->head.count) return false;
    struct id_node *left = branch->children[at], *right = branch->children[at + 1];
    if (left->count + right->count > JOINED_MOST || (left->count >= JOIN_BELOW && right->count >= JOIN_BELOW))
        return false;
    if (left->height == 0) {
        memcpy(((struct id_leaf *)left)->slots + left->count, ((struct id_leaf *)right)->slots,
               right->count * sizeof(struct id_slot));
    } else {
        children_move((struct branch *)left, left->count, (struct branch *)right, 0, right->count);
    }
    left->count = (uint16_t)(left->count + right->count);
    node_free(index, right);
    child_remove(branch, at + 1);
    return true;
}

/* A branch of one child is no use at the root. */
static void lower_root(struct id_index *index) {
    while (index->root && index->root->height > 0 && index->root->count == 1) {
        struct id_node *root = index->root;
        index->root = ((struct branch *)root)->children[0];
        node_free(index, root);
    }
}

static void shrink(struct id_index *index, const struct path *path, struct id_node *node) {
    for (uint32_t i = path->length; i-- > 0;) {
        struct branch *branch = path->branches[i];
        uint32_t at = path->children[i];
        if (node->count == 0) {
            node_free(index, node);
            child_remove(branch, at);
        } else if (node->count < JOIN_BELOW) {
            if (!join(index, branch, at) && at > 0) join(index, branch, at - 1);
        } else {
            return;
        }
        node = &branch->head;
    }
    lower_root(index);
    if (index->root && index->root->count == 0) {
        node_free(index, index->root);
        index->root = NULL;
    }
}

void *id_index_remove(struct id_index *index, struct xstream_id id) {
    struct path path;
    struct id_leaf *leaf = leaf_for(index, id, &path);
    if (!leaf) return NULL;
    uint32_t slot = slot_for(leaf, id);
    if (slot == leaf->head.count || xstream_id_compare(leaf->slots[slot].id, id) != 0) return NULL;
    void *value = leaf->slots[slot].value;
    leaf->head.count--;
    memmove(leaf->slots + slot, leaf->slots + slot + 1, (leaf->head.count - slot) * sizeof *leaf->slots);
    index->count--;
    if (leaf->head.count < JOIN_BELOW) shrink(index, &path, &leaf->head);
    return value;
}

/* ---- freeing ----------------------------------------------------------------------------------------------------- */

static void free_branches(struct id_index *index, struct id_node *node) {
    if (!node || node->height == 0) return;
    struct branch *branch = (struct branch *)node;
    for (uint32_t i = 0; node->height > 1 && i < node->count; i++) free_branches(index, branch->children[i]);
    node_free(index, node);
}

bool id_index_release(struct id_index *index, size_t *steps, void (*drop)(void *value)) {
    free_branches(index, index->root);
    index->root = NULL;
    while (index->first) {
        struct id_leaf *leaf = index->first;
        for (; leaf->head.count > 0; leaf->head.count--) {
            if (*steps == 0) return false;
            *steps -= 1;
            index->count--;
            if (drop) drop(leaf->slots[leaf->head.count - 1].value);
        }
        node_free(index, &leaf->head);
    }
    return true;
}

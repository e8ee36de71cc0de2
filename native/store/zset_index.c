/* zset_index: a counting B+ tree of the members of a sorted set in order. */
#include "store/zset_index.h"

#include <assert.h>
#include <string.h>

#include "base/list.h"
#include "base/memory.h"

#define BRANCH_CHILDREN 64
#define JOINED_MOST 48  /* two neighbours are joined when they hold no more together */
#define JOIN_BELOW 32   /* and one of them has fallen below this */
#define HEIGHT_MOST \
    16  /* 24 children at least on average, two neighbours taken together: far beyond what fits in memory */

struct branch {
    struct zset_node head;
    struct zset_slot firsts[BRANCH_CHILDREN]; /* the first member below each child */
    uint64_t sizes[BRANCH_CHILDREN];          /* members below each child */
    struct zset_node *children[BRANCH_CHILDREN];
};

_Static_assert(ZSET_LEAF_SLOTS == BRANCH_CHILDREN, "one test tells whether a node is full");

/* The way from the root down to a leaf. */
struct path {
    struct branch *branches[HEIGHT_MOST];
    uint32_t children[HEIGHT_MOST];
    uint32_t length;
};

/* Order of members of one score: by their bytes, the shorter first. */
static int zset_compare_members(const uint8_t *left, size_t left_length, const uint8_t *right, size_t right_length) {
    size_t shorter = left_length < right_length ? left_length : right_length;
    int order = shorter > 0 ? memcmp(left, right, shorter) : 0;
    if (order != 0 || left_length == right_length) return order;
    return left_length < right_length ? -1 : 1;
}

bool zset_is_before(const struct zset_bound *bound, double score, const uint8_t *member, size_t length) {
    switch (bound->kind) {
    case ZSET_BOUND_FIRST: return false;
    case ZSET_BOUND_LAST: return true;
    case ZSET_BOUND_SCORE: return score < bound->score || (bound->past && score == bound->score);
    case ZSET_BOUND_ITEM:
        if (score != bound->score) return score < bound->score;
        break;
    case ZSET_BOUND_MEMBER: break;
    }
    int order = zset_compare_members(member, length, bound->member, bound->length);
    return order < 0 || (bound->past && order == 0);
}

static bool slot_is_before(const struct zset_slot *slot, const struct zset_bound *bound) {
    /* Most are decided by the score, without a look at the member. */
    if (bound->kind == ZSET_BOUND_ITEM && slot->score != bound->score) return slot->score < bound->score;
    return zset_is_before(bound, slot->score, slot->entry->key, slot->entry->key_length);
}

/* How many of the slots, which are in order, are before the bound. */
static uint32_t count_before(const struct zset_slot *slots, uint32_t count, const struct zset_bound *bound) {
    uint32_t low = 0, high = count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (slot_is_before(&slots[middle], bound))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct zset_bound bound_of(double score, const struct dict_entry *entry) {
    return (struct zset_bound){
        .kind = ZSET_BOUND_ITEM, .score = score, .member = entry->key, .length = entry->key_length};
}

static struct zset_slot first_of(const struct zset_node *node) {
    return node->height == 0 ? ((const struct zset_leaf *)node)->slots[0] : ((const struct branch *)node)->firsts[0];
}

static uint64_t size_of(const struct zset_node *node) {
    if (node->height == 0) return node->count;
    const struct branch *branch = (const struct branch *)node;
    uint64_t size = 0;
    for (uint32_t i = 0; i < node->count; i++) size += branch->sizes[i];
    return size;
}

/* The child in which the bound lies: the last one that begins before it. */
static uint32_t child_for(const struct branch *branch, const struct zset_bound *bound) {
    uint32_t before = count_before(branch->firsts, branch->head.count, bound);
    return before > 0 ? before - 1 : 0;
}

/* ---- sorting ----------------------------------------------------------------------------------------------------- */

#define SORT_RUN 16   /* so many are sorted by insertion */
#define SORT_REST 512 /* slots moved between two rests */

static bool slot_precedes(const struct zset_slot *left, const struct zset_slot *right) {
    if (left->score != right->score) return left->score < right->score;
    return zset_compare_members(left->entry->key, left->entry->key_length, right->entry->key,
                                right->entry->key_length) < 0;
}

static void sort_run(struct zset_slot *slots, uint64_t count) {
    for (uint64_t i = 1; i < count; i++) {
        struct zset_slot slot = slots[i];
        uint64_t at = i;
        for (; at > 0 && slot_precedes(&slot, &slots[at - 1]); at--) slots[at] = slots[at - 1];
        slots[at] = slot;
    }
}

/* Merges slots [0, middle) and [middle, end), each in order, to another place. */
static void merge(const struct zset_slot *slots, uint64_t middle, uint64_t end, struct zset_slot *merged,
                  void (*rest)(void *context), void *context) {
    uint64_t left = 0, right = middle;
    for (uint64_t i = 0; i < end; i++) {
        bool from_right = left == middle || (right < end && slot_precedes(&slots[right], &slots[left]));
        merged[i] = slots[from_right ? right++ : left++];
        if (i % SORT_REST == SORT_REST - 1 && rest) rest(context);
    }
}

bool zset_sort(struct zset_slot *slots, uint64_t count, void (*rest)(void *context), void *context) {
    struct zset_slot *from = slots, *to = memory_alloc((count + 1) * sizeof *to), *other = to;
    if (!other) return false;
    for (uint64_t at = 0; at < count; at += SORT_RUN) {
        sort_run(slots + at, count - at < SORT_RUN ? count - at : SORT_RUN);
        if (at % SORT_REST == 0 && rest) rest(context);
    }
    for (uint64_t width = SORT_RUN; width < count; width *= 2) {
        for (uint64_t at = 0; at < count; at += 2 * width) {
            uint64_t left = count - at;
            merge(from + at, width < left ? width : left, 2 * width < left ? 2 * width : left, to + at, rest, context);
        }
        struct zset_slot *merged = to;
        to = from;
        from = merged;
    }
    if (from != slots) memcpy(slots, from, count * sizeof *slots);
    memory_free(other);
    return true;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

static struct zset_leaf *leaf_new(struct zset_index *index) {
    struct zset_leaf *leaf = memory_alloc(sizeof *leaf);
    if (!leaf) return NULL;
    leaf->head = (struct zset_node){0};
    leaf->next = leaf->previous = NULL;
    index->leaves++;
    return leaf;
}

static struct branch *branch_new(uint32_t height) {
    struct branch *branch = memory_alloc(sizeof *branch);
    if (branch) branch->head = (struct zset_node){.height = height};
    return branch;
}

static void leaf_unlink(struct zset_index *index, struct zset_leaf *leaf) {
    LIST_REMOVE(index->first, index->last, leaf, next, previous);
}

static void node_free(struct zset_index *index, struct zset_node *node) {
    if (node->height == 0) {
        leaf_unlink(index, (struct zset_leaf *)node);
        index->leaves--;
    }
    memory_free(node);
}

static void child_set(struct branch *branch, uint32_t at, struct zset_node *child) {
    branch->children[at] = child;
    branch->firsts[at] = first_of(child);
    branch->sizes[at] = size_of(child);
}

/* Moves `count` children within a branch or to another. */
static void children_move(struct branch *to, uint32_t to_at, const struct branch *from, uint32_t from_at,
                          uint32_t count) {
    memmove(to->firsts + to_at, from->firsts + from_at, count * sizeof *to->firsts);
    memmove(to->sizes + to_at, from->sizes + from_at, count * sizeof *to->sizes);
    memmove(to->children + to_at, from->children + from_at, count * sizeof *to->children);
}

static void child_insert(struct branch *branch, uint32_t at, struct zset_node *child) {
    children_move(branch, at + 1, branch, at, branch->head.count - at);
    child_set(branch, at, child);
    branch->head.count++;
}

static void child_remove(struct branch *branch, uint32_t at) {
    children_move(branch, at, branch, at + 1, branch->head.count - at - 1);
    branch->head.count--;
}

/* ---- splitting: nodes that are full are split on the way down, so that what is inserted below finds room ---------- */

/* What the new member is to all others decides where a full node is cut: at its edge where they arrive in order. */
enum edge { EDGE_NONE, EDGE_FIRST, EDGE_LAST };

static struct zset_node *split(struct zset_index *index, struct zset_node *node, enum edge edge) {
    uint32_t at = edge == EDGE_LAST ? node->count - 1 : edge == EDGE_FIRST ? 1 : node->count / 2;
    uint32_t moved = node->count - at;
    struct zset_node *right;
    if (node->height == 0) {
        struct zset_leaf *leaf = (struct zset_leaf *)node, *new_leaf = leaf_new(index);
        if (!new_leaf) return NULL;
        memcpy(new_leaf->slots, leaf->slots + at, moved * sizeof *leaf->slots);
        new_leaf->previous = leaf;
        new_leaf->next = leaf->next;
        *(leaf->next ? &leaf->next->previous : &index->last) = new_leaf;
        leaf->next = new_leaf;
        right = &new_leaf->head;
    } else {
        struct branch *new_branch = branch_new(node->height);
        if (!new_branch) return NULL;
        children_move(new_branch, 0, (struct branch *)node, at, moved);
        right = &new_branch->head;
    }
    right->count = moved;
    node->count = at;
    return right;
}

static bool split_child(struct zset_index *index, struct branch *branch, uint32_t at, enum edge edge) {
    struct zset_node *child = branch->children[at], *right = split(index, child, edge);
    if (!right) return false;
    branch->sizes[at] = size_of(child);
    child_insert(branch, at + 1, right);
    return true;
}

/* Makes sure that the root is there and has room. */
static bool prepare_root(struct zset_index *index, enum edge edge) {
    if (!index->root) {
        struct zset_leaf *leaf = leaf_new(index);
        if (!leaf) return false;
        index->root = &leaf->head;
        index->first = index->last = leaf;
    }
    if (index->root->count < BRANCH_CHILDREN) return true;
    struct branch *root = branch_new(index->root->height + 1);
    if (!root) return false;
    child_insert(root, 0, index->root);
    if (!split_child(index, root, 0, edge)) {
        memory_free(root);
        return false;
    }
    index->root = &root->head;
    assert(root->head.height < HEIGHT_MOST);
    return true;
}

/* ---- the way to a leaf ------------------------------------------------------------------------------------------- */

static struct zset_leaf *path_to_bound(const struct zset_index *index, const struct zset_bound *bound,
                                       struct path *path) {
    struct zset_node *node = index->root;
    for (path->length = 0; node->height > 0; path->length++) {
        struct branch *branch = (struct branch *)node;
        uint32_t at = child_for(branch, bound);
        path->branches[path->length] = branch;
        path->children[path->length] = at;
        node = branch->children[at];
    }
    return (struct zset_leaf *)node;
}

static struct zset_leaf *path_to_rank(const struct zset_index *index, uint64_t rank, uint32_t *slot,
                                      struct path *path) {
    struct zset_node *node = index->root;
    for (path->length = 0; node->height > 0; path->length++) {
        struct branch *branch = (struct branch *)node;
        uint32_t at = 0;
        for (; at + 1 < node->count && rank >= branch->sizes[at]; at++) rank -= branch->sizes[at];
        path->branches[path->length] = branch;
        path->children[path->length] = at;
        node = branch->children[at];
    }
    *slot = (uint32_t)rank;
    return (struct zset_leaf *)node;
}

/* ---- changing ---------------------------------------------------------------------------------------------------- */

void zset_index_init(struct zset_index *index) {
    memset(index, 0, sizeof *index);
}

static enum edge edge_of(const struct zset_index *index, const struct zset_bound *bound) {
    if (index->count == 0) return EDGE_NONE;
    if (slot_is_before(&index->last->slots[index->last->head.count - 1], bound)) return EDGE_LAST;
    return slot_is_before(&index->first->slots[0], bound) ? EDGE_NONE : EDGE_FIRST;
}

bool zset_index_insert(struct zset_index *index, double score, struct dict_entry *entry) {
    struct zset_bound bound = bound_of(score, entry);
    enum edge edge = edge_of(index, &bound);
    if (!prepare_root(index, edge)) return false;
    struct path path = {.length = 0};
    struct zset_node *node = index->root;
    for (; node->height > 0; path.length++) {
        struct branch *branch = (struct branch *)node;
        uint32_t at = child_for(branch, &bound);
        if (branch->children[at]->count == BRANCH_CHILDREN) {
            if (!split_child(index, branch, at, edge)) return false;
            at = child_for(branch, &bound);
        }
        path.branches[path.length] = branch;
        path.children[path.length] = at;
        node = branch->children[at];
    }
    struct zset_leaf *leaf = (struct zset_leaf *)node;
    uint32_t slot = count_before(leaf->slots, node->count, &bound);
    memmove(leaf->slots + slot + 1, leaf->slots + slot, (node->count - slot) * sizeof *leaf->slots);
    leaf->slots[slot] = (struct zset_slot){score, entry};
    node->count++;
    index->count++;
    for (uint32_t level = path.length; level > 0; level--) {
        struct branch *branch = path.branches[level - 1];
        uint32_t at = path.children[level - 1];
        branch->sizes[at]++;
        branch->firsts[at] = first_of(branch->children[at]);
    }
    return true;
}

/* Appends what the child behind `at` holds to the child at `at`, and frees the emptied one. */
static void join(struct zset_index *index, struct branch *branch, uint32_t at) {
    struct zset_node *left = branch->children[at], *right = branch->children[at + 1];
    if (left->height == 0)
        memcpy(((struct zset_leaf *)left)->slots + left->count, ((struct zset_leaf *)right)->slots,
               right->count * sizeof(struct zset_slot));
    else
        children_move((struct branch *)left, left->count, (struct branch *)right, 0, right->count);
    left->count += right->count;
    branch->sizes[at] += branch->sizes[at + 1];
    child_remove(branch, at + 1);
    node_free(index, right);
}

/* Sets right what the branch says of a child that has lost members, and drops or joins the child if it is small. */
static void mend_child(struct zset_index *index, struct branch *branch, uint32_t at, uint32_t lost) {
    struct zset_node *child = branch->children[at];
    if (child->count == 0) {
        child_remove(branch, at);
        node_free(index, child);
        return;
    }
    branch->sizes[at] -= lost;
    branch->firsts[at] = first_of(child);
    if (child->count >= JOIN_BELOW) return;
    if (at > 0 && branch->children[at - 1]->count + child->count <= JOINED_MOST)
        join(index, branch, at - 1);
    else if (at + 1 < branch->head.count && branch->children[at + 1]->count + child->count <= JOINED_MOST)
        join(index, branch, at);
}

/* Takes `count` slots out of the leaf at the path's end, and sets all above it right. */
static void leaf_cut(struct zset_index *index, struct path *path, struct zset_leaf *leaf, uint32_t slot,
                     uint32_t count) {
    memmove(leaf->slots + slot, leaf->slots + slot + count, (leaf->head.count - slot - count) * sizeof *leaf->slots);
    leaf->head.count -= count;
    index->count -= count;
    for (uint32_t level = path->length; level > 0; level--)
        mend_child(index, path->branches[level - 1], path->children[level - 1], count);
    while (index->root->height > 0 && index->root->count == 1) {
        struct zset_node *root = index->root;
        index->root = ((struct branch *)root)->children[0];
        memory_free(root);
    }
    if (index->root->count > 0) return;
    node_free(index, index->root);
    index->root = NULL;
}

void zset_index_remove(struct zset_index *index, double score, const struct dict_entry *entry) {
    struct zset_bound bound = bound_of(score, entry);
    /* The member itself must be before the bound that leads to it, or the way would end in the leaf before its own. */
    bound.past = true;
    struct path path;
    struct zset_leaf *leaf = path_to_bound(index, &bound, &path);
    uint32_t past = count_before(leaf->slots, leaf->head.count, &bound);
    assert(past > 0 && leaf->slots[past - 1].entry == entry);
    leaf_cut(index, &path, leaf, past - 1, 1);
}

bool zset_index_move(struct zset_index *index, double old_score, double score, struct dict_entry *entry) {
    /* Inserted before it is removed: this alone can fail. */
    if (!zset_index_insert(index, score, entry)) return false;
    zset_index_remove(index, old_score, entry);
    return true;
}

uint32_t zset_index_cut(struct zset_index *index, uint64_t rank, uint64_t most,
                        struct dict_entry *entries[ZSET_LEAF_SLOTS]) {
    struct path path;
    uint32_t slot;
    struct zset_leaf *leaf = path_to_rank(index, rank, &slot, &path);
    uint32_t count = leaf->head.count - slot;
    if (count > most) count = (uint32_t)most;
    for (uint32_t i = 0; i < count; i++) entries[i] = leaf->slots[slot + i].entry;
    leaf_cut(index, &path, leaf, slot, count);
    return count;
}

/* ---- looking up -------------------------------------------------------------------------------------------------- */

uint64_t zset_index_rank(const struct zset_index *index, const struct zset_bound *bound) {
    if (!index->root) return 0;
    struct path path;
    const struct zset_leaf *leaf = path_to_bound(index, bound, &path);
    uint64_t rank = count_before(leaf->slots, leaf->head.count, bound);
    for (uint32_t level = 0; level < path.length; level++)
        for (uint32_t i = 0; i < path.children[level]; i++) rank += path.branches[level]->sizes[i];
    return rank;
}

struct zset_leaf *zset_index_at(const struct zset_index *index, uint64_t rank, uint32_t *slot) {
    struct path path;
    if (index->root) return path_to_rank(index, rank, slot, &path);
    *slot = 0;
    return NULL;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

bool zset_index_release(struct zset_index *index, size_t *steps) {
    while (index->root) {
        if (*steps == 0) return false;
        /* The rightmost node at the bottom goes; a branch goes with its last child. */
        struct branch *parent = NULL;
        struct zset_node *node = index->root;
        while (node->height > 0 && node->count > 0) {
            parent = (struct branch *)node;
            node = parent->children[node->count - 1];
        }
        (*steps)--;
        if (parent)
            parent->head.count--;
        else
            index->root = NULL;
        memory_free(node);
    }
    zset_index_init(index);
    return true;
}

size_t zset_index_bytes(const struct zset_index *index) {
    /* Of branches there are few; two in three of their places are taken on average. */
    return index->leaves * sizeof(struct zset_leaf) + index->leaves * 3 / (2 * BRANCH_CHILDREN) * sizeof(struct branch);
}

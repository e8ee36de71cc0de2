/* dict_walk: scans, less what a scan shows again after a dict has shrunk. */
#include "store/dict_walk.h"

static uint32_t reverse_bits(uint32_t word) {
    word = (word >> 1 & 0x55555555u) | (word & 0x55555555u) << 1;
    word = (word >> 2 & 0x33333333u) | (word & 0x33333333u) << 2;
    word = (word >> 4 & 0x0f0f0f0fu) | (word & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(word);
}

/* A dict has at most 2^32 buckets, so that a cursor has no more bits than a hash. */
static bool is_before(uint32_t hash, uint64_t cursor) {
    return reverse_bits(hash) < reverse_bits((uint32_t)cursor);
}

bool dict_walk_has_passed(const struct dict_walk *walk, const struct dict_entry *entry) {
    return walk->ended || is_before(entry->hash, walk->cursor);
}

struct step {
    uint64_t cursor;
    dict_visit visit;
    void *context;
};

static void visit_if_new(void *context, struct dict_entry *entry) {
    const struct step *step = context;
    if (!is_before(entry->hash, step->cursor)) step->visit(step->context, entry);
}

bool dict_walk_step(struct dict_walk *walk, struct dict *dict, dict_visit visit, void *context) {
    if (walk->ended) return false;
    struct step step = {.cursor = walk->cursor, .visit = visit, .context = context};
    walk->cursor = dict_scan(dict, walk->cursor, visit_if_new, &step);
    walk->ended = walk->cursor == 0;
    return true;
}

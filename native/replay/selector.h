/* selector: which live item is drawn next, or leaves next: one interface for a table's sampler and its remover.
 *
 * A selector keeps an index of the items that were inserted; fifo and lifo need none, they read the table's order.
 * The index can be filled piece by piece: removing or updating a slot that is not in it yet does nothing (or, for
 * prioritized, what inserting it will do anyway). Changes take effect at selector_repair. `key` is what selector_keys
 * makes of a priority, many at once. */
#ifndef REPLAY_REPLAY_SELECTOR_H
#define REPLAY_REPLAY_SELECTOR_H

#include "replay/selector_heap.h"
#include "replay/selector_order.h"
#include "replay/selector_uniform.h"
#include "replay/sum_tree.h"

struct selector {
    enum selector_kind kind;
    double exponent;                 /* SELECTOR_PRIORITIZED */
    bool independent;                /* SELECTOR_PRIORITIZED: draws are not stratified */
    struct sum_tree weights;         /* SELECTOR_PRIORITIZED: p^exponent by slot */
    struct selector_uniform uniform; /* SELECTOR_UNIFORM */
    struct selector_heap heap;       /* SELECTOR_MAX_HEAP, SELECTOR_MIN_HEAP */
};

/* Their batches are the first n in their order; the others draw with replacement. */
static inline bool selector_is_ordered(enum selector_kind kind) {
    return kind != SELECTOR_PRIORITIZED && kind != SELECTOR_UNIFORM;
}
/* Whether it has an index that a table must fill. */
static inline bool selector_is_indexed(enum selector_kind kind) {
    return kind != SELECTOR_FIFO && kind != SELECTOR_LIFO;
}

/* -1: memory is exhausted. */
int selector_init(struct selector *selector, enum selector_kind kind, double exponent, uint32_t capacity,
                  uint32_t slots);
void selector_free(struct selector *selector);

void selector_keys(const struct selector *selector, const double *priorities, uint32_t n, double *keys);
double selector_key(const struct selector *selector, double priority);
void selector_insert(struct selector *selector, uint32_t slot, double key);
void selector_update(struct selector *selector, uint32_t slot, double key);
void selector_remove(struct selector *selector, uint32_t slot);
void selector_repair(struct selector *selector);

/* Makes n draws. Ordered ones: n <= items; others: at least one item may be drawn. */
void selector_draw(struct selector *selector, const struct selector_order *order, const struct slot_store *items,
                   struct random_state *random, uint32_t n, uint32_t *slots);
/* As selector_draw, no slot twice; at least n may be drawn. `scratch` has room for n doubles. */
void selector_draw_distinct(struct selector *selector, const struct selector_order *order,
                            const struct slot_store *items, struct random_state *random, uint32_t n, uint32_t *slots,
                            double *scratch);
/* Whether there is something to draw. A prioritized selector has nothing where all priorities are zero. */
bool selector_can_draw(const struct selector *selector, const struct selector_order *order);
double selector_total(const struct selector *selector); /* SELECTOR_PRIORITIZED: the sum of weights; others: 0 */

static inline void selector_prefetch(const struct selector *selector, uint32_t slot) {
    if (selector->kind == SELECTOR_PRIORITIZED) wide_tree_prefetch_leaf(&selector->weights.tree, slot);
}

#endif

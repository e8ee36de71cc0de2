/* selector: hands each call to the selector of its kind. */
#include "replay/selector.h"

#include <string.h>

#include "replay/selector_prioritized.h"

int selector_init(struct selector *selector, enum selector_kind kind, double exponent, uint32_t capacity,
                  uint32_t slots) {
    memset(selector, 0, sizeof *selector);
    selector->kind = kind;
    selector->exponent = exponent;
    switch (kind) {
    case SELECTOR_PRIORITIZED: return sum_tree_init(&selector->weights, slots);
    case SELECTOR_UNIFORM: return selector_uniform_init(&selector->uniform, capacity, slots);
    case SELECTOR_MAX_HEAP:
    case SELECTOR_MIN_HEAP: return selector_heap_init(&selector->heap, capacity, slots);
    case SELECTOR_FIFO:
    case SELECTOR_LIFO: break;
    }
    return 0;
}

void selector_free(struct selector *selector) {
    sum_tree_free(&selector->weights);
    selector_uniform_free(&selector->uniform);
    selector_heap_free(&selector->heap);
}

void selector_keys(const struct selector *selector, const double *priorities, uint32_t n, double *keys) {
    if (selector->kind == SELECTOR_PRIORITIZED)
        selector_prioritized_weights(selector->exponent, priorities, n, keys);
    else
        memcpy(keys, priorities, n * sizeof *keys);
}

double selector_key(const struct selector *selector, double priority) {
    double key;
    selector_keys(selector, &priority, 1, &key);
    return key;
}

static uint64_t heap_key(const struct selector *selector, double priority) {
    uint64_t key = heap_key_of_priority(priority);
    return selector->kind == SELECTOR_MAX_HEAP ? ~key : key;
}

void selector_insert(struct selector *selector, uint32_t slot, double key) {
    switch (selector->kind) {
    case SELECTOR_PRIORITIZED: sum_tree_write(&selector->weights, slot, key); return;
    case SELECTOR_UNIFORM: selector_uniform_insert(&selector->uniform, slot); return;
    case SELECTOR_MAX_HEAP:
    case SELECTOR_MIN_HEAP: selector_heap_insert(&selector->heap, slot, heap_key(selector, key)); return;
    case SELECTOR_FIFO:
    case SELECTOR_LIFO: return;
    }
}

void selector_update(struct selector *selector, uint32_t slot, double key) {
    switch (selector->kind) {
    case SELECTOR_PRIORITIZED: sum_tree_write(&selector->weights, slot, key); return;
    case SELECTOR_MAX_HEAP:
    case SELECTOR_MIN_HEAP: selector_heap_update(&selector->heap, slot, heap_key(selector, key)); return;
    case SELECTOR_UNIFORM:
    case SELECTOR_FIFO:
    case SELECTOR_LIFO: return;
    }
}

void selector_remove(struct selector *selector, uint32_t slot) {
    switch (selector->kind) {
    case SELECTOR_PRIORITIZED: sum_tree_write(&selector->weights, slot, 0); return;
    case SELECTOR_UNIFORM: selector_uniform_remove(&selector->uniform, slot); return;
    case SELECTOR_MAX_HEAP:
    case SELECTOR_MIN_HEAP: selector_heap_remove(&selector->heap, slot); return;
    case SELECTOR_FIFO:
    case SELECTOR_LIFO: return;
    }
}

void selector_repair(struct selector *selector) {
    if (selector->kind == SELECTOR_PRIORITIZED) sum_tree_repair(&selector->weights);
}

void selector_draw(struct selector *selector, const struct selector_order *order, const struct slot_store *items,
                   struct random_state *random, uint32_t n, uint32_t *slots) {
    switch (selector->kind) {
    case SELECTOR_PRIORITIZED: sum_tree_sample(&selector->weights, random, n, !selector->independent, slots); return;
    case SELECTOR_UNIFORM: selector_uniform_sample(&selector->uniform, random, n, slots); return;
    case SELECTOR_FIFO: selector_order_oldest(order, items, n, slots); return;
    case SELECTOR_LIFO: selector_order_newest(order, items, n, slots); return;
    case SELECTOR_MAX_HEAP:
    case SELECTOR_MIN_HEAP: selector_heap_first(&selector->heap, n, slots); return;
    }
}

void selector_draw_distinct(struct selector *selector, const struct selector_order *order,
                            const struct slot_store *items, struct random_state *random, uint32_t n, uint32_t *slots,
                            double *scratch) {
    if (selector->kind == SELECTOR_PRIORITIZED)
        sum_tree_sample_distinct(&selector->weights, random, n, !selector->independent, slots, scratch);
    else if (selector->kind == SELECTOR_UNIFORM)
        selector_uniform_sample_distinct(&selector->uniform, random, n, slots);
    else
        selector_draw(selector, order, items, random, n, slots);
}

bool selector_can_draw(const struct selector *selector, const struct selector_order *order) {
    switch (selector->kind) {
    case SELECTOR_PRIORITIZED: return sum_tree_total(&selector->weights) > 0;
    case SELECTOR_UNIFORM: return selector->uniform.count > 0;
    case SELECTOR_MAX_HEAP:
    case SELECTOR_MIN_HEAP: return selector->heap.count > 0;
    case SELECTOR_FIFO:
    case SELECTOR_LIFO: break;
    }
    return order->oldest != SLOT_NONE;
}

double selector_total(const struct selector *selector) {
    return selector->kind == SELECTOR_PRIORITIZED ? sum_tree_total(&selector->weights) : 0;
}

/* test_table_model: random operations on a table and on plain arrays, compared after each. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/msgpack.h"
#include "base/random.h"
#include "check.h"
#include "replay/table_state.h"
#include "table_stage.h"

#define MODEL_CAPACITY 60u
#define MODEL_PINS 40u

struct model_item {
    uint64_t id, value;
    double priority;
    uint32_t times;
};

struct model {
    struct model_item items[MODEL_CAPACITY];
    uint32_t size;
    enum selector_kind sampler, remover;
    double exponent;
    uint32_t max_times_sampled;
    uint64_t added, removed, sampled, stale;
    uint64_t departed[64]; /* some ids that have left */
    uint32_t departed_count;
    struct {
        uint32_t slot;
        uint64_t value;
    } pins[MODEL_PINS];
    uint32_t pin_count;
};

static void model_remove(struct model *model, uint32_t at) {
    model->departed[model->departed_count++ % 64] = model->items[at].id;
    model->size--;
    model->removed++;
    memmove(&model->items[at], &model->items[at + 1], (model->size - at) * sizeof model->items[0]);
}

static int model_find(const struct model *model, uint64_t id) {
    for (uint32_t i = 0; i < model->size; i++)
        if (model->items[i].id == id) return (int)i;
    return -1;
}

static double model_weight(const struct model *model, uint32_t at) {
    double priority = model->items[at].priority;
    return model->sampler != SELECTOR_PRIORITIZED ? 1 : priority > 0 ? pow(priority, model->exponent) : 0;
}

static double random_priority(struct random_state *random) {
    return random_below(random, 4) ? pow(10, 6 * random_unit(random) - 3) : 0;
}

/* Whether the item at `left` comes before that at `right` in the order of a selector. */
static bool comes_before(const struct model *model, enum selector_kind kind, uint32_t left, uint32_t right) {
    double a = model->items[left].priority, b = model->items[right].priority;
    switch (kind) {
    case SELECTOR_LIFO: return left > right;
    case SELECTOR_MAX_HEAP: return a > b || (a == b && left < right);
    case SELECTOR_MIN_HEAP: return a < b || (a == b && left < right);
    default: return left < right;
    }
}

static uint32_t first_in_order(const struct model *model, enum selector_kind kind, const bool *taken) {
    uint32_t first = model->size;
    for (uint32_t i = 0; i < model->size; i++)
        if (!taken[i] && (first == model->size || comes_before(model, kind, i, first))) first = i;
    return first;
}

/* The items that left to make room: those that must, or of a random remover those that did, where they could. */
static void model_make_room(struct model *model, const struct table *table, uint32_t n) {
    static const bool none[MODEL_CAPACITY];
    bool ordered = selector_is_ordered(model->remover), zero_left = false;
    while (ordered && model->size + n > MODEL_CAPACITY)
        model_remove(model, first_in_order(model, model->remover, none));
    for (uint32_t i = 0; !ordered && i < model->size;) {
        if (table_slot(table, model->items[i].id) == SLOT_NONE) {
            zero_left |= model->items[i].priority == 0;
            model_remove(model, i);
        } else {
            i++;
        }
    }
    for (uint32_t i = 0; i < model->size; i++) {
        CHECK(table_slot(table, model->items[i].id) != SLOT_NONE);
        CHECK(!(model->remover == SELECTOR_PRIORITIZED && zero_left && model->items[i].priority > 0));
    }
    CHECK(model->size + n <= MODEL_CAPACITY);
}

static void model_add(struct model *model, struct table *table, struct random_state *random) {
    uint32_t n = 1 + (uint32_t)random_below(random, 9);
    double priorities[9], maximum = 0;
    uint64_t ids[9];
    bool given = random_below(random, 2);
    for (uint32_t i = 0; i < model->size; i++) maximum = fmax(maximum, model->items[i].priority);
    for (uint32_t i = 0; i < n; i++) priorities[i] = given ? random_priority(random) : model->size ? maximum : 1;
    if (random_below(random, 10) == 0) { /* a client that vanished */
        struct reservation *reservation = table_reserve(table, n, &error);
        CHECK(reservation);
        reservation_release(reservation);
        return;
    }
    CHECK(add(table, n, model->added, given ? priorities : NULL, ids) == 0);
    model_make_room(model, table, n);
    for (uint32_t i = 0; i < n; i++) {
        CHECK(model_find(model, ids[i]) < 0);
        for (uint32_t j = 0; j < 64; j++) CHECK(model->departed[j] != ids[i]);
        model->items[model->size++] = (struct model_item){ids[i], model->added++, priorities[i], 0};
    }
}

static void model_update(struct model *model, struct table *table, struct random_state *random) {
    uint64_t ids[8], applied, stale, expected = 0;
    double priorities[8];
    uint32_t n = (uint32_t)random_below(random, 9);
    for (uint32_t i = 0; i < n; i++) {
        bool live = model->size && random_below(random, 3);
        ids[i] = live ? model->items[random_below(random, model->size)].id : model->departed[random_below(random, 64)];
        priorities[i] = random_priority(random);
        int at = model_find(model, ids[i]);
        if (at >= 0) {
            model->items[at].priority = priorities[i];
            expected++;
        }
    }
    CHECK(table_update(table, n, ids, priorities, &applied, &stale, &error) == 0);
    CHECK(applied == expected && stale == n - expected);
    model->stale += stale;
}

static void model_delete(struct model *model, struct table *table, struct random_state *random) {
    if (model->size && random_below(random, 3) == 0) {
        uint32_t at = (uint32_t)random_below(random, model->size);
        CHECK(table_delete(table, 1, &model->items[at].id) == 1);
        model_remove(model, at);
        CHECK(table_delete(table, 1, &model->departed[(model->departed_count - 1) % 64]) == 0);
    }
}

/* The ids of the n first items in the order of the sampler. */
static void expected_batch(const struct model *model, uint32_t n, uint64_t *ids) {
    bool taken[MODEL_CAPACITY] = {false};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t first = first_in_order(model, model->sampler, taken);
        taken[first] = true;
        ids[i] = model->items[first].id;
    }
}

static double model_total(const struct model *model) {
    double total = 0;
    for (uint32_t i = 0; i < model->size; i++) total += model_weight(model, i);
    return total;
}

static void model_keep(struct model *model, struct table *table, uint32_t slot, uint64_t value) {
    if (model->pin_count < MODEL_PINS) {
        model->pins[model->pin_count].slot = slot;
        model->pins[model->pin_count++].value = value;
    } else {
        table_unpin(table, &slot, 1);
    }
}

static bool model_can_sample(const struct model *model, uint32_t n, bool replace, bool ordered) {
    uint64_t left = 0, drawable = 0;
    for (uint32_t i = 0; i < model->size; i++) {
        bool may = model_weight(model, i) > 0;
        drawable += may;
        left += may ? model->max_times_sampled ? model->max_times_sampled - model->items[i].times : 1000 : 0;
    }
    return left >= n && (!ordered || model->size >= n) && (replace || drawable >= n);
}

static void model_sample(struct model *model, struct table *table, struct random_state *random) {
    uint32_t n = 1 + (uint32_t)random_below(random, 8), slots[8];
    uint64_t ids[8], values[8], order[8];
    double p[8], total = model_total(model);
    float w[8];
    bool replace = random_below(random, 3), ordered = selector_is_ordered(model->sampler);
    bool possible = model_can_sample(model, n, replace, ordered);
    CHECK((table_sample(table, n, 0.7, replace, slots, ids, p, w, NULL, &error) == 0) == possible);
    if (!possible) {
        CHECK(error.code == ERROR_TIMEOUT && error.message[0]);
        return;
    }
    if (ordered) expected_batch(model, n, order);
    table_gather(table, 0, slots, n, values);
    for (uint32_t i = 0; i < n; i++) {
        int at = model_find(model, ids[i]);
        CHECK(at >= 0 && values[i] == model->items[at].value && model_weight(model, (uint32_t)at) > 0);
        CHECK(!ordered || ids[i] == order[i]);
        double expected = ordered ? 1 : model_weight(model, (uint32_t)at) / total;
        CHECK(!replace || fabs(p[i] - expected) <= 1e-9 * expected);
        for (uint32_t j = 0; j < i; j++) CHECK(replace || ids[j] != ids[i]);
        if (++model->items[at].times == model->max_times_sampled) {
            model_remove(model, (uint32_t)at);
            total = model_total(model);
        }
        model_keep(model, table, slots[i], values[i]);
    }
    model->sampled += n;
}

/* ---- changes ------------------------------------------------------------------------------------------------------- */

static void write_selector(struct msgpack_writer *writer, const char *key, enum selector_kind kind, double exponent) {
    bool prioritized = kind == SELECTOR_PRIORITIZED;
    msgpack_write_string(writer, key, strlen(key));
    msgpack_write_map(writer, prioritized ? 2 : 1);
    msgpack_write_string(writer, "kind", 4);
    msgpack_write_string(writer, selector_name(kind), strlen(selector_name(kind)));
    if (prioritized) {
        msgpack_write_string(writer, "priority_exponent", 17);
        msgpack_write_double(writer, exponent);
    }
}

/* Another sampler, remover and limit; while the table works on it, items go on to be updated and deleted. */
static void model_configure(struct model *model, struct table *table, struct random_state *random) {
    struct msgpack_writer writer = {0};
    enum selector_kind sampler = (enum selector_kind)random_below(random, SELECTOR_KINDS);
    enum selector_kind remover = (enum selector_kind)random_below(random, SELECTOR_KINDS);
    uint32_t limit = (uint32_t)random_below(random, 4);
    double exponent = random_below(random, 2) ? 0.6 : 1.5;
    msgpack_write_map(&writer, 3);
    write_selector(&writer, "sampler", sampler, exponent);
    write_selector(&writer, "remover", remover, 0.3);
    msgpack_write_string(&writer, "max_times_sampled", 17);
    msgpack_write_unsigned(&writer, limit);
    CHECK(table_begin_configure(table, writer.data, writer.length, &error) == 0);
    memory_free(writer.data);
    uint32_t before = model->size;
    for (uint32_t i = 0; i < model->size;)
        if (limit && model->items[i].times >= limit)
            model_remove(model, i);
        else
            i++;
    /* Who leaves while the table works on it, and when, is its own affair: then nobody else interferes. */
    bool interfere = before == model->size;
    for (bool left = true; left; left = table_step(table, interfere ? 0 : CLOCK_NEVER)) {
        if (interfere) {
            model_update(model, table, random);
            model_delete(model, table, random);
        }
    }
    model->sampler = sampler;
    model->remover = remover;
    model->exponent = exponent;
    model->max_times_sampled = limit;
}

static void model_unpin(struct model *model, struct table *table, struct random_state *random) {
    while (model->pin_count && random_below(random, 4)) {
        uint32_t at = (uint32_t)random_below(random, model->pin_count);
        uint64_t value;
        table_gather(table, 0, &model->pins[at].slot, 1, &value);
        CHECK(value == model->pins[at].value);
        table_unpin(table, &model->pins[at].slot, 1);
        model->pins[at] = model->pins[--model->pin_count];
    }
}

static void model_compare(const struct model *model, const struct table *table) {
    struct table_info info = info_of(table);
    double maximum = 0, total = 0;
    for (uint32_t i = 0; i < model->size; i++) {
        maximum = fmax(maximum, model->items[i].priority);
        total += model_weight(model, i);
    }
    CHECK(info.size == model->size && info.added == model->added && info.removed == model->removed);
    CHECK(info.sampled == model->sampled && info.stale_updates == model->stale && info.bytes == 11ull * model->size);
    CHECK(info.max_priority == maximum && info.reserved_slots == 0);
    if (table_config(table)->sampler == SELECTOR_PRIORITIZED) CHECK(fabs(info.total_priority - total) <= 1e-12 * total);
    CHECK(table->items.live == info.size);
    CHECK(table->items.occupied + info.free_slots + info.retired_slots == table->items.slots);
}

static void run_model(enum selector_kind sampler, enum selector_kind remover, uint32_t max_times_sampled,
                      uint64_t seed) {
    struct table_config config = small_config(MODEL_CAPACITY, sampler);
    config.priority_exponent = sampler == SELECTOR_PRIORITIZED ? 0.6 : 0;
    config.remover = remover;
    config.remover_exponent = remover == SELECTOR_PRIORITIZED ? 0.3 : 0;
    config.max_times_sampled = max_times_sampled;
    struct table *table = make(&config);
    struct model *model = calloc(1, sizeof *model);
    model->sampler = sampler;
    model->remover = remover;
    model->exponent = 0.6;
    model->max_times_sampled = max_times_sampled;
    struct random_state random;
    random_seed(&random, seed);
    for (int step = 0; step < 4000; step++) {
        switch (random_below(&random, 6)) {
        case 0: model_add(model, table, &random); break;
        case 1: model_update(model, table, &random); break;
        case 2: model_delete(model, table, &random); break;
        case 3:
        case 4: model_sample(model, table, &random); break;
        default: model_unpin(model, table, &random); break;
        }
        if (random_below(&random, 200) == 0) model_configure(model, table, &random);
        if (random_below(&random, 1000) == 0) {
            table_reset(table);
            while (model->size) model_remove(model, 0);
        }
        model_compare(model, table);
    }
    while (model->pin_count) model_unpin(model, table, &random);
    table_free(table);
    free(model);
}

static void behaves_as_plain_arrays_do(void) {
    for (uint64_t seed = 1; seed <= 2; seed++) {
        for (int sampler = 0; sampler < SELECTOR_KINDS; sampler++) {
            for (int remover = 0; remover < SELECTOR_KINDS; remover++) {
                uint32_t max_times_sampled = (uint32_t)(sampler + remover + (int)seed) % 3;
                run_model((enum selector_kind)sampler, (enum selector_kind)remover, max_times_sampled,
                          seed * 100 + (uint64_t)(sampler * SELECTOR_KINDS + remover));
            }
        }
    }
    CHECK(memory_mapped_bytes() == 0);
}

int main(void) {
    RUN(behaves_as_plain_arrays_do);
    return 0;
}

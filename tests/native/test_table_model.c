/* test_table_model: random operations on a table and on plain arrays, compared after each. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
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
    for (uint32_t i = 0; i < model->size; i++) {
        if (model->items[i].id == id) {
            return (int)i;
        }
    }
    return -1;
}

static double model_weight(const struct model *model, uint32_t at, enum selector_kind sampler) {
    double priority = model->items[at].priority;
    return sampler != SELECTOR_PRIORITIZED ? 1 : priority > 0 ? pow(priority, model->exponent) : 0;
}

static double random_priority(struct random_state *random) {
    return random_below(random, 4) ? pow(10, 6 * random_unit(random) - 3) : 0;
}

static void model_add(struct model *model, struct table *table, struct random_state *random) {
    uint32_t n = 1 + (uint32_t)random_below(random, 9);
    double priorities[9], maximum = 0;
    uint64_t ids[9];
    bool given = random_below(random, 2);
    for (uint32_t i = 0; i < model->size; i++) {
        maximum = fmax(maximum, model->items[i].priority);
    }
    for (uint32_t i = 0; i < n; i++) {
        priorities[i] = given ? random_priority(random) : model->size ? maximum : 1;
    }
    if (random_below(random, 10) == 0) { /* a client that vanished */
        struct reservation *reservation = table_reserve(table, n, &error);
        CHECK(reservation);
        reservation_release(reservation);
        return;
    }
    CHECK(add(table, n, model->added, given ? priorities : NULL, ids) == 0);
    while (model->size + n > MODEL_CAPACITY) {
        model_remove(model, 0);
    }
    for (uint32_t i = 0; i < n; i++) {
        CHECK(model_find(model, ids[i]) < 0);
        for (uint32_t j = 0; j < 64; j++) {
            CHECK(model->departed[j] != ids[i]);
        }
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

static void model_sample(struct model *model, struct table *table, struct random_state *random) {
    enum selector_kind sampler = table_config(table)->sampler;
    uint32_t n = 1 + (uint32_t)random_below(random, 8), slots[8];
    uint64_t ids[8], values[8], left = 0;
    double p[8], total = 0;
    float w[8];
    for (uint32_t i = 0; i < model->size; i++) {
        double weight = model_weight(model, i, sampler);
        total += weight;
        left += weight > 0 ? model->max_times_sampled ? model->max_times_sampled - model->items[i].times : 1000 : 0;
    }
    bool possible = left >= n && (sampler != SELECTOR_FIFO || model->size >= n);
    CHECK((table_sample(table, n, 0.7, true, slots, ids, p, w, &error) == 0) == possible);
    if (!possible) {
        CHECK(error.code == ERROR_TIMEOUT && error.message[0]);
        return;
    }
    table_gather(table, 0, slots, n, values);
    for (uint32_t i = 0, oldest = 0; i < n; i++) {
        int at = model_find(model, ids[i]);
        CHECK(at >= 0 && values[i] == model->items[at].value && model_weight(model, (uint32_t)at, sampler) > 0);
        double expected = sampler == SELECTOR_FIFO ? 1 : model_weight(model, (uint32_t)at, sampler) / total;
        CHECK(fabs(p[i] - expected) <= 1e-9 * expected);
        CHECK(sampler != SELECTOR_FIFO || (uint32_t)at == oldest);
        if (++model->items[at].times == model->max_times_sampled) {
            total -= model_weight(model, (uint32_t)at, sampler);
            model_remove(model, (uint32_t)at);
            total = 0;
            for (uint32_t j = 0; j < model->size; j++) {
                total += model_weight(model, j, sampler);
            }
        } else {
            oldest++;
        }
        if (model->pin_count < MODEL_PINS) {
            model->pins[model->pin_count].slot = slots[i];
            model->pins[model->pin_count++].value = values[i];
        } else {
            table_unpin(table, &slots[i], 1);
        }
    }
    model->sampled += n;
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
        total += model_weight(model, i, SELECTOR_PRIORITIZED);
    }
    CHECK(info.size == model->size && info.added == model->added && info.removed == model->removed);
    CHECK(info.sampled == model->sampled && info.stale_updates == model->stale && info.bytes == 11ull * model->size);
    CHECK(info.max_priority == maximum && info.reserved_slots == 0);
    if (table_config(table)->sampler == SELECTOR_PRIORITIZED) {
        CHECK(fabs(info.total_priority - total) <= 1e-12 * total);
    }
    CHECK(info.size + info.free_slots + info.retired_slots + table->storage.zombies == table->storage.slots);
}

static void run_model(enum selector_kind sampler, uint32_t max_times_sampled, uint64_t seed) {
    struct table_config config = small_config(MODEL_CAPACITY, sampler);
    config.priority_exponent = sampler == SELECTOR_PRIORITIZED ? 0.6 : 0;
    config.max_times_sampled = max_times_sampled;
    struct table *table = make(&config);
    struct model *model = calloc(1, sizeof *model);
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
        if (random_below(&random, 1000) == 0) {
            table_reset(table);
            while (model->size) {
                model_remove(model, 0);
            }
        }
        model_compare(model, table);
    }
    while (model->pin_count) {
        model_unpin(model, table, &random);
    }
    table_free(table);
    free(model);
}

static void behaves_as_plain_arrays_do(void) {
    for (uint64_t seed = 1; seed <= 6; seed++) {
        run_model(SELECTOR_PRIORITIZED, 0, seed);
        run_model(SELECTOR_PRIORITIZED, 2, 100 + seed);
        run_model(SELECTOR_UNIFORM, 0, 200 + seed);
        run_model(SELECTOR_UNIFORM, 3, 300 + seed);
        run_model(SELECTOR_FIFO, 0, 400 + seed);
        run_model(SELECTOR_FIFO, 1, 500 + seed);
    }
    CHECK(memory_mapped_bytes() == 0);
}

int main(void) {
    RUN(behaves_as_plain_arrays_do);
    return 0;
}

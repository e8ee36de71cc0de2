/* Tests of the table: ids, removal, pins, reservations, limiters, specs, and a randomised model test. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/msgpack.h"
#include "check.h"
#include "replay/table_state.h"

static struct error error;

static struct table_config small_config(uint64_t capacity, enum sampler_kind sampler)
{
    struct table_config config = {.capacity = capacity, .columns = 2, .sampler = sampler, .min_size_to_sample = 1, .seed = 7};
    strcpy(config.name, "t");
    config.priority_exponent = sampler == SAMPLER_PRIORITIZED ? 1 : 0;
    config.column[0] = (struct column){.name = "value", .type = COLUMN_UINT64, .item_bytes = 8};
    config.column[1] = (struct column){.name = "pair", .type = COLUMN_UINT8, .dimensions = 1, .shape = {3}, .item_bytes = 3};
    return config;
}

static struct table *make(const struct table_config *config)
{
    struct table *table = table_new(config, &error);
    CHECK(table);
    return table;
}

/* Adds n items whose columns hold first, first + 1, … */
static int add(struct table *table, uint32_t n, uint64_t first, const double *priorities, uint64_t *ids)
{
    struct reservation *reservation = table_reserve(table, n, &error);
    if (!reservation) {
        return -1;
    }
    uint64_t *values = malloc(n * sizeof *values);
    uint8_t *pairs = malloc(n * 3);
    for (uint32_t i = 0; i < n; i++) {
        values[i] = first + i;
        memset(pairs + i * 3, (int)(uint8_t)(first + i), 3);
    }
    reservation_fill(reservation, 0, values);
    reservation_fill(reservation, 1, pairs);
    free(values);
    free(pairs);
    int refused = table_commit(table, reservation, priorities, ids, &error);
    if (refused) {
        reservation_release(reservation);
    }
    return refused;
}

static void adds_and_samples(void)
{
    struct table_config config = small_config(10, SAMPLER_PRIORITIZED);
    struct table *table = make(&config);
    uint64_t ids[4], drawn[64], values[64];
    uint32_t slots[64];
    double p[64];
    float w[64];
    double priorities[4] = {1, 2, 0, 5};
    CHECK(add(table, 4, 100, priorities, ids) == 0);
    CHECK(table_sample(table, 64, 0.5, slots, drawn, p, w, &error) == 0);
    table_gather(table, 0, slots, 64, values);
    for (int i = 0; i < 64; i++) {
        double priority = priorities[values[i] - 100];
        CHECK(priority > 0 && drawn[i] == ids[values[i] - 100]);
        CHECK(fabs(p[i] - priority / 8) < 1e-12);
        CHECK(fabsf(w[i] - (float)pow(1 / priority, 0.5)) < 1e-6f);
    }
    table_unpin(table, slots, 64);
    table_free(table);
}

int main(void)
{
    RUN(adds_and_samples);
    return 0;
}
